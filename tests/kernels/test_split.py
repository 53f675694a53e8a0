"""Sums that several CTAs share: a result for each part, or one that all add to."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.gpu.select import _without_empty_parts
from layoutconv.planning.tile import TileConfig

from .launcher import KINDS, Case, Kind, compiled_view, reference, run_case, tile_of

PROBLEM = ConvProblem((2, 5, 7, 24), (40, 3, 2), padding=1)
ODD = ConvProblem((1, 9, 6, 5), (7, 3, 2), stride=(2, 1), padding=(1, 0))
GROUPS = ConvProblem((1, 9, 6, 12), (6, 3, 2), padding=(1, 0), groups=3)
VIEWS = {
    "fprop": fprop_view(PROBLEM),
    "dgrad": dgrad_views(PROBLEM)[0],
    "wgrad": wgrad_view(PROBLEM),
    "odd fprop": fprop_view(ODD),
    "odd dgrad": dgrad_views(ODD)[1],
    "odd wgrad": wgrad_view(ODD),
    "groups of wgrad": wgrad_view(GROUPS),
}
FLOATS = [kind for kind in KINDS if kind.name not in ("int8", "float64")]


def kind_of(name: str, first: int) -> Kind:
    return FLOATS[(list(VIEWS).index(name) + first) % len(FLOATS)]


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("split", ["partial", "atomic"])
@pytest.mark.chessboard
def test_every_pass_in_parts(name: str, split: str) -> None:
    (parts_add_up_to_the_sum if split == "partial" else parts_are_added_to_what_is_there)(name)


def parts_add_up_to_the_sum(name: str) -> None:
    view, kind, number = VIEWS[name], kind_of(name, 0), list(VIEWS).index(name)
    tile = tile_of(number, kind)
    compiled = compiled_view(
        view, kind.dtype, tile, kind.arch, torch.float32, kind=kind.name, split="partial"
    )
    case = Case.of(view, kind.dtype, torch.float32)
    want, written = reference(case)
    for splits in sorted({_without_empty_parts(view.k, tile, most) for most in (1, 2, 5)}):
        ran = run_case(case, compiled, splits=splits)
        assert ran.launch.grid[1] == splits
        assert all(torch.equal(part, written) for part in ran.written)
        assert torch.equal(ran.out.double().sum(0)[written], want[written])
        assert all(part[written].any() for part in ran.out)


@given(k=st.integers(1, 10**6), splits=st.integers(1, 300), lines=st.integers(1, 2))
def test_no_part_is_empty(k: int, splits: int, lines: int) -> None:
    """Executors leave no part empty, since a kernel counts on a k-tile in every part."""
    tile = TileConfig((64, 64, 32 * lines))
    parts = _without_empty_parts(k, tile, splits)
    k_tiles = -(-k // tile.k)
    assert 1 <= parts <= splits
    share = -(-k_tiles // splits)
    assert -(-k_tiles // parts) == share  # no part is longer for it
    assert (parts - 1) * share < k_tiles <= parts * share


def parts_are_added_to_what_is_there(name: str) -> None:
    view, kind = VIEWS[name], kind_of(name, 3)
    tile = tile_of(list(VIEWS).index(name) + 1, kind)
    compiled = compiled_view(
        view, kind.dtype, tile, kind.arch, torch.float32, kind=kind.name, split="atomic"
    )
    case = Case.of(view, kind.dtype, torch.float32)
    case.out.copy_(torch.arange(case.out.numel()).view(case.out.shape) % 97)
    sums, written = reference(case)
    before = case.out.double()
    for splits in sorted({_without_empty_parts(view.k, tile, most) for most in (1, 3)}):
        ran = run_case(case, compiled, splits=splits)
        assert torch.equal(ran.out.double(), torch.where(written, before + sums, before))


def test_parts_of_fp64() -> None:
    view = wgrad_view(ConvProblem((1, 5, 7, 8), (16, 3, 2), padding=1))
    kind = KINDS[4]
    for split in ("partial", "atomic"):
        compiled = compiled_view(
            view, kind.dtype, tile_of(0, kind), kind.arch, kind.out, split=split
        )
        case = Case.of(view, kind.dtype)
        case.out.zero_()
        got = run_case(case, compiled, splits=2).out
        want, _ = reference(case)
        assert torch.equal(got if split == "atomic" else got.sum(0), want)
