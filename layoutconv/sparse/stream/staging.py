"""Rows between the host's memory and a device: by threads, through pinned memory in pieces.

A GPU copies memory that is not pinned at a fraction of what its bus can, and waits for it. So
threads move rows through pinned pieces that are kept from call to call: some pieces are under way
while others are filled or emptied, of one chunk of a cloud as of many.
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

# What streaming was tuned by. Threads: a bus is full long before 64 cores are. Bytes of a piece: as
# few as are worth a task, 30 us of the interpreter that all threads share; as many as a cache
# holds.
WORKERS = 12
PIECE_BYTES = 1 << 22, 1 << 23
PIECES_OF_WORKER = 2  # one under way while the other one is filled


def staging(device: Any, threads: int | None = None) -> Staging:
    """That of a device, kept with its threads and its memory, 256 MB pinned at most by default.

    It has at most as many as ``threads``, by default those of torch.
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return _kept(device, min(WORKERS, threads or torch.get_num_threads()), os.getpid())


@remembered(16)
def _kept(device: Any, workers: int, process: int) -> Staging:
    # Of this process: a fork has none of the threads.
    return Staging(device, workers)


class Staging:
    """Threads and pinned memory that carry rows to a device and back.

    Args:
        device: a GPU; or a CPU, whose rows are copied at once.
        workers: number of threads.
        staged: whether rows go through pieces. By default on a GPU alone.
        piece_bytes: of a piece, the least that several are cut for, and the most.

    Any number of threads may call it. What is taken from a GPU is what its current stream will have
    made; what is brought there, the current stream waits for.
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
        # Each way by itself: a bus has two, and neither waits for what is computed meanwhile.
        self._inward: Any = torch.cuda.Stream(self.device) if on_gpu else None
        self._outward: Any = torch.cuda.Stream(self.device) if on_gpu else None

    def bring(self, array: Tensor, part: Rows) -> Arriving:
        """Begin to bring rows (rows, ...) of an array on the host to the device."""
        shape = _count(part), *array.shape[1:]
        with to_be_kept():  # a thread, which knows nothing of the caller's mode, writes to it
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
        """Write rows of the device to rows of an array on the host: tasks, to :func:`finish`."""
        made, target = made.contiguous(), as_rows(array)
        if self._outward is not None:
            self._outward.wait_stream(torch.cuda.current_stream(self.device))
        calls = [
            partial(self._put, memory, target, _some(part, piece))
            for piece, memory in self._cut(made)
        ]
        return self._each(calls)

    def _each(self, calls: Sequence[Callable[[], None]]) -> list[Future[None]]:
        """Threads do it; if there is one thing to do, the caller, who would wait for a thread."""
        if len(calls) == 1:
            calls[0]()
            return []
        return [self.threads.submit(call) for call in calls]

    def _is_ready(self, array: Tensor) -> bool:
        """Return whether a GPU reads the user's memory itself."""
        return self._inward is not None and array.is_contiguous() and array.is_pinned()

    def _cut(self, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Even pieces of rows and their memory, uint8: one or more for each worker, if they are
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
    """Rows on their way to a device."""

    def __init__(self, there: Tensor, tasks: list[Future[None]], stream: Any) -> None:
        self.there, self.tasks, self.stream = there, tasks, stream

    def here(self) -> Tensor:
        """The rows: the device's current stream waits for those that are still under way."""
        finish(self.tasks)
        if self.stream is not None:
            current = torch.cuda.current_stream(self.there.device)
            current.wait_stream(self.stream)
            self.there.record_stream(current)
        return self.there


class Pieces:
    """At most so many pieces of memory, pinned or not; made when they are first wanted."""

    def __init__(self, most: int, *, pinned: bool) -> None:
        self.most, self.pinned = most, pinned
        self.made: list[Piece] = []
        self._free: SimpleQueue[Piece] = SimpleQueue()
        self._lock = Lock()

    @contextmanager
    def borrowed(self, size: int) -> Iterator[tuple[Piece, Tensor]]:
        """A piece, and so many bytes of it; waits for what last went through it."""
        piece = self._take()
        try:
            piece.arrive()
            yield piece, piece.room(size)
        finally:
            self._free.put(piece)

    def _take(self) -> Piece:
        try:
            return self._free.get_nowait()  # the one that left first
        except Empty:
            with self._lock:
                if len(self.made) < self.most:
                    self.made.append(Piece(self.pinned))
                    return self.made[-1]
        return self._free.get()


class Piece:
    """Some memory, and whether a GPU is still at it."""

    def __init__(self, pinned: bool) -> None:
        self.pinned = pinned
        self.memory = torch.empty(0, dtype=torch.uint8)
        self._event: Any = torch.cuda.Event() if pinned else None

    def room(self, size: int) -> Tensor:
        """Memory of this piece: uint8 (size,)."""
        if self.memory.numel() < size:
            whole = 1 << (size - 1).bit_length()
            self.memory = torch.empty(whole, dtype=torch.uint8, pin_memory=self.pinned)
        return self.memory[:size]

    def leave(self) -> None:
        """The current stream is at it."""
        if self._event is not None:
            self._event.record()

    def arrive(self) -> None:
        """Wait for whoever was at it; at once if nobody was."""
        if self._event is not None:
            self._event.synchronize()


def finish(tasks: list[Future[None]]) -> None:
    """Wait for all tasks, also where one fails; then raise what it raised."""
    wait(tasks)
    for task in tasks:
        task.result()


def as_rows(tensor: Tensor) -> np.ndarray:
    """The memory of a tensor on the host as NumPy's, an element for each row if rows are compact.

    Such elements are copied as they are, of any dtype: 64 bytes to a place in 7 ns, where torch's
    ``index_copy_`` of 32 halves takes 27. And NumPy starts no team of OpenMP threads in each of
    ours, as torch does, in 50 ms.
    """
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    array = tensor.view(integers[tensor.element_size()]).numpy()
    if array.ndim != 2 or not array.size or array.strides[1] != array.itemsize:
        return array
    return array.view(f"V{array.shape[1] * array.itemsize}")[:, 0]


def _rows_in(memory: Tensor, like: np.ndarray) -> np.ndarray:
    """Memory on the host, uint8, as rows like those of an array of :func:`as_rows`."""
    return memory.numpy().view(like.dtype).reshape(-1, *like.shape[1:])


def _gather(source: np.ndarray, rows: np.ndarray | slice, out: np.ndarray) -> None:
    if isinstance(rows, slice) or not source.flags.c_contiguous:
        out[...] = source[rows]
    else:
        # Of what is not contiguous `take` copies all; with "raise", which no row causes, `out`.
        source.take(rows, axis=0, out=out, mode="clip")


def _count(part: Rows) -> int:
    return part.stop - part.start if isinstance(part, slice) else len(part)


def _some(part: Rows, piece: slice) -> np.ndarray | slice:
    if isinstance(part, slice):
        return slice(part.start + piece.start, part.start + piece.stop)
    return part.numpy()[piece]


@contextmanager
def _on(stream: Any) -> Iterator[None]:
    """Return what a GPU is told inside, it is told on a stream; nothing without one."""
    if stream is None:
        yield
        return
    with torch.cuda.stream(stream):
        yield
