"""Points near points, found through a table of the cells that they lie in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import inf, isfinite
from operator import index as integer
from typing import TYPE_CHECKING, NamedTuple

import torch

from ...errors import ArgumentError, ArgumentTypeError, shown
from .coordinates import Coordinates
from .keys import key_strides, pack
from .lattice import Lattice, check_rank
from .rows import Runs, runs_of
from .voxels import joined

if TYPE_CHECKING:
    from numpy import ndarray
    from torch import Tensor

    Clouds = Tensor | ndarray | Sequence[Tensor | ndarray]

# A cell is slightly wider than the radius, so that neighbours lie in adjacent cells even if a
# division rounds.
_WIDER = 1 + 2.0**-20
_AT_ONCE = 1 << 22  # candidate pairs, 100 MB


class Neighbours(NamedTuple):
    """Points near each query, from the nearest to the farthest.

    Attributes:
        starts: int64 (queries + 1,): where the neighbours of each query start.
        points: int64 (pairs,): their rows.
        distances: (pairs,), in the dtype of the points.
    """

    starts: Tensor
    points: Tensor
    distances: Tensor


def radius_search(
    points: Clouds,
    radius: float,
    queries: Clouds | None = None,
    limit: int | None = None,
    *,
    rank: int = 3,
) -> Neighbours:
    """Find the points within a radius of each query.

    Args:
        points: floating (points, F), columns ``x, y, z`` first; or a list of clouds.
        radius: positive, in the unit of the points.
        queries: likewise, on the same device and of the same dtype, as many clouds as ``points``:
            queries of a cloud search its points. By default the points themselves, each of which
            is its own neighbour.
        limit: the most neighbours of a query, the nearest ones.
        rank: how many columns are coordinates, 1 to 4.

    Rows are numbered through all clouds. Distances are computed in float64 from the differences,
    and have no gradient; of two equally far points the first comes first. Cells as wide as the
    radius are looked up in the hash table of kernel maps on a GPU, in sorted keys on a CPU (waits
    for the device).

    Raises :class:`~layoutconv.errors.ArgumentError` for other arguments, and for a radius so small
    that its cells have no 64-bit keys.

    >>> cloud = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    >>> found = radius_search(cloud, 5.0, rank=2)
    >>> found.starts.tolist(), found.points.tolist()
    ([0, 3, 6, 9], [0, 2, 1, 1, 2, 0, 2, 0, 1])
    >>> found.distances[:3]
    tensor([0., 1., 5.])
    """
    if not isinstance(radius, (int, float)) or not isfinite(radius) or radius <= 0:
        raise ArgumentError("radius", "a finite positive number", shown(radius))
    if limit is not None:
        limit = _count("limit", limit)
    sides = _Sides(points, queries, rank)
    rows = torch.arange(len(sides.queries), device=sides.points.device)
    return _within(sides, float(radius), rows, limit)


def knn_search(
    points: Clouds, k: int, queries: Clouds | None = None, *, rank: int = 3
) -> tuple[Tensor, Tensor]:
    """Find the ``k`` points nearest to each query.

    Args:
        points, queries, rank: as for :func:`radius_search`.
        k: a number >= 1.

    Returns rows, int64 (queries, k), -1 where a cloud has fewer points, and distances (queries, k)
    in the dtype of the points, infinite there; from the nearest to the farthest, of two equally far
    points the first.

    It searches within a radius, and doubles the radius for queries that have fewer than ``k``
    points within it.

    Raises :class:`~layoutconv.errors.ArgumentError` like :func:`radius_search`.

    >>> cloud = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    >>> rows, distances = knn_search(cloud, 2, rank=2)
    >>> rows.tolist(), distances[:, 1]
    ([[0, 2], [1, 2], [2, 0]], tensor([1.0000, 4.2426, 1.0000]))
    """
    k = _count("k", k)
    sides = _Sides(points, queries, rank)
    count, device = len(sides.queries), sides.points.device
    rows = torch.full((count, k), -1, dtype=torch.int64, device=device)
    distances = torch.full((count, k), inf, dtype=sides.points.dtype, device=device)
    left = torch.arange(count, device=device)
    if not len(sides.points) or not count:
        return rows, distances
    radius, widest = sides.radii(k)
    while len(left):
        found = _within(sides, radius, left, k)
        lengths = found.starts.diff()
        done = (lengths == k) | (radius >= widest)
        query = torch.repeat_interleave(torch.arange(len(left), device=device), lengths)
        place = torch.arange(len(query), device=device) - found.starts[query]
        kept = done[query]
        at = left[query[kept]], place[kept]
        rows[at], distances[at] = found.points[kept], found.distances[kept]
        left, radius = left[~done], radius * 2
    return rows, distances


class _Sides:
    """Points and queries, and the cloud of each."""

    def __init__(self, points: Clouds, queries: Clouds | None, rank: int) -> None:
        self.rank = check_rank(rank)
        self.points, self.of_points, self.clouds = self._side(points)
        self.queries, self.of_queries = self.points, self.of_points
        if queries is not None:
            self.queries, self.of_queries, count = self._side(queries)
            if count != self.clouds:
                raise ArgumentError("queries", f"{self.clouds} clouds, as `points` has", count)
            kinds = [(cloud.dtype, cloud.device) for cloud in (self.points, self.queries)]
            if kinds[0] != kinds[1]:
                raise ArgumentError("queries", f"{kinds[0]}, as `points` are", kinds[1])

    def _side(self, points: Clouds) -> tuple[Tensor, Tensor, int]:
        cloud, batch, count = joined(points, self.rank)
        return cloud.detach()[:, : self.rank], batch, count

    def radii(self, k: int) -> tuple[float, float]:
        """Return a radius within which about ``k`` points would lie if they were evenly spread, and
        one that contains all points of every query."""
        both = torch.cat([self.points, self.queries]).double()
        size = both.amax(0) - both.amin(0)
        widest = float(size.square().sum().sqrt()) * (1 + 1e-9)
        own = self.points.double()
        spread = (own.amax(0) - own.amin(0)).tolist()
        wide = [extent for extent in spread if extent > 0]
        if not wide:
            return max(widest, 1.0), widest
        volume = 1.0
        for extent in wide:
            volume *= extent ** (1 / len(wide))  # the root first: the product may overflow
        start = volume * (k * self.clouds / len(own)) ** (1 / len(wide))
        least = max(spread) * 2.0 ** (-60 // self.rank)  # whose cells have 64-bit keys
        return min(max(start, least), max(widest, least)), widest


def _within(
    sides: _Sides, radius: float, rows: Tensor, limit: int | None, at_once: int = _AT_ONCE
) -> Neighbours:
    """Return the neighbours of the queries in ``rows``, from ``at_once`` candidate pairs each time.

    A query with more candidates is searched alone.
    """
    cells = _Cells(sides, radius)
    starts, found = cells.candidates(rows)
    parts = []
    for low, high in _pieces(starts, at_once):
        query, point = found(low, high)
        apart = sides.queries[rows[query]].double() - sides.points[point].double()
        square = apart.square().sum(1)
        near = (square.sqrt() <= radius).nonzero()[:, 0]
        query, point, square = query[near], point[near], square[near]
        order = torch.sort(point, stable=True).indices
        for keys in (square, query):  # the last key decides
            order = order[torch.sort(keys[order], stable=True).indices]
        query, point, square = query[order], point[order], square[order]
        if limit is not None:
            lengths = torch.bincount(query, minlength=len(rows))
            place = torch.arange(len(query), device=rows.device)
            few = (place - (lengths.cumsum(0) - lengths)[query] < limit).nonzero()[:, 0]
            query, point, square = query[few], point[few], square[few]
        parts.append((query, point, square))
    query, point, square = (torch.cat(columns) for columns in zip(*parts, strict=True))
    lengths = torch.bincount(query, minlength=len(rows))
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    return Neighbours(ends, point, square.sqrt().to(sides.points.dtype))


def _pieces(starts: Tensor, at_once: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of queries, each with a bounded number of candidates."""
    count = len(starts) - 1
    total = int(starts[-1])
    low = 0
    while True:
        wanted = starts[low] + at_once
        high = count
        if total > at_once:
            last = int(torch.searchsorted(starts, wanted, right=True)) - 1
            high = min(count, max(last, low + 1))
        yield low, high
        if high >= count:
            return
        low = high


