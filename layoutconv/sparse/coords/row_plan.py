"""Rows of the levels of a network: counted in an eager call, fixed for a captured one.

A *level* is the cells that one kernel map makes. While a :class:`RowCount` is in effect, it records
the number of rows of each level. While :class:`FixedRows` are in effect, each level has a fixed
number of rows, whatever the cloud; cells given to the network are padded, and nothing waits for the
device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from .graphs import is_dynamo_compiling

if TYPE_CHECKING:
    from torch import Tensor

    from ..maps.two_way import KernelMap
    from .coordinates import Coordinates


class Made(NamedTuple):
    """A kernel map that a call made, and its request: from ``inputs``, to ``outputs`` if given, by
    ``make(inputs, outputs)``, kept under ``key``."""

    inputs: Coordinates
    outputs: Coordinates | None
    key: Hashable
    make: Callable[[Coordinates, Coordinates | None], KernelMap]
    kernel_map: KernelMap


class Beside(Protocol):
    """A maker of maps on another stream: ``layoutconv.sparse.maps.ahead.Ahead``."""

    def start(self, cells: Coordinates) -> None: ...
    def join(self) -> None: ...


class _PlanOfThread(threading.local):
    plan: RowCount | FixedRows | None = None


_of_thread = _PlanOfThread()
_anywhere: list[Any] = []  # rows that are fixed in some thread


def current() -> RowCount | FixedRows | None:
    """Return the plan in effect in this thread."""
    return None if is_dynamo_compiling() else _of_thread.plan


def fixed() -> FixedRows | None:
    """Return the rows that are fixed in this thread, if any.

    >>> fixed() is None
    True
    """
    found = None if is_dynamo_compiling() else _of_thread.plan  # the same as ``current``
    return found if isinstance(found, FixedRows) else None


def is_fixed_somewhere() -> bool:
    """Return whether rows are fixed in any thread: autograd computes gradients in other threads.

    >>> is_fixed_somewhere()
    False
    """
    return bool(_anywhere)


def poisoned(features: Tensor, cells: Coordinates) -> Tensor:
    """Fill the features of rows without a cell with poison, if the rows fixed here have one."""
    found = fixed()
    if found is None or found.poison is None or not features.is_floating_point():
        return features
    absent = cells.cells[:, :1] < 0
    if features.itemsize == 1:  # torch cannot fill fp8; these bits are a NaN
        return features.view(torch.uint8).masked_fill(absent, 0x7F).view(features.dtype)
    return features.masked_fill(absent, found.poison)


class _RowPlan:
    @contextmanager
    def in_effect(self) -> Iterator[None]:
        """Put the plan into effect in this thread."""
        before, _of_thread.plan = _of_thread.plan, self  # type: ignore[assignment]
        try:
            yield
        finally:
            _of_thread.plan = before


class RowCount(_RowPlan):
    """The number of rows of every level of an eager call.

    Attributes:
        given: the Coordinates that the call made from tensors of cells, none padded.
        levels: the cells that kernel maps made, in the order of requests.
        keys: the key of each map.

    >>> import layoutconv as lc
    >>> x, count = lc.SparseTensor.from_dense(torch.eye(4).view(1, 4, 4, 1)), RowCount()
    >>> with count.in_effect():
    ...     y = lc.sparse_conv(x, torch.ones(1, 2, 2, 1), stride=2)
    >>> [len(level) for level in count.levels]
    [2]
    """

    def __init__(self) -> None:
        self.given: list[Coordinates] = []
        self.levels: list[Coordinates] = []
        self.keys: list[Hashable] = []
        self._seen: dict[tuple[int, Hashable], Any] = {}

    def start(self, cells: Coordinates) -> None:
        """Record cells from which a call makes Coordinates."""
        self.given.append(cells)

    def capacity(self, inputs: Coordinates, key: Hashable) -> int | None:
        """Let a level keep its own number of rows."""
        return None

    def lead(self, inputs: Coordinates, key: Hashable, outputs: Coordinates) -> None:
        """Record cells that a map makes."""
        mark = (id(inputs._known), key)
        if mark not in self._seen:
            self._seen[mark] = inputs, outputs  # kept alive, so that marks stay unique
            self.levels.append(outputs)
            self.keys.append(key)


class FixedRows(_RowPlan):
    """A fixed number of rows for every level, in the order of :class:`RowCount`.

    Args:
        keys: the key of each level's map.
        capacities: the rows of each.
        sizes: the allowed numbers of rows of cells from which the call makes Coordinates; these
            are padded.
        poison: the value of features in rows without a cell, which exposes code that reads them; a
            NaN for fp8.
        beside: makes maps on another stream, as soon as there are cells.

    Attributes:
        made: the maps that the call made itself.
    """

    def __init__(
        self,
        keys: Sequence[Hashable],
        capacities: Sequence[int],
        sizes: Sequence[int],
        poison: float | None = None,
        beside: Beside | None = None,
    ) -> None:
        self._keys, self._capacities, self._sizes = keys, capacities, sizes
        self.poison, self._beside = poison, beside
        self.made: list[Made] = []
        self.given: list[Coordinates] = []
        self.levels: list[Coordinates] = []
        self._seen: dict[tuple[int, Hashable], Any] = {}

    def start(self, cells: Coordinates) -> None:
        """Record cells from which the call makes Coordinates; rows of image -1 are padding."""
        if len(cells) not in self._sizes:
            expected = f"the arguments, {', '.join(map(str, self._sizes))}"
            raise RuntimeError(f"{cells} in a call of fixed rows: expected rows of {expected}")
        self.given.append(cells)
        if self._beside is not None:
            self._beside.start(cells)

    def join(self) -> None:
        """Have the current stream wait for all maps that another stream makes."""
        if self._beside is not None:
            self._beside.join()

    def capacity(self, inputs: Coordinates, key: Hashable) -> int:
        """Return the rows of the level that a map makes."""
        mark = (id(inputs._known), key)
        if mark not in self._seen:
            number = len(self._seen)
            if number >= len(self._keys) or self._keys[number] != key:
                raise RuntimeError(
                    "with fixed rows, the call makes other kernel maps than the eager call did"
                )
            self._seen[mark] = inputs, self._capacities[number]
        found: int = self._seen[mark][1]
        return found

    def lead(self, inputs: Coordinates, key: Hashable, outputs: Coordinates) -> None:
        """Record cells that a map makes."""
        if all(outputs.cells is not level.cells for level in self.levels):
            self.levels.append(outputs)

    def verdict(self) -> Tensor:
        """Return int64 (levels + 3 * clouds,), on the device: the number of cells of every level,
        which may exceed its rows; and for every cloud the ``status`` of its table, and the number
        of rows without a cell."""
        numbers = [level.total.reshape(1) for level in self.levels if level.total is not None]
        for cells in self.clouds():
            absent = (cells.cells[:, 0] < 0).sum().reshape(1)
            numbers += cells.table.status.long(), absent
        return torch.cat(numbers) if numbers else torch.zeros(0, dtype=torch.int64)

    def there(self, rows: int) -> Tensor | None:
        """Return which rows have a cell, bool (rows,), in the cloud or level with this number of
        rows; None if there is none. No two may have the same number."""
        for cells in (*self.given, *self.levels):
            if len(cells) == rows:
                return cells.cells[:, 0] >= 0
        return None

    @contextmanager
    def in_effect(self) -> Iterator[None]:
        """Put it into effect in this thread, and let threads that compute gradients see it."""
        _anywhere.append(self)
        try:
            with super().in_effect():
                yield
        finally:
            _anywhere.remove(self)

    def clouds(self) -> list[Coordinates]:
        """Return the given cells, those in the same memory once."""
        return list({id(cells.cells): cells for cells in self.given}.values())
