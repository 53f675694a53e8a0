"""``Axis``: the shown positions along one mode, and the hierarchy that groups them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..algebra.errors import text
from ..algebra.int_tuple import paired_leaves
from ..algebra.stride import stride_text
from ..errors import ArgumentError

MOST_POSITIONS = 1 << 14  # shown along one axis


@dataclass(frozen=True)
class Band:
    """One level of headers: its name, and ``(start, stop, label)`` along the shown positions."""

    name: str
    spans: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True)
class Axis:
    """The positions of a mode, in colexicographic order, as headers of a grid.

    ``positions`` are those shown, with None where some are left out. ``bands`` are the levels of
    headers, starting with the fastest leaf of the mode, next to the cells. ``breaks[i]`` is the
    level of the separator before shown position i: 0 for none, 1 where the second leaf steps, 2
    where the third does.
    """

    positions: tuple[int | None, ...]
    bands: tuple[Band, ...] = ()
    breaks: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.positions)


def mode_axis(
    shape: Any, stride: Any = None, *, limit: int, name: str = "", keep: Collection[int] = ()
) -> Axis:
    """Make the axis of a mode: a band of headers for each leaf, named ``extent:stride``.

    Leaves of extent 1 group nothing and get no band. Without a stride, bands are named ``name``.
    The positions in ``keep`` are always shown.

    >>> axis = mode_axis((2, 3), (1, 4), limit=9)
    >>> [(band.name, band.spans) for band in axis.bands][1]
    ('3:4', ((0, 2, '0'), (2, 4, '1'), (4, 6, '2')))
    >>> axis.breaks
    (0, 0, 1, 0, 1, 0)
    """
    pairs = paired_leaves(shape, shape if stride is None else stride)
    leaves = [(s, d) for s, d in pairs if s != 1] or pairs[:1]
    names = [name if stride is None else f"{s}:{stride_text(d)}" for s, d in leaves]
    return make_axis([int(s) for s, _ in leaves], names, limit=limit, keep=keep)


def make_axis(
    extents: Sequence[int],
    names: Sequence[str],
    *,
    limit: int,
    first: int = 0,
    keep: Collection[int] = (),
) -> Axis:
    """Make an axis of leaves with these extents; ``first`` is the label of the first position."""
    periods = [1]
    for extent in extents:
        periods.append(periods[-1] * extent)
    positions = shown_positions(periods[-1], limit, periods[:-1], keep)
    bands = []
    for extent, period, name in zip(extents, periods, names, strict=False):
        spans = _runs([None if p is None else p // period for p in positions])
        bands.append(
            Band(name, tuple((i, j, text(first + group % extent)) for i, j, group in spans))
        )
    breaks = [0] * len(positions)
    for i in range(1, len(positions)):
        here, before = positions[i], positions[i - 1]
        if here is not None and before is not None:
            stepped = [here // period != before // period for period in periods[1:-1]]
            breaks[i] = sum(stepped)
    return Axis(positions, tuple(bands), tuple(breaks))


def shown_positions(
    n: int, limit: int, periods: Sequence[int] = (1,), keep: Collection[int] = ()
) -> tuple[int | None, ...]:
    """Return the positions of ``n`` that a picture of about ``limit`` shows, None for gaps.

    Two thirds come from the beginning, cut after a whole group of the hierarchy if that keeps at
    least half of them, the rest from the end; positions in ``keep`` are always included.

    >>> shown_positions(100, 7)
    (0, 1, 2, 3, None, 98, 99)
    >>> shown_positions(100, 7, keep=[50])
    (0, 1, 2, 3, None, 50, None, 98, 99)
    >>> shown_positions(5, 7)
    (0, 1, 2, 3, 4)
    """
    if min(n, limit) > MOST_POSITIONS:
        raise ArgumentError(
            "limit", f"at most {MOST_POSITIONS}, the most positions of a drawing", limit
        )
    if n <= limit:
        return tuple(range(n))
    head = 2 * limit // 3
    whole = [head - head % period for period in sorted(periods, reverse=True)]
    head = next((part for part in whole if 2 * part >= head), head)
    tail = max(1, limit - 1 - 2 * limit // 3)
    chosen = {*range(head), *range(n - tail, n)} | set(keep)
    positions: list[int | None] = []
    for p in sorted(chosen):
        if positions and positions[-1] != p - 1:
            positions.append(None)
        positions.append(p)
    return tuple(positions)


def _runs(groups: Sequence[int | None]) -> list[tuple[int, int, int]]:
    """Return ``(start, stop, group)`` of every run of equal groups."""
    runs: list[tuple[int, int, int]] = []
    for i, group in enumerate(groups):
        if group is None:
            continue
        if runs and runs[-1][1] == i and runs[-1][2] == group:
            runs[-1] = (runs[-1][0], i + 1, group)
        else:
            runs.append((i, i + 1, group))
    return runs
