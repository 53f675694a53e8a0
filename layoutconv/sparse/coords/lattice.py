"""The position of a grid's cells in the space of points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any

import torch

from ...errors import ArgumentError, ArgumentTypeError, shown
from .bounds import joint

if TYPE_CHECKING:
    from torch import Tensor

Edges = tuple[float, ...]

# In binary a range is rarely a whole number of voxels (70.4 / 0.1): a smaller remainder is
# rounding, not a cell.
_PARTIAL_CELL = 1e-4


@dataclass(frozen=True)
class Lattice:
    """A regular grid of cells in space of 1 to 4 modes; all tuples but ``shape`` are ``(x, y, z)``,
    in the unit of the points.

    A point p lies in cell ``floor((p - anchor) / voxel_size) - first``, computed in float64. If
    there is a half-open box ``range``, points outside lie in no cell.

    >>> Lattice.of_range((0, 0, 0, 1, 2, 1), (0.5, 0.5, 0.25)).shape
    (4, 4, 2)
    """

    voxel_size: Edges
    anchor: Edges
    first: tuple[int, ...]
    shape: tuple[int, ...]  # (D, H, W)
    range: tuple[float, ...] | None = None

    @property
    def origin(self) -> Edges:
        """The corner of cell ``(z, y, x) = (0, 0, 0)``."""
        parts = zip(self.anchor, self.first, self.voxel_size, strict=True)
        return tuple(anchor + first * edge for anchor, first, edge in parts)

    @classmethod
    def of_range(cls, range: Sequence[float], size: Edges) -> Lattice:
        """Return the cells counted from the lower corner of a box, as many as cover it."""
        low, high = _bounds(range, len(size))
        extents = [
            max(1, math.ceil((b - a) / edge - _PARTIAL_CELL))
            for a, b, edge in zip(low, high, size, strict=True)
        ]
        return cls(size, low, (0,) * len(size), _checked(extents, size), (*low, *high))

    @classmethod
    def of_points(
        cls, xyz: Tensor, size: Edges, below: tuple[float, ...] = (0.0,), margin: int = 0
    ) -> Lattice:
        """Return the cells, aligned to the zero of the frame, that cover points (points, modes).

        They cover, for each point, the positions ``below`` it, in cells, on every axis; and a
        ``margin`` of cells on all sides.
        """
        zero = (0.0,) * len(size)
        if not len(xyz):
            return cls(size, zero, (0,) * len(size), (0,) * len(size))
        steps = _steps(xyz.detach(), zero, size)
        cells = [(steps - one).floor() for one in (min(below), max(below))]
        lowest, highest = cells[1].amin(0) - margin, cells[0].amax(0) + margin
        extents = [int(extent) for extent in (highest - lowest + 1).tolist()]
        return cls(size, zero, tuple(map(int, lowest.tolist())), _checked(extents, size))

    @classmethod
    def around(cls, lattices: Sequence[Lattice]) -> Lattice | None:
        """Return the smallest lattice with the cells of all lattices; None if their cells differ.

        >>> a = Lattice((1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (2, 0, 0), (1, 1, 4))
        >>> b = Lattice((1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (0, 1, 0), (1, 1, 1))
        >>> both = Lattice.around([a, b])
        >>> both.first, both.shape
        ((0, 0, 0), (1, 2, 6))
        """
        if len({(one.voxel_size, one.anchor, one.range) for one in lattices}) != 1:
            return None
        first, extents = joint([(one.first, one.shape[::-1]) for one in lattices])
        size = lattices[0].voxel_size
        return cls(size, lattices[0].anchor, first, _checked(extents, size), lattices[0].range)

    def cells(self, xyz: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cells of points, int64 (points, modes) as x, y, z, and which are in the grid.

        A point outside the grid gets some cell of it.
        """
        cells = _steps(xyz.detach(), self.anchor, self.voxel_size).floor_()
        cells -= cells.new_tensor(self.first)
        last = cells.new_tensor(self.shape[::-1]) - 1
        if self.range is None:
            inside = ((cells >= 0) & (cells <= last)).all(1)
        else:
            rank = len(self.shape)
            low, high = cells.new_tensor(self.range[:rank]), cells.new_tensor(self.range[rank:])
            inside = ((xyz >= low) & (xyz < high)).all(1)
        # The last point of a range may round into the cell after the last.
        return torch.minimum(cells, last).clamp_(min=0).long(), inside

    def positions(self, xyz: Tensor) -> Tensor:
        """Return ``(p - origin) / voxel_size``, float64 (points, modes), x, y, z;
        differentiable."""
        steps = _steps(xyz, self.anchor, self.voxel_size)
        return steps - steps.new_tensor(self.first)

    def centres(self, cells: Tensor) -> Tensor:
        """Return the centres, float64 (rows, modes), of cells (rows, modes), x, y, z."""
        halves = cells.double() + 0.5
        return halves * halves.new_tensor(self.voxel_size) + halves.new_tensor(self.origin)


def voxel_edges(voxel_size: float | Sequence[float], rank: int = 3) -> Edges:
    """Return the edges ``(x, y, z)`` of a number, or one per mode; or raise ``ArgumentError``."""
    # Arrays and tensors, too; those without modes are numbers.
    several = isinstance(voxel_size, Iterable) and getattr(voxel_size, "ndim", 1) > 0
    given: Any = voxel_size if several and not isinstance(voxel_size, str) else (voxel_size,) * rank
    edges = tuple(given)
    expected = "a finite positive number"
    expected += f", or {('one', 'two', 'three', 'four')[rank - 1]} in a sequence"
    try:
        positive = all(math.isfinite(edge) and edge > 0 for edge in edges)
    except OverflowError:  # an integer beyond all floats
        positive = False
    except (TypeError, ValueError):  # ValueError: an edge is a tensor of several numbers
        raise ArgumentTypeError("voxel_size", expected, shown(voxel_size)) from None
    if len(edges) != rank or not positive:
        raise ArgumentError("voxel_size", expected, voxel_size)
    return tuple(float(edge) for edge in edges)


def check_rank(rank: int) -> int:
    """Return ``rank`` if it is a number of spatial modes; else raise ``ArgumentError``."""
    try:
        number = 0 if isinstance(rank, bool) else index(rank)
    except TypeError:  # a float, an array of one, a tensor of several numbers
        number = 0
    if number not in (1, 2, 3, 4):
        raise ArgumentError("rank", "1 to 4 spatial modes", shown(rank))
    return number


def _steps(xyz: Tensor, anchor: Edges, size: Edges) -> Tensor:
    # Divide by tensors, not numbers: on a GPU torch multiplies by a number's reciprocal, which
    # rounds differently.
    xyz = xyz.double()
    return (xyz - xyz.new_tensor(anchor)) / xyz.new_tensor(size)


def _bounds(range: Sequence[float], rank: int) -> tuple[Edges, Edges]:
    axes = "xyzt"[:rank]
    names = ", ".join([f"{axis}{end}" for end in "01" for axis in axes])
    try:
        bounds = tuple(float(bound) for bound in range)
    except (TypeError, ValueError):
        raise ArgumentTypeError("range", f"{2 * rank} numbers ({names})", range) from None
    low, high = bounds[:rank], bounds[rank:]
    if (
        len(bounds) != 2 * rank
        or not all(map(math.isfinite, bounds))
        or not all(a < b for a, b in zip(low, high, strict=True))
    ):
        raise ArgumentError("range", f"finite ({names}), each lower bound below its upper", bounds)
    return low, high


def _checked(extents: Sequence[int], size: Edges) -> tuple[int, ...]:
    """Return (D, H, W) from extents along x, y, z."""
    if max(extents) >= 2**31:
        raise ArgumentError(
            "voxel_size",
            "fewer than 2**31 cells on each axis, for int32 coordinates",
            f"{size}, which gives {tuple(extents)} cells along x, y, z",
        )
    return tuple(extents)[::-1]
