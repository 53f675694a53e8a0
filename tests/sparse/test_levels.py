"""``build_maps``: the cells and maps of all levels, as they are made one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import layoutconv as lc
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.sparse import Coordinates, build_maps, strided_map, submanifold_map
from layoutconv.sparse.maps.taps import Taps


def random_cells(rows: int, grid: tuple[int, ...], seed: int) -> Tensor:
    """Cells in any order, none twice."""
    every = torch.cartesian_prod(*map(torch.arange, grid)).view(-1, len(grid))
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))
    return every[order[:rows]].int().contiguous()


@given(st.data())
def test_levels_are_those_of_strided_maps(data: Any) -> None:
    rank, count = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    shape = tuple(2 ** (count - 1) + data.draw(st.integers(0, 2)) for _ in range(rank))
    cells = random_cells(data.draw(st.integers(1, 40)), (2, *shape), data.draw(st.integers(0, 99)))
    unbounded = data.draw(st.booleans())

    def made() -> Coordinates:
        if unbounded:  # negative coordinates
            away = torch.tensor([0, *[-5] * rank], dtype=torch.int32)
            return Coordinates.unbounded(cells + away, 2)
        return Coordinates(cells, shape, 2)

    size = data.draw(st.sampled_from([3, 2, (1, 3, 5, 1)[:rank]]))
    found, level = build_maps(made(), count, size), made()
    for number, have in enumerate(found):
        if number:
            level = strided_map(level, 2, 2).outputs
        assert torch.equal(have.coords, level.coords)
        assert (have.spatial_shape, have.corner) == (level.spatial_shape, level.corner)
        want = submanifold_map(level, size).index
        assert torch.equal(submanifold_map(have, size).index, want)
        assert have.kept(Taps.centred(rank, size)) is not None


def test_a_network_finds_the_maps() -> None:
    x = lc.SparseTensor.from_dense(torch.eye(8).view(1, 8, 8, 1))
    found = build_maps(x.coordinates, 2)
    y = lc.sparse_conv(x, torch.ones(1, 2, 2, 1), stride=2)
    assert y.coordinates is found[1]
    assert len(x.coordinates._known.made) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ((0,), ArgumentError, "levels"),
        ((True,), ArgumentError, "levels"),
        ((2, 0), ArgumentError, "kernel_size"),
        ((2, 3, 0), ArgumentError, "stride"),
    ],
)
def test_bad_arguments(arguments: Any, error: type[Exception], name: str) -> None:
    cells = Coordinates(torch.tensor([[0, 1, 2]], dtype=torch.int32), (4, 4), 1)
    with pytest.raises(error, match=f"`{name}`"):
        build_maps(cells, *arguments)


def test_other_bad_arguments() -> None:
    cells = Coordinates(torch.tensor([[0, 1, 2]], dtype=torch.int32), (4, 4), 1)
    for capacities in ([1], [1, 2, 3], [1, -1], [1, True], 2, iter([1, 1])):
        with pytest.raises(ArgumentError, match="`capacit"):
            build_maps(cells, 3, capacities=capacities)
    with pytest.raises(ArgumentError, match="`strided_size`"):
        build_maps(cells, 2, strided_size=0)
    with pytest.raises(ArgumentTypeError, match="`coordinates`"):
        build_maps(cells.cells, 2)  # type: ignore[arg-type]
