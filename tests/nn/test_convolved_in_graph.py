"""Graphs of torch.compile on a CPU have torch's own convolutions, exported ones the operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from hypothesis import given, settings
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

import layoutconv as lc
from layoutconv.base.torch_internals import sums_bfloat16
from layoutconv.conv import ConvProblem
from layoutconv.cpu import torch_convolution as cpu
from layoutconv.nn import functional as ours
from layoutconv.view.epilogue import ACTIVATIONS

from ..cpu.test_torch_convolution import problems

BFLOAT16 = pytest.mark.skipif(not sums_bfloat16(), reason="torch convolves no bfloat16 here")


class Graphs:
    """A backend that notes what its graphs call."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.multiplied: list[torch.dtype] = []
        self.backend = aot_autograd(fw_compiler=self.note)

    def note(self, graph: torch.fx.GraphModule, _: Any) -> Any:
        nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
        self.called += [str(node.target) for node in nodes]
        self.multiplied += [
            node.args[0].meta["val"].dtype for node in nodes if "aten.conv" in str(node.target)
        ]
        return make_boxed_func(graph.forward)

    def of(self, function: Any, *inputs: Any, **options: Any) -> Any:
        torch._dynamo.reset()
        self.compiled = torch.compile(function, fullgraph=True, backend=self.backend, **options)
        return self.compiled(*inputs)

    def count(self, name: str) -> int:
        return sum(name in called for called in self.called)


LAYERS: list[tuple[Any, tuple[int, ...]]] = [
    (lambda: lc.nn.Conv2d(3, 8, 3, 2, 1), (2, 3, 9, 9)),
    (lambda: lc.nn.Conv2d(6, 6, 3, padding="same", groups=6, bias=False), (1, 6, 5, 7)),
    (lambda: lc.nn.Conv2d(16, 8, 1, 2, activation="relu"), (2, 16, 6, 5)),
    (lambda: lc.nn.Conv1d(4, 8, 3, padding=((2, 0),)), (2, 4, 9)),
    (lambda: lc.nn.Conv1d(4, 8, 3, 2), (4, 9)),
    (lambda: lc.nn.Conv3d(3, 4, 3, (1, 2, 2), 1), (2, 3, 6, 7, 8)),
    (lambda: lc.nn.ConvTranspose2d(4, 8, 3, 2, 1, 1), (2, 4, 5, 5)),
    (lambda: lc.nn.ConvTranspose1d(4, 6, 4, 2, groups=2), (2, 4, 9)),
    (lambda: lc.nn.ConvTranspose3d(4, 2, 2, 2), (1, 4, 2, 3, 4)),
]  # fmt: skip


@pytest.mark.parametrize("low", [False, pytest.param(True, marks=BFLOAT16)])
@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_layers_are_torchs_convolutions(number, low):
    make, shape = LAYERS[number]
    torch.manual_seed(number)
    layer, x, graphs = make(), torch.randn(shape, requires_grad=True), Graphs()
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        expected = layer(x)
        found = graphs.of(layer, x)
    assert found.dtype is expected.dtype
    assert found.stride() == expected.stride()
    grad = torch.randn_like(expected)
    leaves = [x, *layer.parameters()]
    all_found = found, *torch.autograd.grad(found, leaves, grad)
    all_expected = expected, *torch.autograd.grad(expected, leaves, grad)
    close = 2.0**-6 if low else 2.0**-18  # sums of 16 bits are rounded once, of other parts
    for one, other in zip(all_found, all_expected, strict=True):
        torch.testing.assert_close(
            one, other, rtol=close, atol=close * other.detach().abs().max().item()
        )
    assert graphs.count("layoutconv") == 0
    assert (graphs.count("aten.convolution."), graphs.count("convolution_backward")) == (1, 1)


@BFLOAT16
def test_a_layer_under_autocast_is_torchs_own_layer():
    mine, theirs = (c(8, 16, 3, padding=1, bias=False) for c in (lc.nn.Conv2d, torch.nn.Conv2d))
    theirs.load_state_dict(mine.state_dict())
    theirs.to(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 9, 9).to(memory_format=torch.channels_last)
    found = []
    for layer in (mine, theirs):
        graphs = Graphs()
        with torch.autocast("cpu", torch.bfloat16):
            found.append((graphs.of(layer, x), sorted(graphs.called)))
    (y, called), (expected, called_by_theirs) = found
    assert torch.equal(y, expected)
    assert called == called_by_theirs


EVERY = [None, *ACTIVATIONS]


