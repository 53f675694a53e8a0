"""Sparse networks as graphs of torch, from features and cells, with any number of rows.

Kernel maps are operators of the graph: it is traced with one cloud, and is right for others.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.compat.spconv import pytorch as spconv
from layoutconv.sparse import Coordinates, SparseTensor

from ..compat.networks import unet
from .test_graphed import SHAPE, Levels, cloud

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about caches and shapes
ROWS = torch.export.Dim("rows", min=2, max=1 << 20)


class OfOurs(nn.Module):
    """Every kind of layer of ``lc.nn``, from tensors to tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = Levels()
        self.block = lc.nn.Residual(lc.nn.Sequential(lc.nn.SubmConv3d(6, 6, 3), nn.BatchNorm1d(6)))
        self.depthwise = lc.nn.SubmConv3d(6, 12, 3, groups=6)

    def forward(self, features: Tensor, cells: Tensor) -> Any:
        found = self.levels(SparseTensor(features, cells, SHAPE, 2))
        x, down, pooled = found["levels"]
        others = found["back"][1], found["up"].features, found["mean"], found["dense"]
        return (
            x.features,
            down.coords,
            self.block(pooled).features,
            self.depthwise(pooled).features,
            *others,
        )


class OfSpconvs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = unet(spconv)

    def forward(self, features: Tensor, cells: Tensor) -> Any:
        x = spconv.SparseConvTensor(features, cells, list(SHAPE), 2)
        return (self.net(x).features,)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = lc.nn.SubmConv3d(3, 4, 3, activation="relu")
        self.down = lc.nn.SparseConv3d(4, 6, 3, stride=2, padding=1)
        self.back = lc.nn.SparseInverseConv3d(6, 4, 3)

    def forward(self, features: Tensor, cells: Tensor) -> Any:
        x = self.stem(SparseTensor(features, cells, SHAPE, 2))
        y = self.down(x)
        return self.back(y).features, y.coords


def tensors(rows: int) -> tuple[Tensor, Tensor]:
    x = cloud(rows, rows)
    return x.features, x.coords


def exported(net: nn.Module, strict: bool = False) -> Any:
    with torch.no_grad():
        shapes = {0: ROWS}, {0: ROWS}
        return torch.export.export(net, tensors(90), dynamic_shapes=shapes, strict=strict)


def check(run: Any, net: nn.Module) -> None:
    with torch.no_grad():
        for rows in 90, 150, 40:
            for one, other in zip(run(*tensors(rows)), net(*tensors(rows)), strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [OfOurs, OfSpconvs])
def test_an_exported_network_takes_other_clouds(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = kind().eval()
    program = exported(net)
    targets = {str(node.target) for node in program.graph.nodes}
    assert {"layoutconv.neighbours.default", "layoutconv.reached_cells.default"} <= targets
    check(program.module(), net)


def test_a_program_is_saved_loaded_and_refuses_what_the_network_refuses() -> None:
    net = Small().eval()
    file = io.BytesIO()
    torch.export.save(exported(net, strict=True), file)
    file.seek(0)
    served = torch.export.load(file).module()
    check(served, net)
    features, cells = tensors(90)
    twice = cells.clone()
    twice[3] = twice[7]
    with pytest.raises(lc.ArgumentError, match="rows 3 and 7"):
        served(features, twice)
    outside = cells.clone()
    outside[5, 2] = SHAPE[1]
    with pytest.raises(lc.ArgumentError, match="column 2"):
        served(features, outside)


class OneTap(nn.Module):
    """A head of one tap, whose gradients need the pairs of its map."""

    def __init__(self) -> None:
        super().__init__()
        self.head = lc.nn.SubmConv3d(3, 5, 1)

    def forward(self, features: Tensor, cells: Tensor) -> Any:
        return (self.head(SparseTensor(features, cells, SHAPE, 2)).features,)


def test_a_layer_of_one_tap_takes_other_clouds_with_gradients_too() -> None:
    """Its pairs fill one chunk in the example, and more in other clouds."""
    net, shapes = OneTap(), ({0: ROWS}, {0: ROWS})
    program = torch.export.export(net, tensors(90), dynamic_shapes=shapes, strict=False)
    check(program.module(), net)
    cells = torch.cartesian_prod(*map(torch.arange, (2, *SHAPE))).int()
    features = torch.randn(len(cells), 3)
    assert len(cells) > 512
    gradients = [
        torch.autograd.grad(run(features, cells)[0].square().sum(), net.head.weight)[0]
        for run in (net, torch.compile(net, fullgraph=True, backend="aot_eager", dynamic=True))
    ]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)


