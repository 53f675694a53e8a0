"""Index buffers of sparse convolution: which row feeds which tap of which row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from .coordinates import check_coords, check_spatial_shape, key_strides, pack

if TYPE_CHECKING:
    from torch import Tensor

# Neighbours looked up at once: 8 taps of 500k rows. Bounds the int64 temporaries to about 100 MB.
_CHUNK = 1 << 22


def tap_offsets(
    kernel_size: int | Sequence[int], dilation: int | Sequence[int] = 1, rank: int = 3
) -> list[tuple[int, ...]]:
    """Offsets ``(dz, dy, dx)`` of the taps of a centred filter, in the order of the taps: x
    fastest.

    Tap ``s + S*(r + R*t)`` of a T x R x S filter has the offset ``((t - T//2) * dilation_z, (r -
    R//2) * dilation_y, (s - S//2) * dilation_x)``, so an even filter reaches one cell further down
    than up.

    >>> tap_offsets((1, 2, 3), dilation=(1, 1, 2))
    [(0, -1, -2), (0, -1, 0), (0, -1, 2), (0, 0, -2), (0, 0, 0), (0, 0, 2)]
    """
    sizes = _per_axis("kernel_size", kernel_size, rank)
    steps = _per_axis("dilation", dilation, rank)
    return list(
        product(
            *(
                [(tap - size // 2) * step for tap in range(size)]
                for size, step in zip(sizes, steps, strict=True)
            )
        )
    )


def submanifold_kernel_map(
    coords: Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    kernel_size: int | Sequence[int] = 3,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """The rows that the taps of a submanifold convolution read; its outputs are its inputs' cells.

    Args:
        coords: int32 (rows, 1 + rank), ``(batch, z, y, x)``, in any order, no cell twice.
        spatial_shape: extents ``(D, H, W)`` of the grid.
        batch_size: number of grids.
        kernel_size, dilation: one number, or one per axis as ``(z, y, x)``; taps as
            :func:`tap_offsets` orders them.

    Returns:
        int32 (rows, taps): the row of the cell at ``coords[row] + offset[tap]``, -1 where no row
        has that cell. Its strides are ``(1, rows)``: what consecutive rows read at one tap lies
        side by side in memory.

    Keys are sorted once and searched for, chunk by chunk of taps, with the same operations on the
    CPU and a GPU.

    Raises ``ArgumentError`` for a coordinate outside the grid, for a cell that two rows share (both
    are named), and for a grid of more cells than a 64-bit key can tell apart.

    >>> import torch
    >>> coords = torch.tensor([[0, 5, 5, 6], [0, 5, 5, 5]], dtype=torch.int32)
    >>> submanifold_kernel_map(coords, (9, 9, 9), 1, kernel_size=(1, 1, 3))
    tensor([[ 1,  0, -1],
            [-1,  1,  0]], dtype=torch.int32)
    """
    import torch

    shape = check_spatial_shape(spatial_shape, batch_size)
    check_coords(coords, shape, batch_size)
    rows = len(coords)
    if rows >= 2**31:
        raise ArgumentError("coords", "fewer than 2**31 rows", rows)
    offsets = tap_offsets(kernel_size, dilation, rank=len(shape))
    halo = [max(abs(offset[axis]) for offset in offsets) for axis in range(len(shape))]
    strides = key_strides(shape, batch_size, halo)
    sorted_keys, order = torch.sort(pack(coords, strides))
    _refuse_duplicates(sorted_keys, order, coords)

    kernel_map = torch.empty(len(offsets), rows, dtype=torch.int32, device=coords.device)
    deltas = sorted_keys.new_tensor(
        [
            sum(c * stride for c, stride in zip(offset, strides[1:], strict=True))
            for offset in offsets
        ]
    )
    taps_at_once = max(1, _CHUNK // max(1, rows))
    for start in range(0, len(offsets), taps_at_once) if rows else ():
        taps = slice(start, start + taps_at_once)
        # Asking in sorted order walks through sorted_keys front to back, which the caches like;
        # order undoes it.
        wanted = sorted_keys + deltas[taps, None]
        place = torch.searchsorted(sorted_keys, wanted).clamp_(max=rows - 1)
        found = torch.where(sorted_keys[place] == wanted, order[place], -1)
        kernel_map[taps, order] = found.int()
    return kernel_map.T


def dense_index(
    coords: Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    box: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Tensor:
    """The index buffer of a grid: the row that is stored at each of its cells.

    Args:
        coords: int32 (rows, 1 + rank), ``(batch, z, y, x)``, no cell twice.
        spatial_shape: extents ``(D, H, W)`` of the grid.
        batch_size: number N of grids.
        box: the part of the grid that is wanted, its first cell and the cell past its last, each
            ``(z, y, x)``. It may reach outside the grid, where no cell has a row. Without it, the
            whole grid.

    Returns:
        int32 (N, D, H, W) of the box, contiguous; -1 where there is no row.

    Raises ``ArgumentError`` for a coordinate outside the grid, for a cell that two rows share, and
    for a box of 2**31 cells or more.

    >>> import torch
    >>> coords = torch.tensor([[0, 0, 1, 2], [0, 0, 0, 1]], dtype=torch.int32)
    >>> dense_index(coords, (1, 2, 3), 1)
    tensor([[[[-1,  1, -1],
              [-1, -1,  0]]]], dtype=torch.int32)
    >>> dense_index(coords, (1, 2, 3), 1, box=((0, 1, 1), (1, 3, 4)))
    tensor([[[[-1,  0, -1],
              [-1, -1, -1]]]], dtype=torch.int32)
    """
    import torch

    shape = check_spatial_shape(spatial_shape, batch_size)
    check_coords(coords, shape, batch_size)
    low, high = box if box is not None else ((0,) * len(shape), shape)
    extents = [b - a for a, b in zip(low, high, strict=True)]
    if len(extents) != len(shape) or min(extents) < 0:
        raise ArgumentError("box", "a first cell and a cell past the last, (z, y, x) each", box)
    strides = key_strides(extents, batch_size)
    cells = batch_size * strides[0]
    if cells >= 2**31:
        raise ArgumentError("box", "fewer than 2**31 cells", f"{cells} in {tuple(extents)}")
    corner = coords.new_tensor([0, *low])
    past = coords.new_tensor([batch_size, *high])
    rows = ((coords >= corner) & (coords < past)).all(1).nonzero()[:, 0]
    index = torch.full((cells,), -1, dtype=torch.int32, device=coords.device)
    keys = pack(coords[rows] - corner, strides)
    index[keys] = rows.int()
    if (index[keys] != rows).any():
        _refuse_duplicates(*torch.sort(keys), coords[rows])
    return index.view(batch_size, *extents)


def _per_axis(name: str, value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(values) != rank or not all(isinstance(v, int) and v >= 1 for v in values):
        raise ArgumentError(name, f"a positive integer, or {rank} of them", value)
    return values


def _refuse_duplicates(sorted_keys: Tensor, order: Tensor, coords: Tensor) -> None:
    twice = sorted_keys[1:] == sorted_keys[:-1]
    if twice.any():
        at = int(twice.nonzero()[0])
        one, other = sorted(order[at : at + 2].tolist())
        raise ArgumentError(
            "coords",
            "no cell twice",
            f"{coords[one].tolist()} in rows {one} and {other} ({int(twice.sum())} repeat a cell)",
        )
