"""The way back through a map, of whichever of its tables there is."""

from __future__ import annotations

import pytest
import torch

from layoutconv.base.dry_hooks import dry_hooks
from layoutconv.sparse import Coordinates, KernelMap, strided_map
from layoutconv.sparse.maps import map_index
from layoutconv.sparse.maps.map_index import MapIndex
from layoutconv.sparse.maps.reversed_index import reversed_index
from layoutconv.sparse.maps.row_orders import by_taps
from layoutconv.sparse.maps.taps import Taps
from layoutconv.sparse.maps.two_way import TwoWay


class Searched(MapIndex):
    """A search of which only the sorted index was asked for, as a forward pass on a GPU does."""

    def __init__(self, index: torch.Tensor, taps: tuple[int, ...]) -> None:
        super().__init__(taps)
        self.found = index

    def _find_sorted(self) -> tuple[torch.Tensor, torch.Tensor]:
        return by_taps(self.found, self.taps)

    def _find_index(self) -> torch.Tensor:
        raise AssertionError("searched a second time")


@pytest.fixture
def down() -> KernelMap:
    generator = torch.Generator().manual_seed(0)
    keys = torch.randperm(12**3, generator=generator)[:300]
    return strided_map(Coordinates.of_keys(keys, (12,) * 3, 1), 3, 2, padding=1)


def test_a_sorted_index_is_reversed_without_another_search(down: KernelMap) -> None:
    rows = len(down.inputs)
    there = Searched(down.index, down.taps)
    there.sorted  # noqa: B018
    back = TwoWay(down.taps, False, there).way(1, rows)
    assert not torch.equal(there.sorted[1], torch.arange(len(down.outputs)))
    assert torch.equal(back.index, down.inverse.index)


def test_the_inverse_of_the_inverse_is_the_map(down: KernelMap) -> None:
    back = down.inverse.index
    assert torch.equal(reversed_index(back, len(down.outputs)), down.index)
    order = torch.randperm(len(back)).int()
    assert torch.equal(reversed_index(back[order], len(down.outputs), order), down.index)


def test_a_search_in_a_graph_is_refused_before_anything_else(
    down: KernelMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.compile traces the sentence that refuses, and cannot trace what asks for dry runs."""

    def refuse(tensor: torch.Tensor) -> None:
        raise RuntimeError("refused")

    def untraceable(tensor: torch.Tensor) -> bool:
        raise AssertionError("asked first")

    cells, taps = down.inputs, Taps.strided(3, 3, stride=1, padding=1)
    sought = map_index.DeferredMapIndex(cells.table, cells.cells, taps, False)
    monkeypatch.setattr(map_index, "refuse_in_graphs", refuse)
    monkeypatch.setattr(dry_hooks, "covers", untraceable)
    with pytest.raises(RuntimeError, match="refused"):
        sought.sorted  # noqa: B018
