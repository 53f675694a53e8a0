"""Coordinates of one network, by tensor stride: MinkowskiEngine's rules over layoutconv's maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import ArgumentError
from ...sparse import Coordinates, KernelMap, downsample, lookup, strided_map, transposed_map
from ...sparse import submanifold_map as subm_map
from ...sparse.coords.arithmetic import union
from ...sparse.coords.rows import runs_of
from ..whole_numbers import int32_cells, whole_per_mode
from .MinkowskiKernelGenerator import Ints, KernelGenerator, RegionType, convert_to_int_list

Name = tuple[tuple[int, ...], str]


def strides_after(
    strides: Sequence[int], steps: Sequence[int], is_transpose: bool
) -> tuple[int, ...]:
    """Return the tensor stride after a layer of a stride.

    Raises :class:`~layoutconv.errors.ArgumentError` if a transposed layer's stride does not divide
    it.

    >>> strides_after([4, 2], [2, 2], False), strides_after([4, 2], [2, 2], True)
    ((8, 4), (2, 1))
    """
    if not is_transpose:
        return tuple(a * b for a, b in zip(strides, steps, strict=True))
    if any(a % b for a, b in zip(strides, steps, strict=True)):
        raise ArgumentError("stride", f"divisors of the tensor stride {list(strides)}", list(steps))
    return tuple(a // b for a, b in zip(strides, steps, strict=True))


def steps_between(fine: CoordinateMapKey, coarse: CoordinateMapKey) -> list[int]:
    """Return how many cells of a tensor stride are one of a coarser, along each axis.

    Raises :class:`~layoutconv.errors.ArgumentError` if it is none of its multiples.

    >>> steps_between(CoordinateMapKey([1, 2]), CoordinateMapKey([2, 2]))
    [2, 1]
    """
    own, others = fine.get_tensor_stride(), coarse.get_tensor_stride()
    both = list(zip(own, others, strict=True))
    if any(not a or not b or b % a for a, b in both):
        raise ArgumentError("coordinates", f"ones whose tensor stride suits {own}", others)
    return [b // a for a, b in both]


class CoordinateMapKey:
    """The name of coordinates in a manager: a tensor stride, and a word if it has several such.

    >>> CoordinateMapKey([2, 2], "").get_tensor_stride()
    [2, 2]
    """

    def __init__(self, tensor_stride: int | Sequence[int], string_id: str = "") -> None:
        if isinstance(tensor_stride, int):  # a number of columns: the key is set later
            self._size, self._key = tensor_stride, None
        else:
            self._size = len(tensor_stride) + 1
            self._key = tuple(int(step) for step in tensor_stride), string_id

    _key: Name | None

    def is_key_set(self) -> bool:
        return self._key is not None

    def get_key(self) -> Name:
        if self._key is None:
            raise ArgumentError("coordinate_map_key", "a key that is set", self)
        return self._key

    def set_key(self, *key: Any) -> None:
        strides, name = key[0] if len(key) == 1 else key
        self._key = tuple(strides), name

    def get_tensor_stride(self) -> list[int]:
        return list(self.get_key()[0])

    def get_coordinate_size(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CoordinateMapKey) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"coordinate map key:{self._key}"


class CoordinateManager:
    """The coordinates of a network's tensors, and their kernel maps.

    Coordinates are kept by tensor stride, so that an upsampling layer returns to the coordinates
    from which a downsampling layer started. :class:`layoutconv.sparse.Coordinates`, whose cells are
    in units of the tensor stride, keep the maps.
    """

    def __init__(
        self,
        D: int = 3,
        num_threads: int = -1,
        coordinate_map_type: Any = None,
        allocator_type: Any = None,
        minkowski_algorithm: Any = None,
    ) -> None:
        self.D = D
        self.minkowski_algorithm = minkowski_algorithm
        self._maps: dict[Name, Coordinates] = {}
        self._grown: set[Name] = set()  # names of cells that were made region by region
        # Points of fields, and the rows of their voxels, which fields of the same points share.
        self._fields: dict[Name, tuple[Tensor, dict[CoordinateMapKey, Tensor]]] = {}
        self._batch_size = 0
        self._origin: CoordinateMapKey | None = None

    def __repr__(self) -> str:
        kept = "".join(f"\n  {name}: {cells!r}" for name, cells in self._maps.items())
        return f"CoordinateManager(D={self.D}{kept})"

    # -- what there is ----------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """The number of images."""
        return self._batch_size

    def cells(self, key: CoordinateMapKey) -> Coordinates:
        """Return the coordinates of a key, in units of its tensor stride."""
        name = key.get_key()
        if name not in self._maps:
            raise ArgumentError("coordinate_map_key", f"one of {list(self._maps)}", name)
        return self._maps[name]

    def size(self, coordinate_map_key: CoordinateMapKey) -> int:
        return len(self.cells(coordinate_map_key))

    def get_coordinates(self, coords_key_or_tensor_strides: Any) -> Tensor:
        """Return int32 (rows, 1 + D), multiples of the tensor stride."""
        key = self._key(coords_key_or_tensor_strides)
        steps = key.get_tensor_stride()
        coords = self.cells(key).coords
        return coords if set(steps) == {1} else coords * coords.new_tensor([1, *steps])

    def get_coordinate_map_keys(self, tensor_stride: Ints) -> list[CoordinateMapKey]:
        steps = tuple(convert_to_int_list(tensor_stride, self.D))
        return [CoordinateMapKey(*name) for name in self._maps if name[0] == steps]

    def _key(self, key_or_stride: Any) -> CoordinateMapKey:
        if isinstance(key_or_stride, CoordinateMapKey):
            return key_or_stride
        found = self.get_coordinate_map_keys(key_or_stride)
        if not found:
            expected = f"a tensor stride of {[list(steps) for steps, _ in self._maps]}"
            raise ArgumentError("key_or_tensor_strides", expected, key_or_stride)
        return found[0]

    def count_images(self, count: int) -> None:
        """Take the number of images from the tensor that has most: all coordinates have as many,
        as maps need, but for those of images, whose rows they are."""
        if count <= self._batch_size:
            return
        for name, cells in self._maps.items():
            if any(name[0]):
                self._maps[name] = cells.at(cells.cells, count)
        self._batch_size, self._origin = count, None

    def number_of_unique_batch_indices(self) -> int:
        return self.batch_size

    def keep(self, cells: Coordinates, steps: Sequence[int], word: str = "") -> CoordinateMapKey:
        """Keep coordinates under a tensor stride, with a word of their own if the name is taken."""
        name, number = (tuple(steps), word), len(self._maps)
        while name in self._maps:
            name, number = (tuple(steps), f"{word}-{number}"), number + 1
        self._maps[name] = cells
        return CoordinateMapKey(*name)

    # -- making coordinates -----------------------------------------------------------------------

    def insert_and_map(
        self, coordinates: Tensor, tensor_stride: Ints = 1, string_id: str = ""
    ) -> tuple[CoordinateMapKey, tuple[Tensor, Tensor]]:
        """Keep each coordinate once. Return the key, the rows that were kept (the first of each
        coordinate), and where each row went."""
        steps = whole_per_mode("tensor_stride", tensor_stride, self.D, 1)
        if max(steps) >= 1 << 31:
            raise ArgumentError("tensor_stride", "numbers below 2^31", steps)
        cells = int32_cells("coordinates", coordinates)
        if cells.ndim != 2 or cells.shape[1] != self.D + 1:
            raise ArgumentError("coordinates", f"(rows, {self.D + 1})", tuple(coordinates.shape))
        if set(steps) != {1}:
            divisor = cells.new_tensor([1, *steps])
            odd = (cells % divisor).any(1)
            if odd.any():
                row = int(odd.nonzero()[0])
                got = f"{cells[row, 1:].tolist()} in row {row}"
                raise ArgumentError("coordinates", f"multiples of tensor_stride {steps}", got)
            cells = cells // divisor
        every = Coordinates.unbounded(cells, repeated=True)
        self.count_images(every.batch_size)
        rows, place = first_rows(every)
        kept = every.cells if len(rows) == len(cells) else every.cells[rows]
        once = Coordinates(kept, every.spatial_shape, self.batch_size, corner=every.corner)
        return self.keep(once, steps, string_id), (rows, place)

    def insert_field(
        self, coordinates: Tensor, tensor_stride: Ints = 1, string_id: str = ""
    ) -> CoordinateMapKey:
        """Keep the points (points, 1 + D) of a field, and return their key."""
        steps = whole_per_mode("tensor_stride", tensor_stride, self.D, 1)
        if coordinates.ndim != 2 or coordinates.shape[1] != self.D + 1:
            raise ArgumentError("coordinates", f"(points, {self.D + 1})", tuple(coordinates.shape))
        name = tuple(steps), f"{string_id}field-{len(self._fields)}"
        self._fields[name] = coordinates, {}
        return CoordinateMapKey(*name)

    def field(self, key: CoordinateMapKey) -> tuple[Tensor, dict[CoordinateMapKey, Tensor]]:
        """Return the points of a field's key, and the rows of their voxels, by the voxels' key."""
        name = key.get_key()
        if name not in self._fields:
            expected = f"one of {list(self._fields)}"
            raise ArgumentError("coordinate_field_map_key", expected, name)
        return self._fields[name]

    def has_field(self, key: CoordinateMapKey) -> bool:
        """Return whether a key is that of a field."""
        return key.is_key_set() and key.get_key() in self._fields

    def get_coordinate_field(self, coords_key_or_tensor_strides: CoordinateMapKey) -> Tensor:
        """Return the points (points, 1 + D) of a field's key."""
        return self.field(coords_key_or_tensor_strides)[0]

    def voxels_of_points(
        self, field_map_key: CoordinateMapKey, sparse_map_key: CoordinateMapKey
    ) -> Tensor:
        """Return the row of each point's voxel, int64 (points,); -1 if it does not exist.

        >>> manager = CoordinateManager(D=1)
        >>> field = manager.insert_field(torch.tensor([[0, 2.5], [0, 7.0]]))
        >>> voxels, _ = manager.insert_and_map(torch.tensor([[0, 0], [0, 2]]), 2)
        >>> manager.voxels_of_points(field, voxels)
        tensor([ 1, -1])
        """
        points, known = self.field(field_map_key)
        if sparse_map_key in known:
            return known[sparse_map_key]
        steps = points.new_tensor([1, *sparse_map_key.get_tensor_stride()])
        return lookup(self.cells(sparse_map_key), (points / steps).floor().int())

    def field_to_sparse_map(
        self, field_map_key: CoordinateMapKey, sparse_map_key: CoordinateMapKey
    ) -> tuple[Tensor, Tensor]:
        """Return the rows of points' voxels, and the rows of the points, int32 (pairs,) each.

        A point without a voxel is in no pair.

        >>> manager = CoordinateManager(D=1)
        >>> field = manager.insert_field(torch.tensor([[0, 2.5], [0, 7.0], [0, 0.1]]))
        >>> voxels, _ = manager.insert_and_map(torch.tensor([[0, 0], [0, 2]]), 2)
        >>> manager.field_to_sparse_map(field, voxels)
        (tensor([1, 0], dtype=torch.int32), tensor([0, 2], dtype=torch.int32))
        """
        place = self.voxels_of_points(field_map_key, sparse_map_key)
        points = (place >= 0).nonzero()[:, 0]
        return place[points].int(), points.int()

    def stride(
        self, coordinate_map_key: CoordinateMapKey, stride: Ints, string_id: str = ""
    ) -> CoordinateMapKey:
        """Return the key of the cells ``floor(x / stride)``, or of those kept at that stride."""
        steps, word = coordinate_map_key.get_key()
        factors = whole_per_mode("stride", stride, self.D, 1)
        name = tuple(a * b for a, b in zip(steps, factors, strict=True)), string_id or word
        if name not in self._maps:
            self._maps[name] = downsample(self.cells(coordinate_map_key), factors)
        return CoordinateMapKey(*name)

    def expanded(self, key: CoordinateMapKey, region: KernelGenerator) -> CoordinateMapKey:
        """Return the key of all cells of a region around cells, at the region's stride."""
        cells = transposed_map(self.cells(key), stride=1, offsets=region.offsets()).outputs
        steps = [a * b for a, b in zip(key.get_tensor_stride(), region.kernel_stride, strict=True)]
        if not region.requires_strided_coordinates:
            divisor = cells.coords.new_tensor([1, *region.kernel_stride])
            there = (cells.coords % divisor == 0).all(1)
            coarse = (cells.coords // divisor)[there]
            cells = Coordinates.unbounded(coarse, self.batch_size)
        return self.keep(cells, steps)

    def upsampled(
        self, key: CoordinateMapKey, region: KernelGenerator, expand: bool
    ) -> CoordinateMapKey:
        """Return the key of a transposed layer's finer cells: existing cells of that tensor stride
        unless ``expand``, or else all cells of the region around cells.

        If regions do not overlap, rows are in MinkowskiEngine's order: the cells of the first row,
        one per tap, then those of the second. Programs rely on it to choose the best of each eight.
        """
        steps = strides_after(key.get_tensor_stride(), region.kernel_stride, True)
        if (steps, "") in self._maps and not expand:
            return CoordinateMapKey(steps, "")
        cells = self.cells(key)
        if not region.tiles:
            return self.keep(_transposed(cells, region, None).outputs, steps)
        corners = cells.coords.long() * cells.coords.new_tensor([1, *region.kernel_stride])
        taps = corners.new_tensor([(0, *offset) for offset in region.offsets()])
        grown = int32_cells("coordinates", (corners[:, None] + taps).flatten(0, 1))
        made = self.keep(Coordinates.unbounded(grown, self.batch_size), steps)
        self._grown.add(made.get_key())
        return made

    # -- kernel maps ------------------------------------------------------------------------------

    def map_of(
        self,
        in_key: CoordinateMapKey,
        out_key: CoordinateMapKey,
        region: KernelGenerator,
        *,
        is_transpose: bool = False,
        is_pool: bool = False,
    ) -> KernelMap:
        """Return the kernel map of a layer, with taps in the order of :func:`weight_of`.

        The layer's stride is that between the tensor strides, as a user may name the outputs.
        """
        inputs, outputs = self.cells(in_key), self.cells(out_key)
        is_tiled = is_pool and region.kernel_stride == region.kernel_size  # a cell is in one window
        fine, coarse = (out_key, in_key) if is_transpose else (in_key, out_key)
        region = region.of_stride(steps_between(fine, coarse))
        if is_tiled:
            sizes = region.kernel_stride
            region = KernelGenerator(sizes, sizes, dimension=self.D)
            ends = (outputs, inputs) if is_transpose else (inputs, outputs)
            found = _strided(*ends, region, [0] * self.D)
            return found.inverse if is_transpose else found
        if not is_transpose:
            return _strided(inputs, outputs, region, region.padding)
        if out_key.get_key() in self._grown:
            return _transposed(inputs, region, outputs)
        if outputs.origin is not None and outputs.origin.inputs is inputs:
            found = _transposed(inputs, region, None)  # that which made the outputs, most likely
            if found.outputs.cells is outputs.cells:
                return found
        return _strided(outputs, inputs, region, region.padding).inverse

    def kernel_map(
        self,
        in_key: Any,
        out_key: Any,
        stride: Ints = 1,
        kernel_size: Ints = 3,
        dilation: Ints = 1,
        region_type: RegionType = RegionType.HYPER_CUBE,
        region_offset: Any = None,
        is_transpose: bool = False,
        is_pool: bool = False,
    ) -> dict[int, Tensor]:
        """Return the rows of inputs and outputs, int32 (2, pairs), for each tap with pairs.

        For a pooling whose windows do not overlap, tap 0 has all pairs, in the order of the finer
        cells, as in MinkowskiEngine.
        """
        region = KernelGenerator(
            kernel_size, stride, dilation, region_type=region_type, dimension=self.D
        )
        ends = self._key(in_key), self._key(out_key)
        if is_pool and region.kernel_stride == region.kernel_size:
            rows = torch.stack(self.stride_map(*(ends[::-1] if is_transpose else ends)))
            return {0: rows.flip(0) if is_transpose else rows} if rows.shape[1] else {}
        found = self.map_of(*ends, region, is_transpose=is_transpose, is_pool=is_pool)
        index, order = found.index, tap_order(region)
        pairs = {}
        for tap, column in enumerate(order):
            rows = (index[:, column] >= 0).nonzero()[:, 0]
            if len(rows):
                pairs[tap] = torch.stack([index[rows, column], rows.int()])
        return pairs

    get_kernel_map = kernel_map

    def stride_map(self, in_key: CoordinateMapKey, stride_key: CoordinateMapKey) -> Any:
        """Return the rows of the finer cells, and of the coarser cells that contain them."""
        both = zip(stride_key.get_tensor_stride(), in_key.get_tensor_stride(), strict=True)
        cells = self.cells(in_key).coords
        sizes = cells.new_tensor([1, *(a // b for a, b in both)])
        coarse = torch.div(cells, sizes, rounding_mode="floor")
        place = lookup(self.cells(stride_key), coarse)
        rows = (place >= 0).nonzero()[:, 0]
        return rows.int(), place[rows].int()

    def union_map(self, in_keys: Sequence[CoordinateMapKey], out_key: CoordinateMapKey) -> Any:
        """Set ``out_key``; return (2, rows) per input: its rows, and their rows in the union."""
        cells, places = union([self.cells(key) for key in in_keys])
        kept = self.keep(cells, in_keys[0].get_tensor_stride(), "union")
        out_key.set_key(kept.get_key())
        return [torch.stack([torch.arange(len(p), device=p.device), p]) for p in places]

    def rows_by_image(self, key: CoordinateMapKey) -> list[Tensor]:
        """Return the rows of each image, int64."""
        order, starts, _ = self.cells(key).by_image
        return list(order.long().split(starts.diff().tolist()))

    def origin_map(self, key: CoordinateMapKey) -> tuple[Tensor, list[Tensor]]:
        """Return the images, and the rows of each."""
        return torch.arange(self.batch_size, dtype=torch.int32), self.rows_by_image(key)

    def origin(self, device: Any = None) -> CoordinateMapKey:
        """Return the key of one cell per image, with tensor stride 0."""
        if self._origin is None:
            device = device or next(iter(self._maps.values())).device
            cells = torch.zeros(self.batch_size, self.D + 1, dtype=torch.int32, device=device)
            cells[:, 0] = torch.arange(self.batch_size, dtype=torch.int32, device=device)
            made = Coordinates.unbounded(cells, self.batch_size)
            self._origin = self.keep(made, (0,) * self.D)
        return self._origin


def first_rows(cells: Coordinates) -> tuple[Tensor, Tensor]:
    """Return the first row of each cell, int64, in row order; and the cell's index, per row."""
    runs = runs_of(cells.keys())
    firsts, order = runs.order[runs.first].sort()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    found = torch.empty_like(runs.order)
    found[runs.order] = place[runs.place]
    return firsts, found


def tap_order(region: KernelGenerator) -> list[int]:
    """Return the column of a kernel map for each of MinkowskiEngine's taps."""
    if region.region_type != RegionType.HYPER_CUBE:
        return list(range(region.kernel_volume))
    numbers = torch.arange(region.kernel_volume).view(*region.kernel_size)
    return numbers.permute(*reversed(range(region.dimension))).flatten().tolist()


def _strided(
    inputs: Coordinates, outputs: Coordinates, region: KernelGenerator, padding: Sequence[int]
) -> KernelMap:
    sizes, steps = region.kernel_size, region.kernel_stride
    if region.region_type == RegionType.HYPER_CROSS:
        if inputs is outputs and set(steps) == {1}:
            return subm_map(inputs, offsets=region.offsets())
        return strided_map(inputs, stride=steps, offsets=region.offsets(), outputs=outputs)
    if inputs is outputs and set(steps) == {1} and all(size % 2 for size in sizes):
        return subm_map(inputs, sizes, region.kernel_dilation)
    options = steps, padding, region.kernel_dilation
    if sizes == steps and not any(padding) and set(region.kernel_dilation) == {1}:
        found = strided_map(inputs, sizes, *options)  # that which made the outputs, most likely
        if found.outputs.cells is outputs.cells:
            return found
    return strided_map(inputs, sizes, *options, outputs=outputs)


def _transposed(
    inputs: Coordinates, region: KernelGenerator, outputs: Coordinates | None
) -> KernelMap:
    steps = region.kernel_stride
    if region.region_type == RegionType.HYPER_CROSS:
        return transposed_map(inputs, stride=steps, offsets=region.offsets(), outputs=outputs)
    options = steps, region.padding, 0, region.kernel_dilation
    return transposed_map(inputs, region.kernel_size, *options, outputs=outputs)


def weight_of(kernel: Tensor, region: KernelGenerator) -> Tensor:
    """Return layoutconv's weight (K, *taps, C) of a ``kernel`` (taps, C, K).

    >>> region = KernelGenerator([3, 2], dimension=2)
    >>> weight_of(torch.arange(6.0).view(6, 1, 1), region)[0, :, :, 0].tolist()
    [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    """
    if region.region_type != RegionType.HYPER_CUBE:
        return kernel.permute(2, 0, 1)
    rank = region.dimension
    by_axis = kernel.reshape(*reversed(region.kernel_size), *kernel.shape[1:])
    return by_axis.permute(rank + 1, *reversed(range(rank)), rank)
