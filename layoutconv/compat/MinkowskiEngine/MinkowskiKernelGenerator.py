"""Regions: the cells that a filter reads around its own, in MinkowskiEngine's order of taps."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from math import prod
from typing import Any

import torch
from torch import Tensor

from ...errors import ArgumentError, ArgumentTypeError, shown
from ..whole_numbers import whole, whole_numbers, whole_per_mode

Ints = Any  # an int, or a sequence, array or tensor of as many as there are modes


class RegionType(IntEnum):
    """The shapes of filters."""

    HYPER_CUBE = 0
    HYPER_CROSS = 1
    CUSTOM = 2


# As in a pybind11 enumeration: member and documentation, by name.
setattr(RegionType, "__entries", {region.name: (region, None) for region in RegionType})


def check_region(region_type: Any) -> RegionType:
    """Return the shape of a filter, also for its number.

    Raises :class:`~layoutconv.errors.ArgumentError` for any other.

    >>> check_region(1).name
    'HYPER_CROSS'
    """
    try:
        return RegionType(region_type)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError("region_type", "a RegionType", shown(region_type)) from error


def convert_to_int_list(arg: Ints, dimension: int) -> list[int]:
    """Return a number per mode.

    >>> convert_to_int_list(2, 3), convert_to_int_list((1, 2), 2)
    ([2, 2, 2], [1, 2])
    """
    return whole_per_mode("arg", arg, whole("dimension", dimension, 0))


def check_dimension(dimension: Any) -> int:
    """Return the number of spatial modes, 1 to 4.

    Raises :class:`~layoutconv.errors.ArgumentError` for any other.

    >>> check_dimension(3)
    3
    """
    expected = "1 to 4 spatial modes"
    found = whole("dimension", -1 if dimension is None else dimension)
    if not 1 <= found <= 4:
        raise ArgumentError("dimension", expected, dimension)
    return found


def get_kernel_volume(
    region_type: RegionType,
    kernel_size: Sequence[int],
    region_offset: Any = None,
    axis_types: Any = None,
    dimension: int = 3,
) -> int:
    """Return the number of taps.

    Raises :class:`~layoutconv.errors.ArgumentError` for a size below 1, an even size of a cross,
    and a region of custom offsets.

    >>> get_kernel_volume(RegionType.HYPER_CROSS, [3, 3, 5])
    9
    """
    sizes = whole_numbers("kernel_size", kernel_size, 1, "a number >= 1 for each mode")
    if not sizes:
        raise ArgumentError("kernel_size", "a number >= 1 for each mode", kernel_size)
    region_type = check_region(region_type)
    if prod(sizes) >= 1 << 31:
        raise ArgumentError("kernel_size", "sizes of fewer than 2^31 taps", sizes)
    if region_type == RegionType.HYPER_CUBE:
        return prod(sizes)
    if region_type == RegionType.HYPER_CROSS:
        if not all(size % 2 for size in sizes):
            raise ArgumentError("kernel_size", "odd numbers for HYPER_CROSS", sizes)
        return sum(size - 1 for size in sizes) + 1
    expected = "HYPER_CUBE or HYPER_CROSS: MinkowskiEngine makes no map of a CUSTOM one either"
    raise ArgumentError("region_type", expected, region_type)


class KernelGenerator:
    """A filter's region, stride and dilation; arguments as in MinkowskiEngine.

    Taps of a cube run over the first axis fastest; an odd size is centred, an even one begins at
    the cell itself. Taps of a cross are the cell itself, and for each axis the cells above it,
    nearest first, then those below, farthest first. ``axis_types`` has no effect, as in
    MinkowskiEngine.

    >>> KernelGenerator([3, 2], dimension=2).offsets()
    [(-1, 0), (0, 0), (1, 0), (-1, 1), (0, 1), (1, 1)]
    >>> KernelGenerator(3, dimension=2, region_type=RegionType.HYPER_CROSS).offsets()
    [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]
    """

    def __init__(
        self,
        kernel_size: Ints = -1,
        stride: Ints = 1,
        dilation: Ints = 1,
        is_transpose: bool = False,
        region_type: RegionType = RegionType.HYPER_CUBE,
        region_offsets: Tensor | None = None,
        expand_coordinates: bool = False,
        axis_types: Any = None,
        dimension: int = -1,
    ) -> None:
        dimension = check_dimension(dimension)
        self.region_type = check_region(region_type)
        self.kernel_size = whole_per_mode("kernel_size", kernel_size, dimension)
        self.kernel_stride = whole_per_mode("stride", stride, dimension, 1)
        self.kernel_dilation = whole_per_mode("dilation", dilation, dimension, 1)
        self.region_offsets, self.axis_types, self.dimension = region_offsets, axis_types, dimension
        self.kernel_volume = get_kernel_volume(self.region_type, self.kernel_size)
        self.requires_strided_coordinates = all(step == 1 for step in self.kernel_stride)
        self.expand_coordinates = expand_coordinates

    def __repr__(self) -> str:
        return (
            f"KernelGenerator(kernel_size={self.kernel_size}, kernel_stride={self.kernel_stride}, "
            f"kernel_dilation={self.kernel_dilation}, region_type={self.region_type}, "
            f"expand_coordinates={self.expand_coordinates}, dimension={self.dimension})"
        )

    def get_kernel(self, tensor_stride: Ints, is_transpose: bool) -> tuple[RegionType, Tensor, int]:
        """Return the shape, its offsets and the number of taps, for
        ``CoordinateManager.kernel_map``.

        Only a ``CUSTOM`` shape would have offsets: they are an empty int32 tensor.

        >>> KernelGenerator(3, dimension=2).get_kernel([1, 1], is_transpose=False)
        (<RegionType.HYPER_CUBE: 0>, tensor([], dtype=torch.int32), 9)
        """
        whole_per_mode("tensor_stride", tensor_stride, self.dimension)
        return self.region_type, torch.empty(0, dtype=torch.int32), self.kernel_volume

    def of_stride(self, steps: list[int]) -> KernelGenerator:
        """Return this filter with a stride of ``steps``.

        >>> KernelGenerator(3, dimension=2).of_stride([2, 2]).kernel_stride
        [2, 2]
        """
        if steps == self.kernel_stride:
            return self
        sizes = self.kernel_size, steps, self.kernel_dilation
        options: dict[str, Any] = {"region_type": self.region_type, "dimension": self.dimension}
        return KernelGenerator(*sizes, expand_coordinates=self.expand_coordinates, **options)

    @property
    def tiles(self) -> bool:
        """Return whether this is a cube as large as the stride: regions meet and do not overlap.

        >>> KernelGenerator(2, stride=2, dimension=3).tiles
        True
        """
        is_cube = self.region_type == RegionType.HYPER_CUBE
        return is_cube and self.kernel_size == self.kernel_stride and max(self.kernel_dilation) == 1

    @property
    def padding(self) -> tuple[int, ...]:
        """Cells that a cube reads below its own."""
        both = zip(self.kernel_size, self.kernel_dilation, strict=True)
        return tuple(size // 2 * step if size % 2 else 0 for size, step in both)

    def offsets(self) -> list[tuple[int, ...]]:
        """Return a cell ``(x, y, z)`` for each tap, relative to the filter's own cell."""
        modes = list(zip(self.kernel_size, self.kernel_dilation, strict=True))
        if self.region_type == RegionType.HYPER_CROSS:
            found = [(0,) * len(modes)]
            for axis, (size, step) in enumerate(modes):
                reach = size // 2
                for distance in (*range(1, reach + 1), *range(-reach, 0)):
                    cell = [0] * len(modes)
                    cell[axis] = distance * step
                    found.append(tuple(cell))
            return found
        found, below = [], self.padding
        for tap in range(self.kernel_volume):
            cell = []
            for (size, step), low in zip(modes, below, strict=True):
                cell.append(tap % size * step - low)
                tap //= size
            found.append(tuple(cell))
        return found


def region_of(
    given: KernelGenerator | None, kernel_size: Ints, stride: Ints, dilation: Ints, dimension: Any
) -> KernelGenerator:
    """Return a layer's region: ``given``, or else one of its sizes.

    >>> region_of(3, 3, 1, 1, 2)
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `kernel_generator`: expected a KernelGenerator,\
 got int
    """
    if given is None:
        return KernelGenerator(kernel_size, stride, dilation, dimension=dimension)
    if not isinstance(given, KernelGenerator):
        raise ArgumentTypeError("kernel_generator", "a KernelGenerator", type(given).__name__)
    return given
