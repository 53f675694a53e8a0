"""Copies of rows between host and device: by threads, through pieces of pinned memory.

A GPU copies unpinned memory at a fraction of its bus's speed, and synchronously. So threads move
rows through pinned pieces that are kept from call to call: some pieces are in flight while others
are filled or emptied, for one chunk of a cloud as for many.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...base.caches import remembered
from ...base.outlive import to_be_kept

Rows = Tensor | slice  # int32 or int64 (rows,) on the host, or a range of them

# Tuned for streaming. Threads: far fewer than 64 cores fill a bus. Bytes of a piece: at least worth
# a task, which takes 30 us of the interpreter that all threads share; at most what fits in a
# cache.
WORKERS = 12
PIECE_BYTES = 1 << 22, 1 << 23
PIECES_OF_WORKER = 2  # one in flight while the other is filled


def staging(device: Any, threads: int | None = None) -> Staging:
    """Return a device's staging, which keeps its threads and memory, 256 MB pinned by default.

    It has at most ``threads`` threads, by default torch's number.
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return _kept(device, min(WORKERS, threads or torch.get_num_threads()), os.getpid())


@remembered(16)
def _kept(device: Any, workers: int, process: int) -> Staging:
    # One per process: a fork has none of the threads.
    return Staging(device, workers)


