"""Large grids of cases: the cells that always run have all that there is to meet."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from .conftest import fields


def grid(*sizes: int) -> list[dict[str, object]]:
    values = [[f"{axis}{i}" for i in range(size)] for axis, size in zip("abc", sizes, strict=False)]
    return [dict(zip("abc", cell, strict=False)) for cell in product(*values)]


@pytest.mark.parametrize("sizes", [(5, 3), (2, 9), (8, 3), (4, 2, 4), (3, 3, 5)], ids=str)
def test_half_of_a_grid_has_every_value_and_of_three_axes_every_pair(
    sizes: tuple[int, ...],
) -> None:
    cells = grid(*sizes)
    kept = [cell for cell, deep in zip(cells, fields(cells), strict=True) if not deep]
    assert abs(len(kept) - len(cells) / 2) <= len(cells) / 10
    for names in combinations("abc"[: len(sizes)], len(sizes) - 1):
        met = {tuple(cell[name] for name in names) for cell in cells}
        assert {tuple(cell[name] for name in names) for cell in kept} == met


def test_parameters_that_go_together_are_one_axis() -> None:
    """Each value of the other axis then keeps half of the cells, whatever it is named by."""
    cells = grid(6, 2)
    lengths = {cell["a"]: object() for cell in cells}
    with_length = [cell | {"length": lengths[cell["a"]]} for cell in cells]
    assert fields(with_length) == fields(cells)
