"""Networks: faults that are planted on a road, in a state or in a law of bits are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import layoutconv as lc
from layoutconv.sparse import SparseTensor

from . import network_roads, networks_run, sparse_networks_run
from .bench import Bench
from .network_program import step
from .networks import Network, all_shapes, fits
from .oracle import WrongResultError
from .rounding import Rounding
from .sparse_networks import SparseNetwork
from .sparse_networks import fits as sparse_fits
from .sparse_program import step as sparse_step

CONV = {"K": 4, "taps": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1)}
BLOCK = (
    step("conv", (0,), **CONV), step("norm", (1,)), step("act", (2,), kind="relu", form="module"),
    step("conv", (3,), **CONV), step("norm", (4,)), step("add", (5, 0)),
    step("act", (6,), kind="relu", form="method inplace"),
)  # fmt: skip
PLAIN = Network(seed=3, C=4, blocks=(BLOCK,), order=(0,), packed=(True,), sizes=((6, 5),))
TRAINED = replace(PLAIN, training=True, calls=2, roads=("convert", "fuse"))
FOLDED = replace(PLAIN, roads=("convert", "fold"))
CLOUD = SparseNetwork(
    seed=5, C=3, extents=(6, 6, 6), rows=(30, 20), training=True, packed=True,
    program=(
        sparse_step("subm", 0, K=4, taps=(3,) * 3, dilation=(1,) * 3), sparse_step("norm", 1),
        sparse_step("down", 2, K=4, taps=(2,) * 3, stride=(2,) * 3, padding=(0,) * 3,
                    dilation=(1,) * 3),
        sparse_step("inverse", 3, K=4, at=2), sparse_step("cat", 4, 2),
    ),
)  # fmt: skip


def outcome(p: Any, **options: Any) -> str:
    """The oracle's message; "" where all is right."""
    bench = Bench("cpu", torch.device("cpu"), **options)
    run = networks_run.run_network if isinstance(p, Network) else (
        sparse_networks_run.run_sparse_network)  # fmt: skip
    try:
        run(p, bench)
    except WrongResultError as wrong:
        return str(wrong)
    return ""


@pytest.mark.parametrize("p", [PLAIN, TRAINED, FOLDED, CLOUD, replace(CLOUD, names="spconv")])
def test_what_is_right_is_no_fault(p: Any) -> None:
    for type_ in ("float64", "float32", "bfloat16 autocast"):
        assert outcome(replace(p, type=type_)) == ""


def _another_eps(net: Any) -> Any:
    next(m for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d)).eps = 1e-3
    return net


def _another_momentum(net: Any) -> Any:
    next(m for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d)).momentum = 0.11
    return net


def _a_weight_off(net: Any) -> Any:
    with torch.no_grad():
        next(net.parameters())[-1, -1, -1, -1].mul_(1 + 1e-3)
    return net


def _no_gradient(net: Any) -> Any:
    list(net.parameters())[-1].requires_grad_(False)
    return net


