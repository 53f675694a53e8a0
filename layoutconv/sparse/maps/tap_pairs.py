"""The pairs of rows that taps multiply, tap by tap: a filter's gradient sums over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ...base.dry_hooks import dry_hooks
from ...base.memory import maker
from ...base.torch_internals import in_shape
from ...errors import ArgumentError
from ..coords.graphs import refuse_in_graphs
from ..coords.row_plan import is_fixed_somewhere


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of an output row and an input row, in chunks that belong to one tap each.

    Args:
        outputs, inputs: int32 (chunks, chunk), the rows of each pair; -1 behind a chunk's last
            pair.
        lengths: int64 (taps,), the number of chunks of each tap. Their sum may be below the number
            of chunks: the chunks behind have no pairs, as in a CUDA graph, which does not count.
        chunk: pairs per chunk.

    Taps follow each other in order. The pairs of a tap, in the order of the output rows, go to its
    chunks round-robin, a run of them at a time (:func:`run_of`): CTAs that sum over chunks at the
    same time then read the same rows of the cloud, from L2, whatever their taps.
    """

    outputs: Tensor
    inputs: Tensor
    lengths: Tensor
    chunk: int


MOST_IN_A_RUN = 64  # pairs: a k-tile of 16 bits, two of tf32


def run_of(chunk: int) -> int:
    """Return how many consecutive pairs of a tap stay in a chunk: a power of two that divides it.

    >>> run_of(512), run_of(2560), run_of(48), run_of(25)
    (64, 64, 16, 1)
    """
    return min(MOST_IN_A_RUN, chunk & -chunk)


class Counts:
    """The number of pairs of each tap: on the device of the kernel map, and on the host.

    Args:
        there: int64 (taps,), on the map's device.
        here: the same numbers; None while a CUDA graph is captured, which reads nothing.
        coming: instead of ``here``, host memory to which they are being copied, and the event
            after the copy. Reading ``here`` waits for it.
    """

    def __init__(
        self,
        there: Tensor,
        here: tuple[int, ...] | None = None,
        coming: tuple[Tensor, Any] | None = None,
    ) -> None:
        self.there, self._here, self._coming = there, here, coming

    @property
    def here(self) -> tuple[int, ...] | None:
        """The numbers on the host, if they were read."""
        # A capture must not wait, not even for earlier work.
        if self._coming is not None and not is_captured(self.there):
            copy, event = self._coming
            event.synchronize()
            self._here = tuple(copy.tolist())
            self._coming = None
        return self._here


def counts_of(index: Tensor) -> Counts:
    """Count the pairs of each tap of a kernel map, int32 (outputs, taps); nothing waits yet.

    >>> import torch
    >>> counts_of(torch.tensor([[4, -1], [5, 0], [6, -1]], dtype=torch.int32)).here
    (3, 1)
    """
    return counts_of_each((index,))[0]


def counts_of_each(indices: Sequence[Tensor]) -> list[Counts]:
    """Do the same for several maps on one device, with one copy to the host.

    >>> import torch
    >>> one, other = torch.tensor([[0, -1]]).int(), torch.tensor([[0], [1]]).int()
    >>> [counts.here for counts in counts_of_each([one, other])]
    [(1, 0), (2,)]
    """
    first = indices[0]
    dry = dry_hooks.covers(first)
    if dry or not first.is_cuda:
        return [_counted_in_torch(index, dry=dry) for index in indices]
    refuse_in_graphs(first)
    taps = [index.shape[1] for index in indices]
    starts = list(accumulate(taps, initial=0))
    every = maker(first.device)((starts[-1],), (1,), torch.int64)
    parts = [((count,), (1,), start) for count, start in zip(taps, starts, strict=False)]
    there = [in_shape(every, *part) for part in parts]
    for index, found in zip(indices, there, strict=True):
        _on_gpu().counts(index, found)
    if is_captured(first):
        return list(map(Counts, there))
    copy = every.to("cpu", non_blocking=True)  # to pinned memory
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(first.device))
    here = [in_shape(copy, *part) for part in parts]
    return [Counts(own, None, (mine, event)) for own, mine in zip(there, here, strict=True)]


def _counted_in_torch(index: Tensor, *, dry: bool) -> Counts:
    if dry:
        dry_hooks.note(_on_gpu().counts, index)
    there = (index.T >= 0).sum(1)
    return Counts(there, tuple(there.tolist()))


@cache
def _on_gpu() -> Any:
    """Import kernels only for a GPU, and only once: an import statement takes 1 us per call."""
    from ...kernels.maps import pairs

    return pairs


def is_captured(index: Tensor) -> bool:
    """Return whether operations on a tensor are captured in a CUDA graph, or belong to the warm-up
    call before its capture, which loads the graph's kernels."""
    if not index.is_cuda:
        return False
    return is_fixed_somewhere() or torch.cuda.is_current_stream_capturing()


def pairs_of(index: Tensor, chunk: int, counts: Counts | None = None) -> Pairs:
    """Return the pairs of a kernel map, int32 (outputs, taps), in chunks of ``chunk``, at least 1.

    ``counts`` are those of the index, if they are known; else they are read from the device. While
    a CUDA graph is captured, and they are unknown, there are as many chunks as there could be.

    >>> import torch
    >>> found = pairs_of(torch.tensor([[4, -1], [5, 0], [6, -1]], dtype=torch.int32), 2)
    >>> found.outputs.tolist(), found.inputs.tolist(), found.lengths.tolist()
    ([[0, 1], [2, -1], [1, -1]], [[4, 5], [6, -1], [0, -1]], [2, 1])
    """

    if chunk < 1:
        raise ArgumentError("chunk", "a number of pairs >= 1", chunk)
    rows, taps = index.shape
    counts = counts_of(index) if counts is None else counts
    chunks = sum([-(-count // chunk) for count in counts.here or (rows,) * taps])
    if dry_hooks.covers(index):
        given = index, counts.there, chunk, run_of(chunk), chunks
        dry_hooks.note(_on_gpu().pairs, *given)
    elif index.is_cuda:
        of_taps = counts.there
        outputs, inputs, lengths = _on_gpu().pairs(index, of_taps, chunk, run_of(chunk), chunks)
        return Pairs(outputs, inputs, lengths, chunk)
    lengths = (counts.there + (chunk - 1)) // chunk
    outputs, inputs = _tap_by_tap(index, lengths, chunks * chunk, chunk)
    return Pairs(outputs.view(chunks, chunk), inputs.view(chunks, chunk), lengths, chunk)


def _tap_by_tap(index: Tensor, lengths: Tensor, size: int, chunk: int) -> tuple[Tensor, Tensor]:
    """Return the rows of all taps' pairs, with torch."""
    found = torch.full((2, size), -1, dtype=torch.int32, device=index.device)
    start, run = 0, run_of(chunk)
    for tap, length in enumerate(lengths.tolist()):
        own = (index[:, tap] >= 0).nonzero()[:, 0]
        of_tap = torch.full((2, length * chunk), -1, dtype=torch.int32, device=index.device)
        of_tap[0, : len(own)] = own
        of_tap[1, : len(own)] = index[:, tap].index_select(0, own)
        end = start + length * chunk
        in_turns = of_tap.view(2, chunk // run, length, run).transpose(1, 2)
        found[:, start:end] = in_turns.reshape(2, -1)
        start = end
    return found[0], found[1]