def test_a_compiled_network_finds_its_maps_and_trains() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    net = Small()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in 90, 150:
        gradients = []
        for run in net, compiled:
            features, cells = tensors(rows)
            y = run(features.requires_grad_(True), cells)[0]
            inputs = features, *net.parameters()
            gradients.append([y, *torch.autograd.grad(y.square().sum(), inputs)])
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)


class Pooled(nn.Module):
    """Layers whose gradients read more of a kernel map than the layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = lc.nn.SubmConv3d(3, 4, 3)
        self.depthwise = lc.nn.SubmConv3d(4, 4, 3, groups=4)
        self.pools = nn.ModuleList([lc.nn.SparseMaxPool3d(2), lc.nn.SparseAvgPool3d(2)])
        self.most = lc.nn.SparseGlobalMaxPool()

    def forward(self, features: Tensor, cells: Tensor) -> Any:
        x = self.depthwise(self.stem(SparseTensor(features, cells, SHAPE, 2)))
        return *(pool(x).features for pool in self.pools), self.most(x), x.features


def test_a_program_without_gradients_runs_where_they_are_recorded() -> None:
    """A server that forgets ``torch.no_grad`` gets results; a backward pass names what it lacks."""
    net = Pooled().eval()
    found = exported(net).module()(*tensors(150))
    for one, other in zip(found, net(*tensors(150)), strict=True):
        torch.testing.assert_close(one, other)
    for result, name in zip(found, ("inverse", "inverse", "winners", "inverse"), strict=True):
        with pytest.raises(lc.ArgumentError, match=f"`{name}`: expected .*as the gradient"):
            result.sum().backward(retain_graph=True)


class WithoutBounds(nn.Module):
    def forward(self, features: Tensor, cells: Tensor) -> Any:
        return (lc.nn.sparse_max_pool(SparseTensor(features, cells), 2).features,)


def test_coordinates_without_bounds_are_refused_by_the_graph_that_reads_none() -> None:
    with pytest.raises(RuntimeError, match=r"graph of torch\.export.*give a spatial_shape"):
        exported(WithoutBounds())


def test_a_map_may_die_while_the_network_that_found_it_is_compiled() -> None:
    torch._dynamo.reset()
    net, graphs = lc.nn.SparseInverseConv3d(8, 4, 3).requires_grad_(False), []
    x = lc.nn.SparseConv3d(3, 8, 3, 2, 1).requires_grad_(False)(cloud(90, 0))
    expected = net(x).features
    held = [x.coordinates.origin.inverse]

    def backend(graph: Any, _: Any) -> Any:
        held.clear()  # before dynamo makes its guards
        graphs.append(graph)
        return graph

    compiled = torch.compile(net, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x).features, expected)
    held.append(x.coordinates.origin.inverse)
    torch.testing.assert_close(compiled(x).features, expected)
    assert len(graphs) == 1  # guards do not ask whether the map is alive


def test_fakes_have_the_shapes_and_strides_of_operators() -> None:
    x = cloud(60, 0)
    grid, taps = [2, *SHAPE], [1, 1, 1, -1, 0, 0, 0, 0, 0, 1, 0, 0]
    two = [2, 2, 2, *taps[3:]]
    operators = torch.ops.layoutconv
    samples = [
        (operators.neighbours, (x.coords, grid, False, False, x.coords, taps, True)),
        (operators.neighbours, (x.coords, grid, True, False, x.coords[:7], two, False)),
        (operators.reached_cells, (x.coords, grid, True, False, two, [5, 5, 6], 200, False)),
        (operators.reached_cells, (x.coords, grid, True, False, two, [5, 5, 6], None, False)),
        (operators.reached_cells, (x.coords, grid, True, False, two, [18, 20, 24], None, True)),
    ]
    index = operators.neighbours(*samples[0][1])
    samples += [
        (operators.reversed_index, (index, 60)),
        (operators.by_taps, (index, [3, 1, 1])),
    ]
    for operator, args in samples:
        torch.library.opcheck(operator.default, args, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.slow
def test_a_package_of_aot_inductor_runs_in_python(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Small().eval()
    path = str(tmp_path / "net.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._inductor.aoti_compile_and_package(exported(net), package_path=path)
    check(torch._inductor.aoti_load_package(path), net)


def test_coordinates_know_their_rows_where_len_may_not() -> None:
    cells = Coordinates(torch.zeros(3, 2, dtype=torch.int32), (4,), 1)
    assert cells.rows == len(cells) == 3
