"""Where the cells of a grid lie in the space of the points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from torch import Tensor

Triple = tuple[float, float, float]

# A range is rarely a whole number of voxels in binary (70.4 / 0.1): a remainder below this is
# rounding, not a cell.
_PARTIAL_CELL = 1e-4


@dataclass(frozen=True)
class Lattice:
    """A regular grid of cells in space; all triples are ``(x, y, z)``, in the unit of the points.

    A point p lies in cell ``floor((p - anchor) / voxel_size) - first``, computed in float64. Points
    outside the half-open box ``range`` lie in none, if there is a range.

    >>> Lattice.of_range((0, 0, 0, 1, 2, 1), (0.5, 0.5, 0.25)).shape
    (4, 4, 2)
    """

    voxel_size: Triple
    anchor: Triple
    first: tuple[int, int, int]
    shape: tuple[int, int, int]  # (D, H, W)
    range: tuple[float, ...] | None = None

    @property
    def origin(self) -> Triple:
        """The corner of cell ``(z, y, x) = (0, 0, 0)``."""
        parts = zip(self.anchor, self.first, self.voxel_size, strict=True)
        x, y, z = (anchor + first * edge for anchor, first, edge in parts)
        return x, y, z

    @classmethod
    def of_range(cls, range: Sequence[float], size: Triple) -> Lattice:
        """The cells that are counted from the lower corner of a box, as many as cover it."""
        low, high = _bounds(range)
        extents = [
            max(1, math.ceil((b - a) / edge - _PARTIAL_CELL))
            for a, b, edge in zip(low, high, size, strict=True)
        ]
        return cls(size, low, (0, 0, 0), _checked(extents, size), (*low, *high))

    @classmethod
    def of_points(cls, xyz: Tensor, size: Triple) -> Lattice:
        """The cells through the zero of the frame that cover some points (points, 3)."""
        zero = (0.0, 0.0, 0.0)
        if not len(xyz):
            return cls(size, zero, (0, 0, 0), (0, 0, 0))
        cells = _steps(xyz.detach(), zero, size).floor_()
        lowest, highest = cells.amin(0), cells.amax(0)
        extents = [int(extent) for extent in (highest - lowest + 1).tolist()]
        x, y, z = (int(cell) for cell in lowest.tolist())
        return cls(size, zero, (x, y, z), _checked(extents, size))

    def cells(self, xyz: Tensor) -> tuple[Tensor, Tensor]:
        """Cells, int64 (points, 3) as x, y, z, of points (points, 3), and which are in the grid.

        What is not in the grid has some cell.
        """
        import torch

        cells = _steps(xyz.detach(), self.anchor, self.voxel_size).floor_()
        cells -= cells.new_tensor(self.first)
        last = cells.new_tensor(self.shape[::-1]) - 1
        if self.range is None:
            inside = ((cells >= 0) & (cells <= last)).all(1)
        else:
            low, high = cells.new_tensor(self.range[:3]), cells.new_tensor(self.range[3:])
            inside = ((xyz >= low) & (xyz < high)).all(1)
        # The last point of a range may round into the cell after the last.
        return torch.minimum(cells, last).clamp_(min=0).long(), inside

    def positions(self, xyz: Tensor) -> Tensor:
        """float64 (points, 3): ``(p - origin) / voxel_size``, x, y, z, with a gradient."""
        steps = _steps(xyz, self.anchor, self.voxel_size)
        return steps - steps.new_tensor(self.first)

    def centres(self, cells: Tensor) -> Tensor:
        """The centres, float64 (rows, 3), of cells (rows, 3), x, y, z."""
        halves = cells.double() + 0.5
        return halves * halves.new_tensor(self.voxel_size) + halves.new_tensor(self.origin)


def voxel_edges(voxel_size: float | Sequence[float]) -> Triple:
    """The edges ``(x, y, z)`` that a number, or three, stand for; or ``ArgumentError``."""
    # Arrays and tensors, too; those of no mode are numbers.
    several = isinstance(voxel_size, Iterable) and getattr(voxel_size, "ndim", 1) > 0
    given: Any = voxel_size if several else (voxel_size,) * 3
    edges = tuple(given)
    if len(edges) != 3 or not all(math.isfinite(edge) and edge > 0 for edge in edges):
        raise ArgumentError("voxel_size", "a finite positive number, or three", voxel_size)
    x, y, z = (float(edge) for edge in edges)
    return x, y, z


def _steps(xyz: Tensor, anchor: Triple, size: Triple) -> Tensor:
    # Tensors, not numbers: torch multiplies by the reciprocal of a number on a GPU, which rounds
    # elsewhere.
    xyz = xyz.double()
    return (xyz - xyz.new_tensor(anchor)) / xyz.new_tensor(size)


def _bounds(range: Sequence[float]) -> tuple[Triple, Triple]:
    try:
        bounds = tuple(float(bound) for bound in range)
    except (TypeError, ValueError):
        raise ArgumentTypeError("range", "six numbers (x0, y0, z0, x1, y1, z1)", range) from None
    low, high = bounds[:3], bounds[3:]
    if (
        len(bounds) != 6
        or not all(map(math.isfinite, bounds))
        or not all(a < b for a, b in zip(low, high, strict=True))
    ):
        raise ArgumentError(
            "range", "finite (x0, y0, z0, x1, y1, z1), each lower bound below its upper", bounds
        )
    return (bounds[0], bounds[1], bounds[2]), (bounds[3], bounds[4], bounds[5])


def _checked(extents: Sequence[int], size: Triple) -> tuple[int, int, int]:
    """(D, H, W) of extents along x, y, z."""
    if max(extents) >= 2**31:
        raise ArgumentError(
            "voxel_size",
            "fewer than 2**31 cells on each axis, for int32 coordinates",
            f"{size}, which gives {tuple(extents)} cells along x, y, z",
        )
    x, y, z = extents
    return z, y, x
