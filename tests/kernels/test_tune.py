"""The choice of a tile and of splits: always one that runs, and a sensible one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.planning.cost_model import MOST_SPLITS, WORKSPACE, Problem, choose
from layoutconv.planning.deep_tiles import deep_tile
from layoutconv.planning.kernel_spec import BYTES, RESERVED, SHARED, staged_bytes
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import TileConfig
from layoutconv.planning.tile_table import HALF_LINES, SLOW_START, shapes, tile_of
from layoutconv.planning.tile_time import COST, WAVE, WIDE, rate_of

DTYPES = ["float16", "bfloat16", "tfloat32", "float32", "float64", "int8", "float8_e4m3fn"]
THREADS_COPY = ("float32", "float64")  # no TMA descriptor brings these as multiplied
sizes = st.one_of(st.integers(1, 5000), st.integers(1, 2**31 - 1))


@st.composite
def problems(draw: st.DrawFn, splittable: bool | None = None) -> Problem:
    dtype = draw(st.sampled_from(DTYPES))
    out = draw(st.sampled_from(["float16", "float32", "int8"]))
    epilogue = draw(st.sampled_from(["", "residual:float16"]))
    return Problem(
        m=draw(sizes),
        n=draw(st.integers(1, 1200)),
        k=draw(sizes),
        channels=draw(st.integers(0, 300)),
        dtype=dtype,
        staged_bytes=staged_bytes(dtype, "float64" if dtype == "float64" else out, epilogue),
        groups=draw(st.integers(1, 9)),
        splittable=draw(st.booleans()) if splittable is None else splittable,
    )


machines = st.sampled_from(sorted(MACHINES))


def shape(tile: TileConfig) -> tuple[int, int, int, int]:
    return tile.m, tile.n, *tile.warps


def shared_bytes(problem: Problem, tile: TileConfig) -> int:
    return tile.smem_bytes(BYTES[problem.dtype], problem.staged_bytes)


@settings(deadline=None)
@given(problem=problems(), arch=machines)
def test_a_tile_of_the_family_that_fits_the_machine(problem: Problem, arch: str) -> None:
    tile, _ = choose(problem, MACHINES[arch])
    assert shape(tile) in shapes(arch, problem.dtype)
    assert shared_bytes(problem, tile) <= MACHINES[arch].smem_per_cta
    line = 128 // BYTES[problem.dtype]
    # Whole lines of 128 bytes where channels come in such; then no k-tile straddles taps.
    whole = problem.channels % line == 0 and shape(tile) not in HALF_LINES
    assert tile.k == (line if whole else line // 2)


@settings(deadline=None)
@given(problem=problems(), moved=st.integers(0, 2**40), whole=st.booleans())
def test_one_warp_copies_what_tensor_maps_bring_of_whole_sums(
    problem: Problem, moved: int, whole: bool
) -> None:
    machine = MACHINES["sm_90a"]
    problem = replace(problem, moved=moved, clusters=whole, tma=problem.dtype not in THREADS_COPY)
    tile, _ = choose(problem, machine)
    assert shared_bytes(problem, tile) <= machine.smem_per_cta
    if tile.load is Load.TMA_WARP:
        assert problem.tma
        assert whole
        assert problem.channels
        k_tiles = -(-problem.k // tile.k)
        assert tile.stages <= k_tiles
        assert BYTES[problem.dtype] == 2 or tile.stages == k_tiles or deep_tile(tile)


def test_a_sum_of_one_k_tile_leaves_room_for_three() -> None:
    problem = Problem(
        200704, 256, 64, 64, "float16", 2, moved=128 << 20, clusters=True, tma=True
    )  # ResNet-50's 1x1
    tile, _ = choose(problem, MACHINES["sm_90a"])
    assert (shape(tile), tile.stages, tile.load) == ((64, 128, 4, 1), 1, Load.TMA_WARP)
    assert 3 * (shared_bytes(problem, tile) + RESERVED) <= SHARED
    assert choose(replace(problem, clusters=False), MACHINES["sm_90a"])[0].load is not Load.TMA_WARP


@pytest.mark.parametrize("dtype", ["float16", "tfloat32"])
@pytest.mark.parametrize("channels", [32, 64, 96, 128, 256])
def test_tiles_of_kernel_maps(channels: int, dtype: str) -> None:
    """Tiles of whole taps have room for the indices of 27; where two CTAs fit, an SM runs both."""
    for rows in (500, 10**4, 10**6):
        problem = Problem(rows, channels, 27 * channels // 2, channels, dtype, 2, skips_taps=True)
        tile, _ = choose(problem, MACHINES["sm_90a"])
        of_cta = shared_bytes(problem, tile) + 4 * 27 * tile.m + RESERVED
        assert of_cta <= SHARED
        if tile.load is Load.CP_ASYNC_HALF_WARPGROUP:
            assert 2 * of_cta <= SHARED
            assert tile.ctas_per_sm == 2


@pytest.mark.parametrize("n", [32, 64, 128])
def test_windows_that_one_warp_copies_leave_room_for_two(n: int) -> None:
    """Tiles of 128 columns use windows for two taps only: with three, they gain nothing."""
    for taps in (2, 3):
        problem = Problem(
            10**6, n, 9 * taps * n, n, "float16", 2, halo_taps=taps, halo_growth=1.03,
            clusters=True, tma=True, tma_halo=True,
        )  # fmt: skip
        tile, _ = choose(problem, MACHINES["sm_90a"])
        assert (tile.halo_taps == taps) == (n < 128 or taps == 2)
        if tile.halo_taps > 1:
            assert tile.load is Load.TMA_WARP
            assert 2 * (shared_bytes(problem, tile) + RESERVED) <= SHARED
            assert tile.ctas_per_sm >= 2


@settings(deadline=None)
@given(problem=problems(), arch=machines)
def test_parts_of_a_sum_are_worth_it_and_fit_the_workspace(problem: Problem, arch: str) -> None:
    tile, splits = choose(problem, MACHINES[arch])
    assert 1 <= splits <= MOST_SPLITS
    if not problem.splittable:
        assert splits == 1
    if splits > 1:
        assert splits * 4 * tile.k <= problem.k
        assert splits * problem.m * problem.n * problem.groups * 4 <= WORKSPACE


@settings(deadline=None)
@given(problem=problems(splittable=False), arch=machines)
def test_a_tile_is_not_larger_than_it_needs_to_be_for_one_wave(problem: Problem, arch: str) -> None:
    """Where all CTAs run at once, the tile that is done first alone is done first."""
    machine = MACHINES[arch]
    tile, _ = choose(problem, machine)
    half = 64 // BYTES[problem.dtype]

    def alone(tile: TileConfig) -> float:
        rate = rate_of(problem, tile) * machine.products
        cost = COST.get(problem.dtype, 1.0)
        return tile.m * tile.n * problem.k * cost / rate + SLOW_START.get(shape(tile), WAVE)

    for other in (tile_of(s, tile.k, half) for s in shapes(arch, problem.dtype)):
        ctas = -(-problem.m // other.m) * -(-problem.n // other.n) * problem.groups
        fits = shared_bytes(problem, other) <= machine.smem_per_cta
        usable = problem.dtype not in ("float32", "float64")  # which take fewer tiles
        # Narrow tiles wait for loads, and empty columns are stored, which no rate says.
        full = WIDE <= other.n <= 2 * problem.n
        if usable and full and ctas <= machine.sm_count and fits:
            assert alone(tile) <= alone(other) * (1 + 1e-12)


@pytest.mark.parametrize("arch", MACHINES)
@pytest.mark.parametrize("n", [64, 128, 256, 512])
def test_the_tile_grows_with_the_problem(arch: str, n: int) -> None:
    machine = MACHINES[arch]
    tiles = [choose(Problem(m, n, 1728, 64, "float16", 2), machine)[0] for m in (1, 10**8)]
    small, large = (tile.m * tile.n for tile in tiles)
    assert small <= 64 * 64
    assert large >= 2 * small
    # A full machine runs the tile with the best rate of those that waste no columns.
    every = [tile_of(s, 64, 32) for s in shapes(arch, "float16") if n % s[1] == 0]
    whole = [
        rate_of(Problem(10**8, n, 1728, 64, "float16", 2), tile)
        for tile in every
        if tile.smem_bytes(2, 2) <= machine.smem_per_cta
    ]
    assert rate_of(Problem(10**8, n, 1728, 64, "float16", 2), tiles[1]) >= 0.9 * max(whole)


@pytest.mark.parametrize("arch", MACHINES)
def test_long_sums_of_few_outputs_are_split_and_full_machines_are_not(arch: str) -> None:
    def splits(m: int, n: int, k: int) -> int:
        return choose(Problem(m, n, k, 0, "float16", 4, splittable=True), MACHINES[arch])[1]

    assert splits(64, 576, 10**6) > 8
    assert splits(10**5, 512, 10**6) == 1
    assert splits(64, 576, 64) == 1


@pytest.mark.parametrize(
    ("tile", "message"),
    [
        ((24, 64, 32, 3), "multiple of 16 rows"),
        ((64, 48, 32, 3), "multiple of 16 rows and 16 columns"),
        ((64, 64, 32, 1), "2 stages or more"),
    ],
)
def test_tiles_that_cannot_be(tile: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TileConfig(tile[:3], stages=tile[3])


@given(
    m=st.sampled_from([16, 64, 96]), n=st.sampled_from([16, 64]), k=st.sampled_from([16, 32]),
    stages=st.integers(2, 5), operand=st.sampled_from([1, 2, 4, 8]),
    output=st.sampled_from([2, 4, 8]),
)  # fmt: skip
def test_shared_memory_holds_the_pipeline_and_the_epilogue(
    m: int, n: int, k: int, stages: int, operand: int, output: int
) -> None:
    held = TileConfig((m, n, k), (1, 1), stages).smem_bytes(operand, output)
    assert held >= stages * m * k * operand + stages * n * k * operand
    assert held >= m * n * output


@pytest.mark.parametrize(
    ("dtype", "out", "epilogue", "size"),
    [
        ("float16", "float16", "bias:float32 relu", 2),
        ("float16", "float16", "bias:float32 residual:float16", 4),
        ("int8", "int8", "", 4),
        ("float16", "float8_e5m2", "", 4),
        ("float64", "float64", "residual:float64", 8),
        ("float64", "int8", "", 8),
        ("float16", "float32", "", 4),
    ],
)
def test_what_turns_in_shared_memory_is_as_wide_as_what_comes_after(
    dtype: str, out: str, epilogue: str, size: int
) -> None:
    assert staged_bytes(dtype, out, epilogue) == size