@pytest.mark.parametrize(
    ("p", "fault", "found"),
    [
        (TRAINED, _another_eps, ""), (TRAINED, _another_momentum, "state"),
        (TRAINED, _a_weight_off, ""), (TRAINED, _no_gradient, "grad"), (FOLDED, _a_weight_off, "y"),
        (replace(TRAINED, type="float32"), _another_eps, ""),
        (replace(PLAIN, type="float32", roads=("copy",)), _another_eps, "y"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)  # fmt: skip
def test_faults_of_a_road(
    p: Network, fault: Callable[[Any], Any], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    road = p.roads[-1]
    make = network_roads.ROADS[road]
    first = fault if road == "fold" else make  # what is folded has no numbers of its own
    last = make if road == "fold" else fault
    monkeypatch.setitem(network_roads.ROADS, road, lambda net: last(first(net)))
    message = outcome(p)
    assert message
    assert found in message


def test_names_that_a_road_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = torch.nn.Sequential
    monkeypatch.setitem(network_roads.ROADS, "convert", lambda net: wrapped(net))
    assert "names of parameters" in outcome(replace(PLAIN, roads=("convert",)))


def test_a_law_of_bits(spoiled: Callable[..., None]) -> None:
    """A difference of one rounding, where the same bits are promised."""

    def off(net: Any) -> None:
        with torch.no_grad():
            next(net.parameters()).mul_(1 + 2.0**-52)

    spoiled(off, "fuse_batch_norms", lc.nn)
    assert outcome(replace(TRAINED, roads=())).startswith("fused: ")


@pytest.mark.parametrize("names", ["lc", "spconv"])
def test_faults_of_clouds(names: str) -> None:
    """A row that is another's, a cell, a number that is off by more than rounding."""
    p = replace(CLOUD, names=names)

    def planted(change: Callable[[dict[str, torch.Tensor]], None]) -> str:
        def fault(results: dict[str, torch.Tensor]) -> Any:
            change(results)
            return results

        return outcome(p, fault=fault)

    def rows_moved(results: dict[str, torch.Tensor]) -> None:
        results["y 1"] = results["y 1"].roll(1, 0)

    def another_cell(results: dict[str, torch.Tensor]) -> None:
        results["cells 0"][0, 1] += 1

    def off(results: dict[str, torch.Tensor]) -> None:
        name = next(name for name in results if name.startswith("grad s0"))
        results[name] = results[name] * (1 + 1e-12)

    assert planted(rows_moved).startswith("y 1")
    assert planted(another_cell).startswith("cells 0")
    assert "grad" in planted(off)


def test_steps_that_no_network_has() -> None:
    assert fits(PLAIN)
    assert not fits(replace(PLAIN, C=3))  # the sum
    written = (step("conv", (0,), **CONV), step("norm", (1,)), step("norm", (1,)),
               step("add", (1, 2), form="+="))  # fmt: skip
    assert not fits(replace(PLAIN, blocks=(written,)))
    aliased = (step("conv", (0,), **CONV), step("conv", (0,), **CONV),
               step("add", (1, 2), form="+="), step("conv", (1,), **CONV),
               step("act", (3,), form="method inplace"))  # fmt: skip
    assert not fits(replace(PLAIN, blocks=(aliased,)))  # value 1 is kept for a gradient
    assert fits(replace(PLAIN, blocks=((*aliased[:3], aliased[4]),)))
    shapes = all_shapes(PLAIN)
    assert shapes is not None
    assert [s.C for s in shapes[0]] == [4] * 8
    assert sparse_fits(CLOUD)
    lost = (*CLOUD.program[:3], sparse_step("inverse", 2, K=4, at=2))  # is at the fine level
    assert not sparse_fits(replace(CLOUD, program=lost))


def test_a_rounding_keeps_running_statistics() -> None:
    norm = torch.nn.BatchNorm1d(2).double()
    with Rounding(torch.float32, 2.0**-24, 0):
        norm(torch.ones(4, 2, dtype=torch.float64))
    torch.testing.assert_close(norm.running_mean, torch.full((2,), 0.1, dtype=torch.float64))


def test_rows_of_a_cloud_are_those_of_the_library() -> None:
    cells, x = sparse_networks_run.make_clouds(CLOUD, torch.float64)[0]
    made = sparse_networks_run.cloud_of(CLOUD, cells, x)
    assert isinstance(made, SparseTensor)
    assert torch.equal(made.coords.long(), cells)


@pytest.mark.parametrize("far", [False, True])
def test_what_is_no_number_is_left_out_where_torchs_is_none(far: bool) -> None:
    """Weights after a step of images of 3e37 are infinite in float32; before, results are not."""
    p = replace(TRAINED, type="float32")
    net = networks_run.randomised(networks_run.built(p.text(), p.seed), p.seed)
    data = networks_run.make_data(net, p, torch.float32)
    inputs = tuple(x * (3e37 if far else 1.0) for x in data.inputs)
    data = network_roads.Data(inputs, data.grads).to(torch.float32, torch.device("cpu"))
    names = "y 0", "y 1"
    got, exact = (dict.fromkeys(names, torch.full((2,), v)) for v in (torch.nan, 1.0))
    found = networks_run.within_range(p, torch.float32, data, got, exact)
    assert [list(each) for each in found] == [[*names[:1]] if far else [*names]] * 2
