"""Wgrad from K-major operands: copies in which voxels run fastest.

Wgrad sums over voxels, the strided direction in both operands (N, D, H, W, C). Hopper's ``wgmma``
reads 16-bit operands in either order, but 32-bit operands only along the sum. So each operand is
copied once, to a row of voxels per channel. The rest is a matrix product of K-major operands, as in
the forward pass.

Taps are rows as well. Along W a tap's row would start at any element, but TMA needs whole vectors:
each tap gets a copy of its own, which also absorbs the stride. Along H and D a tap may be the same
row some lines further on (*windowed*). Lines then have the same pitch in both operands, with the
padding between them, and neighbouring images share these zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from ..algebra import ComposedLayout, E, Layout
from ..view.gemm_view import GemmView
from ..view.operands import row_major, runtime, static
from .problem import ConvProblem

RUN = 32  # voxels: rows are whole lines of shared memory
VECTOR = 4  # numbers of 16 bytes
Triple = tuple[int, int, int]  # along D, H and W


class VoxelRows(NamedTuple):
    """Rows over the voxels of a tensor (N, D, H, W, C), for each of its channels and each tap.

    Position ``((n * D' + d) * H' + h) * W' + w`` of a ``grid`` (D', H', W') is the element at
    ``start + step * (d, h, w) + apart * tap`` of image ``n``, or 0 out of bounds; rows are filled
    with zeros up to their ``length``. They lie channel by channel, then tap by tap, taps along W
    fastest.
    """

    source: tuple[int, int, int, int, int]
    grid: Triple
    taps: Triple
    start: Triple
    step: Triple
    apart: Triple
    length: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """The rows: (C, taps, positions)."""
        return self.source[-1], prod(self.taps), self.length

    @property
    def numbers(self) -> tuple[int, ...]:
        """All integers in a flat tuple, the kernel's arguments."""
        modes = self.source, self.grid, self.taps, self.start, self.step, self.apart
        return (*(number for mode in modes for number in mode), self.length)

    @property
    def size(self) -> int:
        """The number of elements of all rows."""
        return prod(self.shape)


class KMajorWgrad(NamedTuple):
    """The gradient of a filter as a product of K-major copies.

    Args:
        view: its A is ``a``, rows of the gradient of the output; its B is ``b``, rows of the
            activation. It writes the gradient of the filter (K, T, R, S, C), or (K, T, S * R, C)
            if more modes than W have copied taps.
        a, b: how to copy the operands.
    """

    view: GemmView
    a: VoxelRows
    b: VoxelRows


def k_major_wgrads(problem: ConvProblem) -> Iterator[KMajorWgrad]:
    """Yield the ways to copy taps along W, then also H, then also D, with the others windowed.

    Nothing for groups, or for channels that are no whole vectors.

    >>> for found in k_major_wgrads(ConvProblem((2, 8, 8, 16), (32, 3, 3), padding=1)):
    ...     print(found.view.b.inner, found.b.shape, found.b.grid)
    ((C,S,R),(32,J)):((1@2,1@1,1@0),(1@3,32@3)) (16, 3, 192) (1, 9, 8)
    ((C,RS),(32,J)):((1@1,1@0),(1@2,32@2)) (16, 9, 128) (1, 8, 8)
    """
    if problem.groups > 1 or problem.C % VECTOR or problem.K % VECTOR:
        return
    several = [mode for mode in reversed(range(problem.rank)) if problem.taps[mode] > 1]
    for copied in range(len(several) + 1):
        windowed = several[copied:]
        along_w = problem.rank - 1 in windowed
        if not along_w and all(problem.stride[mode] == 1 for mode in windowed):
            yield _k_major(problem, tuple(windowed))


