"""Rows between the host's memory and a device: by threads, through pinned memory in pieces.

A GPU copies memory that is not pinned at a fraction of what its bus can, and waits for it. So
threads move rows through pinned pieces that are kept from call to call: some pieces are under way
while others are filled or emptied, of one chunk of a cloud as of many.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Rows = Tensor | slice  # int64 (rows,) on the host, or a range of them

# What streaming was tuned by. Threads: a bus is full long before 64 cores are, and each takes 0.1
# to 0.2 ms to start. Bytes of a piece: as few as are worth a task, as many as a cache holds.
WORKERS = 12
LEAST_PIECE, MOST_PIECE = 1 << 20, 1 << 23
PIECES_OF_WORKER = 2  # one under way while the other one is filled
TASKS_OF_WORKER = 1  # of one call, at least, where these are of the least size or larger


def staging(device: Any) -> Staging:
    """That of a device, kept with its threads and its memory, 256 MB pinned at most by default."""
    import torch

    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return _kept(device, min(WORKERS, torch.get_num_threads()), os.getpid())


@lru_cache
def _kept(device: Any, workers: int, process: int) -> Staging:
    # Of this process: a fork has none of the threads.
    return Staging(device, workers)


class Staging:
    """Threads and pinned memory that carry rows to a device and back.

    Args:
        device: a GPU; or a CPU, whose rows are copied at once.
        workers: number of threads.
        staged: whether rows go through pieces. By default on a GPU alone.

    Any number of threads may call it. What is taken from a GPU is what its current stream will have
    made; what is brought there, the current stream waits for.
    """

    def __init__(self, device: Any, workers: int, *, staged: bool | None = None) -> None:
        import torch

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
        import torch

        shape = _count(part), *array.shape[1:]
        with _on(self._inward):
            there = torch.empty(shape, dtype=array.dtype, device=self.device)
            if isinstance(part, slice) and self._is_ready(array):
                there.copy_(array[part], non_blocking=True)
                return Arriving(there, [], self._inward)
        source = as_rows(array)
        tasks = [
            self.threads.submit(self._bring, source, _some(part, piece), there[piece])
            for piece in self._cut(there)
        ]
        return Arriving(there, tasks, self._inward)

    def to_host(self, made: Tensor, array: Tensor, part: Rows) -> list[Future[None]]:
        """Write rows of the device to rows of an array on the host: tasks, to :func:`finish`."""
        import torch

        if self._outward is not None:
            self._outward.wait_stream(torch.cuda.current_stream(self.device))
        target = as_rows(array)
        return [
            self.threads.submit(self._put, made[piece], target, _some(part, piece))
            for piece in self._cut(made)
        ]

    def _is_ready(self, array: Tensor) -> bool:
        """Whether a GPU reads the user's memory itself."""
        return self._inward is not None and array.is_contiguous() and array.is_pinned()

    def _cut(self, there: Tensor) -> Iterator[slice]:
        """The pieces of some rows: each worker has some to do, if that is worth a task."""
        rows = len(there)
        if not rows:
            return
        row = max(1, there.element_size() * there[0].numel())
        share = -(-rows * row // (self.workers * TASKS_OF_WORKER))
        step = max(1, min(max(share, LEAST_PIECE), MOST_PIECE) // row)
        for first in range(0, rows, step):
            yield slice(first, min(first + step, rows))

    def _bring(self, source: np.ndarray, rows: np.ndarray | slice, there: Tensor) -> None:
        import torch

        # A thread knows nothing of the caller's mode; this one may write to tensors of any.
        with torch.inference_mode():
            if not self.staged:
                _gather(source, rows, as_rows(there, source))
                return
            with self.pieces.borrowed(there) as (piece, room):
                _gather(source, rows, as_rows(room, source))
                with _on(self._inward):
                    there.copy_(room, non_blocking=True)
                    piece.leave()

    def _put(self, made: Tensor, target: np.ndarray, rows: np.ndarray | slice) -> None:
        import torch

        with torch.inference_mode():
            if not self.staged:
                target[rows] = as_rows(made.contiguous(), target)
                return
            with self.pieces.borrowed(made) as (piece, room):
                with _on(self._outward):
                    room.copy_(made, non_blocking=True)
                    piece.leave()
                piece.arrive()
                target[rows] = as_rows(room, target)


class Arriving:
    """Rows on their way to a device."""

    def __init__(self, there: Tensor, tasks: list[Future[None]], stream: Any) -> None:
        self.there, self.tasks, self.stream = there, tasks, stream

    def here(self) -> Tensor:
        """The rows: the device's current stream waits for those that are still under way."""
        finish(self.tasks)
        if self.stream is not None:
            import torch

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
    def borrowed(self, like: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        """A piece, and room for a tensor in it; waits for what last went through it."""
        piece = self._take()
        try:
            piece.arrive()
            yield piece, piece.room(like)
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
        import torch

        self.pinned = pinned
        self.memory = torch.empty(0, dtype=torch.uint8)
        self._event: Any = torch.cuda.Event() if pinned else None

    def room(self, like: Tensor) -> Tensor:
        """Memory of this piece as a tensor like another."""
        import torch

        size = like.element_size() * like.numel()
        if self.memory.numel() < size:
            whole = 1 << (size - 1).bit_length()
            self.memory = torch.empty(whole, dtype=torch.uint8, pin_memory=self.pinned)
        return self.memory[:size].view(like.dtype).view(like.shape)

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


def as_rows(tensor: Tensor, like: np.ndarray | None = None) -> np.ndarray:
    """The memory of a tensor on the host as NumPy's, an element for each row if rows are compact.

    If those of another array, ``like``, are such elements, too. They are copied as they are, of any
    dtype: 64 bytes to a place in 7 ns, where torch's ``index_copy_`` of 32 halves takes 27. And
    NumPy starts no team of OpenMP threads in each of ours, as torch does, in 50 ms.
    """
    import torch

    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    array = tensor.view(integers[tensor.element_size()]).numpy()
    if array.ndim != 2 or not array.size or array.strides[1] != array.itemsize:
        return array
    if like is not None and like.ndim == 2:
        return array
    return array.view(f"V{array.shape[1] * array.itemsize}")[:, 0]


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
    """What a GPU is told inside, it is told on a stream; nothing without one."""
    if stream is None:
        yield
        return
    import torch

    with torch.cuda.stream(stream):
        yield
