"""Wgrad from K-major operands: copies in which voxels run fastest.

Wgrad sums over voxels, the strided direction in both operands (N, D, H, W, C). Hopper's ``wgmma``
reads 16-bit operands in either order, but 32-bit operands only along the sum. So each operand is
copied once, to runs of 32 voxels, whole lines of shared memory, for all channels. The rest is a
matrix product of K-major operands, as in the forward pass.

Taps are rows as well. A tap may have a copy of its own, which also absorbs the stride; or it is the
same row some voxels further on (*windowed*). Lines then have the same pitch in both operands, with
the padding between them, and neighbouring images share these zeros. TMA starts at whole vectors,
and is faster at whole lines of memory, but the next tap along W is the next voxel. So a run takes
one voxel from each of 32 stretches of the grid: the next run has the next voxel of each. Stretches
go on for as long as taps reach, so the shorter of D and H is the faster one in the grid if taps
along D are windowed.

All runs of one voxel lie together, channel by channel. Long rows, one for each channel, would be
read a line at a time, each from another page of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from ..algebra import ComposedLayout, E, Layout
from ..algebra.symint import is_runtime
from ..view.gemm_view import GemmView
from ..view.operands import row_major, runtime, static
from .problem import ConvProblem

RUN = 32  # voxels
VECTOR = 4  # numbers of 16 bytes
MOST = 1 << 31  # elements of all runs, and voxels of a tensor, that the kernel numbers
MOST_CHANNELS = 65535 * 64  # of a grid's second mode, 64 to a CTA
MOST_MODES = 3  # of rows beside the runs: TMA has five, and takes one for the elements of a run
Triple = tuple[int, int, int]  # along D, H and W


class VoxelRuns(NamedTuple):
    """Runs over the voxels of a tensor (N, D, H, W, C), for each of its channels and each tap.

    Cell ``((n * D' + d) * H' + h) * W' + w`` of a ``grid`` (D', H', W') is the element at
    ``start + step * (d, h, w) + apart * tap`` of image ``n``, or 0 out of bounds. Element ``i`` of
    run ``j`` is cell ``j + span * i``. There are ``runs`` runs of ``run`` elements, for all
    channels and taps: (runs, C, taps, run) in memory, taps along W fastest. D, H and W may be any
    modes of the tensor, whose voxels are ``pitch`` voxels apart in memory.
    """

    source: tuple[int, int, int, int, int]
    pitch: Triple
    grid: Triple
    taps: Triple
    start: Triple
    step: Triple
    apart: Triple
    runs: int
    run: int
    span: int = 1

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The extents in memory: (runs, C, taps, run)."""
        return self.runs, self.source[-1], prod(self.taps), self.run

    @property
    def numbers(self) -> tuple[int, ...]:
        """All integers in a flat tuple, the kernel's arguments."""
        modes = self[:7]
        return (*(number for mode in modes for number in mode), self.runs, self.run, self.span)

    @property
    def size(self) -> int:
        """The number of elements of all runs."""
        return prod(self.shape)

    @property
    def fits(self) -> bool:
        """True if there are elements, and no more of anything than the kernel numbers."""
        *voxels, channels = self.source
        return 0 < self.size < MOST and prod(voxels) < MOST and channels <= MOST_CHANNELS


class KMajorWgrad(NamedTuple):
    """The gradient of a filter as a product of K-major copies.

    Args:
        view: its A is ``a``, runs of the gradient of the output; its B is ``b``, runs of the
            activation. It writes the gradient of the filter, (K, T, R, S, C) in memory, with modes
            that have one step joined.
        a, b: how to copy the operands.
    """

    view: GemmView
    a: VoxelRuns
    b: VoxelRuns


def k_major_wgrads(problem: ConvProblem) -> Iterator[KMajorWgrad]:
    """Yield the ways to window all taps but those along modes with a stride; not those along D,
    either, which is short in videos; and to copy all.

    Nothing for no images, for groups, for channels that are no whole vectors, and for a way with
    more modes than TMA has.

    >>> for found in k_major_wgrads(ConvProblem((2, 8, 8, 16), (32, 3, 3), padding=1)):
    ...     print(found.view.b.inner, found.b.shape, found.b.grid)
    ((C*S,R),(32,J)):((1@2,1@1),(1@3,1@0)) (25, 16, 1, 32) (1, 9, 9)
    ((C,S*R),(32,J)):((1@2,1@1),(1@3,1@0)) (4, 16, 9, 32) (1, 8, 8)
    """
    if not problem.N or problem.groups > 1 or problem.C % VECTOR or problem.K % VECTOR:
        return
    modes = zip(problem.taps, problem.stride, strict=True)
    adjacent = tuple(i for i, (taps, stride) in enumerate(modes) if taps > 1 and stride == 1)
    of_planes = tuple(mode for mode in adjacent if mode - problem.rank >= -2)
    for windowed in dict.fromkeys((adjacent, of_planes, ())):
        found = _k_major(problem, windowed)
        if found is not None:
            yield found


