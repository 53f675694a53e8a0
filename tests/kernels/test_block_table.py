"""The block table in the simulator: keys of 32 and of 64 bits, and its status."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from layoutconv.kernels.maps import block_table, hash_table
from layoutconv.kernels.maps.build_map import HashTable
from layoutconv.kernels.maps.output_coords import reached
from layoutconv.sparse.maps import row_orders
from layoutconv.sparse.maps.taps import Taps

from .cloud_launcher import Launches, box, cloud, rows_of, search, status, table_of


def test_status_tells_of_the_second_row_of_a_cell(launches: Launches) -> None:
    """Whichever of them comes first: rows of one warp, of two, and of two CTAs."""
    indices = cloud(0, 500, (1, 1000))
    for first, *others in ((3, 290), (3, 40, 290), (200, 210), (0, 130, 140), (270, 290)):
        cells = indices[:300].clone()
        cells[others] = indices[first]
        for launches.seed in range(2):
            assert table_of(cells, (1, 1000)).status.tolist() == [min(others) + 1, 0]


def home_of(key: int, bits: int) -> int:
    """``hash_table.home`` of a key of 32 bits in Python's integers."""
    mixed = (key >> 2) * hash_table._FACTORS[0] % 2**32
    return mixed >> (34 - bits) << 2 | key & 3


def keys_in(table: HashTable) -> torch.Tensor:
    """The keys of all slots, where keys have 32 bits."""
    return table.memory.whole[: 4 << table.bits : 4]


def test_keys_that_share_a_home(launches: Launches) -> None:
    """They wrap around the end of the table, too."""
    bits, width = 6, 2**31 - 1
    last = [key for key in range(100_000) if home_of(key, bits) == 2**bits - 1]
    cells = torch.tensor([[0, 0, 8 * key + 3] for key in last[:40]], dtype=torch.int32)
    table = HashTable(cells[:32], (2, width), 1)
    assert table.bits == bits
    # The model above is the kernel's: one is at home, and the next ones where it sends them.
    assert int(keys_in(table)[-1]) in last[:32]
    slot, taken = 2**bits - 1, set()
    for _ in last[:32]:
        taken.add(slot)
        slot = slot + 4 if slot + 4 < 2**bits else (slot + 5) % 4
    assert {i for i, key in enumerate(keys_in(table).tolist()) if key >= 0} == taken
    for offsets in ([(0, 0), (0, 1)], [(0, 0), (0, 9)]):
        found = table.search(cells, (1, 1), offsets)
        assert found[:, 0].tolist() == [*range(32), *[-1] * 8]
        assert (found[:, 1] == -1).all()


def test_a_table_with_one_free_slot(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_table, "bits_for", lambda rows: 6)
    grid = 1, 64 * 64
    indices = cloud(0, 10_000, (1, 64))[:63]
    indices[:, 1] = 64 * indices[:, 1] + indices[:, 1] % 3
    table = table_of(indices, grid)
    assert int((keys_in(table) == hash_table.EMPTY).sum()) == 1
    for offsets in ([(0,), (1,), (64,)], [(0,), (63,), (5 * 64,)]):
        want = search(rows_of(indices, grid), indices, (1,), offsets)
        assert torch.equal(table.search(indices, (1,), offsets), want)


# -- wide keys -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "wide"),
    [
        ((2, 4096, 4096, 4096), False),  # 2^31 blocks
        ((2, 4096, 4096, 4097), True),
        ((5, 4096, 4096, 4096), True),  # of batches 0 and 4, keys have the same lower 32 bits
    ],
    ids=str,
)
def test_keys_of_32_bits_and_of_64(launches: Launches, grid: Any, wide: bool) -> None:
    indices = cloud(2, 240, (grid[0], 6, 6, 6), again=0.1)
    indices[::2, 1:] += torch.tensor(grid[1:], dtype=torch.int32) - 6  # as far as there are blocks
    offsets = box(3, 3)
    table = table_of(indices, grid)
    assert table._wide == wide
    want = row_orders.by_taps(
        search(rows_of(indices, grid), indices, (1, 1, 1), offsets), (3, 3, 3)
    )
    got = table.search_sorted(indices, Taps.centred(3))
    assert torch.equal(got[1], want[1])
    assert torch.equal(got[0], want[0])
    assert table.status.tolist() == status(indices, grid)
    assert min(table.status) == 0 < max(table.status)


def test_grids_of_almost_2_to_the_63_cells(launches: Launches) -> None:
    top = 2**31 - 1
    corner = torch.tensor([[1, top - 1, top - 1], [0, 0, 0], [1, top - 1, 0]], dtype=torch.int32)
    table = HashTable(corner, (top, top), 2)
    assert table.status.tolist() == [0, 0]
    offsets = [(0, 0), (0, 1 - top), (0, top), (top, top), (-top, -top), (0, -1)]
    want = search(rows_of(corner, (2, top, top)), corner, (1, 1), offsets)
    assert want[0].tolist() == [0, 2, -1, -1, -1, -1]
    assert torch.equal(table.search(corner, (1, 1), offsets), want)
    # A centre times a stride leaves 32 bits, and an offset brings it back.
    centres = torch.tensor([[1, 2**30, 2**30], [1, -3, top]], dtype=torch.int32)
    assert table.search(centres, (2, 2), [(-2, -2), (-2, -(2**31) + 2)]).tolist() == [
        [0, -1], [-1, -1],
    ]  # fmt: skip
    assert table.search(centres, (2, 1), [(-2, 0 - 2**30)]).tolist() == [[2], [-1]]
    cells, _ = reached(corner, (1, 1), [(0, 0), (0, 1)], (top, top), 2)
    assert cells.tolist() == sorted(
        [[1, top - 1, top - 1], [0, 0, 0], [1, top - 1, 0], [1, top - 1, top - 2]]
    )


@pytest.mark.parametrize("extent", [2**30, 2**31 - 1])
def test_centres_at_the_ends_of_32_bits(launches: Launches, extent: int) -> None:
    """A step out of 32 bits leads to no cell, and not to one at the other end."""
    low, high = -(2**31), 2**31 - 1
    ends = [0, 1, extent - 2, extent - 1]
    indices = torch.tensor([[0, 3, c] for c in ends], dtype=torch.int32)
    centres = torch.tensor([[0, 3, c] for c in (low, low + 1, -1, *ends, high - 1, high)]).int()
    offsets = [(y, x) for y in (-1, 0, 1) for x in (-2, -1, 0, 1, 2)]
    grid = (1, 7, extent)
    table = table_of(indices, grid)
    want = search(rows_of(indices, grid), centres, (1, 1), offsets)
    assert torch.equal(table.search(centres, (1, 1), offsets), want)
    want = row_orders.by_taps(want, (3, 5))
    got = table.search_sorted(centres, Taps((3, 5), tuple(offsets), (1, 1)))
    assert torch.equal(got[1], want[1])
    assert torch.equal(got[0], want[0])
