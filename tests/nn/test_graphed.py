"""Networks with fixed rows give what they give of clouds, bit for bit; what does not fit is eager.

Features and weights are small integers, whose sums are exact in any order. A graph's stand-in runs
the network once more on the same memory, as a replay does.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.compat.spconv import pytorch as spconv
from layoutconv.gpu.kernel_source import source
from layoutconv.nn.graph_bucket import OVERFLOW
from layoutconv.nn.graph_recorder import Recording
from layoutconv.nn.graphed_network import Graphed
from layoutconv.nn.nested import taken_apart
from layoutconv.sparse import Coordinates, SparseTensor

from ..compat.networks import unet

SHAPE = (9, 10, 12)


class Replays:
    """Record functions by running them again, with results in the memory of the first."""

    def record(self, run: Callable[[], Any]) -> Recording:
        first = run()

        def replay() -> Any:
            for memory, found in zip(memory_of(first), memory_of(run()), strict=True):
                memory.copy_(found)
            return first

        return Recording(replay, 1000)


def memory_of(outcome: Any) -> list[Tensor]:
    returned = outcome.returned
    tensors = [outcome.verdict, *(outcome.effects or ())]
    for leaf, cells in zip(returned.leaves, returned.coordinates, strict=True):
        if cells is not None:
            tensors += leaf.features, cells.cells
        elif isinstance(leaf, Tensor):
            tensors.append(leaf)
    return tensors


def captured(net: nn.Module, **options: Any) -> Graphed:
    made = lc.nn.graphed(net, **options)
    made._recorder = Replays()
    return made


def cloud(rows: int, seed: int, channels: int = 3, images: int = 2) -> SparseTensor:
    random = torch.Generator().manual_seed(seed)
    count = images * SHAPE[0] * SHAPE[1] * SHAPE[2]
    keys = torch.randperm(count, generator=random)[:rows]
    cells = Coordinates.of_keys(keys, SHAPE, images).cells
    features = torch.randint(-3, 4, (rows, channels), generator=random).float()
    return SparseTensor(features, cells, SHAPE, images)


def with_integers(net: nn.Module, seed: int = 0) -> nn.Module:
    """Weights of which sums are exact; batch norms that multiply by powers of two."""
    random = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        parameter.data = torch.randint(-1, 2, parameter.shape, generator=random).float()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eps = 2.0**-8
            module.running_var.fill_(4 - 2.0**-8)  # type: ignore[union-attr, operator]
    return net.eval()


class Levels(nn.Module):
    """Every kind of layer that makes cells or goes back, with results of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = lc.nn.Sequential(lc.nn.SubmConv3d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU())
        self.down = lc.nn.SparseConv3d(4, 6, 3, stride=2, padding=1)
        self.deep = lc.nn.SubmConv3d(6, 6, 3, groups=2)
        self.pool = lc.nn.SparseMaxPool3d(2)
        self.up = lc.nn.SparseConvTranspose3d(6, 4, 2, stride=2)
        self.back = lc.nn.SparseInverseConv3d(6, 4, 3)

    def forward(self, x: SparseTensor) -> Any:
        x = self.stem(x)
        down = self.deep(self.down(x))
        pooled = self.pool(down)
        back = self.back(down) + x
        return {
            "levels": [x, down, pooled],
            "up": self.up(pooled),
            "back": (back, back.features, down.coords),
            "mean": lc.nn.sparse_global_pool(down, "mean"),
            "dense": down.dense(),
            "two": 2,
        }


def leaves_of(result: Any) -> list[Any]:
    return taken_apart(result)[1]


def check_same(found: Any, expected: Any) -> None:
    pairs = zip(leaves_of(found), leaves_of(expected), strict=True)
    for one, other in pairs:
        assert type(one) is type(other)
        if isinstance(one, Tensor):
            assert one.shape == other.shape
            assert torch.equal(one, other)
        elif hasattr(one, "coordinates"):
            assert torch.equal(one.features, other.features)
            assert torch.equal(one.coordinates.cells, other.coordinates.cells)
            assert not one.coordinates.padded
            assert one.coordinates.repeated == other.coordinates.repeated
            assert list(one.spatial_shape) == list(other.spatial_shape)
        else:
            assert one == other


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@given(st.lists(st.integers(1, 300), min_size=2, max_size=3), st.integers(0, 2**31))
@settings(max_examples=3, deadline=None)
def test_clouds_of_any_size_give_what_they_give_eagerly(sizes: list[int], seed: int) -> None:
    net = with_integers(Levels(), seed)
    graph = captured(net)
    with torch.no_grad():
        for number, rows in enumerate([*sizes, *sizes]):
            x = cloud(rows, seed + number)
            check_same(graph(x), net(x))
    report = graph.report()
    assert report.hits
    assert report.hits + report.warm_ups >= 2 * len(sizes) - sum(report.eager.values())
    assert set(report.eager) <= {OVERFLOW}
    assert all(bucket.difference == 0 for bucket in report.buckets)