def _k_major(problem: ConvProblem, windowed: tuple[int, ...]) -> KMajorWgrad:
    """Return the product with the taps of the modes ``windowed``, fastest first."""
    rank = problem.rank
    cells = list(problem.output_spatial)
    for mode in windowed:
        extent, (near, far) = problem.spatial[mode], problem.padding[mode]
        cells[mode] = max(cells[mode], extent + near, extent + far)
    if windowed:  # lines start at whole vectors
        cells[-1] = _rounded(cells[-1], VECTOR)
    pitches = [prod(cells[mode + 1 :]) for mode in range(rank)]
    extents = zip(problem.output_spatial, pitches, strict=True)
    last = (problem.N - 1) * prod(cells) + sum((extent - 1) * pitch for extent, pitch in extents)
    terms = _rounded(last + 1, RUN)
    windows = [
        Window(problem.taps[mode], "TRS"[mode - rank], problem.dilation[mode] * pitches[mode])
        for mode in windowed
    ]
    reach = sum((of.taps - 1) * of.apart for of in windows)
    ones, grid = (1, 1, 1), _triple(cells)
    start = [-near for near, _ in problem.padding]
    own = [1 if mode in windowed else taps for mode, taps in enumerate(problem.taps)]
    y = VoxelRows(_five(problem.output), grid, ones, (0, 0, 0), ones, ones, terms)
    x = VoxelRows(
        _five(problem.activation), grid, _triple(own), _triple(start, 0), _triple(problem.stride),
        _triple(problem.dilation), _rounded(terms + reach, RUN),
    )  # fmt: skip
    return KMajorWgrad(_view(problem, y, x, windows), y, x)


class Window(NamedTuple):
    """Windowed taps of a mode: their number, letter, and distance in elements."""

    taps: int
    letter: str
    apart: int


def _view(problem: ConvProblem, y: VoxelRows, x: VoxelRows, windows: list[Window]) -> GemmView:
    """Return the product of the rows of both operands."""
    K, C, one = static(problem.K, "K"), static(problem.C, "C"), runtime(1, "one")
    lines, length = runtime(y.length // RUN, "J"), RUN * runtime(x.length // RUN, "X")
    terms, own = RUN * lines, "".join(of for of, n in zip("TRS", x.taps, strict=True) if n > 1)
    taps = [static(x.shape[1], own)] if own else []
    # Rows of B, fastest first, and their pitches.
    apart = [prod(taps) * length, *(length for _ in taps)]
    for of in windows:
        taps.append(static(of.taps, of.letter))
        apart.append(runtime(of.apart, f"{of.letter}_apart"))
    rows = [C, *taps]
    if not taps:  # pixels and images, as of TMA im2col
        rows, apart = [C, one], [length, C * length]
    run, along = E(len(rows)), (RUN, lines)
    filter = (K, *reversed(taps), C)
    columns = _units(len(filter) - 1, 1)
    return GemmView(
        a=ComposedLayout(
            Layout((one, K, terms), (K * terms, terms, 1)),
            0,
            Layout(((K, one), along), ((E(1), E(0)), (E(2), RUN * E(2)))),
        ),
        b=ComposedLayout(
            Layout((*reversed(rows), terms), (*reversed(apart), 1)),
            0,
            Layout((tuple(rows), along), (_units(len(rows) - 1, 0), (run, RUN * run))),
        ),
        d=ComposedLayout(
            row_major(filter),
            0,
            Layout((K, (C, *taps) if taps else C), (E(0), columns if taps else columns[0])),
        ),
    )


def _units(first: int, last: int) -> tuple[Any, ...]:
    """Return unit steps of the modes from ``first`` down to ``last``."""
    return tuple(E(mode) for mode in range(first, last - 1, -1))


def _rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _triple(modes: Sequence[int], fill: int = 1) -> Triple:
    """Return the numbers of 1 to 3 spatial modes, extended to three with ``fill``."""
    d, h, w = [fill] * (3 - len(modes)) + list(modes)
    return d, h, w


def _five(extents: tuple[int, ...]) -> tuple[int, int, int, int, int]:
    """Return (N, \\*spatial, C) with three spatial modes."""
    first, *spatial, channels = extents
    return (first, *_triple(spatial), channels)
