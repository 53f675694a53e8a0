"""The covering choice of kernels for compute-sanitizer has all kinds of tiles that there are."""

from __future__ import annotations

import torch

from layoutconv.gpu.select import choose_kernel
from layoutconv.planning.cost_model import ranked
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.schedule import KernelSchedule, Load
from tests.gpu.covering import choices, kind_of_map, map_view


def test_every_kind_of_tile_is_chosen_once() -> None:
    found = list(choices(MACHINES["sm_90a"]))
    tiles = [tile for *_, tile, _ in found]
    assert {tile.schedule for tile in tiles} == set(KernelSchedule)
    assert {tile.load for tile in tiles} == set(Load)
    assert {type(t).__name__ for t in tiles} == {"TileConfig", "GroupTile", "GroupSumTile"}
    for kind in ("persistent", "warp_specialized"):
        assert {bool(getattr(tile, kind)) for tile in tiles} == {False, True}
    assert {t.halo_taps > 1 for t in tiles} == {t.cluster_k > 1 for t in tiles} == {False, True}
    assert {t.b_resident > 0 for t in tiles} == {t.n <= 16 for t in tiles} == {False, True}
    assert any(splits > 1 for *_, splits in found)
    assert {t.mma_threads > 256 for t in tiles} == {False, True}
    of_maps = [name for name, *_ in found if "of a map" in name]
    assert len(of_maps) < 60
    assert len(found) - len(of_maps) < 240


def test_what_is_kept_of_a_map_meets_epilogues_of_both_sizes() -> None:
    for dtype, of in ((torch.float16, (32, 40)), (torch.float32, (48, 160))):
        view, kinds = map_view(700, *of), set()
        found = choose_kernel(view, dtype, MACHINES["sm_90a"])
        for tile, splits in ranked(found.problem, found.machine):
            chosen = choose_kernel(view, dtype, found.machine, tile=tile, splits=splits)
            kinds.add(kind_of_map(chosen.spec))
        assert {(True, True, past) for past in (False, True)} <= kinds
