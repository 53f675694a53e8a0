"""The choice of a tile: always one that runs, and a sensible one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layoutconv.kernels.tile import Tile
from layoutconv.kernels.tune import FAMILY, MACHINES, choose_tile

sizes = st.one_of(st.integers(1, 5000), st.integers(1, 2**31 - 1))
problems = given(
    m=sizes,
    n=st.integers(1, 300).map(lambda k: 4 * k),
    channels=st.integers(1, 100).map(lambda c: 4 * c),
    operand=st.sampled_from([2, 4]),
    output=st.sampled_from([2, 4]),
    arch=st.sampled_from(sorted(MACHINES)),
)


@settings(deadline=None)
@problems
def test_a_tile_of_the_family_that_fits_the_machine(
    m: int, n: int, channels: int, operand: int, output: int, arch: str
) -> None:
    machine = MACHINES[arch]
    tile = choose_tile(m, n, channels, operand, output, machine)
    assert (tile.m, tile.n, tile.warps_m, tile.warps_n) in FAMILY
    assert tile.shared_bytes(operand, output) <= machine.shared_per_block
    line = 128 // operand
    # Whole lines of 128 bytes where channels come in such; then no k-tile straddles taps.
    assert tile.k == (line if channels % line == 0 else line // 2)


@settings(deadline=None)
@problems
def test_a_tile_is_not_larger_than_it_needs_to_be_for_one_wave(
    m: int, n: int, channels: int, operand: int, output: int, arch: str
) -> None:
    """Where all CTAs run at once, the smallest of several tiles finishes first."""
    machine = MACHINES[arch]
    tile = choose_tile(m, n, channels, operand, output, machine)
    best = tile.m * tile.n / FAMILY[tile.m, tile.n, tile.warps_m, tile.warps_n]
    for (bm, bn, warps_m, warps_n), rate in FAMILY.items():
        one_wave = -(-m // bm) * -(-n // bn) <= machine.multiprocessors
        fits = Tile(bm, bn, tile.k, warps_m, warps_n, 3).shared_bytes(operand, output)
        if one_wave and fits <= machine.shared_per_block:
            assert best <= bm * bn / rate


@pytest.mark.parametrize("arch", MACHINES)
@pytest.mark.parametrize("n", [64, 128, 256, 512])
def test_the_tile_grows_with_the_problem(arch: str, n: int) -> None:
    areas = []
    for m in (1, 10**8):
        tile = choose_tile(m, n, 64, 2, 2, MACHINES[arch])
        areas.append(tile.m * tile.n)
    small, large = areas
    assert small <= 64 * 64
    assert large >= 2 * small
    # A full machine runs the tile with the best rate of those that waste no columns.
    whole = {
        shape: rate
        for shape, rate in FAMILY.items()
        if n % shape[1] == 0
        and Tile(shape[0], shape[1], 64, *shape[2:], 3).shared_bytes(2, 2)
        <= MACHINES[arch].shared_per_block
    }
    tile = choose_tile(10**8, n, 64, 2, 2, MACHINES[arch])
    assert FAMILY[tile.m, tile.n, tile.warps_m, tile.warps_n] >= 0.9 * max(whole.values())


@pytest.mark.parametrize(
    ("tile", "message"),
    [
        ((24, 64, 32, 2, 2, 3), "multiple of 16 rows"),
        ((64, 48, 32, 2, 2, 3), "multiple of 16 rows and 16 columns"),
        ((64, 64, 32, 2, 2, 1), "at least 2 stages"),
    ],
)
def test_tiles_that_cannot_be(tile: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tile(*tile)


@given(
    m=st.sampled_from([16, 64, 96]), n=st.sampled_from([16, 64]), k=st.sampled_from([16, 32]),
    stages=st.integers(2, 5), operand=st.sampled_from([2, 4]), output=st.sampled_from([2, 4]),
)  # fmt: skip
def test_shared_memory_holds_the_pipeline_and_the_epilogue(
    m: int, n: int, k: int, stages: int, operand: int, output: int
) -> None:
    held = Tile(m, n, k, 1, 1, stages).shared_bytes(operand, output)
    assert held >= stages * m * k * operand + stages * n * k * operand
    assert held >= m * n * output
