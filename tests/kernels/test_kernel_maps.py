"""The passes of sparse convolutions in the machine: maps, inverse maps, pairs of rows, groups."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from layoutconv.planning.kernel_spec import can_skip
from layoutconv.planning.tile import specialized
from layoutconv.planning.tile_table import GATHERED_SUMS
from layoutconv.sparse import Coordinates, KernelMap, strided_map, submanifold_map, transposed_map
from layoutconv.sparse.views import kernel_map_dgrad_view, kernel_map_view, pairs_wgrad_view
from layoutconv.view.gemm_view import GemmView

from .launcher import KINDS, Case, Kind, check_exact, compiled_view, run_case, spec_of, tile_of


def cloud(rank: int, rows: int, extent: int) -> Coordinates:
    keys = torch.randperm(2 * extent**rank, generator=torch.Generator().manual_seed(rank))[:rows]
    return Coordinates.of_keys(keys, (extent,) * rank, 2)


# Small, for the machine; 4-D ones have more taps than a word of a mask has bits.
MAPS = {
    "submanifold": lambda: submanifold_map(cloud(3, 70, 5)),
    "set": lambda: submanifold_map(cloud(3, 90, 6), offsets=[(0, 0, 0), (1, 0, -1), (0, 2, 0)]),
    "strided": lambda: strided_map(cloud(2, 30, 7), 3, 2, padding=1),
    "transposed": lambda: transposed_map(cloud(2, 20, 5), 3, 2, padding=1),
    "4-D": lambda: submanifold_map(cloud(4, 20, 3), kernel_size=(3, 2, 3, 2)),
}
PASSES = ["fprop", "dgrad", "wgrad"]


def views(found: KernelMap, C: int, K: int, groups: int = 1) -> dict[str, GemmView]:
    rows_in, rows_out = len(found.inputs), len(found.outputs)
    options = {"kernel_size": found.taps, "groups": groups}
    index, order = found.sorted
    back, back_order = found.inverse.sorted
    rows = {"in_rows": rows_in, "out_rows": rows_out}
    return {
        "fprop": kernel_map_view(index, C, K, scatter_index=order, **rows, **options),
        "dgrad": kernel_map_dgrad_view(back, C, K, scatter_index=back_order, **rows, **options),
        "wgrad": pairs_wgrad_view(found.pairs(24), C, K, groups=groups, **rows),
    }


def check(view: GemmView, kind: Kind, number: int, out: torch.dtype) -> None:
    tile = tile_of(number, kind)
    case = Case.of(view, kind.dtype, out)
    of = view, kind.dtype, tile, kind.arch, out
    skip = can_skip(view, spec_of(*of, kind=kind.name).along, tile)
    compiled = compiled_view(*of, kind=kind.name, skip=skip)
    check_exact(case, run_case(case, compiled))


@pytest.mark.parametrize(
    "map_of",
    [(name, (16, 32)) for name in MAPS]
    + [(name, (5, 7)) for name in ("set", "strided")]
    + [("strided", (1, 1))],
    ids=str,
)
@pytest.mark.parametrize("of", PASSES)
@pytest.mark.chessboard
def test_passes_of_every_map(map_of: tuple[str, tuple[int, int]], of: str) -> None:
    name, channels = map_of
    number = PASSES.index(of)
    view = views(MAPS[name](), *channels)[of]
    check(view, KINDS[0], number, torch.float32 if of == "wgrad" else torch.float16)


# Gradients of filters are not asked for in 8 bits.
SAME = "bfloat16", "float32", "float64", "float8_e5m2"  # loads as of another of their size
OF_TYPES = [
    pytest.param(k, name, marks=[pytest.mark.deep] if k.name in SAME else [])
    for k, name in product(KINDS, PASSES)
    if k.dtype.itemsize > 1 or name != "wgrad"
]


@pytest.mark.parametrize(("kind", "name"), OF_TYPES, ids=str)
@pytest.mark.chessboard
def test_passes_of_every_type(kind: Kind, name: str) -> None:
    view = views(MAPS["strided"](), 32, 32)[name]
    check(view, kind, PASSES.index(name), kind.out)


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("of", PASSES)
@pytest.mark.chessboard
def test_passes_in_groups(groups: int, of: str) -> None:
    view = views(MAPS["strided"](), 32, 16, groups)[of]
    check(view, KINDS[0], PASSES.index(of), torch.float16)


def test_a_mirrored_map_is_its_own_inverse() -> None:
    found = MAPS["submanifold"]()
    index, order = found.sorted
    view = kernel_map_dgrad_view(
        index, 16, 32, kernel_size=found.taps, mirrored=True, scatter_index=order
    )
    check(view, KINDS[0], 0, torch.float16)


# Rows of a line are copied by whole lines: those of 64 channels by tiles as wide.
@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        pytest.param((64, 64, 4, 1), (64, 128), marks=pytest.mark.deep),
        ((64, 64, 4, 1), (40, 64)),
        ((128, 64, 4, 1), (64, 128)),
        pytest.param((128, 128, 8, 1), (128, 128), marks=pytest.mark.deep),
    ],
    ids=str,
)
def test_tiles_of_sums_over_pairs(shape: tuple[int, ...], channels: tuple[int, int]) -> None:
    (m, n, *warps), (_, stages, load) = shape, GATHERED_SUMS[shape]
    tile = specialized((m, n, 64), tuple(warps), stages, load)
    found = submanifold_map(cloud(2, 90, 9), offsets=[(0, 0), (0, 1), (-1, 2)])
    C, K = channels
    rows = {"in_rows": len(found.inputs), "out_rows": len(found.outputs)}
    view = pairs_wgrad_view(found.pairs(320), C, K, **rows)
    assert found.pairs(320).outputs.shape == (3, 320)  # of 5 k-tiles, more than stages
    case = Case.of(view, torch.float16, torch.float32)
    of = view, torch.float16, tile, "sm_90a", torch.float32
    check_exact(case, run_case(case, compiled_view(*of)))
