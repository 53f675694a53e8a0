"""Rows of the levels of a network: found out by an eager call, fixed for one that is captured.

A *level* is the cells that one kernel map makes. While a :class:`RowCount` is in effect, it notes
how many rows each has. While :class:`FixedRows` are, each has as many rows as they say, whatever
the cloud; cells that the network is given are padded, and nothing waits for the device.
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
    """A kernel map that a call made, as it was asked for: from ``inputs``, to ``outputs`` if they
    were given, by ``make(inputs, outputs)``, and kept under ``key``."""

    inputs: Coordinates
    outputs: Coordinates | None
    key: Hashable
    make: Callable[[Coordinates, Coordinates | None], KernelMap]
    kernel_map: KernelMap


class Beside(Protocol):
    """A maker of maps on another stream: ``layoutconv.sparse.maps.ahead.Ahead``."""

    def start(self, cells: Coordinates) -> None: ...
    def join(self) -> None: ...


class _OfThread(threading.local):
    plan: RowCount | FixedRows | None = None


_of_thread = _OfThread()
_anywhere: list[Any] = []  # rows that are fixed in some thread


def current() -> RowCount | FixedRows | None:
    """Return what is in effect in this thread."""
    return None if is_dynamo_compiling() else _of_thread.plan


def fixed() -> FixedRows | None:
    """Return the rows that are fixed in this thread, if they are.

    >>> fixed() is None
    True
    """
    found = None if is_dynamo_compiling() else _of_thread.plan  # as ``current`` has it
    return found if isinstance(found, FixedRows) else None


def is_fixed_somewhere() -> bool:
    """Return whether rows are fixed in any thread: gradients are computed in threads of their own.

    >>> is_fixed_somewhere()
    False
    """
    return bool(_anywhere)


def poisoned(features: Tensor, cells: Coordinates) -> Tensor:
    """Features with poison in rows without a cell, if the rows that are fixed here ask for it."""
    found = fixed()
    if found is None or found.poison is None or not features.is_floating_point():
        return features
    absent = cells.cells[:, :1] < 0
    if features.itemsize == 1:  # torch fills no fp8, of which these bits are a NaN
        return features.view(torch.uint8).masked_fill(absent, 0x7F).view(features.dtype)
    return features.masked_fill(absent, found.poison)


class _Plan:
    @contextmanager
    def in_effect(self) -> Iterator[None]:
        """Have it in effect in this thread."""
        before, _of_thread.plan = _of_thread.plan, self  # type: ignore[assignment]
        try:
            yield
        finally:
            _of_thread.plan = before


class RowCount(_Plan):
    """The rows of every level of an eager call.

    Attributes:
        given: the Coordinates that the call made of tensors of cells, none of them padded.
        levels: those that kernel maps made, in the order in which they were asked for.
        keys: what each map was asked for with.

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
        """Note cells that a call makes Coordinates of."""
        self.given.append(cells)

    def capacity(self, inputs: Coordinates, key: Hashable) -> int | None:
        """Let a level have the rows that it has."""
        return None

    def lead(self, inputs: Coordinates, key: Hashable, outputs: Coordinates) -> None:
        """Note cells that a map makes."""
        mark = (id(inputs._known), key)
        if mark not in self._seen:
            self._seen[mark] = inputs, outputs  # whose marks stay theirs
            self.levels.append(outputs)
            self.keys.append(key)


class FixedRows(_Plan):
    """So many rows for every level, in the order in which :class:`RowCount` had them.

    Args:
        keys: what each level's map is asked for with.
        capacities: the rows of each.
        sizes: the rows that cells may have which the call makes Coordinates of: they are padded.
        poison: what features of rows without a cell become, so that whoever reads them is found
            out; a NaN of fp8.
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
        """Note cells that the call makes Coordinates of; rows of the image -1 are padding."""
        if len(cells) not in self._sizes:
            expected = f"those of the arguments, {', '.join(map(str, self._sizes))}"
            raise RuntimeError(f"{cells} in a call of fixed rows: expected rows of {expected}")
        self.given.append(cells)
        if self._beside is not None:
            self._beside.start(cells)

    def join(self) -> None:
        """Have the current stream wait for all maps that another one makes."""
        if self._beside is not None:
            self._beside.join()

    def capacity(self, inputs: Coordinates, key: Hashable) -> int:
        """The rows of the level that a map makes."""
        mark = (id(inputs._known), key)
        if mark not in self._seen:
            number = len(self._seen)
            if number >= len(self._keys) or self._keys[number] != key:
                raise RuntimeError(
                    "a call of fixed rows makes other kernel maps than the one before"
                )
            self._seen[mark] = inputs, self._capacities[number]
        found: int = self._seen[mark][1]
        return found

    def lead(self, inputs: Coordinates, key: Hashable, outputs: Coordinates) -> None:
        """Note cells that a map makes."""
        if all(outputs.cells is not level.cells for level in self.levels):
            self.levels.append(outputs)

    def verdict(self) -> Tensor:
        """int64 (levels + 3 * clouds,), on the device: the number of cells of every level, of which
        there may be more than rows; of every cloud the ``status`` of its table, and the number of
        rows without a cell."""
        numbers = [level.total.reshape(1) for level in self.levels if level.total is not None]
        for cells in self.clouds():
            absent = (cells.cells[:, 0] < 0).sum().reshape(1)
            numbers += cells.table.status.long(), absent
        return torch.cat(numbers) if numbers else torch.zeros(0, dtype=torch.int64)

    def there(self, rows: int) -> Tensor | None:
        """bool (rows,): which rows have a cell, of the cloud or level that has so many rows; None
        if none has. There may be no two of as many."""
        for cells in (*self.given, *self.levels):
            if len(cells) == rows:
                return cells.cells[:, 0] >= 0
        return None

    @contextmanager
    def in_effect(self) -> Iterator[None]:
        """Have it in effect in this thread, and known to those that compute gradients."""
        _anywhere.append(self)
        try:
            with super().in_effect():
                yield
        finally:
            _anywhere.remove(self)

    def clouds(self) -> list[Coordinates]:
        """Return the cells that were given, those in the same memory once."""
        return list({id(cells.cells): cells for cells in self.given}.values())
