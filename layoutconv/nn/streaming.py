"""Run a submanifold layer over a cloud too large for a GPU: chunk by chunk, from host to host."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from ..base.progress import Progress
from ..errors import ArgumentError, ArgumentTypeError
from ..sparse import Chunks, SparseTensor
from ..sparse.stream.host import new_on_host, on_host
from ..sparse.stream.staging import Staging, finish, staging
from .sparse_modules import SubmConv1d, SubmConv2d, SubmConv3d, SubmConv4d

_LAYERS = (SubmConv1d, SubmConv2d, SubmConv3d, SubmConv4d)


@torch.no_grad()
def stream(
    layer: SubmConv1d | SubmConv2d | SubmConv3d | SubmConv4d,
    features: Any,
    chunks: Chunks,
    *,
    out: Any = None,
    progress: bool = True,
) -> Tensor:
    """Run a submanifold layer on a cloud of any number of voxels, in bounded memory.

    Chunks of the cloud go to the device one after another, with their halo, and the results come
    back to the host. The device holds ``chunks.max_rows`` rows at a time, their halo and their
    kernel map, and the results of the two chunks before. Rows pass through pinned memory in pieces:
    some pieces of a chunk are in transit while threads gather others. Later calls reuse that
    memory.

    Args:
        layer: with its weights on ``chunks.device``; its activation is applied.
        features: (rows, C), in the order of the cells that ``chunks`` were made from, in the
            layer's dtype: a tensor on the CPU, a NumPy array, or an ``np.memmap``. If
            ``chunks.order`` is None they are read front to back, and the device reads pinned memory
            directly.
        chunks: the cells, in chunks; the same for all layers of a network.
        out: receives the result, (rows, K) of the kind of ``features``; by default new memory.
        progress: whether to show progress in a line on a terminal.

    Returns the result on the host, (rows, K), row for row, without a gradient.

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
    y = new_on_host(shape, weight.dtype) if out is None else out
    y = _checked("out", y, shape, weight.dtype)
    if y.data_ptr() == x.data_ptr() and len(chunks):
        raise ArgumentError(
            "out", "memory that does not overlap the features", "the memory of the features"
        )
    options = {} if layer.offsets is not None else {"kernel_size": layer.kernel_size}
    maps = chunks.maps(**options, dilation=layer.dilation, offsets=layer.offsets)
    watched = Progress()
    watched.shown = watched.shown and progress
    move = staging(chunks.device)
    depthwise = layer.groups == layer.in_channels > 1  # its map has rows that are not sorted
    made: _Made | None = None  # of the last chunk: the device may still be computing it
    writing: _Made | None = None  # of the one before it
    # Threads always have work: while the device computes a chunk, and then the next one's map,
    # they write the results of the chunk before, and gather rows of the next one.
    try:
        with watched.step("stream"):
            for rows in chunks.ranges():
                own = move.bring(x, chunks.rows_of(rows))
                chunk = next(maps)
                found = chunk.kernel_map
                if chunks.device.type == "cuda" and not depthwise:
                    found.start()  # now, not when the layer needs it: its rows arrive only then
                halo = move.bring(x, chunks.rows_of(chunk.halo))
                if writing is not None:
                    finish(writing.tasks)
                    watched.tick(writing.rows.stop, len(chunks))
                if made is not None:
                    made.start(move, y, chunks)
                read = SparseTensor(_joined(own.here(), halo.here()), found.inputs)
                writing, made = made, _Made(rows, layer(read, kernel_map=found).features)
                del own, chunk, found, halo, read  # frees them before the next map is made
            if made is not None:
                made.start(move, y, chunks)
    finally:  # after an error, too, nothing may write to `out` any more
        finish([task for left in (writing, made) if left is not None for task in left.tasks])
    return y


class _Made:
    """The result of a chunk, on its way to the host."""

    def __init__(self, rows: range, features: Tensor) -> None:
        self.rows, self.features = rows, features
        self.tasks: list[Future[None]] = []

    def start(self, move: Staging, y: Tensor, chunks: Chunks) -> None:
        self.tasks = move.to_host(self.features, y, chunks.rows_of(self.rows))


def _joined(own: Tensor, halo: Tensor) -> Tensor:
    return torch.cat([own, halo]) if len(halo) else own


def _checked(name: str, array: Any, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    tensor = on_host(name, array).detach()
    if tuple(tensor.shape) != shape:
        raise ArgumentError(name, f"shape {shape}", f"shape {tuple(tensor.shape)}")
    if tensor.dtype != dtype:
        raise ArgumentTypeError(
            name, f"{dtype}, the dtype of the layer's weight", str(tensor.dtype)
        )
    return tensor
