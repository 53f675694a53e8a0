"""The covering choice of kernels for compute-sanitizer has all kinds of tiles that there are."""

from __future__ import annotations

from layoutconv.planning.machine import MACHINES
from layoutconv.planning.schedule import KernelSchedule, Load
from tests.gpu.covering import choices


def test_every_kind_of_tile_is_chosen_once() -> None:
    found = list(choices(MACHINES["sm_90a"]))
    tiles = [tile for *_, tile, _ in found]
    assert {tile.schedule for tile in tiles} == set(KernelSchedule)
    assert {tile.load for tile in tiles} == set(Load) - {Load.CP_ASYNC_HALF_WARPGROUP}  # of maps
    assert {type(t).__name__ for t in tiles} == {"TileConfig", "GroupTile", "GroupSumTile"}
    for kind in ("persistent", "warp_specialized"):
        assert {bool(getattr(tile, kind)) for tile in tiles} == {False, True}
    assert {t.halo_taps > 1 for t in tiles} == {t.cluster_k > 1 for t in tiles} == {False, True}
    assert {t.b_resident > 0 for t in tiles} == {t.n <= 16 for t in tiles} == {False, True}
    assert any(splits > 1 for *_, splits in found)
    assert {t.mma_threads > 256 for t in tiles} == {False, True}
    assert len(found) < 240
