"""A submanifold layer over a cloud that no GPU holds: chunk by chunk, from the host and back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ArgumentError, ArgumentTypeError
from ..progress import Progress
from ..sparse import Chunk, Chunks, SparseTensor
from ..sparse.chunks import on_host
from .sparse_modules import SubmConv1d, SubmConv2d, SubmConv3d, SubmConv4d

if TYPE_CHECKING:
    from torch import Tensor

    Rows = Tensor | slice

_LAYERS = (SubmConv1d, SubmConv2d, SubmConv3d, SubmConv4d)
_LEAST = 1 << 14  # rows that are worth a thread of their own


@torch.no_grad()
def stream(
    layer: SubmConv1d | SubmConv2d | SubmConv3d | SubmConv4d,
    features: Any,
    chunks: Chunks,
    *,
    out: Any = None,
    progress: bool = True,
) -> Tensor:
    """What a submanifold layer makes of a cloud of any number of voxels, in bounded memory.

    A chunk of the cloud after the other goes to the device, with its halo, and comes back to the
    host: the device holds ``chunks.max_rows`` rows at a time, their halo and their kernel map. The
    next chunk is fetched while the device is at one.

    Args:
        layer: with its weights on ``chunks.device``; its activation is applied.
        features: (rows, C), rows as those of the cells that ``chunks`` were made of, of the layer's
            dtype: a tensor on the CPU, a NumPy array, or an ``np.memmap``. They travel fastest from
            pinned memory, and are read front to back where cells are in the order of the curve.
        chunks: the cells, cut; the same for all layers of a network.
        out: where the result is written, (rows, K) as ``features``; by default new memory.
        progress: whether a line on a terminal says how far it is.

    Returns the result on the host, (rows, K), row for row. Without a gradient.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument.

    >>> import layoutconv as lc
    >>> cells = torch.tensor([[0, 5, 5, 6], [0, 1, 1, 1], [0, 5, 5, 5]], dtype=torch.int32)
    >>> layer = lc.nn.SubmConv3d(4, 8, 3)
    >>> chunks = lc.sparse.Chunks(cells, (9, 9, 9), batch_size=1, max_rows=2)
    >>> y = stream(layer, torch.ones(3, 4), chunks)
    >>> torch.allclose(y, layer(lc.SparseTensor(torch.ones(3, 4), cells, (9, 9, 9), 1)).features)
    True
    """
    if not isinstance(layer, _LAYERS):
        raise ArgumentTypeError("layer", "a SubmConv of layoutconv.nn", type(layer).__name__)
    if not isinstance(chunks, Chunks):
        raise ArgumentTypeError("chunks", "layoutconv.sparse.Chunks", type(chunks).__name__)
    weight = layer.weight
    if weight.device.type != chunks.device.type:
        raise ArgumentError("layer", f"weights on {chunks.device}", str(weight.device))
    if layer.rank != len(chunks.curve.shape):
        raise ArgumentError("layer", f"{len(chunks.curve.shape)} spatial modes", layer.rank)
    x = _checked("features", features, (len(chunks), layer.in_channels), weight.dtype)
    shape = len(chunks), layer.out_channels
    y = _checked("out", torch.empty(shape, dtype=weight.dtype) if out is None else out, shape,
                 weight.dtype)  # fmt: skip
    if y.data_ptr() == x.data_ptr() and len(chunks):
        raise ArgumentError("out", "memory other than that of the features", "the same")
    options = {} if layer.offsets is not None else {"kernel_size": layer.kernel_size}
    maps = chunks.maps(**options, dilation=layer.dilation, offsets=layer.offsets)
    watched = Progress()
    watched.shown = watched.shown and progress
    pending: _Pending | None = None
    # Rows in no order are read at the latency of memory: as many at once as there are threads.
    with watched.step("stream"), _workers() as threads:
        for chunk in maps:
            found = chunk.kernel_map
            read = SparseTensor(_read(x, chunk, chunks, threads), found.inputs)
            made = layer(read, kernel_map=found).features
            del read
            leaving = _Pending(chunk.rows, made)
            if pending is not None:
                pending.write(y, chunks, threads)
                watched.tick(pending.rows.stop, len(chunks))
            pending = leaving
            del chunk, found, made  # before the next map is made
        if pending is not None:
            pending.write(y, chunks, threads)
    return y


@contextmanager
def _workers() -> Iterator[ThreadPoolExecutor]:
    """Threads that each copy rows by themselves.

    A thread's first copy would start a team of OpenMP threads for it, as many as there are cores,
    and all of those together take 50 ms to come: one for each, then, itself.
    """
    count = torch.get_num_threads()
    threads = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
    try:
        with threads:
            yield threads
    finally:
        torch.set_num_threads(count)  # also for threads to come


class _Pending:
    """Rows of the result on their way to the host."""

    def __init__(self, rows: range, made: Tensor) -> None:
        self.rows, self.here, self.event = rows, made, None
        if made.is_cuda:
            self.here = torch.empty(made.shape, dtype=made.dtype, pin_memory=True)
            self.here.copy_(made, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()

    def write(self, y: Tensor, chunks: Chunks, threads: ThreadPoolExecutor) -> None:
        if self.event is not None:
            self.event.synchronize()
        rows = chunks.rows_of(self.rows)
        if isinstance(rows, slice):
            y[rows] = self.here
            return
        _every(threads, len(rows), lambda part: y.index_copy_(0, rows[part], self.here[part]))


def _read(x: Tensor, chunk: Chunk, chunks: Chunks, threads: ThreadPoolExecutor) -> Tensor:
    """What a chunk's map reads, on the device: its own rows, then its halo."""
    on_gpu = chunks.device.type == "cuda"
    count = len(chunk.rows)
    own, others = chunks.rows_of(chunk.rows), chunks.rows_of(chunk.halo)
    there = torch.empty((count + len(chunk.halo), x.shape[1]), dtype=x.dtype, pin_memory=on_gpu)
    if isinstance(own, slice):
        there[:count] = x[own]
    else:
        _gather(x, own, there[:count], threads)
    _gather(x, others, there[count:], threads)
    return there.to(chunks.device, non_blocking=True)


def _gather(x: Tensor, rows: Any, to: Tensor, threads: ThreadPoolExecutor) -> None:
    _every(threads, len(rows), lambda part: torch.index_select(x, 0, rows[part], out=to[part]))


def _every(threads: ThreadPoolExecutor, rows: int, call: Any) -> None:
    """Call with parts of the rows, in as many threads as are worth it."""
    piece = max(_LEAST, -(-rows // torch.get_num_threads()))
    parts = [slice(first, first + piece) for first in range(0, rows, piece)]
    for done in [threads.submit(call, part) for part in parts]:
        done.result()


def _checked(name: str, array: Any, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    tensor = on_host(name, array).detach()
    if tuple(tensor.shape) != shape:
        raise ArgumentError(name, f"shape {shape}", f"shape {tuple(tensor.shape)}")
    if tensor.dtype != dtype:
        raise ArgumentTypeError(name, f"{dtype}, as the layer's weight", str(tensor.dtype))
    return tensor
