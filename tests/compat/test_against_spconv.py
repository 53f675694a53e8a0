"""Layers and networks against spconv itself: values, cells, gradients, state dicts both ways."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import layoutconv.compat.spconv.pytorch as compat

from .networks import detector, unet
from .reference import EXACT, agreement, both, grids, in_order, needs_spconv, one_run, reference

pytestmark = needs_spconv
some = settings(max_examples=40, deadline=None)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    """Several threads of spconv's wheel add rows of one cell at once, and lose some."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def extents(rank: int, low: int, high: int) -> Any:
    return st.lists(st.integers(low, high), min_size=rank, max_size=rank)


@st.composite
def problems(draw: Any, *, taps: Any = None) -> dict[str, Any]:
    """A layer of 1 to 4 modes, and cells that it suits."""
    rank = draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["SubMConv", "SparseConv", "SparseConvTranspose"]))
    shape = draw(extents(rank, 3, 40 if rank == 1 else 9 if rank == 2 else 5))
    of: dict[str, Any] = {"bias": draw(st.booleans())}
    if kind == "SubMConv":
        sizes = st.lists(
            st.sampled_from([1, 3, 5] if rank < 4 else [1, 3]), min_size=rank, max_size=rank
        )
        of["kernel_size"] = draw(sizes) if taps is None else [taps] * rank
        of["dilation"] = draw(extents(rank, 1, 2))
    else:
        of["kernel_size"] = draw(extents(rank, 1, 3)) if taps is None else [taps] * rank
        of["stride"] = draw(extents(rank, 1, 3))
        one = prod(of["kernel_size"]) == prod(of["stride"]) == 1
        of["padding"] = [0] * rank if one else draw(extents(rank, 0, 1))
        of["dilation"] = draw(extents(rank, 1, 2)) if kind == "SparseConv" else [1] * rank
        modes = zip(shape, *(of[k] for k in ("kernel_size", "dilation", "padding")), strict=True)
        for mode, (e, k, d, p) in enumerate(modes):  # a grid that there is
            shape[mode] = max(e, d * (k - 1) + 1 + 2 * p)
    channels = draw(st.sampled_from([(4, 4), (3, 5), (5, 3), (1, 4), (4, 1)]))
    rows, again = draw(st.integers(1, 40)), draw(st.sampled_from([0, 0, 1, 20]))
    return {
        "kind": f"{kind}{rank}d", "channels": channels, "of": of, "shape": shape, "rows": rows,
        "again": again, "seed": draw(st.integers(0, 9)),
    }  # fmt: skip


def cloud(problem: dict[str, Any]) -> tuple[Tensor, Tensor]:
    of = problem["shape"], problem["rows"], problem["channels"][0], problem["seed"]
    return grids(*of, again=problem["again"])


def check(problem: dict[str, Any]) -> None:
    C, K = problem["channels"]
    features, indices = cloud(problem)

    def make(spconv: Any) -> Any:
        return getattr(spconv, problem["kind"])(C, K, **problem["of"])

    ours, theirs = both(make, features, indices, problem["shape"])
    with torch.no_grad():  # spconv has no gradient of a bias in evaluation
        found = (
            one_run(side, net.eval(), features, indices, problem["shape"], gradients=False)
            for side, net in ((compat, ours), (reference(), theirs))
        )
        assert max(agreement(*found)) < EXACT


@some
@given(problems())
def test_layers(problem: dict[str, Any]) -> None:
    check(problem)


@some
@given(problems(taps=1))
def test_filters_of_one_tap(problem: dict[str, Any]) -> None:
    """Submanifold, or all strides 1: ``weight.view(C, K)``; else as they are stored."""
    check(problem)


@some
@given(problems(), st.booleans(), st.integers(1, 4))
def test_the_way_back(problem: dict[str, Any], pooled: bool, K: int) -> None:
    """Through a strided layer or a pooling; of one tap it multiplies where it is."""
    assume(problem["kind"].startswith("SparseConv") and "Transpose" not in problem["kind"])
    rank, of = len(problem["shape"]), problem["of"]
    C = problem["channels"][0]
    assume(not pooled or prod(of["kernel_size"]) > 1)

    def make(spconv: Any) -> Any:
        if pooled:
            sizes = {name: of[name] for name in ("kernel_size", "stride", "padding", "dilation")}
            down = getattr(spconv, f"SparseMaxPool{rank}d")(**sizes, indice_key="down")
        else:
            down = getattr(spconv, f"SparseConv{rank}d")(C, C, **of, indice_key="down")
        middle = getattr(spconv, f"SubMConv{rank}d")(C, C, 3, indice_key="middle")
        up = getattr(spconv, f"SparseInverseConv{rank}d")(
            C, K, of["kernel_size"], indice_key="down"
        )
        return spconv.SparseSequential(down, middle, up)

    features, indices = cloud(problem)
    x = compat.SparseConvTensor(features, indices, problem["shape"], 2)
    assume(len(make(compat).double()[0](x).indices))  # of nothing, spconv has no gradient
    # spconv's Native takes the maximum with 0.
    both(make, features.abs() if pooled else features, indices, problem["shape"])


@pytest.mark.parametrize("again", [0, 30])
@pytest.mark.parametrize("kind", ["SparseGlobalMaxPool", "ToDense", "SparseReLU", "Identity"])
def test_layers_without_a_filter(kind: str, again: int) -> None:
    features, indices = grids([5, 6, 4], 40, 3, 0, again=again)

    def make(spconv: Any) -> Any:
        return getattr(spconv, kind, None) or spconv.modules.SparseReLU

    both(lambda spconv: make(spconv)(), features, indices, [5, 6, 4])


# -- networks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [unet, detector])
@pytest.mark.parametrize("again", [0, 60])
def test_networks(network: Any, again: int) -> None:
    shape = [9, 14, 12]
    both(network, *grids(shape, 250, 3, again, again=again), shape)


def test_sums_of_tensors() -> None:
    """At all cells that one of them has; all rows of a cell count."""
    clouds = [grids([5, 6], 20, 3, seed, again=seed * 9) for seed in range(3)]

    def add(spconv: Any) -> Any:
        of = (spconv.SparseConvTensor(*cloud, [5, 6], 2) for cloud in clouds)
        return list(in_order(spconv.functional.sparse_add(*of)))

    for ours, theirs in zip(add(compat), add(reference()), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("network", [unet, detector])
def test_checkpoints_in_files(network: Any, tmp_path: Path) -> None:
    """Each package loads what the other saved, and then gives the same results."""
    features, indices = grids([9, 14, 12], 250, 3, 0)
    nets = [(side, network(side).double().eval()) for side in (compat, reference())]
    for (side, saved), (other, loads) in (nets, nets[::-1]):
        torch.save(saved.state_dict(), tmp_path / "net.pt")
        fresh = network(other).double().eval()
        fresh.load_state_dict(torch.load(tmp_path / "net.pt"))
        wanted = one_run(side, saved, features, indices, [9, 14, 12], gradients=False)
        found = one_run(other, fresh, features, indices, [9, 14, 12], gradients=False)
        assert agreement(found, wanted).outputs < EXACT
        assert agreement(
            one_run(other, loads, features, indices, [9, 14, 12], gradients=False), wanted
        ).outputs > 1e-3  # others do not say it  # fmt: skip
