"""Large grids of cases: the cells that always run have all that there is to meet."""

from __future__ import annotations

from itertools import combinations, product
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest

from .conftest import pytest_pycollect_makeitem
from .grid_cover import uncovered, with_deep


def grid(*sizes: int) -> list[dict[str, object]]:
    values = [[f"{axis}{i}" for i in range(size)] for axis, size in zip("abc", sizes, strict=False)]
    return [dict(zip("abc", cell, strict=False)) for cell in product(*values)]


def cover(cells: list[dict[str, object]]) -> list[dict[str, object]]:
    return [cell for cell, deep in zip(cells, uncovered(cells), strict=True) if not deep]


@pytest.mark.parametrize(
    "sizes", [(5, 3), (2, 9), (8, 3), (4, 2, 4), (3, 3, 5), (2, 2, 2)], ids=str
)
def test_a_cover_has_every_value_and_of_three_axes_every_pair(sizes: tuple[int, ...]) -> None:
    cells = grid(*sizes)
    kept = cover(cells)
    for names in combinations("abc"[: len(sizes)], len(sizes) - 1):
        met = {tuple(cell[name] for name in names) for cell in cells}
        assert {tuple(cell[name] for name in names) for cell in kept} == met
    fewest = prod(sorted(sizes)[1:])  # values of the longest axis, or pairs of the longest two
    assert fewest <= len(kept) <= 1.5 * fewest


@pytest.mark.parametrize("sizes", [(9, 3), (3, 8)], ids=str)
def test_values_of_a_short_axis_are_met_about_as_often(sizes: tuple[int, ...]) -> None:
    kept = cover(grid(*sizes))
    short = "ab"[sizes.index(min(sizes))]
    often = [sum(cell[short] == value for cell in kept) for value in {c[short] for c in kept}]
    assert max(often) - min(often) <= 1


def test_what_one_axis_alone_has_all_runs() -> None:
    assert not any(uncovered(grid(7)))


def test_cells_that_are_not_there_are_not_asked_for() -> None:
    """A grid with holes has the values and pairs that meet in it."""
    cells = [cell for cell in grid(4, 4, 3) if cell["a"] != "a1" or cell["b"] == "b2"]
    pairs = [{tuple(c[n] for n in "ab") for c in some} for some in (cells, cover(cells))]
    assert pairs[0] == pairs[1]


def test_parameters_that_go_together_are_one_axis() -> None:
    """As many cells are then kept, whatever an axis is named by."""
    cells = grid(6, 2)
    lengths = {cell["a"]: object() for cell in cells}
    with_length = [cell | {"length": lengths[cell["a"]]} for cell in cells]
    assert uncovered(with_length) == uncovered(cells)


def test_cases_are_deep_by_name() -> None:
    first, second, third = with_deep("abc", "b")
    assert (first, second.values, third) == ("a", ("b",), "c")
    assert [mark.name for mark in second.marks] == ["deep"]
    with pytest.raises(AssertionError, match="cases"):
        with_deep("abc", "d")


@pytest.mark.slow
class Slow:
    """Stands in for a class of slow tests."""


def test_slow_classes_are_collected_when_they_are_asked_for() -> None:
    def collected(expression: str) -> list | None:
        config: Any = SimpleNamespace(getoption=lambda name: expression)
        return pytest_pycollect_makeitem(SimpleNamespace(config=config), "TestSlow", Slow)

    assert collected("") == []
    assert collected("slow") is None  # pytest collects it
