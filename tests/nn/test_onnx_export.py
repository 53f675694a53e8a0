"""Networks as ONNX: run by runtimes of others, and nodes of our domain by our operators."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.nn.onnx_export import DOMAIN, ROWS, SPARSE, onnx_translations
from layoutconv.sparse import Coordinates

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore")


def exported(net: nn.Module, example: tuple[Any, ...], shapes: Any) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.onnx.export(
            net.eval(), example, dynamo=True, verbose=False, dynamic_shapes=shapes,
            custom_translation_table=onnx_translations(),
        ).model_proto  # fmt: skip


def node_class(name: str) -> type:
    """The node of ``onnx.reference`` that an operator of ours computes."""
    from onnx.reference.op_run import OpRun

    operator = getattr(torch.ops.layoutconv, name).default

    def run(self: Any, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        given, left = {}, list(inputs)
        for argument in operator._schema.arguments:
            if "Tensor" in str(argument.type) or argument.name in ROWS:
                value = left.pop(0) if left else None
                if value is not None:
                    number = argument.name in ROWS
                    value = int(value) if number else torch.from_numpy(value.copy())
            else:
                value = attributes.get(argument.name)
                value = bool(value) if str(argument.type) == "bool" else value
            if value is not None:
                given[argument.name] = value
        arguments = [given.get(a.name, a.default_value) for a in operator._schema.arguments]
        found = operator(*arguments)
        return tuple(t.numpy() for t in (found if isinstance(found, tuple) else (found,)))

    return type(name, (OpRun,), {"op_domain": DOMAIN, "_run": run})


def results(model: Any, *inputs: Tensor) -> list[Tensor]:
    from onnx.reference import ReferenceEvaluator

    runner = ReferenceEvaluator(model, new_ops=[node_class(name) for name in SPARSE])
    named = {i.name: t.numpy() for i, t in zip(model.graph.input, inputs, strict=True)}
    return [torch.from_numpy(y) for y in runner.run(None, named)]


class Dense(nn.Module):
    """Every activation, a bias, a scale, a residual, and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = lc.nn.Conv2d(3, 4, 3, padding=(1, 2), stride=2, activation="gelu")
        self.up = lc.nn.ConvTranspose2d(4, 4, 3, stride=2, output_padding=1)
        self.weight = nn.Parameter(torch.randn(4, 4, 1, 1))

    def forward(self, x: Tensor) -> Any:
        y = self.stem(x)
        scale = torch.linspace(0.5, 2, 4)
        others = [
            lc.conv2d(y, self.weight, scale, scale=scale, residual=y, activation=kind)
            for kind in (
                "relu",
                "relu6",
                "leaky_relu",
                "silu",
                "gelu_tanh",
                "sigmoid",
                "tanh",
                "hardswish",
            )
        ]
        return self.up(y), *others


def test_dense_convolutions_are_onnxs_own() -> None:
    net, images = Dense(), torch.export.Dim("images", min=1, max=64)
    model = exported(net, (torch.randn(2, 3, 8, 6),), ({0: images},))
    assert {node.domain for node in model.graph.node} == {""}
    x = torch.randn(3, 3, 8, 6)
    for got, want in zip(results(model, x), net(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_what_onnx_cannot_say_is_named() -> None:
    net = lc.nn.Conv2d(1, 1, 3, padding=((-1, 0), (0, 0)))
    with pytest.raises(Exception, match="padding"):
        exported(net, (torch.randn(1, 1, 8, 8),), None)


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = lc.nn.Sequential(
            lc.nn.SubmConv3d(4, 6, 3, activation="leaky_relu"),
            nn.BatchNorm1d(6),
            lc.nn.SparseConv3d(6, 5, 3, stride=2, padding=1),
            lc.nn.SparseMaxPool3d(2, stride=2),
            lc.nn.SubmConv3d(5, 5, 3, groups=5),
        )

    def forward(self, features: Tensor, cells: Tensor) -> Any:
        found = self.layers(lc.SparseTensor(features, cells, (9, 9, 9), 1))
        return found.features, found.coords


def test_sparse_networks_are_nodes_of_a_domain_of_operators_names() -> None:
    net = Sparse()
    cells = Coordinates.of_keys(torch.randperm(9**3)[:150], (9, 9, 9), 1).cells
    rows = torch.export.Dim("rows", min=2, max=1 << 20)
    model = exported(net, (torch.randn(150, 4), cells), ({0: rows}, {0: rows}))
    names = {node.op_type for node in model.graph.node if node.domain == DOMAIN}
    assert {"neighbours", "reached_cells", "sparse_conv", "sparse_pool"} <= names <= {*SPARSE}
    assert {entry.domain: entry.version for entry in model.opset_import}[DOMAIN] == 1
    features, cells = torch.randn(110, 4), cells[:110]
    for got, want in zip(results(model, features, cells), net(features, cells), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
