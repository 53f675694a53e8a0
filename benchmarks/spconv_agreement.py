"""How far apart two networks are that were written for spconv: one run by it, one by layoutconv.

Rows of strided layers have one order in spconv and another in layoutconv, so results are compared
cell by cell. Gradients are those of a loss with a random number for every feature of every cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Agreement(NamedTuple):
    """The largest errors, each over the largest number of what spconv has.

    ``inputs`` and ``weights`` are of gradients; of several tensors the worst counts. A tensor of
    zeros, of which neither side has more, agrees.
    """

    outputs: float
    inputs: float
    weights: float


class Run(NamedTuple):
    """What one side made: results in the order of their cells, and gradients by name."""

    outputs: list[Tensor]
    inputs: list[Tensor]
    weights: dict[str, Tensor]


def run(net: nn.Module, *inputs: Any, features: list[Tensor]) -> Run:
    """Call ``net`` and go back from its results, to ``features`` and to its parameters."""
    outputs = list(in_order(net(*inputs)))
    loss = torch.zeros((), dtype=torch.float64)
    for number, output in enumerate(outputs):
        if output.requires_grad:
            random = torch.Generator().manual_seed(number)
            weights = torch.randn(output.shape, generator=random, dtype=torch.float64)
            loss = loss + (output.double() * weights).sum()
    named = {name: p for name, p in net.named_parameters() if p.requires_grad}
    to = [*features, *named.values()]
    grads = [torch.zeros_like(t) for t in to]
    if loss.requires_grad:
        found = torch.autograd.grad(loss, to, allow_unused=True)
        grads = [z if g is None else g for z, g in zip(grads, found, strict=True)]
    count = len(features)
    weights_by_name = dict(zip(named, grads[count:], strict=True))
    return Run([o.detach() for o in outputs], grads[:count], weights_by_name)


def agreement(ours: Run, theirs: Run) -> Agreement:
    """Raises ``ValueError`` where the two have other cells, shapes or names."""
    if list(ours.weights) != list(theirs.weights):
        raise ValueError("the networks have parameters of different names")
    pairs = (
        (ours.outputs, theirs.outputs),
        (ours.inputs, theirs.inputs),
        (list(ours.weights.values()), list(theirs.weights.values())),
    )
    return Agreement(*(_worst(a, b) for a, b in pairs))


def in_order(result: Any) -> Iterator[Tensor]:
    """The tensors of a result, however they are nested; rows of sparse ones by their cells.

    The cells themselves come first, as floating numbers, so that both sides are compared in them.
    """
    if isinstance(result, Tensor):
        yield result
    elif hasattr(result, "indices") and hasattr(result, "replace_feature"):
        order = _by_cell(result.indices)
        yield result.indices[order].double()
        yield result.features[order]
    elif isinstance(result, Mapping):
        for value in result.values():
            yield from in_order(value)
    elif isinstance(result, list | tuple):
        for value in result:
            yield from in_order(value)


def _by_cell(cells: Tensor) -> Tensor:
    """Rows in lexicographic order of their cells; those of one cell stay in their order."""
    order = torch.arange(len(cells))
    for column in reversed(range(cells.shape[1])):
        order = order[cells[order, column].argsort(stable=True)]
    return order


def _worst(ours: list[Tensor], theirs: list[Tensor]) -> float:
    if [t.shape for t in ours] != [t.shape for t in theirs]:
        raise ValueError(f"{[tuple(t.shape) for t in ours]}, {[tuple(t.shape) for t in theirs]}")
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if not b.numel():
            continue
        error, largest = float((a.double() - b.double()).abs().max()), float(b.abs().max())
        if error != 0:
            worst = max(worst, error / largest if largest else float("inf"))
    return worst
