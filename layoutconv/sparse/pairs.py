"""The pairs of rows that taps multiply, tap by tap: what a filter's gradient sums over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of an output's row and an input's, in chunks that belong to one tap each.

    Args:
        outputs, inputs: int32 (chunks, chunk), the rows of each pair; -1 where a chunk, the last
            of its tap, has no more pairs.
        lengths: int64 (taps,), how many chunks a tap has. Their sum may be below the number of
            chunks: those past it have no pair.
        chunk: pairs of a chunk.

    Taps follow each other in order, and the pairs of a tap in the order of the outputs' rows.
    """

    outputs: Tensor
    inputs: Tensor
    lengths: Tensor
    chunk: int


@dataclass(frozen=True, eq=False)
class Counts:
    """How many pairs each tap has: where the kernel map is, and on the host.

    Args:
        there: int64 (taps,), on the map's device.
        here: the same numbers; None while a CUDA graph is captured, which reads nothing.
    """

    there: Tensor
    here: tuple[int, ...] | None


def counts_of(index: Tensor) -> Counts:
    """How many pairs each tap of a kernel map, int32 (outputs, taps), has: one read of a device.

    >>> import torch
    >>> counts_of(torch.tensor([[4, -1], [5, 0], [6, -1]], dtype=torch.int32)).here
    (3, 1)
    """
    there = (index.T >= 0).sum(1)
    return Counts(there, None if is_captured(index) else tuple(there.tolist()))


def is_captured(index: Tensor) -> bool:
    """Whether what is done with a tensor becomes part of a CUDA graph."""
    import torch

    return index.is_cuda and torch.cuda.is_current_stream_capturing()


def pairs_of(index: Tensor, chunk: int, counts: Counts | None = None) -> Pairs:
    """The pairs of a kernel map, int32 (outputs, taps), in chunks of ``chunk``, at least 1.

    ``counts`` are those of the index, where they are known; else they are read from the device.
    While a CUDA graph is captured, and they are not known, there are as many chunks as there could
    be.

    >>> import torch
    >>> found = pairs_of(torch.tensor([[4, -1], [5, 0], [6, -1]], dtype=torch.int32), 2)
    >>> found.outputs.tolist(), found.inputs.tolist(), found.lengths.tolist()
    ([[0, 1], [2, -1], [1, -1]], [[4, 5], [6, -1], [0, -1]], [2, 1])
    """
    import torch

    if chunk < 1:
        raise ArgumentError("chunk", "a number of pairs >= 1", chunk)
    rows, taps = index.shape
    counts = counts_of(index) if counts is None else counts
    lengths = (counts.there + chunk - 1) // chunk
    chunks = sum(-(-count // chunk) for count in counts.here or (rows,) * taps)
    there = index.T >= 0
    first = (lengths.cumsum(0) - lengths) * chunk
    found = torch.full((2, chunks * chunk + 1), -1, dtype=torch.int32, device=index.device)
    if index.is_cuda:
        place = torch.where(there, first[:, None] + there.cumsum(1) - 1, chunks * chunk)
        own = torch.arange(rows, dtype=torch.int32, device=index.device).expand(taps, rows)
        for values, target in zip((own, index.T), found, strict=True):
            target.scatter_(0, place.reshape(-1), values.reshape(-1))
    else:
        numbers = counts.there.tolist()
        for tap, start, count in zip(range(taps), first.tolist(), numbers, strict=True):
            own = there[tap].nonzero()[:, 0]
            found[0, start : start + count] = own
            found[1, start : start + count] = index[:, tap].index_select(0, own)
    outputs, inputs = found[:, :-1].contiguous().view(2, chunks, chunk)
    return Pairs(outputs, inputs, lengths, chunk)
