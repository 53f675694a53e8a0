"""``torch.func``, forward mode, batched gradients, tracers and inductor: what torch's own give."""

from __future__ import annotations

import shutil
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.autograd import functional as autograd
from torch.nn import functional as theirs

import layoutconv as lc
from layoutconv.nn import functional as ours

from .clouds import cloud, numbers

# Rank, transposed or not, channels in, channels out, groups, and the numbers of a call.
CASES: dict[str, tuple[int, bool, int, int, dict[str, Any]]] = {
    "conv1d": (1, False, 2, 3, {"stride": 2, "padding": 1}),
    "conv2d": (2, False, 2, 3, {"dilation": (1, 2), "padding": (2, 1)}),
    "grouped": (2, False, 4, 6, {"groups": 2, "stride": (2, 1)}),
    "depthwise": (1, False, 3, 6, {"groups": 3, "padding": 1}),
    "conv3d": (3, False, 2, 2, {"stride": (1, 2, 1), "padding": "valid"}),
    "conv_transpose1d": (1, True, 2, 3, {"stride": 3, "padding": 1, "output_padding": 2}),
    "grouped transposed": (2, True, 4, 6, {"groups": 2, "stride": (2, 1)}),
    "depthwise transposed": (1, True, 3, 3, {"groups": 3}),
    "conv_transpose3d": (3, True, 2, 1, {"dilation": (1, 2, 1)}),
}
each = pytest.mark.parametrize("case", CASES)


def functions(case: str) -> tuple[Any, Any]:
    """Ours and theirs, of an input, a weight and a bias."""
    rank, transposed, *_, numbers = CASES[case]
    name = f"conv{'_transpose' * transposed}{rank}d"
    mine, expected = (getattr(place, name) for place in (ours, theirs))
    return (
        lambda x, w, b=None: mine(x, w, b, **numbers),
        lambda x, w, b=None: expected(x, w, b, **numbers),
    )


def tensors(case: str, *batch: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """An input, a weight and a bias, each of a ``batch``."""
    rank, transposed, into, out, numbers = CASES[case]
    groups = numbers.get("groups", 1)
    of_filter = (into, out // groups) if transposed else (out, into // groups)
    shapes = (2, into, *(5, 4, 3)[:rank]), (*of_filter, *(2, 3, 1)[:rank]), (out,)
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*batch, *shape, generator=generator, dtype=dtype) / 2 for shape in shapes]


def cubed(convolve: Any) -> Any:
    """A number whose derivatives of the first three orders are no constants."""
    return lambda *inputs: convolve(*inputs).pow(3).sum()


def agree(transform: Any, case: str, *inputs: Tensor) -> None:
    mine, expected = (transform(function)(*inputs) for function in functions(case))
    torch.testing.assert_close(mine, expected)


# -- derivatives -----------------------------------------------------------------------------------

ALL = (0, 1, 2)
DERIVATIVES: dict[str, Any] = {
    "grad": lambda f: torch.func.grad(cubed(f), ALL),
    "grad of grad": lambda f: torch.func.grad(
        lambda *inputs: sum(g.square().sum() for g in torch.func.grad(cubed(f), ALL)(*inputs)), ALL
    ),
    "jacrev": lambda f: torch.func.jacrev(f, ALL),
    "jacfwd": lambda f: torch.func.jacfwd(f, ALL),
    "hessian": lambda f: torch.func.hessian(cubed(f), ALL),
    "reverse over forward": lambda f: torch.func.jacrev(torch.func.jacfwd(cubed(f), ALL), ALL),
    "jvp": lambda f: lambda *inputs: torch.func.jvp(f, inputs, inputs),
    "vjp": lambda f: lambda *inputs: torch.func.vjp(f, *inputs)[1](f(*inputs)),
    "vectorized hessian": lambda f: (
        lambda *inputs: autograd.hessian(cubed(f), inputs, vectorize=True)
    ),
    "vectorized jacobian": lambda f: lambda *inputs: autograd.jacobian(f, inputs, vectorize=True),
    "forward-mode jacobian": lambda f: (
        lambda *inputs: autograd.jacobian(f, inputs, vectorize=True, strategy="forward-mode")
    ),
}