@pytest.mark.parametrize("out", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scaled", [False, True])
def test_what_follows_the_sums_is_in_the_graph(out, scaled):
    """All activations in one graph: a graph for each takes twice as long."""
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, 7, 6), torch.randn(8, 3, 3, 3)
    bias, residual, scale = torch.randn(8), torch.randn(2, 8, 7, 6), torch.rand(8)

    def run(x: Tensor, w: Tensor, bias: Tensor) -> list[Any]:
        return [
            ours.conv2d(
                x, w, bias, padding=1, activation=activation, slope=0.1, out_dtype=out,
                residual=residual, scale=scale if scaled else None,
            )
            for activation in EVERY
        ]  # fmt: skip

    graphs = Graphs()
    results = graphs.of(run, x, w, bias), run(x, w, bias)
    assert graphs.count("layoutconv") == 0
    assert graphs.count("aten.convolution.") == len(EVERY)
    close = {None: 2.0**-18, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[out]
    for activation, found, expected in zip(EVERY, *results, strict=True):
        assert found.dtype is expected.dtype, activation
        torch.testing.assert_close(
            found, expected, rtol=close, atol=close, msg=lambda said, a=activation: f"{a}: {said}"
        )
        alike = (found == expected).float().mean()
        assert alike > (0.9 if out else 0.3), activation  # both are rounded once


def run_one(x: Tensor, w: Tensor, *rest: Any, **options: Any) -> Any:
    return getattr(ours, f"conv{x.dim() - 2}d")(x, w, *rest, **options)


KEPT: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "views": (torch.float32, (1, 3, 5, 5), (4, 3, 3, 3), {"executor": "view"}),
    "int8": (torch.int8, (1, 3, 5, 5), (4, 3, 3, 3), {}),
    "statistics": (torch.float32, (1, 3, 5, 5), (4, 3, 3, 3), {"return_statistics": True}),
    "int8 results": (torch.float32, (1, 3, 5, 5), (4, 3, 3, 3), {"out_dtype": torch.int8}),
    "one channel": (torch.float32, (1, 1, 9, 9), (4, 1, 3, 3), {"stride": 2}),
    "one tap": (torch.float32, (2, 4, 93, 57), (4, 4, 1, 1), {"stride": (2, 1)}),
    "depth": (
        torch.float32, (2, 2, 7, 3, 9), (3, 2, 7, 3, 3), {"stride": (2, 1, 1), "padding": (3, 0, 0)}
    ),
    "a column": (torch.float32, (1, 16, 40, 3), (16, 16, 5, 3), {"stride": (4, 3)}),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_passes_that_torch_has_otherwise_keep_the_operator(name):
    dtype, shape, filter, options = KEPT[name]
    x, w = torch.randint(-3, 4, shape).to(dtype), torch.randint(-3, 4, filter).to(dtype)
    graphs = Graphs()
    found = graphs.of(lambda x, w: run_one(x, w, **options), x, w)
    assert graphs.count("layoutconv.conv_fprop") == 1
    assert graphs.count("aten.convolution") == 0
    torch.testing.assert_close(found, run_one(x, w, **options))


B16 = torch.bfloat16
WIDE: dict[str, tuple[torch.dtype, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "float16": (torch.float16, (1, 3, 5, 5), (4, 3, 3, 3), {}),
    "an activation": (B16, (1, 3, 5, 5), (4, 3, 3, 3), {"activation": "silu"}),
    "a wide result": (B16, (1, 3, 5, 5), (4, 3, 3, 3), {"out_dtype": torch.float32}),
    "a wide bias": (B16, (1, 3, 5, 5), (4, 3, 3, 3), {"bias": torch.ones(4)}),
    "a scale": (B16, (1, 3, 5, 5), (4, 3, 3, 3), {"scale": torch.ones(4)}),
    "a dilation": (B16, (1, 3, 9, 9), (4, 3, 3, 3), {"dilation": 2}),
    "an unread tap": (B16, (2, 2, 3), (4, 2, 2), {"stride": 5, "padding": 1}),
    "an unread row": (B16, (2, 2, 1, 9), (4, 2, 3, 3), {"padding": 1}),
    "a thin depth": (B16, (1, 3, 2, 5, 6), (4, 3, 5, 3, 3), {"padding": (4, 1, 1)}),
}


@pytest.mark.parametrize("name", WIDE)
def test_16_bits_that_torch_rounds_otherwise_are_multiplied_in_fp32(name):
    dtype, shape, filter, options = WIDE[name]
    torch.manual_seed(0)
    x, w = (torch.randn(of).to(dtype).requires_grad_() for of in (shape, filter))
    graphs = Graphs()
    found = graphs.of(lambda x, w: run_one(x, w, **options), x, w)
    expected = run_one(x, w, **options)
    with torch.no_grad():  # else an activation is rounded twice
        assert torch.equal(found, run_one(x, w, **options))
    grad = torch.randn_like(expected)
    close = 2.0**-9 if dtype == torch.float16 else 2.0**-6
    for one, other in zip(
        *(torch.autograd.grad(y, (x, w), grad) for y in (found, expected)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=close, atol=close)
    assert graphs.multiplied == [torch.float32] * 2


@BFLOAT16
@pytest.mark.parametrize("options", [{}, {"bias": torch.ones(4).bfloat16(), "activation": "relu"}])
def test_bfloat16_is_multiplied_as_it_is(options):
    torch.manual_seed(0)
    x, w = torch.randn(1, 3, 5, 5).bfloat16(), torch.randn(4, 3, 3, 3).bfloat16()
    graphs = Graphs()
    found = graphs.of(lambda x, w: run_one(x, w, **options), x, w)
    expected = run_one(
        x.double(),
        w.double(),
        **{**options, **({"bias": torch.ones(4).double()} if options else {})},
    )
    assert graphs.multiplied == [torch.bfloat16]
    torch.testing.assert_close(
        found.double(), expected, rtol=2.0**-8, atol=2.0**-20
    )  # rounded once


def test_users_functions_keep_the_operator():
    x, w, graphs = torch.randn(1, 3, 5, 5), torch.randn(4, 3, 3, 3), Graphs()
    double = lc.Pointwise(lambda value: 2 * value)
    found = graphs.of(lambda x, w: ours.conv2d(x, w, activation=double), x, w)
    assert graphs.count("layoutconv.conv_fprop") == 1
    torch.testing.assert_close(found, 2 * ours.conv2d(x, w))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_keep_operators(strict):
    net = torch.nn.Sequential(lc.nn.Conv2d(3, 4, 3), lc.nn.ConvTranspose2d(4, 2, 2, 2)).eval()
    x = torch.randn(2, 3, 8, 8)
    program = torch.export.export(net, (x,), strict=strict)
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == ["layoutconv.conv_fprop.default", "layoutconv.conv_dgrad.default"]


def test_dynamic_sizes_compile_once():
    net = torch.nn.Sequential(
        lc.nn.Conv2d(3, 4, 3, 2, 1, activation="silu"), lc.nn.ConvTranspose2d(4, 4, 3, 2, 1)
    )
    graphs = Graphs()
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for shape in ((2, 3, 17, 15), (3, 3, 20, 31), (4, 3, 33, 18)):
            x = torch.randn(shape)
            found = graphs.compiled(x) if graphs.called else graphs.of(net, x, dynamic=True)
            torch.testing.assert_close(found, net(x))
    assert (graphs.count("aten.convolution."), graphs.count("layoutconv")) == (2, 0)


def test_a_training_step_of_dynamic_sizes_has_operators():
    """Inductor compiles torch's gradients again for each size in space."""
    net, graphs = lc.nn.Conv2d(3, 4, 3), Graphs()
    graphs.of(net, torch.randn(2, 3, 9, 8), dynamic=True).sum().backward()
    assert graphs.count("layoutconv.conv_") == 2
    assert graphs.count("aten.convolution") == 0


def test_images_whose_number_depends_on_data():
    def run(x: Tensor, chosen: Tensor, w: Tensor) -> Any:
        return ours.conv2d(x[chosen.nonzero()[:, 0]], w)

    x, w, chosen = torch.randn(4, 3, 6, 6), torch.randn(5, 3, 3, 3), torch.tensor([1, 0, 1, 1])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.testing.assert_close(Graphs().of(run, x, chosen, w), run(x, chosen, w))


@settings(max_examples=300, deadline=None)
@given(problems())
def test_numbers_that_are_right_of_any_extents_take_no_way_around(problem: ConvProblem):
    both = [max(0, min(sides)) for sides in problem.padding]
    numbers = problem.C, problem.taps, problem.stride, both, problem.dilation, problem.groups
    if cpu.is_right_of_any_extents(*numbers):
        found = cpu.TorchConvolution(problem)
        column = problem.output_spatial[-1] == 1
        assert not found.steps
        assert not found.single
        assert column or not found.turned
        assert found.numbers[1][-problem.rank :] == both
