"""Kernel maps, the index buffers of sparse convolution: which row feeds which tap of which row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from ...base.caches import remembered
from ...base.dry_hooks import dry_hooks
from ...base.outlive import keeping
from ...conv.problem import Ints, Padding, padding_pairs
from ...errors import ArgumentError, ArgumentTypeError, shown
from ..coords import row_plan
from ..coords.coordinates import Coordinates
from ..coords.graphs import is_compiling
from ..coords.keys import check_spatial_shape
from . import map_operators, repeated_maps
from .foresight import foresight
from .reached import reached
from .taps import Taps, frozen, per_axis, reached_box
from .together import Reached
from .two_way import KernelMap

__all__ = ["KernelMap", "strided_map", "submanifold_map", "transposed_map"]


_new: Any = tuple.__new__  # faster than a NamedTuple's own, which is Python


def submanifold_map(
    coordinates: Coordinates,
    kernel_size: Ints = 3,
    dilation: Ints = 1,
    offsets: Sequence[Sequence[int]] | None = None,
) -> KernelMap:
    """The map of a submanifold convolution: the output cells are the input cells, row for row.

    Args:
        coordinates: the cells.
        kernel_size, dilation: a number, or one per spatial mode as ``(z, y, x)``; taps as
            :func:`tap_offsets` orders them. An even filter reaches one cell further down than up.
        offsets: instead of those, a cell ``(dz, dy, dx)`` for each tap, none twice.

    Of two opposite taps only one is looked up. The same call with the same ``coordinates`` returns
    the same map.

    Raises :class:`~layoutconv.errors.ArgumentError` for a coordinate outside the grid, for a cell
    that two rows share (both are named), and for a grid of 2**63 cells or more.

    >>> import torch
    >>> cells = torch.tensor([[0, 5, 5, 6], [0, 5, 5, 5]], dtype=torch.int32)
    >>> submanifold_map(Coordinates(cells, (9, 9, 9), 1), kernel_size=(1, 1, 3)).index
    tensor([[ 1,  0, -1],
            [-1,  1,  0]], dtype=torch.int32)
    """
    rank = len(_check_coordinates(coordinates).spatial_shape)
    taps = Taps.centred(rank, kernel_size, dilation, offsets)
    found = coordinates.kept(taps)
    if found is None:
        found = _made(coordinates, taps, partial(_around, taps))
    return found


def _made(
    coordinates: Coordinates,
    key: Hashable,
    make: Callable[[Coordinates, Coordinates | None], KernelMap],
    outputs: Coordinates | None = None,
) -> KernelMap:
    """Return the map that ``make`` makes of these cells, kept under ``key``."""
    plan, known = row_plan.fixed(), coordinates._known
    if plan is not None:
        plan.join()  # this map was not foreseen
    elif outputs is None and not (known.made or known.run or coordinates._source):
        cells, foreseen = known.cells, None
        if cells.is_cuda or dry_hooks.covers(cells):
            foreseen = foresight.first(coordinates, key)
        if foreseen is not None:
            return foreseen
    found = keeping(make, coordinates, outputs)
    found = coordinates.keep(key, found, given=outputs is not None)
    if plan is not None:
        plan.made.append(row_plan.Made(coordinates, outputs, key, make, found))
    elif outputs is None and known.run is not None:
        run, level = known.run
        run.note(level, found, key)
    return found


def _around(taps: Taps, coordinates: Coordinates, _: Coordinates | None) -> KernelMap:
    """Return the map of ``taps`` around cells, which are checked if they have not been."""
    if is_compiling():
        return _traced(coordinates, coordinates, taps, mirrored=taps.is_mirrored())
    cells = coordinates.cells
    waits = (cells.is_cuda or dry_hooks.covers(cells)) and not coordinates.looked_at
    if not waits and coordinates.check().repeats is not None:
        return repeated_maps.around(coordinates, taps)
    found = KernelMap.of_search(coordinates, coordinates, taps, mirrored=taps.mirrored)
    if waits:
        found.start()  # the GPU works while the host waits for the check
        if coordinates.check().repeats is not None:
            return repeated_maps.around(coordinates, taps)
    return found


def _traced(
    inputs: Coordinates, outputs: Coordinates, taps: Taps, *, mirrored: bool = False
) -> KernelMap:
    """Return a map whose shape a tracer knows, by an operator."""
    index = map_operators.neighbours(inputs, outputs.cells, taps, mirrored)
    return KernelMap.of_index(inputs, outputs, taps.extents, index, mirrored=mirrored)


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

    Output cell ``y`` reads input cell ``y * stride + t * dilation - padding`` for every tap ``t``.
    The outputs' grid is that of a dense convolution; its cells are in lexicographic order ``(batch,
    z, y, x)``.

    Args:
        coordinates: the inputs' cells.
        kernel_size, stride, padding, dilation: as for :class:`~layoutconv.conv.ConvProblem`, for 1
            to 4 spatial modes.
        offsets: instead of ``kernel_size``, ``padding`` and ``dilation``: a cell for each tap,
            added to ``y * stride``.
        spatial_shape: the extents of the outputs' grid, in place of the dense convolution's; with
            ``offsets``, ``ceil(extent / stride)`` by default. Cells without bounds, see
            :meth:`Coordinates.unbounded`, need none: all reached cells are kept.
        outputs: the cells to compute, in place of all that read something.
        capacity: how many rows the outputs get, whatever their number: rows without a cell have
            the batch -1. The host then does not wait for the device. If there are more cells, a
            CPU raises an error; a GPU keeps the first ones, and sets ``outputs.overflowed``. Not
            with ``outputs``, which have their own.

    The same call with the same ``coordinates`` returns the same map.

    Raises :class:`~layoutconv.errors.ArgumentError` like :func:`submanifold_map`, and for a filter
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
    shape = _check_coordinates(coordinates).spatial_shape
    if spatial_shape is not None:
        spatial_shape = check_spatial_shape(spatial_shape, coordinates.batch_size)
    if offsets is outputs is spatial_shape is coordinates.corner is None:
        try:
            taps, grid = strided_in(shape, kernel_size, stride, padding, dilation)
        except TypeError:  # lists have no hash
            sizes = {"kernel_size": kernel_size, "stride": stride, "padding": padding}
            taps, grid = strided_in(shape, *frozen(**sizes, dilation=dilation))
    else:
        taps, grid = Taps.strided(len(shape), kernel_size, stride, padding, dilation, offsets), None
        if outputs is spatial_shape is coordinates.corner is None:
            grid = tuple(-(-e // s) for e, s in zip(shape, taps.stride, strict=True))
        grid = grid or spatial_shape
    return _map_between(coordinates, taps, grid, outputs, capacity, transposed=False)


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
    """The map of a transposed convolution, which is the gradient of a convolution's inputs.

    Input cell ``x`` feeds output cell ``x * stride + t * dilation - padding`` for every tap ``t``.
    Without ``outputs`` it is generative: its outputs are all cells that some input feeds, in
    lexicographic order.

    Args:
        coordinates: the inputs' cells, the coarser grid.
        kernel_size, stride, padding, output_padding, dilation: as for
            ``torch.nn.ConvTranspose3d``, for 1 to 4 spatial modes.
        offsets, spatial_shape, outputs, capacity: as for :func:`strided_map`; with ``offsets``,
            the outputs' grid is ``stride`` times the inputs' by default.

    Raises :class:`~layoutconv.errors.ArgumentError` like :func:`strided_map`.

    >>> import torch
    >>> cells = torch.tensor([[0, 0], [0, 2]], dtype=torch.int32)
    >>> found = transposed_map(Coordinates(cells, (3,), 1), kernel_size=2, stride=2)
    >>> found.outputs.cells.tolist(), found.outputs.spatial_shape
    ([[0, 0], [0, 1], [0, 4], [0, 5]], (6,))
    >>> found.index.T
    tensor([[ 0, -1,  1, -1],
            [-1,  0, -1,  1]], dtype=torch.int32)
    """
    shape = _check_coordinates(coordinates).spatial_shape
    if spatial_shape is not None:
        spatial_shape = check_spatial_shape(spatial_shape, coordinates.batch_size)
    if offsets is outputs is spatial_shape is coordinates.corner is None:
        try:
            taps, grid = _transposed_in(
                shape, kernel_size, stride, padding, output_padding, dilation
            )
        except TypeError:
            sizes = {"kernel_size": kernel_size, "stride": stride, "padding": padding}
            sizes["output_padding"] = output_padding
            taps, grid = _transposed_in(shape, *frozen(**sizes, dilation=dilation))
    else:
        taps, grid = Taps.strided(len(shape), kernel_size, stride, padding, dilation, offsets), None
        if outputs is spatial_shape is coordinates.corner is None:
            grid = tuple(e * s for e, s in zip(shape, taps.stride, strict=True))
        grid = grid or spatial_shape
    return _map_between(coordinates, taps, grid, outputs, capacity, transposed=True)


def _map_between(
    coordinates: Coordinates,
    taps: Taps,
    spatial_shape: Sequence[int] | None,
    outputs: Coordinates | None,
    capacity: int | None,
    *,
    transposed: bool,
) -> KernelMap:
    """Return the map from ``coordinates`` to ``outputs``, or to the cells that they reach in a grid
    of ``spatial_shape``."""
    if capacity is not None:
        check_capacity(capacity)
    if outputs is not None:
        _check_given(coordinates, outputs, spatial_shape, capacity)
    corner = None
    if coordinates.corner is not None:
        taps, corner, spatial_shape = _without_bounds(
            coordinates, taps, outputs, spatial_shape, transposed=transposed
        )
    key: tuple[Hashable, ...] = "transposed" if transposed else "strided", taps
    plan, asked = None, key
    if outputs is None:
        assert spatial_shape is not None
        key = _new(Reached, (key[0], taps, tuple(spatial_shape), corner))
        plan, asked = row_plan.current(), key
        if plan is not None and capacity is None:
            capacity = plan.capacity(coordinates, asked)
        key = *key, capacity
    found = coordinates.kept(key, outputs)
    if found is None:
        made = partial(_made_between, taps, spatial_shape, capacity, corner, transposed)
        found = _made(coordinates, key, made, outputs)
    if plan is not None:
        plan.lead(coordinates, asked, found.outputs)
    return found


def _without_bounds(
    coordinates: Coordinates,
    taps: Taps,
    outputs: Coordinates | None,
    spatial_shape: Sequence[int] | None,
    *,
    transposed: bool,
) -> tuple[Taps, tuple[int, ...], Sequence[int] | None]:
    """Return the taps between cells relative to corners, and the box of the outputs."""
    inputs, corner = coordinates.corner, None if outputs is None else outputs.corner
    assert inputs is not None
    if corner is None:
        if spatial_shape is not None:
            raise ArgumentError("spatial_shape", "None for cells without bounds", spatial_shape)
        box = inputs, coordinates.spatial_shape
        corner, spatial_shape = reached_box(taps, *box, transposed=transposed)
    return taps.moved(inputs, corner, transposed=transposed), corner, spatial_shape


def _made_between(
    taps: Taps,
    spatial_shape: Sequence[int] | None,
    capacity: int | None,
    corner: tuple[int, ...] | None,
    transposed: bool,
    coordinates: Coordinates,
    outputs: Coordinates | None,
) -> KernelMap:
    repeats, compiling = coordinates.check().repeats, is_compiling()
    inputs = coordinates if repeats is None else repeats.distinct
    if outputs is not None:
        repeats = outputs.check().repeats
        made = outputs if repeats is None else repeats.distinct
    else:
        assert spatial_shape is not None
        shape = check_spatial_shape(spatial_shape, coordinates.batch_size)
        if len(shape) != coordinates.rank:
            raise ArgumentError("spatial_shape", f"{coordinates.rank} extents", shape)
        reach = map_operators.reached_cells if compiling else reached
        made = reach(inputs, taps, shape, capacity, transposed=transposed).placed(corner)
    if compiling:
        return _traced(made, inputs, taps).inverse if transposed else _traced(inputs, made, taps)
    if transposed:
        feeds = made.table.search(inputs.cells, taps.stride, taps.offsets)
        found = KernelMap(made, inputs, taps.extents, feeds).inverse
    else:
        found = KernelMap.of_search(inputs, made, taps)
    if inputs is not coordinates or made is not (outputs or made):
        found = repeated_maps.between(found, coordinates, outputs or made)
    return found


def _check_coordinates(coordinates: Coordinates) -> Coordinates:
    if not isinstance(coordinates, Coordinates):
        expected = "Coordinates, such as those of a SparseTensor, x.coordinates"
        raise ArgumentTypeError("coordinates", expected, type(coordinates).__name__)
    return coordinates


def check_capacity(capacity: int) -> None:
    if not isinstance(capacity, int) or isinstance(capacity, bool) or not 0 <= capacity < 2**31:
        raise ArgumentError(
            "capacity", "None, or a number of rows from 0 to 2**31 - 1", shown(capacity)
        )


def _check_given(
    coordinates: Coordinates,
    outputs: Coordinates,
    spatial_shape: Sequence[int] | None,
    capacity: int | None,
) -> None:
    """Check that ``outputs`` can be those of a map from ``coordinates``."""
    if not isinstance(outputs, Coordinates):
        raise ArgumentTypeError("outputs", "Coordinates", type(outputs).__name__)
    for name in ("rank", "batch_size", "device"):
        expected, got = getattr(coordinates, name), getattr(outputs, name)
        if expected != got:
            raise ArgumentError("outputs", f"the inputs' {name}, {expected}", got)
    if (coordinates.corner is None) is not (outputs.corner is None):
        kinds = "cells without bounds, as the inputs are", "cells of a grid"
        expected, got = kinds if outputs.corner is None else ("cells of a grid, too", kinds[0][:20])
        raise ArgumentError("outputs", expected, got)
    if spatial_shape is not None and tuple(spatial_shape) != outputs.spatial_shape:
        expected = f"None, or that of `outputs`, {outputs.spatial_shape}"
        raise ArgumentError("spatial_shape", expected, tuple(spatial_shape))
    if capacity is not None:
        raise ArgumentError(
            "capacity", "None beside `outputs`, which have their own rows", capacity
        )


@remembered(256)
def strided_in(
    shape: tuple[int, ...], kernel_size: Ints, stride: Ints, padding: Padding, dilation: Ints
) -> tuple[Taps, Sequence[int] | None]:
    """Return the taps of a convolution on a grid of a shape, and the shape of its outputs' grid."""
    rank = len(shape)
    taps = Taps.strided(rank, kernel_size, stride, padding, dilation)
    steps, pairs = per_axis("dilation", dilation, rank), padding_pairs(padding, rank)
    modes = zip(shape, taps.extents, taps.stride, pairs, steps, strict=True)
    found = tuple((e + sum(p) - d * (t - 1) - 1) // s + 1 for e, t, s, p, d in modes)
    if min(found) < 1 and min(shape) > 0:
        expected = f"a filter that fits into the padded grid {shape}"
        raise ArgumentError("kernel_size", expected, taps.extents)
    return taps, tuple(max(0, extent) for extent in found)


@remembered(256)
def _transposed_in(
    shape: tuple[int, ...],
    kernel_size: Ints,
    stride: Ints,
    padding: Padding,
    output_padding: Ints,
    dilation: Ints,
) -> tuple[Taps, Sequence[int] | None]:
    """Do the same for a transposed convolution."""
    rank = len(shape)
    taps = Taps.strided(rank, kernel_size, stride, padding, dilation)
    more = per_axis("output_padding", output_padding, rank, least=0)
    steps, pairs = per_axis("dilation", dilation, rank), padding_pairs(padding, rank)
    modes = zip(shape, taps.extents, taps.stride, pairs, steps, more, strict=True)
    found = tuple((e - 1) * s - sum(p) + d * (t - 1) + o + 1 for e, t, s, p, d, o in modes)
    if min(found) < 1 and min(shape) > 0:
        raise ArgumentError("padding", f"less than the reach of the {taps.extents} taps", padding)
    return taps, tuple(max(0, extent) for extent in found)