def plain(seed: int = 0) -> nn.Module:
    layers = lc.nn.SubmConv3d(3, 4, 3), nn.ReLU(), lc.nn.SparseConv3d(4, 2, 3, 2, 1)
    return with_integers(lc.nn.Sequential(*layers), seed)


def test_networks_of_spconvs_names() -> None:
    net = with_integers(unet(spconv))
    graph = captured(net)
    for rows in 200, 180, 190:
        x = cloud(rows, rows)
        given = spconv.SparseConvTensor(x.features, x.coords, list(SHAPE), 2)
        found, expected = graph(given), net(given)
        check_same(found, expected)
        assert found.indices is given.indices
        assert found.coordinates is given.coordinates
    assert graph.report().hits == 2


class Detector(nn.Module):
    """A backbone in the manner of detectors: a dict comes in, and goes out with more in it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = spconv.SparseSequential(
            spconv.SubMConv3d(3, 4, 3, bias=False, indice_key="a"), nn.BatchNorm1d(4), nn.ReLU()
        )
        self.down = spconv.SparseSequential(
            spconv.SparseConv3d(4, 8, 3, stride=2, padding=1, bias=False, indice_key="b"),
            nn.BatchNorm1d(8),
        )

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        x = spconv.SparseConvTensor(
            features=batch["voxel_features"],
            indices=batch["voxel_coords"].int(),
            spatial_shape=SHAPE,
            batch_size=batch["batch_size"],
        )
        x = self.stem(x)
        y = self.down(x)
        batch.update(encoded=y, levels={"x": x, "y": y}, bird=y.dense().flatten(1, 2), stride=2)
        return batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_a_detector_adds_to_the_dict_that_it_is_given(dtype: torch.dtype) -> None:
    net = with_integers(Detector())
    graph = captured(net)
    for rows in 200, 150, 220:
        x = cloud(rows, rows)
        batch = {"voxel_features": x.features, "voxel_coords": x.coords.to(dtype), "batch_size": 2}
        other = dict(batch)
        found, expected = graph(batch), net(other)
        check_same(found, expected)
        assert found is batch
        assert found["voxel_features"] is x.features
        assert found["levels"]["y"].coordinates is found["encoded"].coordinates
    assert graph.report().hits == 2


def test_a_level_that_outgrows_its_capacity_is_eager_and_makes_a_larger_bucket() -> None:
    net, graph = plain(), captured(plain())
    near = SparseTensor(*dense_block(5), SHAPE, 2)
    far = cloud(len(near), 1)
    for x in near, near, far, far, near:
        check_same(graph(x), net(x))
    report = graph.report()
    assert (report.hits, report.warm_ups) == (3, 2)
    assert report.eager == {OVERFLOW: 1}
    assert len(report.buckets) == 1
    assert len(net(far)) < report.buckets[0].levels[0]


def dense_block(extent: int) -> tuple[Tensor, Tensor]:
    """Cells side by side: their coarser level is small."""
    cells = torch.cartesian_prod(torch.arange(2), *[torch.arange(extent)] * 3).int()
    return torch.ones(len(cells), 3), cells


def test_results_are_copies_and_share_the_arguments_coordinates() -> None:
    net = with_integers(lc.nn.Sequential(lc.nn.SubmConv3d(3, 4, 3)))
    graph = captured(net)
    x, y = cloud(200, 0), cloud(210, 1)
    graph(x)
    first, second = graph(x), graph(y)
    check_same([first, second], [net(x), net(y)])
    assert first.coordinates is x.coordinates
    after = with_integers(lc.nn.SparseConv3d(4, 2, 2, 2))
    check_same(after(first), after(net(x)))


def test_voxels_stay_voxels() -> None:
    random = torch.Generator().manual_seed(0)
    net = with_integers(lc.nn.Sequential(lc.nn.SubmConv3d(4, 4, 3)))
    graph = captured(net)
    for count in 300, 280:
        places = torch.rand(count, 3, generator=random)
        corners = torch.tensor([[0.0] * 3, [0.99] * 3])
        places[:2] = corners
        voxels = lc.voxelize(torch.cat([places, places.mul(9).round()[:, :1]], 1), 0.1)
        found = graph(voxels)
        assert type(found) is type(voxels)
        assert torch.equal(lc.devoxelize(found), lc.devoxelize(net(voxels)))


@pytest.mark.parametrize("wrong", ["repeated", "outside"])
def test_cells_that_an_eager_call_refuses_are_refused(wrong: str) -> None:
    graph = captured(plain())
    x = cloud(200, 0)
    graph(x)
    cells = x.coords.clone()
    cells[3] = cells[7] if wrong == "repeated" else torch.tensor([0, 0, 0, SHAPE[2]])
    with pytest.raises(lc.ArgumentError, match=r"distinct cells|column 3"):
        graph(SparseTensor(x.features, cells, SHAPE, 2))
    check_same(graph(x), plain()(x))
    absent = x.coords.clone()
    absent[5, 0] = -1
    with pytest.raises(lc.ArgumentError, match="column 0"):
        graph(SparseTensor(x.features, absent, SHAPE, 2))


def test_repeated_cells_of_spconvs_names_are_computed_as_eagerly() -> None:
    net = with_integers(spconv.SubMConv3d(3, 4, 3, indice_key="a"))
    graph = captured(net)
    x = cloud(200, 0)
    cells = x.coords.clone()
    cells[3] = cells[7]
    for own in x.coords, x.coords, cells, x.coords:
        one = spconv.SparseConvTensor(x.features, own, list(SHAPE), 2)
        assert torch.equal(graph(one).features, net(one).features)
    assert graph.report().hits == 2


def mean_of_rows(x: SparseTensor) -> Any:
    return x.features.mean(0)


def largest_of_rows(x: SparseTensor) -> Any:
    return x.features.relu().amax(0) + 100


def number_of_rows(x: SparseTensor) -> Any:
    return x, len(x)


def above_a_threshold(x: SparseTensor) -> Any:
    return lc.sparse.prune(x, x.features[:, 0] > 0)


def of_a_sum(x: SparseTensor) -> Any:
    return x * 2 if x.features.sum().item() > 1e9 else x


def of_a_mask(x: SparseTensor) -> Any:
    return x.features[x.features[:, 0] > 0]


def at_random(x: SparseTensor) -> Any:
    return x.replace(nn.functional.dropout(x.features))


class Then(nn.Module):
    def __init__(self, function: Callable[[SparseTensor], Any]) -> None:
        super().__init__()
        self.layers, self.function = plain(), function

    def forward(self, x: SparseTensor) -> Any:
        return self.function(self.layers(x))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (mean_of_rows, "reads rows without a cell"),
        (largest_of_rows, "reads rows without a cell"),
        (number_of_rows, "result 1 depends on rows"),
        (above_a_threshold, "nonzero reads a value on the host"),
        (of_a_sum, "Tensor.item reads a value on the host"),
        (of_a_mask, "reads a value on the host"),
        (at_random, "is random"),
    ],
)
def test_what_no_graph_can_do_is_eager_and_says_why(
    function: Callable[[SparseTensor], Any], why: str
) -> None:
    net = Then(function).eval()
    graph = captured(net)
    for rows in 200, 190:
        x = cloud(rows, rows)
        torch.manual_seed(0)
        found = graph(x)
        torch.manual_seed(0)
        check_same(found, net(x))
    report = graph.report()
    assert (report.hits, report.warm_ups) == (0, 1)
    (reason,) = report.eager
    assert why in reason
    assert why in str(report)


def test_training_and_gradients_are_eager() -> None:
    graph = captured(plain())
    x = cloud(100, 0)
    with torch.enable_grad():
        assert graph(x).features.requires_grad
    graph.train()
    assert graph.module.training
    graph(x)
    assert sorted(graph.report().eager) == [
        "gradients are recorded: call it under torch.no_grad()",
        "it is in training mode",
    ]


def test_hooks_are_called_at_every_call() -> None:
    net, called = plain(), []
    x, early, late = cloud(100, 0), captured(net), captured(net)
    late(x)
    hook = net[1].register_forward_hook(lambda *_: called.append(1))  # type: ignore[index, operator, union-attr]
    early(x)
    early(x)
    assert len(called) == 2
    late(x)
    late(x)
    for graph in early, late:
        assert graph.report().hits == 0
        assert "has hooks" in str(graph.report())
    hook.remove()


def test_weights_changed_in_place_are_seen_and_others_in_their_place_are_noticed() -> None:
    net = plain()
    graph = captured(net)
    x = cloud(200, 0)
    graph(x)
    net[0].weight.mul_(2)  # type: ignore[index, operator, union-attr]
    check_same(graph(x), net(x))
    assert graph.report().hits == 1
    net[0].weight = nn.Parameter(net[0].weight + 1)  # type: ignore[index, operator, union-attr]
    check_same(graph(x), net(x))
    graph.double().float()
    check_same(graph(x), net(x))
    net[1] = nn.Identity().eval()  # type: ignore[index, operator]
    check_same(graph(x), net(x))
    check_same(graph(x), net(x))
    report = graph.report()
    assert (report.hits, report.warm_ups) == (2, 4)
    half = x.to(torch.float64)
    check_same(graph.double()(half), net(half))


def test_it_has_the_networks_own_names() -> None:
    net = plain()
    graph = captured(net)
    whole = nn.ModuleDict({"net": graph})
    assert list(graph.state_dict()) == list(net.state_dict())
    assert list(whole.state_dict()) == [f"net.{name}" for name in net.state_dict()]
    other = nn.ModuleDict({"net": captured(plain(1))})
    other.load_state_dict(whole.state_dict())
    x = cloud(100, 0)
    check_same(other["net"](x), net(x))
    assert graph.forward != net.forward
    assert list(graph.children()) == list(net.children())
    file = io.BytesIO()
    torch.save(graph, file)
    file.seek(0)
    for same in copy.deepcopy(graph), torch.load(file, weights_only=False):
        assert type(same) is Graphed
        assert same.module is not net
        check_same(same(x), net(x))


def test_buckets_are_bounded_and_the_last_used_stay() -> None:
    net, graph = plain(), captured(plain(), buckets=4)
    for rows in (100, 450, 1200, 2000) * 2:
        x = cloud(rows, rows)
        check_same(graph(x), net(x))
        check_same(graph(x), net(x))
    report = graph.report()
    assert len(report.buckets) <= 4
    assert report.hits >= 8
    tight = captured(plain(), nbytes=500)
    tight(x)
    tight(x)
    assert "too large to keep" in str(tight.report())
    lc.clear_caches(kernels=True)
    assert graph.report().buckets == ()


def test_autocast_is_part_of_what_a_graph_is_for() -> None:
    net, graph = plain(), captured(plain())
    x = cloud(150, 0)
    for _ in range(2):
        check_same(graph(x), net(x))
        with torch.autocast("cpu", torch.bfloat16):
            check_same(graph(x), net(x))
    assert (graph.report().hits, graph.report().warm_ups) == (2, 2)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"factor": 0.5}, "factor"),
        ({"factor": "2"}, "factor"),
        ({"factor": torch.inf}, "factor"),
        ({"buckets": 1}, "buckets"),
        ({"nbytes": -1}, "nbytes"),
        ({"nbytes": "1"}, "nbytes"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], name: str) -> None:
    with pytest.raises(lc.ArgumentError, match=name):
        lc.nn.graphed(plain(), **options)
    with pytest.raises(lc.ArgumentTypeError, match="net"):
        lc.nn.graphed(plain)  # type: ignore[arg-type]


def test_who_looks_for_reads_has_no_kernels_compiled() -> None:
    """With a mode that looks on, fused layers run apart: those kernels nobody replays."""
    kinds: list[bool] = []
    real = source()

    class Looks(nn.Module):
        def forward(self, x: Any) -> Any:
            if isinstance(x, SparseTensor):
                kinds.append(source() is real)
            return x

    net = captured(lc.nn.Sequential(lc.nn.SubmConv3d(3, 8, 3), Looks()).eval())
    with torch.no_grad():
        net(cloud(40, 0))
        net(cloud(44, 1))
    assert kinds[:2] == [True, False]
    assert all(kinds[2:])
    assert net.report().hits == 1
