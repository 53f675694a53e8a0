"""``spconv.pytorch.hash``: values by integer keys, in sorted order instead of a hash table."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....errors import ArgumentError


class HashTable:
    """Values by keys, on any device; the same in every run.

    Args:
        device: where keys and values are.
        key_dtype, value_dtype: ``torch.int32`` or ``torch.int64`` of keys, any dtype of values.
        max_size: accepted, without effect: the table grows as needed.

    >>> table = HashTable(torch.device("cpu"), torch.int64, torch.int32)
    >>> table.insert(torch.tensor([7, 3]), torch.tensor([70, 30], dtype=torch.int32))
    >>> values, is_empty = table.query(torch.tensor([3, 5]))
    >>> values[0].item(), is_empty.tolist()
    (30, [False, True])
    """

    def __init__(
        self,
        device: Any,
        key_dtype: torch.dtype,
        value_dtype: torch.dtype,
        max_size: int = -1,
    ) -> None:
        if key_dtype not in (torch.int32, torch.int64):
            raise ArgumentError("key_dtype", "torch.int32 or torch.int64", key_dtype)
        self.key_dtype, self.value_dtype = key_dtype, value_dtype
        self._keys = torch.empty(0, dtype=key_dtype, device=device)  # rising
        self._values = torch.empty(0, dtype=value_dtype, device=device)

    def insert(self, keys: Tensor, values: Tensor | None = None) -> None:
        """Insert keys with their values, or zeros; the last value of equal keys stays."""
        if values is None:
            values = torch.zeros(len(keys), dtype=self.value_dtype, device=keys.device)
        every = torch.cat([self._keys, keys.to(self.key_dtype)])
        found, order = torch.sort(every, stable=True)
        last = torch.ones_like(found, dtype=torch.bool)
        last[:-1] = found[1:] != found[:-1]
        self._keys = found[last]
        self._values = torch.cat([self._values, values.to(self.value_dtype)])[order[last]]

    def query(self, keys: Tensor, values: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the values of keys, and a bool mask of missing keys, whose value is 0.

        With ``values`` the result is written there, except for missing keys.
        """
        place, there = self._places(keys)
        if values is None:
            values = torch.zeros(len(keys), dtype=self.value_dtype, device=keys.device)
        values[there] = self._values[place[there]]
        return values, ~there

    def insert_exist_keys(self, keys: Tensor, values: Tensor) -> Tensor:
        """Give existing keys other values; return uint8, 1 for missing keys."""
        place, there = self._places(keys)
        self._values[place[there]] = values[there].to(self.value_dtype)
        return (~there).to(torch.uint8)

    def assign_arange_(self) -> Tensor:
        """Set the values to 0, 1, ... in rising order of keys; return their count, int64 (1,)."""
        count = len(self._keys)
        self._values = torch.arange(count, device=self._keys.device).to(self.value_dtype)
        return torch.tensor([count], device=self._keys.device)

    def items(self, max_size: int = -1) -> tuple[Tensor, Tensor, Tensor]:
        """Return the keys in rising order, their values, and their number."""
        count = torch.tensor([len(self._keys)], device=self._keys.device)
        return self._keys.clone(), self._values.clone(), count

    def _places(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        place = torch.searchsorted(self._keys, keys.to(self.key_dtype))
        inside = place < len(self._keys)
        there = inside.clone()
        there[inside] = self._keys[place[inside]] == keys[inside]
        return place, there