@each
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_those_of_torch(case, name):
    agree(DERIVATIVES[name], case, *tensors(case))


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_derivatives_of_what_follows_the_sums(activation):
    x, w, bias = tensors("conv2d")
    residual = ours.conv2d(x, w, **CASES["conv2d"][-1])
    scale = torch.arange(1.0, 4, dtype=torch.float64)

    def mine(*inputs: Tensor) -> Tensor:
        x, w, bias, scale, residual = inputs
        options = {"scale": scale, "residual": residual, "activation": activation}
        return ours.conv2d(x, w, bias, **CASES["conv2d"][-1], **options)

    def expected(*inputs: Tensor) -> Tensor:
        x, w, bias, scale, residual = inputs
        y = theirs.conv2d(x, w, **CASES["conv2d"][-1]) * scale[:, None, None]
        return getattr(torch.nn.functional, activation)(y + bias[:, None, None] + residual)

    given = x, w, bias, scale, residual
    for transform in (
        lambda f: torch.func.grad(cubed(f), (0, 1, 2, 3, 4)),
        lambda f: lambda *inputs: torch.func.jvp(f, inputs, inputs),
        lambda f: torch.func.hessian(cubed(f), (1, 3)),
    ):
        torch.testing.assert_close(transform(mine)(*given), transform(expected)(*given))
    many = [torch.stack((t, 2 * t)) for t in given]
    torch.testing.assert_close(torch.vmap(mine)(*many), torch.vmap(expected)(*many))


# -- batches ---------------------------------------------------------------------------------------


@each
def test_batches_of_any_of_the_tensors(case):
    """In any mode, one inside of another, and differentiated: of samples, or of models."""
    plain, batch = tensors(case), tensors(case, 3)
    for chosen in product((False, True), repeat=3):
        if any(chosen):
            inputs = [
                many if pick else one for pick, many, one in zip(chosen, batch, plain, strict=True)
            ]
            dims = tuple(0 if pick else None for pick in chosen)
            agree(lambda f, dims=dims: torch.vmap(f, dims), case, *inputs)
            agree(
                lambda f, dims=dims: torch.vmap(torch.func.grad(cubed(f), ALL), dims),
                case, *inputs,
            )  # fmt: skip
    x, w, bias = batch
    agree(lambda f: torch.vmap(f, (-1, 1, None)), case, x.movedim(0, -1), w.movedim(0, 1), bias[0])
    twice = torch.stack((x, 2 * x, x * 0), 1)
    agree(lambda f: torch.vmap(torch.vmap(f, (0, 0, 0)), (1, None, None)), case, twice, w, bias)


def test_gradients_go_through_a_batch():
    x, w, bias = (t.requires_grad_() for t in tensors("grouped", 3))
    results = []
    for function in functions("grouped"):
        y = torch.vmap(function)(x, w, bias)
        results.append(torch.autograd.grad(y.pow(3).sum(), (x, w, bias)))
    torch.testing.assert_close(*results)


def test_an_ensemble_of_modules():
    nets = [lc.nn.Conv2d(2, 3, 3, padding=1, activation="relu").double() for _ in range(4)]
    state = torch.func.stack_module_state(nets)  # type: ignore[arg-type]
    x = torch.randn(2, 2, 5, 5, dtype=torch.float64)

    def run(parameters: Any, buffers: Any) -> Tensor:
        return torch.func.functional_call(nets[0], (parameters, buffers), (x,))  # type: ignore[no-any-return]

    torch.testing.assert_close(torch.vmap(run)(*state), torch.stack([net(x) for net in nets]))


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.int8, {}),
        (torch.int8, {"out_dtype": torch.int8, "scale": 0.02}),
        (torch.float16, {"activation": "hardswish", "bias": True}),
        (torch.bfloat16, {"out_dtype": torch.float32}),
        (torch.float8_e4m3fn, {"activation": "relu"}),
    ],
)
def test_a_batch_has_the_bits_of_a_loop(dtype, options):
    """A batch and a loop both round once what follows the sums."""
    x, w, bias = tensors("conv2d", 3, dtype=torch.float32)
    x, w = (8 * x).to(dtype), (8 * w[0]).to(dtype)
    options = {**options, **({"bias": bias[0].half()} if "bias" in options else {})}

    def convolve(x: Tensor) -> Tensor:
        return ours.conv2d(x, w, **CASES["conv2d"][-1], **options)

    expected = torch.stack([convolve(one) for one in x])
    found = torch.vmap(convolve)(x)
    assert found.dtype == expected.dtype
    assert torch.equal(found.double(), expected.double())


