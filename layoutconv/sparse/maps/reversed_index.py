"""The index of a kernel map's inverse, from the map's own index."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import torch

from ...base.dry_hooks import dry_hooks
from ..coords.graphs import refuse_in_graphs

if TYPE_CHECKING:
    from torch import Tensor


def reversed_index(index: Tensor, rows: int, order: Tensor | None = None) -> Tensor:
    """Return int32 (rows, taps): the row of ``index`` whose entry at a tap is this row, or -1.

    With an ``order``, int32 (outputs,), ``index[i]`` is that of row ``order[i]``.

    >>> import torch
    >>> reversed_index(torch.tensor([[1, -1], [0, 1]], dtype=torch.int32), 2)
    tensor([[ 1, -1],
            [ 0,  1]], dtype=torch.int32)
    """
    if dry_hooks.covers(index):
        dry_hooks.note(_on_gpu(), index, rows, order)
    elif index.is_cuda:
        refuse_in_graphs(index)
        made: Tensor = _on_gpu()(index, rows, order)
        return made
    count, taps = index.shape
    # An extra place takes absent entries. Tap by tap, so that a tap fits in caches: a third of the
    # time (89k rows, 27 taps).
    found = torch.full((taps * rows + 1,), -1, dtype=torch.int32, device=index.device)
    own = order
    if own is None:
        own = torch.arange(count, dtype=torch.int32, device=index.device)
    for tap in range(taps):
        fed = index[:, tap]
        place = torch.where(fed >= 0, fed.long() + rows * tap, taps * rows)
        found.scatter_(0, place, own)
    return found[: taps * rows].view(taps, rows).T


@cache
def _on_gpu() -> Callable[..., Tensor]:
    """Import kernels only for a GPU, and only once: an import statement takes 1 us per call."""
    from ...kernels.maps import inverse

    return inverse.reversed_index


# -- as an operator, for graphs of torch.compile and torch.export ----------------------------------

torch.library.define(
    "layoutconv::reversed_index",
    "(Tensor index, SymInt rows) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)


@torch.library.impl("layoutconv::reversed_index", ("cpu", "cuda"))
def _reversed_index(index: Tensor, rows: int) -> Tensor:
    return reversed_index(index, rows)


@torch.library.register_fake("layoutconv::reversed_index")
def _fake_reversed_index(index: Tensor, rows: int) -> Tensor:
    return index.new_empty((index.shape[1], rows)).T
