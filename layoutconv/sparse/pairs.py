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


def pairs_of(index: Tensor, chunk: int) -> Pairs:
    """The pairs of a kernel map, int32 (outputs, taps), in chunks of ``chunk``, at least 1.

    How many chunks there are is read from the device, once; while a CUDA graph is captured there
    are as many as there could be.

    >>> import torch
    >>> found = pairs_of(torch.tensor([[4, -1], [5, 0], [6, -1]], dtype=torch.int32), 2)
    >>> found.outputs.tolist(), found.inputs.tolist(), found.lengths.tolist()
    ([[0, 1], [2, -1], [1, -1]], [[4, 5], [6, -1], [0, -1]], [2, 1])
    """
    import torch

    if chunk < 1:
        raise ArgumentError("chunk", "a number of pairs >= 1", chunk)
    rows, taps = index.shape
    there = index.T >= 0
    counts = there.sum(1)
    lengths = (counts + chunk - 1) // chunk
    if index.is_cuda and torch.cuda.is_current_stream_capturing():
        chunks = taps * -(-rows // chunk)
    else:
        chunks = int(lengths.sum())
    first = (lengths.cumsum(0) - lengths) * chunk
    found = torch.full((2, chunks * chunk + 1), -1, dtype=torch.int32, device=index.device)
    if index.is_cuda:
        place = torch.where(there, first[:, None] + there.cumsum(1) - 1, chunks * chunk)
        own = torch.arange(rows, dtype=torch.int32, device=index.device).expand(taps, rows)
        for values, target in zip((own, index.T), found, strict=True):
            target.scatter_(0, place.reshape(-1), values.reshape(-1))
    else:
        for tap, start, count in zip(range(taps), first.tolist(), counts.tolist(), strict=True):
            own = there[tap].nonzero()[:, 0]
            found[0, start : start + count] = own
            found[1, start : start + count] = index[:, tap].index_select(0, own)
    outputs, inputs = found[:, :-1].contiguous().view(2, chunks, chunk)
    return Pairs(outputs, inputs, lengths, chunk)
