"""Stride phases: cells of a gradient that are equal modulo the stride, and their taps."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from math import gcd
from typing import Any, NamedTuple

from ..view.operands import runtime, static
from .problem import ConvProblem


class StridePhase(NamedTuple):
    """The cells of a spatial mode that are equal modulo the stride, and the taps that reach them.

    The i-th cell meets the j-th tap in voxel ``voxel + i - j * voxel_step``.
    """

    cell: int  # the first; the others follow a stride apart
    cells: Any  # how many
    tap: int  # the first that reaches a cell of the class
    taps: Any  # how many, ``tap_step`` apart
    tap_step: int
    voxel: int  # where the first cell meets the first tap
    voxel_step: int
    residues: int = 1  # concatenated along N, each a cell and a tap further
    step: int | None = None  # between cells, if not the stride


def concatenated(problem: ConvProblem, mode: int) -> StridePhase:
    """Return all cells of a spatial mode as one class: its stride phases, concatenated along N.

    The i-th cell of a residue meets tap ``tap + residue + j * stride`` in voxel ``voxel + i - j``,
    for every ``j`` for which some residue has such a tap.
    """
    stride, near = problem.stride[mode], problem.padding[mode][0]
    last = (stride - 1 + near) // stride
    first = -((problem.taps[mode] - 1 - near) // stride)
    cell_letter, tap_letter = (letters[mode - problem.rank] for letters in ("DHW", "TRS"))
    return StridePhase(
        cell=0,
        cells=runtime(-(-problem.spatial[mode] // stride), f"{cell_letter}0"),
        tap=near - stride * last,
        taps=static(last - first + 1, f"{tap_letter}0"),
        tap_step=stride,
        voxel=last,
        voxel_step=1,
        residues=stride,
    )


def of_equal_taps(problem: ConvProblem, mode: int, empty: bool = True) -> list[StridePhase]:
    """Return the classes of residues with equally many taps: those with one tap more, the others.

    Cells count from one that tap 0 reaches from a voxel, at or before the first cell: up to
    ``near % stride`` cells of the padding are among them. Residue ``r`` meets the taps ``r + j *
    stride`` in voxel ``voxel + i - j``.
    """
    stride, near = problem.stride[mode], problem.padding[mode][0]
    before, (least, more) = near % stride, divmod(problem.taps[mode], stride)
    cell_letter, tap_letter = (letters[mode - problem.rank] for letters in ("DHW", "TRS"))
    found = []
    for first, end, taps in ((0, more, least + 1), (more, stride, least)):
        cells = -(-(problem.spatial[mode] + before - first) // stride)
        if first == end or cells < 1 or not (taps or empty):
            continue
        found.append(
            StridePhase(
                cell=first - before,
                cells=runtime(cells, f"{cell_letter}{first}"),
                tap=first if taps else 0,
                taps=static(taps, f"{tap_letter}{first}"),
                tap_step=stride,
                voxel=near // stride,
                voxel_step=1,
                residues=end - first,
            )
        )
    return found


def classes_by_view(
    problem: ConvProblem, classes: Sequence[Sequence[StridePhase]], apart: Container[int]
) -> Iterator[tuple[StridePhase, ...]]:
    """Yield the classes of views, one of each mode; after one without taps, whole modes.

    Modes that are not ``apart``, whose residues are concatenated, are never whole.
    """
    before: list[tuple[StridePhase, ...]] = [()]
    for mode, found in enumerate(classes):
        whole = [_whole(problem, mode)] if mode in apart and problem.spatial[mode] else found
        before = [
            (*some, of)
            for some in before
            for of in (found if all(each.taps for each in some) else whole)
        ]
    yield from before


def _whole(problem: ConvProblem, mode: int) -> StridePhase:
    """Return all cells of a spatial mode as one class, whose taps do not matter."""
    letter = "DHW"[mode - problem.rank]
    return StridePhase(0, runtime(problem.spatial[mode], letter), 0, 1, 1, 0, 1, step=1)


class PhaseClass(NamedTuple):
    """Cells per residue, residues concatenated in a view, and taps per residue."""

    cells: int
    residues: int
    taps: int


def classes_of(
    problem: ConvProblem, mode: int, *, alike: bool = False, empty: bool = False
) -> list[PhaseClass]:
    """Return the classes along a spatial mode: one per residue, or per set of ``alike`` residues.

    >>> classes_of(ConvProblem((1, 8, 1), (1, 3), stride=2, padding=1), 0)
    [PhaseClass(cells=4, residues=1, taps=1), PhaseClass(cells=4, residues=1, taps=2)]
    >>> classes_of(ConvProblem((1, 8, 1), (1, 4), stride=2, padding=1), 0, alike=True)
    [PhaseClass(cells=5, residues=2, taps=2)]
    """
    found = (of_equal_taps if alike else phases_of)(problem, mode, empty)
    return [PhaseClass(int(of.cells), of.residues, int(of.taps)) for of in found]


def reached_residues(problem: ConvProblem, mode: int) -> list[int]:
    """Return the residues, modulo the stride, of a spatial mode's cells that some tap reaches.

    >>> reached_residues(ConvProblem((1, 9, 1), (1, 2), stride=4, padding=1), 0)
    [0, 3]
    """
    stride, near = problem.stride[mode], problem.padding[mode][0]
    apart = problem.dilation[mode]
    reached = {(tap * apart - near) % stride for tap in range(problem.taps[mode])}
    return sorted(cell for cell in reached if cell < problem.spatial[mode])


def phases_of(problem: ConvProblem, mode: int, empty: bool = True) -> list[StridePhase]:
    """Return the classes of cells of a spatial mode, except those without cells."""
    extent, filter_extent = problem.spatial[mode], problem.taps[mode]
    stride, dilation = problem.stride[mode], problem.dilation[mode]
    near, _ = problem.padding[mode]
    common = gcd(stride, dilation)
    tap_step = stride // common
    cell_letter, tap_letter = (letters[mode - problem.rank] for letters in ("DHW", "TRS"))
    found = []
    for cell in range(min(stride, extent)) if empty else reached_residues(problem, mode):
        reaching = [
            tap
            for tap in range(min(tap_step, filter_extent))
            if (cell + near - tap * dilation) % stride == 0
        ]
        first = reaching[0] if reaching else 0
        taps = len(range(first, filter_extent, tap_step)) if reaching else 0
        suffix = "" if stride == 1 else str(cell)
        found.append(
            StridePhase(
                cell=cell,
                cells=runtime(len(range(cell, extent, stride)), cell_letter + suffix),
                tap=first,
                taps=static(taps, tap_letter + suffix),
                tap_step=tap_step,
                voxel=(cell + near - first * dilation) // stride,
                voxel_step=dilation // common,
            )
        )
    return found
