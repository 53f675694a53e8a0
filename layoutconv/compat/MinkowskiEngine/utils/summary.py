"""A table of a network's layers, their results and parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ....errors import ArgumentTypeError


class _Row(NamedTuple):
    layer: str
    shape: str
    parameters: str


def summary(model: torch.nn.Module, summary_input: Any) -> tuple[int, int]:
    """Print the layers of a network in the order of a call, and count its parameters.

    Args:
        model: the network; its mode does not change, so norms in training count the call.
        summary_input: the input of the call.

    Returns the number of parameters, each counted once, and how many of them have a gradient.

    >>> import layoutconv.compat.MinkowskiEngine as ME
    >>> x = ME.SparseTensor(torch.ones(2, 3), torch.tensor([[0, 1, 1], [0, 2, 1]]).int())
    >>> ME.utils.summary(ME.MinkowskiLinear(3, 8), x)
    Layer              Result  Parameters
    Linear-1           [2, 8]          32
    MinkowskiLinear-2  [2, 8]           0
    32 parameters, 32 of them trainable
    (32, 32)
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentTypeError("model", "a torch.nn.Module", type(model).__name__)
    rows: list[_Row] = []

    def note(layer: torch.nn.Module, _: Any, result: Any) -> None:
        own = sum(p.numel() for p in layer.parameters(recurse=False))
        shapes = ", ".join(str(list(shape)) for shape in _shapes(result))
        rows.append(_Row(f"{type(layer).__name__}-{len(rows) + 1}", shapes, f"{own:,}"))

    containers = torch.nn.Sequential, torch.nn.ModuleList
    layers = [layer for layer in model.modules() if not isinstance(layer, containers)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        model(summary_input)
    finally:
        for hook in hooks:
            hook.remove()
    counts = [(p.numel(), p.requires_grad) for p in model.parameters()]
    total = sum(count for count, _ in counts)
    trainable = sum(count for count, needed in counts if needed)
    table = [_Row("Layer", "Result", "Parameters"), *rows]
    wide = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print(f"{row.layer:<{wide[0]}}  {row.shape:>{wide[1]}}  {row.parameters:>{wide[2]}}")
    print(f"{total:,} parameters, {trainable:,} of them trainable")
    return total, trainable


def _shapes(result: Any) -> Iterator[Any]:
    """Return the shapes of a layer's results: tensors, also in lists and tuples."""
    if isinstance(result, list | tuple):
        for one in result:
            yield from _shapes(one)
    elif hasattr(result, "shape"):
        yield result.shape