def test_transforms_under_autocast():
    x, w, bias = tensors("conv2d", dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mine, expected = (torch.func.vjp(f, x, w, bias) for f in functions("conv2d"))
    assert mine[0].dtype == expected[0].dtype == torch.bfloat16
    grads = [backward(torch.ones_like(mine[0])) for _, backward in (mine, expected)]
    assert [g.dtype for g in grads[0]] == [g.dtype for g in grads[1]]
    torch.testing.assert_close(mine[0], expected[0], atol=0.05, rtol=0.02)
    torch.testing.assert_close(*grads, atol=0.1, rtol=0.05)


def test_statistics_are_constants_to_transforms():
    x, w, _ = tensors("conv2d")

    def total(x: Tensor) -> Tensor:
        y, sums = ours.conv2d(x, w, return_statistics=True)
        return (y / sums[1].sqrt()[:, None, None]).sum()

    y, sums = ours.conv2d(x, w, return_statistics=True)
    weights = (1 / sums[1].sqrt()).double()[None, :, None, None].expand_as(y)
    expected = torch.nn.grad.conv2d_input(x.shape, w, weights.contiguous())
    torch.testing.assert_close(torch.func.grad(total)(x), expected)


# -- batched gradients -----------------------------------------------------------------------------


def batched(of: Tensor, inputs: Any, many: Tensor) -> list[Tensor]:
    """Gradients of ``of`` in many directions at once."""
    found = torch.autograd.grad(of, inputs, many, is_grads_batched=True, retain_graph=True)
    for at, direction in enumerate(many):
        alone = torch.autograd.grad(of, inputs, direction, retain_graph=True)
        torch.testing.assert_close([g[at] for g in found], list(alone))
    return list(found)


@each
def test_gradients_in_many_directions_at_once(case):
    """Batched gradients match: of a first call, of a warm one, and of a gradient."""
    results = []
    for convolve in functions(case)[:1] + functions(case):
        inputs = [t.requires_grad_() for t in tensors(case)]
        y = convolve(*inputs)
        torch.manual_seed(0)
        found = batched(y, inputs, torch.randn(3, *y.shape, dtype=y.dtype))
        [grad] = torch.autograd.grad(y.pow(3).sum(), inputs[:1], create_graph=True)
        found += batched(grad, inputs, torch.randn(3, *grad.shape, dtype=y.dtype))
        results.append(found)
    cold, warm, expected = results
    torch.testing.assert_close(cold, expected)
    torch.testing.assert_close(warm, expected)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_gradients_of_sparse_layers_in_many_directions_at_once(groups):
    """By torch's own convolution of the dense tensor, and again by a call that is warm."""
    x = cloud(2, 4)
    rows, w = x.features.clone().requires_grad_(), numbers(4, 3, 3, 4 // groups).requires_grad_()
    for _ in range(2):
        y = lc.subm_conv(x.replace(rows), w, groups=groups)
        batched(y.features, (rows, w), torch.randn(3, *y.features.shape, dtype=rows.dtype))
    dense = x.replace(rows).dense().movedim(-1, 1)
    full = theirs.conv2d(dense, w.movedim(-1, 1), padding=1, groups=groups).movedim(1, -1)
    cells = x.coords.long().unbind(1)
    torch.testing.assert_close(y.features, full[cells])
    many = torch.randn(3, *y.features.shape, dtype=rows.dtype)
    torch.testing.assert_close(
        batched(y.features, (rows, w), many), batched(full[cells], (rows, w), many)
    )


# -- tracers and compilers -------------------------------------------------------------------------


class Net(torch.nn.Module):
    """Strided, unpadded and transposed layers, a function, and what follows sums."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            lc.nn.Conv2d(3, 4, 3, 2, 1),
            torch.nn.ReLU(),
            lc.nn.Conv2d(4, 4, 3, activation="relu"),
            lc.nn.ConvTranspose2d(4, 4, 3, 2, 1),
            torch.nn.ReLU(),
        )
        self.weight = torch.nn.Parameter(torch.randn(2, 4, 3, 1) / 3)
        self.scale = torch.nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        return ours.conv2d(x, self.weight, None, 2, scale=self.scale, activation="leaky_relu")  # type: ignore[no-any-return]


VMAPPED = {
    "convolution": lambda: lc.nn.SubmConv3d(4, 4, 3),
    "strided": lambda: lc.nn.SparseConv3d(4, 6, 2, stride=2),
    "depthwise": lambda: lc.nn.SubmConv3d(4, 8, 3, groups=4),
    "max pooling": lambda: lc.nn.SparseMaxPool3d(3, 2, padding=1),
    "mean pooling": lambda: lc.nn.SparseAvgPool3d(2, 2),
    "there and back": lambda: lc.nn.Sequential(lc.nn.SparseMaxPool3d(2, 2), lc.nn.SparseUnpool()),
    "mean of images": lambda: lc.nn.SparseGlobalAvgPool(),
    "maximum of images": lambda: lc.nn.SparseGlobalMaxPool(),
    "group norm": lambda: lc.nn.Sequential(torch.nn.GroupNorm(2, 4)),
    "instance norm": lambda: lc.nn.Sequential(torch.nn.InstanceNorm1d(4, affine=True)),
}


@pytest.mark.parametrize("kind", VMAPPED)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_an_ensemble_of_sparse_layers_has_the_gradients_of_each(kind):
    x, layer = cloud(3, 4), VMAPPED[kind]().double().eval()
    random = torch.Generator().manual_seed(1)
    features = torch.randn(3, *x.features.shape, dtype=torch.float64, generator=random)
    inputs = {
        name: torch.stack([value, 2 * value, -value]).detach().requires_grad_()
        for name, value in layer.named_parameters()
    }
    features.requires_grad_()

    def of_one(parameters, features):
        y = torch.func.functional_call(layer, parameters, (x.replace(features),))
        return y if isinstance(y, Tensor) else y.features

    found = torch.vmap(of_one)(inputs, features)
    each = [of_one({name: p[i] for name, p in inputs.items()}, features[i]) for i in range(3)]
    torch.testing.assert_close(found, torch.stack(each))
    up = torch.randn(found.shape, dtype=torch.float64, generator=random)
    asked = [features, *inputs.values()]
    for one, other in zip(
        torch.autograd.grad(found, asked, up),
        torch.autograd.grad(torch.stack(each), asked, up),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp"])
def test_rows_of_images_and_of_points_are_transformed(transform):
    """``lc.sparse.broadcast`` and ``lc.devoxelize``, which take rows by an index."""
    voxels = lc.voxelize(torch.rand(60, 5, dtype=torch.float64) * 4, voxel_size=1.0)
    for function, rows in (
        (lambda rows: lc.sparse.broadcast(rows, voxels).features, 1),
        (lambda rows: lc.devoxelize(voxels.replace(rows)), len(voxels)),
    ):
        features = torch.randn(rows, 2, dtype=torch.float64)
        index = function(torch.arange(rows, dtype=torch.float64).expand(2, rows).T)[:, 0].long()
        if transform == "vmap":
            batch = torch.randn(3, rows, 2, dtype=torch.float64)
            assert torch.equal(torch.vmap(function)(batch), batch[:, index])
        elif transform == "grad":
            found = torch.func.grad(lambda rows, f=function: f(rows).square().sum())(features)
            counts = torch.bincount(index, minlength=rows)[:, None]
            torch.testing.assert_close(found, 2 * features * counts)
        else:
            _, found = torch.func.jvp(function, (features,), (3 * features,))
            assert torch.equal(found, 3 * features[index])


def test_a_symbolic_trace():
    """A trace of modules and functions computes, reads and pickles as the module does."""
    net, x = Net(), torch.randn(2, 3, 17, 15)
    traced = torch.fx.symbolic_trace(net)
    called = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert called == [ours.conv2d, ours.conv2d, ours.conv_transpose2d, ours.conv2d]
    assert traced.graph.find_nodes(op="call_function", target=ours.conv2d)[1].kwargs == {
        "activation": "relu"
    }
    assert {*traced.state_dict()} == {*net.state_dict()}
    for module in (traced, deepcopy(traced), torch.fx.symbolic_trace(traced)):
        assert torch.equal(module(x), net(x))
    padded = lc.nn.Conv1d(3, 2, 3, padding="same", padding_mode="circular")
    assert torch.equal(torch.fx.symbolic_trace(padded)(x[:, :, 0]), padded(x[:, :, 0]))


@pytest.mark.parametrize("name", ["vjp", "jvp", "jacrev", "vmap"])
def test_transforms_inside_of_compiled_functions(name):
    """The operator alone would have tangents of zero there, which nobody would notice."""
    torch._dynamo.reset()
    x, w, bias = tensors("grouped", 2)
    transform = DERIVATIVES.get(name, lambda f: torch.vmap(f, (0, None, None)))
    inputs = x if name == "vmap" else x[0], w[0], bias[0]
    mine, expected = map(transform, functions("grouped"))
    compiled = torch.compile(lambda *inputs: mine(*inputs), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), expected(*inputs))


def test_operators_of_a_compiled_graph_have_no_views_between_them():
    """Views of symbolic sizes, saved for the backward pass, are what inductor fails on."""
    torch._dynamo.reset()
    graphs = []

    def note(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=note, partition_fn=min_cut_rematerialization_partition)
    net, x = Net(), torch.randn(2, 3, 17, 15, requires_grad=True)
    torch.compile(net, dynamic=True, fullgraph=True, backend=backend)(x).sum().backward()
    assert len(graphs) == 2
    called = [str(node.target) for graph in graphs for node in graph.graph.nodes]
    assert sum("layoutconv" in name for name in called) == 4 + 2 * 4
    assert not [name for name in called if "permute" in name or "transpose." in name]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor wants a C++ compiler")
def test_inductor_compiles_dynamic_sizes_once():
    torch._dynamo.reset()
    net = Net()
    compiled = torch.compile(net, dynamic=True, fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for shape in ((2, 3, 17, 15), (3, 3, 20, 31), (4, 3, 33, 18)):
            x = torch.randn(shape, requires_grad=True)
            results = []
            for run in (compiled, net):
                y = run(x)
                grads = torch.autograd.grad(y.square().sum(), [x, *net.layers.parameters()])
                results.append([y, *grads])
            torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
