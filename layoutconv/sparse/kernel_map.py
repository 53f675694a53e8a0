"""Kernel maps, the index buffers of sparse convolution: which row feeds which tap of which row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..conv.problem import Padding, padding_pairs
from ..errors import ArgumentError, ArgumentTypeError
from .coordinates import Coordinates
from .order import by_taps
from .pairs import Pairs, pairs_of
from .reached import reached
from .taps import Ints, Taps, per_axis

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(eq=False)
class KernelMap:
    """Which row of the inputs a tap of a row of the outputs reads.

    Args:
        inputs, outputs: the cells of both.
        taps: extents of the filter's modes, ``(T, R, S)``; ``(taps,)`` of a set of offsets.
        index: int32 (outputs, taps): a row of the inputs, -1 where there is none. Its strides are
            ``(1, outputs)``: what consecutive rows read at one tap lies side by side in memory.
        mirrored: whether inputs and outputs are the same cells, and tap ``taps - 1 - t`` reads in
            the direction opposite to tap ``t``: then the map's ``inverse`` is the map itself, read
            with its taps backwards.

    It is made by :func:`submanifold_map`, :func:`strided_map` and :func:`transposed_map`, and by a
    user from an ``index`` of his own. What is derived from it, is derived once and kept.
    """

    inputs: Coordinates
    outputs: Coordinates
    taps: tuple[int, ...]
    index: Tensor
    mirrored: bool = False
    views: dict[Any, Any] = field(default_factory=dict, repr=False)
    _pairs: dict[int, Pairs] = field(default_factory=dict, repr=False)
    _inverse: KernelMap | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        import torch

        if self.index.dtype != torch.int32:
            raise ArgumentTypeError("index", "a torch tensor of int32", self.index.dtype)
        count = 1
        for extent in self.taps:
            count *= extent
        if tuple(self.index.shape) != (len(self.outputs), count):
            expected = f"({len(self.outputs)}, {count}), rows of the outputs and taps"
            raise ArgumentError("index", expected, tuple(self.index.shape))

    def __repr__(self) -> str:
        rows = f"{len(self.inputs)} -> {len(self.outputs)} rows"
        return f"KernelMap({rows}, taps={self.taps}{', mirrored' if self.mirrored else ''})"

    @property
    def inverse(self) -> KernelMap:
        """The map with the roles of inputs and outputs exchanged; its inverse is this one.

        Its ``index``, int32 (inputs, taps), says which row of the outputs a tap of an input feeds.
        """
        if self._inverse is None:
            if self.mirrored:
                index = self.index.T.flip(0).T
            else:
                index = reversed_index(self.index, len(self.inputs))
            self._inverse = KernelMap(self.outputs, self.inputs, self.taps, index, self.mirrored)
            self._inverse._inverse = self
        return self._inverse

    @cached_property
    def sorted(self) -> tuple[Tensor, Tensor]:
        """``index`` with rows that have the same taps side by side, and which rows those are.

        (index int32 (outputs, taps), order int32 (outputs,)): ``index[i]`` is that of row
        ``order[i]``. Tiles of neighbouring rows then leave out the taps that none of them has.
        """
        return by_taps(self.index)

    def pairs(self, chunk: int) -> Pairs:
        """The pairs of rows that each tap multiplies, in chunks of one tap each."""
        if chunk not in self._pairs:
            self._pairs[chunk] = pairs_of(self.index, chunk)
        return self._pairs[chunk]


def submanifold_map(
    coordinates: Coordinates,
    kernel_size: Ints = 3,
    dilation: Ints = 1,
    offsets: Sequence[Sequence[int]] | None = None,
) -> KernelMap:
    """The map of a submanifold convolution, whose outputs are its inputs' cells, row for row.

    Args:
        coordinates: the cells.
        kernel_size, dilation: a number, or one per spatial mode as ``(z, y, x)``; taps as
            :func:`tap_offsets` orders them. An even filter reaches one cell further down than up.
        offsets: instead of those, a cell ``(dz, dy, dx)`` for each tap, none twice.

    Of taps that lie opposite to each other, one is looked up. The same call with the same
    ``coordinates`` returns the same map.

    Raises :class:`~layoutconv.errors.ArgumentError` for a coordinate outside the grid, for a cell
    that two rows share (both are named), and for a grid of 2**63 cells or more.

    >>> import torch
    >>> cells = torch.tensor([[0, 5, 5, 6], [0, 5, 5, 5]], dtype=torch.int32)
    >>> submanifold_map(Coordinates(cells, (9, 9, 9), 1), kernel_size=(1, 1, 3)).index
    tensor([[ 1,  0, -1],
            [-1,  1,  0]], dtype=torch.int32)
    """
    taps = Taps.centred(coordinates.rank, kernel_size, dilation, offsets)
    found = coordinates.maps.get(taps)
    if found is None:
        table = coordinates.check().table
        if taps.mirrored:
            index = table.search_own(taps.offsets)
        else:
            index = table.search(coordinates.cells, taps.stride, taps.offsets)
        found = KernelMap(coordinates, coordinates, taps.extents, index, taps.mirrored)
        coordinates.maps[taps] = found
    return found


def strided_map(
    coordinates: Coordinates,
    kernel_size: Ints = 3,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    *,
    offsets: Sequence[Sequence[int]] | None = None,
    spatial_shape: Sequence[int] | None = None,
    outputs: Coordinates | None = None,
    capacity: int | None = None,
) -> KernelMap:
    """The map of a convolution whose outputs are all cells that read some input.

    Output cell ``y`` reads input cell ``y * stride + t * dilation - padding`` for every tap ``t``;
    the outputs' grid is a dense convolution's. Its cells are in lexicographic order ``(batch, z, y,
    x)``.

    Args:
        coordinates: the inputs' cells.
        kernel_size, stride, padding, dilation: as of :class:`~layoutconv.conv.ConvProblem`, for 1
            to 4 spatial modes.
        offsets: instead of ``kernel_size``, ``padding`` and ``dilation``: a cell for each tap,
            added to ``y * stride``.
        spatial_shape: the extents of the outputs' grid, in place of the dense convolution's; with
            ``offsets``, ``ceil(extent / stride)`` by default.
        outputs: the cells that are computed, in place of all that read something.
        capacity: how many rows the outputs get, whatever their number: rows without a cell have
            the batch -1. The host then does not wait for the device; where there are more cells,
            the first are kept.

    The same call with the same ``coordinates`` returns the same map.

    Raises :class:`~layoutconv.errors.ArgumentError` as :func:`submanifold_map`, and for a filter
    that does not fit into the padded grid.

    >>> import torch
    >>> cells = torch.tensor([[0, 0], [0, 3], [0, 4]], dtype=torch.int32)
    >>> found = strided_map(Coordinates(cells, (6,), 1), kernel_size=2, stride=2)
    >>> found.outputs.cells.tolist(), found.outputs.spatial_shape
    ([[0, 0], [0, 1], [0, 2]], (3,))
    >>> found.index
    tensor([[ 0, -1],
            [-1,  1],
            [ 2, -1]], dtype=torch.int32)
    """
    rank = coordinates.rank
    taps = Taps.strided(rank, kernel_size, stride, padding, dilation, offsets)
    if spatial_shape is not None:
        shape = tuple(spatial_shape)
    elif offsets is not None:
        shape = tuple(
            -(-e // s) for e, s in zip(coordinates.spatial_shape, taps.stride, strict=True)
        )
    else:
        shape = _strided_shape(coordinates.spatial_shape, taps, padding, dilation)
    key = "strided", taps, shape, None if outputs is None else id(outputs), capacity
    found = coordinates.maps.get(key)
    if found is None:
        table = coordinates.check().table
        made = outputs
        if made is None:
            made = reached(coordinates, taps, shape, capacity, transposed=False)
        index = table.search(made.cells, taps.stride, taps.offsets)
        found = coordinates.maps[key] = KernelMap(coordinates, made, taps.extents, index)
        if outputs is None:
            made.origin = found
    return found


def transposed_map(
    coordinates: Coordinates,
    kernel_size: Ints = 2,
    stride: Ints = 2,
    padding: Padding = 0,
    output_padding: Ints = 0,
    dilation: Ints = 1,
    *,
    offsets: Sequence[Sequence[int]] | None = None,
    spatial_shape: Sequence[int] | None = None,
    outputs: Coordinates | None = None,
    capacity: int | None = None,
) -> KernelMap:
    """The map of a transposed convolution: of the gradient of a convolution's inputs.

    Input cell ``x`` feeds output cell ``x * stride + t * dilation - padding`` for every tap ``t``.
    Without ``outputs`` it is generative: its outputs are all cells that some input feeds, in
    lexicographic order.

    Args:
        coordinates: the inputs' cells, the coarser grid.
        kernel_size, stride, padding, output_padding, dilation: as of
            ``torch.nn.ConvTranspose3d``, for 1 to 4 spatial modes.
        offsets, spatial_shape, outputs, capacity: as of :func:`strided_map`; with ``offsets``, the
            outputs' grid is ``stride`` times the inputs' by default.

    Raises :class:`~layoutconv.errors.ArgumentError` as :func:`strided_map`.

    >>> import torch
    >>> cells = torch.tensor([[0, 0], [0, 2]], dtype=torch.int32)
    >>> found = transposed_map(Coordinates(cells, (3,), 1), kernel_size=2, stride=2)
    >>> found.outputs.cells.tolist(), found.outputs.spatial_shape
    ([[0, 0], [0, 1], [0, 4], [0, 5]], (6,))
    >>> found.index.T
    tensor([[ 0, -1,  1, -1],
            [-1,  0, -1,  1]], dtype=torch.int32)
    """
    rank = coordinates.rank
    taps = Taps.strided(rank, kernel_size, stride, padding, dilation, offsets)
    if spatial_shape is not None:
        shape = tuple(spatial_shape)
    elif offsets is not None:
        shape = tuple(e * s for e, s in zip(coordinates.spatial_shape, taps.stride, strict=True))
    else:
        more = per_axis("output_padding", output_padding, rank, least=0)
        shape = _transposed_shape(coordinates.spatial_shape, taps, padding, dilation, more)
    key = "transposed", taps, shape, None if outputs is None else id(outputs), capacity
    found = coordinates.maps.get(key)
    if found is None:
        coordinates.check()
        made = outputs
        if made is None:
            made = reached(coordinates, taps, shape, capacity, transposed=True)
        table = made.check().table
        feeds = table.search(coordinates.cells, taps.stride, taps.offsets)
        back = KernelMap(made, coordinates, taps.extents, feeds)
        found = coordinates.maps[key] = back.inverse
        if outputs is None:
            made.origin = found
    return found


def reversed_index(index: Tensor, rows: int) -> Tensor:
    """int32 (rows, taps): the row of ``index`` whose entry at a tap is this row, -1 if none is.

    >>> import torch
    >>> reversed_index(torch.tensor([[1, -1], [0, 1]], dtype=torch.int32), 2)
    tensor([[ 1, -1],
            [ 0,  1]], dtype=torch.int32)
    """
    import torch

    count, taps = index.shape
    place = index.T.long() + rows * torch.arange(taps, device=index.device)[:, None]
    place = torch.where(index.T >= 0, place, taps * rows)  # one past the end: thrown away
    found = torch.full((taps * rows + 1,), -1, dtype=torch.int32, device=index.device)
    own = torch.arange(count, dtype=torch.int32, device=index.device).expand(taps, count)
    found.scatter_(0, place.reshape(-1), own.reshape(-1))
    return found[: taps * rows].view(taps, rows).T


def _strided_shape(
    shape: Sequence[int], taps: Taps, padding: Padding, dilation: Ints
) -> tuple[int, ...]:
    rank = len(shape)
    steps = per_axis("dilation", dilation, rank)
    modes = zip(shape, taps.extents, taps.stride, padding_pairs(padding, rank), steps, strict=True)
    found = tuple((e + sum(p) - d * (t - 1) - 1) // s + 1 for e, t, s, p, d in modes)
    if min(found) < 1 and min(shape) > 0:
        expected = f"a filter that fits into the padded grid {tuple(shape)}"
        raise ArgumentError("kernel_size", expected, taps.extents)
    return tuple(max(0, extent) for extent in found)


def _transposed_shape(
    shape: Sequence[int], taps: Taps, padding: Padding, dilation: Ints, more: Sequence[int]
) -> tuple[int, ...]:
    rank = len(shape)
    steps = per_axis("dilation", dilation, rank)
    pairs = padding_pairs(padding, rank)
    modes = zip(shape, taps.extents, taps.stride, pairs, steps, more, strict=True)
    found = tuple((e - 1) * s - sum(p) + d * (t - 1) + o + 1 for e, t, s, p, d, o in modes)
    if min(found) < 1 and min(shape) > 0:
        raise ArgumentError("padding", f"less than the {taps.extents} taps reach", padding)
    return tuple(max(0, extent) for extent in found)
