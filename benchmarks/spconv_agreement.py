"""Compare networks written for spconv, run by spconv and by layoutconv.

Rows of strided layers have one order in spconv and another in layoutconv, so results are compared
cell by cell. Gradients are those of a loss with a random number for every feature of every cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

NEGLIGIBLE = 1e-5  # of the largest gradient of all weights


class Agreement(NamedTuple):
    """The largest errors of one side, each over the largest number of the other's tensor.

    ``inputs`` and ``weights`` are of gradients; of several tensors the worst counts. A gradient
    that is zero but for rounding, as of a bias before a batch norm, is compared with the largest
    gradient of all weights.
    """

    outputs: float
    inputs: float
    weights: float


class Run(NamedTuple):
    """Results of one side, in the order of their cells, and gradients by name.

    ``signs`` are the numbers of positive results of each ReLU, by channel. Where those of two sides
    differ, rounding has put a number that is almost zero on the other side of it: then the two are
    at different sides of a kink, where gradients say nothing of each other.
    """

    outputs: list[Tensor]
    inputs: list[Tensor]
    weights: dict[str, Tensor]
    signs: list[Tensor]


def run(net: nn.Module, *inputs: Any, features: list[Tensor]) -> Run:
    """Call ``net`` and go back from its results, to ``features`` and to its parameters."""
    signs: list[Tensor] = []
    handles = [
        module.register_forward_hook(lambda module, args, y: signs.append(_positive(y)))
        for module in net.modules()
        if isinstance(module, nn.ReLU | nn.LeakyReLU)
    ]
    outputs = list(in_order(net(*inputs)))
    for handle in handles:
        handle.remove()
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
    by_name = dict(zip(named, grads[count:], strict=True))
    return Run([o.detach() for o in outputs], grads[:count], by_name, signs)


def same_signs(a: Run, b: Run) -> bool:
    """Return whether every ReLU lets as many numbers of a channel through on both sides."""
    return len(a.signs) == len(b.signs) and all(map(torch.equal, a.signs, b.signs))


def agreement(ours: Run, theirs: Run) -> Agreement:
    """Raises ``ValueError`` where the two have other cells, shapes or names."""
    if list(ours.weights) != list(theirs.weights):
        raise ValueError("the networks have parameters of different names")
    weights = list(theirs.weights.values())
    largest = max((float(w.abs().max()) for w in weights if w.numel()), default=0.0)
    return Agreement(
        _worst(ours.outputs, theirs.outputs),
        _worst(ours.inputs, theirs.inputs),
        _worst(list(ours.weights.values()), weights, largest),
    )


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


def _positive(y: Any) -> Tensor:
    """Count the positive numbers of each channel, of features or of a dense grid."""
    values = getattr(y, "features", y)
    return (values > 0).transpose(0, 1).flatten(1).sum(1)


def _worst(ours: list[Tensor], theirs: list[Tensor], of_all: float = 0.0) -> float:
    if [t.shape for t in ours] != [t.shape for t in theirs]:
        raise ValueError(f"{[tuple(t.shape) for t in ours]}, {[tuple(t.shape) for t in theirs]}")
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if not b.numel():
            continue
        error, largest = float((a.double() - b.double()).abs().max()), float(b.abs().max())
        if largest < NEGLIGIBLE * of_all:
            largest = of_all
        if error != 0:
            worst = max(worst, error / largest if largest else float("inf"))
    return worst
