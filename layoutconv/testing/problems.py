"""Hypothesis strategies for convolutions: dense problems, clouds of cells, kernel maps.

Examples are small and include cases that break implementations: padding and strides larger than the
filter, odd extents, no images, padded rows. Clouds and maps need torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from ..conv.problem import ConvProblem
from .compare import WrongResultError

if TYPE_CHECKING:
    from ..sparse import Coordinates, KernelMap

Cell = tuple[int, ...]


@st.composite
def conv_problems(draw: st.DrawFn, channels: int = 2, groups: int = 1) -> ConvProblem:
    """Draw small problems of all ranks, also with padding and strides beyond the filter.

    Problems have 1 to ``groups`` groups, each of up to ``channels`` channels.

    >>> from hypothesis import find
    >>> problem = find(conv_problems(), lambda problem: problem.stride > problem.taps)
    >>> problem.stride > problem.taps
    True
    """
    rank = draw(st.integers(1, 3))
    largest = {1: 9, 2: 5, 3: 3}[rank]

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    taps, stride, dilation = each(1, 3), each(1, 4), each(1, 3)
    near, far, extents = each(0, 3), each(0, 3), each(1, largest)
    spans = [d * (t - 1) + 1 for d, t in zip(dilation, taps, strict=True)]
    fit = [max(e, s - n - f) for e, s, n, f in zip(extents, spans, near, far, strict=True)]
    N, C, K = draw(st.integers(0, 2)), *draw(st.tuples(*[st.integers(1, channels)] * 2))
    padding, G = list(zip(near, far, strict=True)), draw(st.integers(1, groups))
    return ConvProblem((N, *fit, C * G), (K * G, *taps), stride, padding, dilation, G)


@st.composite
def clouds(
    draw: st.DrawFn, rank: int = 3, padded: bool | None = None, least: int = 0
) -> Coordinates:
    """Draw coordinates of distinct cells in any order, on small and odd grids, some with padding.

    ``padded`` clouds may have rows with a batch below 0, which are no cells; None draws it.

    >>> from hypothesis import find
    >>> len(find(clouds(rank=2, least=1), lambda cloud: len(cloud) > 0).spatial_shape)
    2
    """
    import torch

    from ..sparse import Coordinates

    shape = tuple(draw(st.integers(1, (9, 7, 5, 4)[rank - 1])) for _ in range(rank))
    batch_size = draw(st.integers(1, 3))
    cell = st.tuples(st.integers(0, batch_size - 1), *(st.integers(0, e - 1) for e in shape))
    rows: list[Cell] = draw(st.lists(cell, min_size=least, max_size=30, unique=True))
    padded = draw(st.booleans()) if padded is None else padded
    if padded:
        anything = st.integers(-(2**31), 2**31 - 1)
        for _ in range(draw(st.integers(0, 3))):
            absent = (draw(st.integers(-(2**31), -1)), *(draw(anything) for _ in shape))
            rows.insert(draw(st.integers(0, len(rows))), absent)
    cells = torch.tensor(rows, dtype=torch.int32).reshape(len(rows), 1 + len(shape))
    return Coordinates(cells, shape, batch_size, padded=padded)


def offset_sets(rank: int = 3) -> st.SearchStrategy[list[Cell]]:
    """Draw a filter's taps as distinct offsets: with and without a centre, mirrored or not.

    >>> from hypothesis import find
    >>> offsets = find(offset_sets(1), lambda offsets: len(offsets) > 1)
    >>> len(set(offsets)) == len(offsets)
    True
    """
    cell = st.tuples(*[st.integers(-4, 4)] * rank)
    some = st.lists(cell, min_size=1, max_size=6, unique=True)
    half = st.lists(cell.filter(lambda c: c > (0,) * rank), max_size=4, unique=True)
    mirrored = st.tuples(half, st.booleans()).map(_mirrored).filter(bool)
    return st.one_of(some, mirrored)


def _mirrored(drawn: tuple[list[Cell], bool]) -> list[Cell]:
    half, centre = drawn
    opposite = [tuple(-c for c in cell) for cell in reversed(half)]
    middle = [(0,) * len(cell) for cell in half[:1] if centre]
    return half + middle + opposite


@st.composite
def kernel_maps(draw: st.DrawFn, rank: int = 3, kind: str | None = None) -> KernelMap:
    """Draw the kernel map of a small cloud: ``submanifold``, ``strided``, ``transposed``, or any.

    >>> from hypothesis import find
    >>> found = find(kernel_maps(rank=1, kind="submanifold"), lambda found: len(found.index) == 1)
    >>> found.index.shape[0]
    1
    """
    from ..sparse import strided_map, submanifold_map, transposed_map

    cloud = draw(clouds(rank))
    kind = kind or draw(st.sampled_from(["submanifold", "strided", "transposed"]))
    most = 3 if rank < 4 else 2

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    kernel_size, dilation = each(1, most), each(1, 2)
    if kind == "submanifold":
        return submanifold_map(cloud, kernel_size, dilation)
    make = strided_map if kind == "strided" else transposed_map
    room = [d * (k - 1) for k, d in zip(kernel_size, dilation, strict=True)]
    padding = room if kind == "strided" else (0,) * rank  # so that the filter fits the grid
    return make(cloud, kernel_size, each(1, 3), padding, dilation=dilation)


def check_kernel_map(
    inputs: Iterable[Sequence[int]],
    outputs: Iterable[Sequence[int]],
    offsets: Iterable[Sequence[int]],
    index: Sequence[Sequence[int]],
    stride: Sequence[int] | None = None,
) -> None:
    """Check an index buffer of any library with a dictionary of the cells.

    Args:
        inputs, outputs: cells ``(batch, z, y, x)``, row by row; a batch below 0 is no cell.
        offsets: the offset of each tap.
        index: per output and tap the row of the inputs, -1 if there is none.
        stride: per spatial mode; 1 by default.

    Raises :class:`~layoutconv.testing.WrongResultError` with the output and the tap.

    >>> cells = [(0, 4), (0, 5)]
    >>> check_kernel_map(cells, cells, [(-1,), (0,), (1,)], [[-1, 0, 1], [0, 1, -1]])
    >>> check_kernel_map(cells, cells, [(-1,), (0,), (1,)], [[-1, 0, 1], [1, 1, -1]])
    Traceback (most recent call last):
        ...
    layoutconv.testing.compare.WrongResultError: kernel map: output (0, 5), tap (-1,): \
row 1, not 0
    """
    row_of = {tuple(cell): row for row, cell in enumerate(inputs) if cell[0] >= 0}
    taps = [tuple(offset) for offset in offsets]
    for output, entries in zip(map(tuple, outputs), index, strict=True):
        steps = stride or (1,) * (len(output) - 1)
        for tap, found in zip(taps, entries, strict=True):
            at = [c * s + o for c, s, o in zip(output[1:], steps, tap, strict=True)]
            row = row_of.get((output[0], *at), -1) if output[0] >= 0 else -1
            if int(found) != row:
                raise WrongResultError(
                    f"kernel map: output {output}, tap {tap}: row {int(found)}, not {row}"
                )


__all__: list[Any] = ["check_kernel_map", "clouds", "conv_problems", "kernel_maps", "offset_sets"]