class _Cells:
    """The cells of points, as wide as a radius, with a free cell around them on all sides."""

    def __init__(self, sides: _Sides, radius: float) -> None:
        self.sides = sides
        size = (radius * _WIDER,) * sides.rank
        self.lattice = Lattice.of_points(sides.points, size, margin=1)
        self.strides = key_strides(self.lattice.shape, sides.clouds)
        cells, _ = self.lattice.cells(sides.points)
        keys = pack(torch.cat([sides.of_points[:, None], cells.flip(1)], 1), self.strides)
        self.runs: Runs = runs_of(keys)
        firsts = keys[self.runs.order[self.runs.first]]
        self.occupied = Coordinates.of_keys(firsts, self.lattice.shape, sides.clouds)

    def candidates(self, rows: Tensor) -> tuple[Tensor, _Candidates]:
        """Return where each query's candidates start, int64 (rows + 1,), and their lister."""
        sides, rank = self.sides, self.sides.rank
        cells, inside = self.lattice.cells(sides.queries[rows])
        image = torch.where(inside, sides.of_queries[rows], -1)
        centres = torch.cat([image[:, None], cells.flip(1)], 1).int()
        offsets = list(product((-1, 0, 1), repeat=rank))
        found = self.occupied.table.search(centres, (1,) * rank, offsets).long()
        counts = torch.nn.functional.pad(self.runs.counts, (0, 1))  # the last is for no cell
        lengths = counts[found]
        starts = torch.nn.functional.pad(lengths.sum(1).cumsum(0), (1, 0))
        return starts, _Candidates(self.runs, found, lengths)


class _Candidates(NamedTuple):
    """The points of the cells around queries: runs (queries, cells) of ``lengths`` points each."""

    runs: Runs
    found: Tensor
    lengths: Tensor

    def __call__(self, low: int, high: int) -> tuple[Tensor, Tensor]:
        """Return queries, int64 (pairs,), and the points that may be near them."""
        device = self.found.device
        lengths = self.lengths[low:high].flatten()
        run = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths)
        before = lengths.cumsum(0) - lengths
        cell = self.found[low:high].flatten()[run]
        place = self.runs.first[cell] + torch.arange(len(run), device=device) - before[run]
        return low + run // self.found.shape[1], self.runs.order[place]


def _count(name: str, value: int) -> int:
    try:
        count = integer(value)
    except TypeError:
        raise ArgumentTypeError(name, "an integer >= 1", shown(value)) from None
    if count < 1:
        raise ArgumentError(name, "an integer >= 1", count)
    if count >= 1 << 31:
        raise ArgumentError(name, "an integer below 2^31", count)
    return count
