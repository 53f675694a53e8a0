"""The occupied cells of a batch of grids, and facts about them."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...base.outlive import to_be_kept
from ...base.torch_internals import is_tracing
from ...errors import ArgumentError
from . import row_plan
from .bounds import RUN_ON, bounding_box, check_corner, checked_box, moved
from .cell_errors import outside, overflow, repeated, traced
from .cell_table import Table, cell_table
from .graphs import is_compiling
from .keys import check_coords_type, check_spatial_shape, key_strides, pack, unpack
from .known_cells import KnownCells
from .repeats import Repeats, repeats_of

if TYPE_CHECKING:
    from torch import Tensor

    from ..maps.two_way import KernelMap, TwoWay

    _Source = tuple["Coordinates", TwoWay, int]


class Coordinates:
    """Cells of a batch of grids, one per row: tensors that share them share their kernel maps.

    Args:
        cells: int32 (rows, 1 + rank), columns ``(batch, z, y, x)`` for rank 3, in any order, no
            cell twice. Do not write to them afterwards.
        spatial_shape: extents ``(D, H, W)`` of the grid, one to four of them.
        batch_size: number N of grids, which may be empty.
        padded: whether rows with batch -1 fill memory up: they are no cells, no row reads them,
            and they read nothing. So a cloud of any size can have the shape with which a CUDA graph
            was captured.
        valid: whether the cells are known to pass :meth:`check`.
        repeated: whether a cell may be repeated. All of its rows are kept, and layers compute the
            same as spconv's on a CPU, see :attr:`repeats`.
        corner: the position of cell (0, 0, 0), for coordinates without bounds: see
            :meth:`unbounded`.

    The constructor checks dtypes and shapes only and never waits for a GPU. The values are checked
    once, when the first kernel map is made (:meth:`check`).

    Two of them are equal if they are one object.

    Memory: cells keep their maps, and the cells to which these lead; the latter keep the cells from
    which their map starts. So everything that one forward pass makes is freed together, with the
    last of its tensors: nothing waits for the garbage collector, which does not know how much
    memory a GPU has left.

    Raises :class:`~layoutconv.errors.ArgumentError`.

    >>> import torch
    >>> cells = torch.tensor([[0, 0, 1, 2], [1, 3, 0, 0]], dtype=torch.int32)
    >>> Coordinates(cells, (4, 2, 3), batch_size=2)
    Coordinates(2 rows, spatial_shape=(4, 2, 3), batch_size=2)
    """

    argument = "coords"  # the cells' name in errors: the argument of the call that took them

    def __init__(
        self,
        cells: Tensor,
        spatial_shape: Sequence[int],
        batch_size: int,
        *,
        padded: bool = False,
        valid: bool = False,
        repeated: bool = False,
        corner: Sequence[int] | None = None,
    ) -> None:
        if not is_compiling() and is_tracing():
            raise traced("coords")
        shape = check_spatial_shape(spatial_shape, batch_size)
        if _are_many(check_coords_type(cells, shape)):
            raise ArgumentError("coords", "fewer than 2**31 rows", len(cells))
        fixed = None if padded else row_plan.fixed()
        if fixed is not None:  # cells are checked after the call
            padded, valid, repeated = True, True, False
        known = KnownCells(cells, shape, int(batch_size), padded, valid, repeated)
        if corner is not None:
            known.corner = check_corner(corner, shape)
        self._stand_for(known, None)
        plan = row_plan.current()
        if plan is not None and (fixed is not None or not (padded or valid)):
            plan.start(self)

    def _stand_for(self, known: KnownCells, source: _Source | None) -> None:
        self.cells, self.spatial_shape = known.cells, known.spatial_shape
        self.batch_size, self.padded = known.batch_size, known.padded
        self.corner = known.corner
        self._known, self._source = known, source
        known.handle = weakref.ref(self)

    @classmethod
    def unbounded(
        cls,
        coords: Tensor,
        batch_size: int | None = None,
        *,
        padded: bool = False,
        repeated: bool = False,
    ) -> Coordinates:
        """Make coordinates from any integers, also negative ones, in a grid without bounds.

        Args:
            coords: int32 (rows, 1 + rank), columns ``(batch, z, y, x)``.
            batch_size: by default one more than the last image that has a row.
            padded, repeated: as for :class:`Coordinates`.

        ``cells`` are relative to ``corner``, and ``spatial_shape`` is as large as they need (waits
        for the device). Cells that maps make from them have no bounds either.

        >>> import torch
        >>> found = Coordinates.unbounded(torch.tensor([[0, -3, 5], [1, 8, -20]]).int())
        >>> found.corner, found.spatial_shape, found.batch_size, found.cells[0].tolist()
        ((-16, -32), (25, 38), 2, [0, 13, 37])
        >>> found.coords.tolist()
        [[0, -3, 5], [1, 8, -20]]
        """
        corner, shape, images = bounding_box(coords, batch_size, padded)
        cells = moved(coords, [-first for first in corner], padded)
        return cls(cells, shape, images, padded=padded, repeated=repeated, corner=corner)

    @property
    def coords(self) -> Tensor:
        """int32 (rows, 1 + rank): ``cells``; without bounds, ``cells`` plus ``corner``."""
        known = self._known
        if self.corner is not None and known.coords is None:
            with to_be_kept():
                known.coords = moved(self.cells, self.corner, self.padded)
        return self.cells if known.coords is None else known.coords

    def __len__(self) -> int:
        return self.cells.shape[0]

    def __repr__(self) -> str:
        kind = ", padded" if self.padded else ""
        kind += ", repeated" if self.repeated else ""
        kind += "" if self.corner is None else f", corner={self.corner}"
        grid = f"spatial_shape={self.spatial_shape}, batch_size={self.batch_size}"
        return f"Coordinates({len(self)} rows, {grid}{kind})"

    @property
    def rows(self) -> int:
        """``len(self)``, which may be a symbol where ``len`` may not."""
        return self.cells.shape[0]

    @property
    def rank(self) -> int:
        """The number of spatial modes."""
        return len(self.spatial_shape)

    @property
    def device(self) -> Any:
        return self.cells.device

    @property
    def table(self) -> Table:
        """Rows by the keys of their cells; made once."""
        known = self._known
        if known.table is None:
            if self.cells.device.type not in RUN_ON:
                raise self._elsewhere()
            known.table = cell_table(self.cells, self.spatial_shape, self.batch_size)
        return known.table

    @property
    def valid(self) -> bool:
        """Return whether these are known to be cells of the grid, none repeated."""
        return self._known.valid and self._known.repeats is None

    @property
    def looked_at(self) -> bool:
        """Return whether :meth:`check` has run, or its result is known already."""
        return self._known.valid

    @property
    def repeated(self) -> bool:
        """Return whether cells may be repeated."""
        return self._known.repeated

    @property
    def repeats(self) -> Repeats | None:
        """The repeated cells, once :meth:`check` has run.

        Convolutions and poolings that make cells read all rows of a cell; the way back to such
        cells writes the same to all of their rows. Submanifold convolutions do as spconv does on a
        CPU. Call a cell *before* another if its ``(z, y, x)`` comes first in lexicographic order.

        - Through the tap at its own cell, a row reads itself.
        - Through taps at cells before its own, the first row of a cell reads the sum of all their
          rows; its other rows read nothing.
        - Through taps at cells behind its own, every row reads their first row.

        >>> import torch, layoutconv as lc
        >>> cells = torch.tensor([[0, 1], [0, 2], [0, 1], [0, 2]], dtype=torch.int32)
        >>> twice = Coordinates(cells, (4,), 1, repeated=True)
        >>> x = lc.SparseTensor(torch.tensor([[1.0], [10.0], [100.0], [1000.0]]), twice)
        >>> lc.subm_conv(x, torch.ones(1, 3, 1)).features.T  # 1 + 10, 10 + 101, 100 + 10, 1000
        tensor([[  11.,  111.,  110., 1000.]])
        """
        return self._known.repeats

    @property
    def total(self) -> Tensor | None:
        """The number of cells before a capacity cut them, int64 () on the device; None without one.

        If it exceeds the rows, the capacity was too small, and the last cells are missing.
        """
        return self._known.total

    @total.setter
    def total(self, total: Tensor) -> None:
        self._known.total = total

    @property
    def overflowed(self) -> bool:
        """Return whether a capacity was too small for these cells, or for those they stem from.

        Reading it waits for the device. On a CPU such a capacity raises an error at once; on a GPU
        it goes unnoticed until this is read, or until ``unpadded`` refuses the cells.
        """
        total = self._known.total
        if total is not None and int(total) > len(self):
            return True
        return self._source is not None and self._source[0].overflowed

    def refuse_overflow(self) -> None:
        """Raise ``ArgumentError`` with a sufficient capacity, if one was too small."""
        cells: Coordinates | None = self
        while cells is not None:
            total = cells._known.total
            if total is not None and int(total) > len(cells):
                raise overflow(int(total), len(cells))
            cells = None if cells._source is None else cells._source[0]

    @property
    def by_image(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows sorted by image, the start of each image in them, and the image of every row.

        int32 (rows,), int64 (N + 1,) and int32 (rows,); made once.

        >>> import torch
        >>> cells = torch.tensor([[1, 0], [0, 3], [1, 2]], dtype=torch.int32)
        >>> order, starts, images = Coordinates(cells, (4,), 2).by_image
        >>> order.tolist(), starts.tolist(), images.tolist()
        ([1, 0, 2], [0, 1, 3], [1, 0, 1])
        """
        self._refuse_written()
        known = self._known
        if known.by_image is None:
            with to_be_kept():
                batch = self.check().cells[:, 0].clone()
                images, order = batch.sort(stable=True)
                count = self.batch_size + 1
                numbers = torch.arange(count, dtype=torch.int32, device=batch.device)
                known.by_image = order.int(), torch.searchsorted(images, numbers), batch
        return known.by_image

    @property
    def origin(self) -> KernelMap | None:
        """The map that made these cells, as its outputs; None if no map did."""
        if self._source is None:
            return None
        self._refuse_written()
        inputs, ways, way = self._source
        return ways.over(inputs, self, way)

    def kept(self, key: Hashable, outputs: Coordinates | None = None) -> KernelMap | None:
        """Return the map from these cells kept under ``key``; to ``outputs``, if given."""
        if self._known.written():
            self._refuse_written()
        if outputs is not None:
            outputs._refuse_written()
            given = self._known.given
            found = None if given is None else given.get(outputs._known, {}).get(key)
            return None if found is None else found[0].over(self, outputs, found[1])
        entry = self._known.made.get(key)
        if entry is None:
            return None
        ways, way, made = entry
        if made is None:
            return ways.over(self, self, way)
        if made.written():
            return None
        return ways.over(self, Coordinates._led_to(made, (self, ways, way)), way)

    def keep(self, key: Hashable, kernel_map: KernelMap, *, given: bool = False) -> KernelMap:
        """Keep ``kernel_map`` under ``key``; return it, or the map that is kept there already.

        Its outputs are these cells, or cells that it made, whose ``origin`` it becomes; or, if
        ``given``, any others, which it does not keep alive.
        """
        known, outputs = self._known, kernel_map.outputs
        ways, way = kernel_map.ways, kernel_map.way
        if given:
            if known.given is None:
                known.given = weakref.WeakKeyDictionary()
            known.given.setdefault(outputs._known, {}).setdefault(key, (ways, way))
            return self.kept(key, outputs) or kernel_map
        made = None if outputs is self else outputs._known
        new = ways, way, made
        there = known.made.setdefault(key, new)
        if there is not new and there[2] is not None and there[2].written():
            there = known.made[key] = new
        if there is not new:
            return self.kept(key) or kernel_map
        if made is not None:
            made.written()  # which counts from now on
            if outputs._source is None:
                outputs._source = self, ways, way
        return kernel_map

    def _refuse_written(self) -> None:
        """Raise ``ArgumentError`` if the cells were written to since they were checked."""
        if self._known.written():
            expected = "cells that are not written to; write to a clone() of them"
            got = "cells that were written to after a kernel map was made"
            raise ArgumentError(self.argument, expected, got)

    def check(self) -> Coordinates:
        """Return these cells; raise if one is outside the grid or repeated (waits for the device).

        Cells are checked once, and not at all while a CUDA graph is captured. If cells may be
        ``repeated``, this finds those that are.

        Raises :class:`~layoutconv.errors.ArgumentError` that names a row, or two.

        >>> import torch
        >>> Coordinates(torch.tensor([[0, 7]], dtype=torch.int32), (4,), 1).check()
        Traceback (most recent call last):
        layoutconv.errors.ArgumentError: argument `coords`: expected column 1 in [0, 4), got [0, 7]\
 in row 0 (1 row is outside)
        """
        known = self._known
        if known.written():
            self._refuse_written()
        if known.valid or is_compiling() or not len(self):
            return self  # a tracer has no values: operators check them
        if self.cells.device.type not in RUN_ON:
            raise self._elsewhere()
        if self.cells.is_cuda and torch.cuda.is_current_stream_capturing():
            if self.repeated:
                expected = "cells without repeats; call check() before the graph is captured"
                raise ArgumentError(
                    self.argument, expected, f"{self}, of which some may be repeated"
                )
            return self
        twice, beyond, absent = self.table.verdict()
        if absent and not self.padded:
            self._refuse_outside(int((self.cells[:, 0] < 0).nonzero()[0]))
        if beyond:
            self._refuse_outside(beyond - 1)
        if twice and not self.repeated:
            self._refuse_repeated(twice - 1)
        if twice:
            with to_be_kept():
                first = self.table.search(self.cells, (1,) * self.rank, [(0,) * self.rank])[:, 0]
                known.repeats = repeats_of(self, first)
        known.valid = True
        return self

    def check_distinct(self) -> Coordinates:
        """Return these cells after :meth:`check`; refuse repeated cells, even if allowed."""
        if self.check().repeats is not None:
            self._refuse_repeated(int(self.table.status[0]) - 1)
        return self

    def _elsewhere(self) -> ArgumentError:
        return ArgumentError(self.argument, "cells on a CPU or a GPU", str(self.device))

    def _refuse_outside(self, row: int) -> None:
        raise outside(self.argument, self.cells, (self.batch_size, *self.spatial_shape), row)

    def _refuse_repeated(self, row: int) -> None:
        cell = self.cells[row]
        first = int((self.cells == cell).all(1).nonzero()[0])
        raise repeated(self.argument, self.coords[row].tolist(), first, row)

    def to(self, device: Any) -> Coordinates:
        """Return the same cells on another device, where their maps are made anew."""
        cells = self.cells.to(device)
        if cells is self.cells:
            return self
        return self.at(cells)

    def at(
        self, cells: Tensor, batch_size: int | None = None, *, padded: bool | None = None
    ) -> Coordinates:
        """Return coordinates of some or all of these cells, and of padding, in this grid.

        ``cells`` are not checked again if these were, and none is repeated.
        """
        return Coordinates(
            cells,
            self.spatial_shape,
            self.batch_size if batch_size is None else batch_size,
            padded=self.padded if padded is None else padded,
            repeated=self.repeated,
            valid=self.valid,
            corner=self.corner,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the cells and their grid, without facts, maps and origin."""
        grid = {"spatial_shape": self.spatial_shape, "batch_size": self.batch_size}
        flags = {"padded": self.padded, "repeated": self.repeated, "valid": self.valid}
        return {"cells": self.cells, "corner": self.corner, **grid, **flags}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state | {"valid": False})  # type: ignore[misc]  # files are not trusted

    def __deepcopy__(self, memo: Any) -> Coordinates:
        return self  # only facts about it change

    @classmethod
    def of_keys(cls, keys: Tensor, spatial_shape: Sequence[int], batch_size: int) -> Coordinates:
        """Return cells in the order of their keys, all different, in a grid without a halo."""
        cells = unpack(keys, tuple(spatial_shape))
        return cls(cells, spatial_shape, batch_size, valid=True)

    @classmethod
    def of_map(
        cls, cells: Tensor, spatial_shape: tuple[int, ...], batch_size: int, *, padded: bool
    ) -> Coordinates:
        """Return cells that a kernel map made, all in its grid, none repeated: without checks."""
        found = object.__new__(cls)
        found._stand_for(KnownCells(cells, spatial_shape, batch_size, padded, True, False), None)
        return found

    @classmethod
    def _led_to(cls, known: KnownCells, source: _Source) -> Coordinates:
        """Return the cells that the map of ``source`` made."""
        found = None if known.handle is None else known.handle()
        if found is None:
            found = object.__new__(cls)
            found._stand_for(known, source)
        elif found._source is None:
            found._source = source
        return found

    def placed(self, corner: Sequence[int] | None) -> Coordinates:
        """Place these cells, which are not shared yet, at a corner; refuse more than int32."""
        if corner is not None:
            self.corner = self._known.corner = checked_box(corner, self.spatial_shape)
        return self

    def keys(self) -> Tensor:
        """Return the number of each cell in its grid, images outermost: int64 (rows,)."""
        return pack(self.cells, key_strides(self.spatial_shape, self.batch_size))


def _are_many(rows: int) -> bool:
    return not is_compiling() and rows >= 2**31  # symbols cannot be compared