class Staging:
    """Threads and pinned memory that carry rows to a device and back.

    Args:
        device: a GPU; or a CPU, where rows are copied directly.
        workers: number of threads.
        staged: whether rows go through pieces. By default only for a GPU.
        piece_bytes: bytes of a piece: the least when a copy has several, and the most.

    Any number of threads may call it. It copies from a GPU after all work on the current stream,
    and the current stream waits for what it copies to the GPU.
    """

    def __init__(
        self,
        device: Any,
        workers: int,
        *,
        staged: bool | None = None,
        piece_bytes: tuple[int, int] = PIECE_BYTES,
    ) -> None:
        self._piece_bytes = piece_bytes
        self.device, self.workers = torch.device(device), workers
        on_gpu = self.device.type == "cuda"
        self.staged = on_gpu if staged is None else staged
        self.threads = ThreadPoolExecutor(workers, "layoutconv-staging")
        self.pieces = Pieces(PIECES_OF_WORKER * workers, pinned=on_gpu)
        # A stream per direction: a bus has two, and neither copy waits for computations meanwhile.
        self._inward: Any = torch.cuda.Stream(self.device) if on_gpu else None
        self._outward: Any = torch.cuda.Stream(self.device) if on_gpu else None

    def bring(self, array: Tensor, part: Rows) -> Arriving:
        """Begin to copy rows (rows, ...) of an array on the host to the device."""
        shape = _count(part), *array.shape[1:]
        with to_be_kept():  # a thread, which knows no mode of the caller, writes to it
            with _on(self._inward):
                there = torch.empty(shape, dtype=array.dtype, device=self.device)
                if isinstance(part, slice) and self._is_ready(array):
                    there.copy_(array[part], non_blocking=True)
                    return Arriving(there, [], self._inward)
            source = as_rows(array)
            calls = [
                partial(self._bring, source, _some(part, piece), memory)
                for piece, memory in self._cut(there)
            ]
            return Arriving(there, self._each(calls), self._inward)

    def to_host(self, made: Tensor, array: Tensor, part: Rows) -> list[Future[None]]:
        """Write device rows to rows of an array on the host; return tasks for :func:`finish`."""
        made, target = made.contiguous(), as_rows(array)
        if self._outward is not None:
            self._outward.wait_stream(torch.cuda.current_stream(self.device))
        calls = [
            partial(self._put, memory, target, _some(part, piece))
            for piece, memory in self._cut(made)
        ]
        return self._each(calls)

    def _each(self, calls: Sequence[Callable[[], None]]) -> list[Future[None]]:
        """Run calls in threads; a single call in the caller, which would only wait for a thread."""
        if len(calls) == 1:
            calls[0]()
            return []
        return [self.threads.submit(call) for call in calls]

    def _is_ready(self, array: Tensor) -> bool:
        """Return whether a GPU can read the user's memory directly."""
        return self._inward is not None and array.is_contiguous() and array.is_pinned()

    def _cut(self, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield even pieces of rows and their memory, uint8: one or more per worker, if they are
        worth a task."""
        row = rows.element_size() * math.prod(rows.shape[1:])
        if not row or not len(rows):
            return
        memory = rows.flatten().view(torch.uint8)
        least, most = self._piece_bytes
        count = max(1, min(self.workers, len(memory) // least))
        step = max(1, min(-(-len(rows) // count), most // row))
        for first in range(0, len(rows), step):
            last = min(first + step, len(rows))
            yield slice(first, last), memory[first * row : last * row]

    def _bring(self, source: np.ndarray, rows: np.ndarray | slice, there: Tensor) -> None:
        if not self.staged:
            _gather(source, rows, _rows_in(there, source))
            return
        with self.pieces.borrowed(len(there)) as (piece, room):
            _gather(source, rows, _rows_in(room, source))
            with _on(self._inward):
                there.copy_(room, non_blocking=True)
                piece.leave()

    def _put(self, made: Tensor, target: np.ndarray, rows: np.ndarray | slice) -> None:
        if not self.staged:
            target[rows] = _rows_in(made, target)
            return
        with self.pieces.borrowed(len(made)) as (piece, room):
            with _on(self._outward):
                room.copy_(made, non_blocking=True)
                piece.leave()
            piece.arrive()
            target[rows] = _rows_in(room, target)


class Arriving:
    """Rows in flight to a device."""

    def __init__(self, there: Tensor, tasks: list[Future[None]], stream: Any) -> None:
        self.there, self.tasks, self.stream = there, tasks, stream

    def here(self) -> Tensor:
        """Return the rows: the device's current stream waits for those still in flight."""
        finish(self.tasks)
        if self.stream is not None:
            current = torch.cuda.current_stream(self.there.device)
            current.wait_stream(self.stream)
            self.there.record_stream(current)
        return self.there


class Pieces:
    """A pool of at most ``most`` pieces of memory, pinned or not, made on demand."""

    def __init__(self, most: int, *, pinned: bool) -> None:
        self.most, self.pinned = most, pinned
        self.made: list[StagingBuffer] = []
        self._free: SimpleQueue[StagingBuffer] = SimpleQueue()
        self._lock = Lock()

    @contextmanager
    def borrowed(self, size: int) -> Iterator[tuple[StagingBuffer, Tensor]]:
        """Lend a piece, and ``size`` bytes of it, once its last copy is done."""
        piece = self._take()
        try:
            piece.arrive()
            yield piece, piece.room(size)
        finally:
            self._free.put(piece)

    def _take(self) -> StagingBuffer:
        try:
            return self._free.get_nowait()  # the least recently used
        except Empty:
            with self._lock:
                if len(self.made) < self.most:
                    self.made.append(StagingBuffer(self.pinned))
                    return self.made[-1]
        return self._free.get()


class StagingBuffer:
    """A piece of memory, and an event after a GPU's last use of it."""

    def __init__(self, pinned: bool) -> None:
        self.pinned = pinned
        self.memory = torch.empty(0, dtype=torch.uint8)
        self._event: Any = torch.cuda.Event() if pinned else None

    def room(self, size: int) -> Tensor:
        """Return memory of this piece: uint8 (size,)."""
        if self.memory.numel() < size:
            whole = 1 << (size - 1).bit_length()
            self.memory = torch.empty(whole, dtype=torch.uint8, pin_memory=self.pinned)
        return self.memory[:size]

    def leave(self) -> None:
        """Record a use by the current stream."""
        if self._event is not None:
            self._event.record()

    def arrive(self) -> None:
        """Wait for the last recorded use."""
        if self._event is not None:
            self._event.synchronize()


def finish(tasks: list[Future[None]]) -> None:
    """Wait for all tasks, even if one fails; then raise its error."""
    wait(tasks)
    for task in tasks:
        task.result()


def as_rows(tensor: Tensor) -> np.ndarray:
    """View a host tensor as a NumPy array, with one element per row if rows are compact.

    Such elements are copied as raw bytes, for any dtype: 64 bytes take 7 ns, where torch's
    ``index_copy_`` of 32 halves takes 27. And NumPy starts no OpenMP threads in each of our
    threads, as torch does, in 50 ms.
    """
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    array = tensor.view(integers[tensor.element_size()]).numpy()
    if array.ndim != 2 or not array.size or array.strides[1] != array.itemsize:
        return array
    return array.view(f"V{array.shape[1] * array.itemsize}")[:, 0]


def _rows_in(memory: Tensor, like: np.ndarray) -> np.ndarray:
    """View host memory, uint8, as rows like those of an array from :func:`as_rows`."""
    return memory.numpy().view(like.dtype).reshape(-1, *like.shape[1:])


def _gather(source: np.ndarray, rows: np.ndarray | slice, out: np.ndarray) -> None:
    if isinstance(rows, slice) or not source.flags.c_contiguous:
        out[...] = source[rows]
    else:
        # `take` copies a source that is not contiguous, and, with mode "raise", `out`.
        source.take(rows, axis=0, out=out, mode="clip")


def _count(part: Rows) -> int:
    return part.stop - part.start if isinstance(part, slice) else len(part)


def _some(part: Rows, piece: slice) -> np.ndarray | slice:
    if isinstance(part, slice):
        return slice(part.start + piece.start, part.start + piece.stop)
    return part.numpy()[piece]


@contextmanager
def _on(stream: Any) -> Iterator[None]:
    """Run GPU work inside on a stream; do nothing without one."""
    if stream is None:
        yield
        return
    with torch.cuda.stream(stream):
        yield