class ImageGrid(NamedTuple):
    """The cells of an image: their extents by spatial mode, and the order of modes, slowest first.

    >>> ImageGrid((6, 5, 4), (1, 0, 2)).pitches
    (4, 24, 1)
    """

    cells: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, problem: ConvProblem, windowed: Sequence[int]) -> ImageGrid:
        """Return the least grid, with padding along the modes ``windowed``.

        With windows along D, the longer of D and H is the slowest mode, since stretches overlap by
        its pitch.
        """
        cells, order = list(problem.output_spatial), list(range(problem.rank))
        for mode in windowed:
            near, far = problem.padding[mode]
            extent = problem.spatial[mode] + min(far, 0)  # no window reads cells behind these
            cells[mode] = max(cells[mode], extent + near, extent + far)
        if problem.rank == 3 and 0 in windowed and cells[0] < cells[1]:
            order[:2] = 1, 0
        return cls(tuple(cells), tuple(order))

    @property
    def pitches(self) -> tuple[int, ...]:
        """The distance of neighbours along each spatial mode, in cells."""
        at = {mode: place for place, mode in enumerate(self.order)}
        faster = [self.order[at[mode] + 1 :] for mode in range(len(self.cells))]
        return tuple(prod(self.cells[mode] for mode in modes) for modes in faster)

    def rows(self, tensor: tuple[int, ...], runs: int, span: int, **modes: Any) -> VoxelRuns:
        """Return runs over a tensor; ``modes`` are numbers of ``VoxelRuns`` by spatial mode."""
        N, *extents, C = tensor
        pitch = [prod(extents[mode + 1 :]) for mode in range(len(extents))]
        given = {name: self._triple(of, int(name != "start")) for name, of in modes.items()}
        return VoxelRuns(
            (N, *self._triple(extents), C), self._triple(pitch), self._triple(self.cells), **given,
            runs=runs, run=RUN, span=span,
        )  # fmt: skip

    def _triple(self, modes: Sequence[int], fill: int = 1) -> Triple:
        """Return numbers in the order of the grid, extended to three."""
        d, h, w = [fill] * (3 - len(modes)) + [modes[mode] for mode in self.order]
        return d, h, w


def _k_major(problem: ConvProblem, windowed: tuple[int, ...]) -> KMajorWgrad | None:
    """Return the product with the taps of the modes ``windowed``; None if it has too many modes."""
    grid, ones = ImageGrid.of(problem, windowed), (1,) * problem.rank
    voxels = zip(problem.output_spatial, grid.pitches, strict=True)
    last = (problem.N - 1) * prod(grid.cells) + sum((n - 1) * pitch for n, pitch in voxels)
    span = -(-(last + 1) // RUN)
    windows = {mode: problem.dilation[mode] * grid.pitches[mode] for mode in windowed}
    reach = sum((problem.taps[mode] - 1) * apart for mode, apart in windows.items())
    y = grid.rows(
        problem.output, span, span, taps=ones, start=(0,) * problem.rank, step=ones, apart=ones
    )
    x = grid.rows(
        problem.activation, span + reach, span,
        taps=[1 if mode in windowed else taps for mode, taps in enumerate(problem.taps)],
        start=[-near for near, _ in problem.padding],
        step=problem.stride, apart=problem.dilation,
    )  # fmt: skip
    rows = _rows(problem, grid, windows)
    return KMajorWgrad(_view(problem, y, x, rows), y, x) if len(rows) <= MOST_MODES else None


def _rows(problem: ConvProblem, grid: ImageGrid, windows: dict[int, int]) -> list[tuple[Any, Any]]:
    """Return the rows of B in the order of the filter's memory, fastest first: extents and pitches.

    ``windows``: how many runs the taps of a mode are apart. Modes that have one step are joined.
    """
    pitches: dict[int, Any] = {}
    copies = 1
    for mode in reversed(grid.order):
        if mode not in windows:
            pitches[mode], copies = copies * RUN, copies * problem.taps[mode]
    of_run = problem.C * copies * RUN
    rows: list[tuple[Any, Any]] = [(static(problem.C, "C"), copies * RUN)]
    for mode in reversed(range(problem.rank)):
        if problem.taps[mode] == 1:
            continue
        letter, (extent, pitch) = "TRS"[mode - problem.rank], rows[-1]
        taps, own = static(problem.taps[mode], letter), pitches.get(mode, 0)
        if mode in windows:  # along W the next voxels' runs follow
            along_w = mode == problem.rank - 1
            own = (windows[mode] if along_w else runtime(windows[mode], f"{letter}_apart")) * of_run
        if not is_runtime(own) and own == int(extent) * pitch:
            rows[-1] = extent * taps, pitch
        else:
            rows.append((taps, own))
    return rows


def _view(
    problem: ConvProblem, y: VoxelRuns, x: VoxelRuns, rows: list[tuple[Any, Any]]
) -> GemmView:
    """Return the product of the runs of both operands, with the ``rows`` of B."""
    K, runs = static(problem.K, "K"), runtime(y.runs, "J")
    extents, pitches = zip(*rows, strict=True)
    filter = (K, *reversed(extents))
    columns, along = _units(len(rows), 1), (RUN, runs)
    return GemmView(
        a=ComposedLayout(
            Layout((runs, K, RUN), (K * RUN, RUN, 1)), 0, Layout((K, along), (E(1), (E(2), E(0))))
        ),
        b=ComposedLayout(
            Layout(
                (runs, *reversed(extents), RUN),
                (prod(x.shape[1:]), *reversed(pitches), 1),
            ),
            0,
            Layout((extents, along), (columns, (E(len(filter)), E(0)))),
        ),
        d=ComposedLayout(row_major(filter), 0, Layout((K, extents), (E(0), columns))),
    )


def _units(first: int, last: int) -> tuple[Any, ...]:
    """Return unit steps of the modes from ``first`` down to ``last``."""
    return tuple(E(mode) for mode in range(first, last - 1, -1))
