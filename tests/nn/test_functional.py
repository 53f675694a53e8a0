"""Convolutions as functions: torch's results and gradients, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as theirs

import layoutconv as lc
from layoutconv.conv import ConvProblem
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.nn import functional as ours
from layoutconv.ops import dense_calls
from layoutconv.testing.problems import conv_problems
from layoutconv.view.epilogue import ACTIVATIONS


def agree(mine, expected, *inputs: torch.Tensor) -> None:
    """Results and gradients of all inputs are equal."""
    torch.testing.assert_close(mine, expected)
    grad = torch.randn_like(expected)
    for a, b in zip(
        torch.autograd.grad(mine, inputs, grad), torch.autograd.grad(expected, inputs, grad)
    , strict=True):  # fmt: skip
        torch.testing.assert_close(a, b)


def torch_tensors(problem: ConvProblem) -> list[torch.Tensor]:
    """Input, weight and bias with torch's shapes, in torch's memory."""
    shapes = (
        (problem.N, problem.C, *problem.spatial),
        (problem.K, problem.C // problem.groups, *problem.taps),
        (problem.K,),
    )
    return [torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes]


ANY = conv_problems() | conv_problems(groups=3) | conv_problems(channels=1, groups=4)


@settings(max_examples=60, deadline=None)
@given(problem=ANY, biased=st.booleans(), seed=st.integers(0, 99))
def test_convolution_is_torch_convolution(problem, biased, seed):
    torch.manual_seed(seed)
    x, w, bias = torch_tensors(problem)
    inputs = (x, w, bias) if biased else (x, w)
    sides = [side for pair in reversed(problem.padding) for side in pair]
    mine = getattr(ours, f"conv{problem.rank}d")(
        *inputs,
        stride=problem.stride,
        padding=problem.padding,
        dilation=problem.dilation,
        groups=problem.groups,
    )
    padded = torch.nn.functional.pad(x, sides)
    expected = getattr(theirs, f"conv{problem.rank}d")(
        padded,
        *inputs[1:],
        stride=problem.stride,
        dilation=problem.dilation,
        groups=problem.groups,
    )
    agree(mine, expected, *inputs)


@settings(max_examples=60, deadline=None)
@given(problem=ANY, data=st.data())
def test_transposed_convolution_is_torch_transposed_convolution(problem, data):
    rank = problem.rank
    padding = [near for near, _ in problem.padding]
    steps = zip(problem.stride, problem.dilation, strict=True)
    extra = [data.draw(st.integers(0, max(s, d) - 1)) for s, d in steps]
    x = torch.randn(problem.N, problem.K, *problem.spatial, dtype=torch.float64)
    per_group = problem.C // problem.groups
    w = torch.randn(problem.K, per_group, *problem.taps, dtype=torch.float64)
    bias = torch.randn(problem.C, dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (x, w, bias)]
    arguments = problem.stride, padding, extra, problem.groups, problem.dilation
    conv = getattr(ours, f"conv_transpose{rank}d")
    spans = [d * (t - 1) + 1 for d, t in zip(problem.dilation, problem.taps, strict=True)]
    modes = zip(problem.spatial, problem.stride, padding, spans, extra, strict=True)
    if any((e - 1) * s - 2 * p + span + o < 1 for e, s, p, span, o in modes):
        with pytest.raises(ArgumentError, match="`padding`: expected an output of 1 cell or more"):
            conv(*inputs, *arguments)
        return
    expected = getattr(theirs, f"conv_transpose{rank}d")(*inputs, *arguments)
    agree(conv(*inputs, *arguments), expected, *inputs)


@pytest.mark.filterwarnings("ignore:Using padding=.same.")
@pytest.mark.parametrize("padding", ["same", "valid", 2, (0, 1)])
@pytest.mark.parametrize("taps", [(3, 4), (1, 2)])
def test_spellings_of_padding(padding, taps):
    x, w, _ = torch_tensors(ConvProblem((2, 9, 8, 3), (4, *taps)))
    for dilation in (1, 2):
        expected = theirs.conv2d(x, w, padding=padding, dilation=dilation)
        agree(ours.conv2d(x, w, padding=padding, dilation=dilation), expected, x, w)


def test_memory_is_channels_last_and_other_orders_are_made_right():
    x, w, _ = torch_tensors(ConvProblem((2, 5, 6, 7, 3), (4, 3, 3, 3)))
    y = ours.conv3d(x, w)
    assert y.is_contiguous(memory_format=torch.channels_last_3d)
    for change in (
        lambda t: t.contiguous(memory_format=torch.channels_last_3d),
        lambda t: t.transpose(2, 4).contiguous().transpose(2, 4),
        lambda t: t.repeat_interleave(2, dim=-1)[..., ::2],
    ):
        assert torch.equal(ours.conv3d(change(x), change(w)), y)


def test_one_image_without_a_batch():
    x, w, bias = torch_tensors(ConvProblem((1, 7, 6, 3), (4, 3, 3)))
    assert torch.equal(ours.conv2d(x[0], w, bias), ours.conv2d(x, w, bias)[0])
    assert torch.equal(ours.conv_transpose2d(x[0], w.mT.transpose(0, 1)), ours.conv_transpose2d(
        x, w.mT.transpose(0, 1))[0])  # fmt: skip


def ending(problem: ConvProblem, transposed: bool) -> dict[str, torch.Tensor]:
    """Scale, bias and residual for a result of a problem, requiring gradients."""
    extents = problem.activation if transposed else problem.output
    shapes = {
        "scale": extents[-1:],
        "bias": extents[-1:],
        "residual": (extents[0], extents[-1], *extents[1:-1]),
    }
    return {k: torch.randn(s, dtype=torch.float64).requires_grad_() for k, s in shapes.items()}


GROUPED = ConvProblem((2, 6, 5, 4), (6, 3, 2), stride=2, padding=1, groups=2)
DEPTHWISE = ConvProblem((2, 6, 5, 6), (6, 3, 2), stride=2, padding=1, groups=6)
MANY = ConvProblem((2, 6, 5, 3), (6, 3, 2), stride=2, padding=1, groups=3)
PROBLEMS = pytest.mark.parametrize(
    "problem", [GROUPED, DEPTHWISE, MANY], ids=["grouped", "depthwise", "two filters a channel"]
)


def convolve(problem: ConvProblem, transposed: bool, x, w, **options) -> torch.Tensor:
    """Run the problem's forward pass, or the transposed one, with ``x`` like its output."""
    numbers = {"stride": problem.stride, "padding": problem.padding, "groups": problem.groups}
    if transposed:
        spans = zip(problem.output_spatial, problem.taps, problem.spatial, strict=True)
        numbers["output_padding"] = [e - ((o - 1) * 2 - 2 + t) for o, t, e in spans]
        return ours.conv_transpose2d(x, w, **numbers, **options)
    return ours.conv2d(x, w, **numbers, **options)


def pair(problem: ConvProblem, transposed: bool, dtype=torch.float64) -> list[torch.Tensor]:
    x, w, _ = torch_tensors(problem)
    if transposed:
        extents = problem.output
        x = torch.randn(extents[0], extents[-1], *extents[1:-1])
    return [t.detach().to(dtype).requires_grad_() for t in (x, w)]


@PROBLEMS
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("parts", ["", "bias residual", "scale bias residual"])
def test_what_follows_the_sums(problem, transposed, activation, parts):
    """Fused or not, and with gradients of everything: what torch does step after step."""
    torch.manual_seed(0)
    x, w = pair(problem, transposed)
    given = {k: t for k, t in ending(problem, transposed).items() if k in parts.split()}
    options = {"activation": activation, "slope": 0.3}
    mine = convolve(problem, transposed, x, w, **given, **options)
    expected = convolve(problem, transposed, x, w)
    if "scale" in given:
        expected = expected * given["scale"][:, None, None]
    if "bias" in given:
        expected = expected + given["bias"][:, None, None]
    expected = expected + given.get("residual", 0)
    if activation is not None:
        expected = {
            "gelu_tanh": lambda y: theirs.gelu(y, approximate="tanh"),
            "leaky_relu": lambda y: theirs.leaky_relu(y, 0.3),
        }.get(activation, getattr(theirs, activation, None))(expected)
    agree(mine, expected, x, w, *given.values())
    with torch.no_grad():  # always fused
        torch.testing.assert_close(
            convolve(problem, transposed, x, w, **given, **options), expected
        )


@PROBLEMS
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
def test_a_scale_that_is_a_number_is_that_of_every_channel(problem, transposed, wanted):
    dense_calls.forget()
    x, w = (t.requires_grad_(wanted) for t in pair(problem, transposed, torch.float32))
    y = convolve(problem, transposed, x, w, scale=0.3, activation="relu")
    of_all = torch.full((y.shape[1],), 0.3)
    for _ in range(2):
        for scale in (0.3, of_all):
            found = convolve(problem, transposed, x, w, scale=scale, activation="relu")
            assert torch.equal(found, y)
    twice = convolve(problem, transposed, x, w, scale=2)
    assert torch.equal(twice, convolve(problem, transposed, x, w) * 2)
    z = convolve(problem, transposed, x.to(torch.complex64), w.to(torch.complex64), scale=2)
    torch.testing.assert_close(z.real, twice)


def test_what_is_fused(watched):
    """One operator, but where a gradient is wanted that it does not have."""
    x, w, bias = torch_tensors(ConvProblem((2, 9, 3), (4, 3)))
    scale = torch.ones(4, dtype=torch.float64)
    dense_calls.forget()  # else what was called before is
    called = watched("conv_fprop", ours.fuse, note=lambda call: call.args[7:])

    def fused(**options) -> bool:
        ours.conv1d(x, w, bias, **options)
        fields = dict(zip(ours.EpilogueArgs._fields, called.pop(), strict=False))
        wanted = {k: v for k, v in options.items() if v is not None}
        return all(fields.get(k) is v for k, v in wanted.items())

    assert fused(activation="relu", scale=scale)
    assert fused(activation="leaky_relu", slope=0.0)
    assert not fused(activation="leaky_relu", slope=-1.0)
    assert not fused(activation="silu")
    assert not fused(scale=scale.clone().requires_grad_())
    with torch.no_grad():
        assert fused(activation="silu", scale=scale.clone().requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fused_or_not_the_numbers_are_the_same_but_for_rounding(dtype):
    torch.manual_seed(0)
    x, w = (t.detach().to(dtype) for t in pair(GROUPED, False))
    given = {k: t.detach().to(dtype) for k, t in ending(GROUPED, False).items()}
    fused = convolve(GROUPED, False, x, w, **given, activation="gelu")
    given["scale"].requires_grad_()
    apart = convolve(GROUPED, False, x, w, **given, activation="gelu")
    assert apart.dtype == fused.dtype == dtype
    assert apart.requires_grad
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(apart, fused, atol=4 * eps, rtol=4 * eps)
    y = convolve(GROUPED, False, x, w, **given, activation="gelu", out_dtype=torch.int8)
    limits = fused.float().round()
    assert y.dtype == torch.int8
    assert (y.float() - limits).abs().max() <= 1


@pytest.mark.parametrize("learns", ["weight", "scale"])
@pytest.mark.parametrize("out_dtype", [torch.float16, torch.float32])
def test_what_torch_finishes_is_as_exact_as_the_result(learns, out_dtype):
    """With a gradient torch computes the activation: not of sums that were cut to bfloat16."""
    torch.manual_seed(0)
    x, w = (t.detach().bfloat16() for t in pair(GROUPED, False))
    scale = torch.full((GROUPED.K,), 0.5)
    given = {"activation": "silu", "scale": scale, "out_dtype": out_dtype}
    fused = convolve(GROUPED, False, x, w, **given)
    {"weight": w, "scale": scale}[learns].requires_grad_()
    apart = convolve(GROUPED, False, x, w, **given)
    assert apart.dtype == out_dtype
    eps = torch.finfo(out_dtype).eps
    torch.testing.assert_close(apart, fused, atol=eps / 8, rtol=eps)
    assert torch.autograd.grad(apart.sum(), w if learns == "weight" else scale)[0].isfinite().all()


@PROBLEMS
@pytest.mark.parametrize("wanted", [False, True])
def test_statistics_of_a_batch_norm(problem, wanted):
    x, w = (t.requires_grad_(wanted) for t in pair(problem, False, torch.float32))
    for activation in ("relu", "silu"):
        y, statistics = convolve(
            problem, False, x, w, activation=activation, return_statistics=True
        )
        torch.testing.assert_close(y, convolve(problem, False, x, w, activation=activation))
        assert not statistics.requires_grad
        count = y.numel() / y.shape[1]
        mean, squares = statistics / count
        variance, expected = torch.var_mean(y.detach(), (0, 2, 3), correction=0)
        torch.testing.assert_close(mean, expected)
        torch.testing.assert_close(squares - mean**2, variance)


@PROBLEMS
@pytest.mark.parametrize("transposed", [False, True])
def test_complex_numbers(problem, transposed):
    """torch's products of four real convolutions, and numerical differences."""
    torch.manual_seed(0)
    x, w = pair(problem, transposed, torch.complex128)
    x, w = (t.detach() + 1j * torch.randn_like(t.real) for t in (x, w))
    real = {k: t.detach() for k, t in ending(problem, transposed).items()}
    bias, residual = (real[k] + 1j * torch.randn_like(real[k]) for k in ("bias", "residual"))
    inputs = [t.requires_grad_() for t in (x, w, bias, residual)]

    def mine(x, w, bias, residual):
        return convolve(
            problem, transposed, x, w, bias=bias, residual=residual, scale=real["scale"]
        )

    (a, b), (c, d) = ((t.real, t.imag) for t in (x, w))
    part = lambda x, w: convolve(problem, transposed, x, w)  # noqa: E731
    sums = torch.complex(part(a, c) - part(b, d), part(a, d) + part(b, c))
    expected = sums * real["scale"][:, None, None] + bias[:, None, None] + residual
    torch.testing.assert_close(mine(*inputs), expected)
    torch.testing.assert_close(
        mine(x.conj(), w, bias, residual), mine(x.conj().resolve_conj(), w, bias, residual)
    )
    assert torch.autograd.gradcheck(mine, inputs, fast_mode=True)


def test_complex_convolutions_are_those_of_torch():
    x, w = (
        torch.randn(2, 4, 7, 6, dtype=torch.complex64),
        torch.randn(6, 2, 3, 3).to(torch.complex64),
    )
    w = w + 1j * torch.randn_like(w.real)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = ours.conv2d(x, w, padding="same", groups=2)
    assert y.dtype == torch.complex64
    torch.testing.assert_close(y, theirs.conv2d(x, w, padding="same", groups=2))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
@PROBLEMS
def test_numbers_of_8_bits(problem, dtype):
    x, w = (torch.randint(-8, 9, t.shape).to(dtype) for t in pair(problem, False))
    expected = convolve(problem, False, x.double(), w.double())
    y = convolve(problem, False, x, w)
    assert y.dtype == (torch.int32 if dtype == torch.int8 else torch.float16)
    assert torch.equal(y.double(), expected.to(y.dtype).double())
    scale = torch.full((problem.K,), 0.25)
    y = convolve(problem, False, x, w, scale=scale, activation="relu", out_dtype=torch.int8)
    assert torch.equal(y, (expected / 4).round().clamp(0, 127).to(torch.int8))


@PROBLEMS
def test_gradients_of_functions_are_numerical_differences(problem):
    for activation in ("relu", "sigmoid"):
        for transposed in (False, True):
            given = ending(problem, transposed)
            names = list(given)

            def function(x, w, *rest, transposed=transposed, activation=activation, names=names):
                options = dict(zip(names, rest, strict=True))
                return convolve(problem, transposed, x, w, activation=activation, **options)

            inputs = *pair(problem, transposed), *given.values()
            assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_whole_graph_compiles(dynamic):
    def net(x, w, v, bias):
        y = ours.conv2d(x, w, bias, 2, "valid", activation="relu")
        y = ours.conv2d(y, w[:, :1], None, padding=1, groups=4, residual=y)
        return ours.conv_transpose2d(y, v, None, (2, 2), 1, output_padding=1, groups=2).sum(dim=1)

    x, w, bias = torch_tensors(ConvProblem((2, 9, 7, 3), (4, 3, 3)))
    v = torch.randn(4, 2, 3, 3, dtype=torch.float64).requires_grad_()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    agree(compiled(x, w, v, bias), net(x, w, v, bias), x, w, v, bias)
    larger = torch.randn(3, 3, 11, 8, dtype=torch.float64).requires_grad_()
    agree(compiled(larger, w, v, bias), net(larger, w, v, bias), larger, w, v, bias)


@pytest.mark.parametrize("wanted", [False, True])
def test_what_is_not_fused_compiles_too(wanted):
    def net(x, w, scale):
        y = ours.conv2d(x, w, None, 2, scale=scale, activation="silu")
        y, statistics = ours.conv2d(y, w, padding="same", activation="gelu", return_statistics=True)
        y = y / statistics[1].sqrt()[:, None, None].double()
        return ours.conv2d(torch.complex(y, 2 * y), torch.complex(w, -w)).abs()

    x, w, scale = (
        t.requires_grad_(wanted) for t in torch_tensors(ConvProblem((2, 9, 7, 3), (3, 3, 3)))
    )
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager", dynamic=False)
    if wanted:
        agree(compiled(x, w, scale), net(x, w, scale), x, w, scale)
    else:
        torch.testing.assert_close(compiled(x, w, scale), net(x, w, scale))


def test_autocast_of_mixed_types():
    x, w, bias = (t.float() for t in torch_tensors(ConvProblem((2, 5, 3), (4, 3))))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = ours.conv1d(x.bfloat16(), w, bias)
        expected = theirs.conv1d(x.bfloat16(), w, bias)
    assert y.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("options", [{}, {"out_dtype": "own"}, {"activation": "relu"}])
def test_gradients_of_float8_saturate(dtype, options):
    """As results do; torch's cast, by its version, makes infinity or NaN of what is beyond."""
    options = {"out_dtype": dtype} if "out_dtype" in options else options
    greatest = torch.finfo(dtype).max
    x, w = (torch.full((1, 1, 4), v).to(dtype).requires_grad_() for v in (1.0, 256.0))
    y = ours.conv1d(x, w[..., :1], **options)
    y.backward(torch.full_like(y, 256.0))
    assert x.grad is not None
    assert w.grad is not None
    assert x.grad.dtype == w.grad.dtype == dtype
    assert x.grad.float().eq(greatest).all()
    assert w.grad.float().flatten().tolist() == [min(1024.0, greatest), 0, 0, 0]

    def total(x):
        return (ours.conv1d(x, w.detach()[..., :1], **options).float() * 256).sum()

    assert torch.func.grad(total)(x.detach()).float().eq(greatest).all()


X, W = torch.randn(2, 3, 8), torch.randn(4, 3, 3)
FP8 = torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"input": X[0, 0]}, ArgumentError, "argument `input`: expected (N, C) or (C,) and 1 spa"),
        ({"input": X.numpy()}, ArgumentTypeError, "`input`: expected a torch tensor, got ndarray"),
        ({"input": X.long(), "weight": W.long()}, ArgumentTypeError, "expected float16, bfloat16"),
        ({"weight": W[0]}, ArgumentError, "`weight`: expected 2 modes of channels and 1 of taps"),
        ({"weight": W[:, :2]}, ArgumentError, "`weight`: expected 3 channels in mode 1, as in the"),
        ({"weight": W.double()}, ArgumentTypeError, "`weight`: expected torch.float32, the"),
        ({"weight": W.to("meta")}, ArgumentError, "`weight`: expected cpu, where the input is"),
        ({"input": X[..., :0]}, ArgumentError, "`input`: expected every extent but the batch's >="),
        ({"weight": W[:, :, :0]}, ArgumentError, "`weight`: expected every extent but the batch'"),
        ({"weight": W[:0]}, ArgumentError, "`weight`: expected every extent but the batch's >= 1"),
        ({"input": X.to_sparse()}, ArgumentTypeError, "`input`: expected a tensor of torch.stri"),
        ({"weight": torch.randn(4, 3, 9)}, ArgumentError, "`weight`: expected a filter that fits"),
        ({"bias": W[:3, 0, 0]}, ArgumentError, "`bias`: expected shape (4,), an entry per channel"),
        ({"stride": 0}, ArgumentError, "`stride`: expected every entry >= 1, got 0"),
        ({"stride": (1, 2)}, ArgumentError, "`stride`: expected an int, or 1 ints"),
        ({"padding": -1}, ArgumentError, "`padding`: expected every side >= 0, got -1"),
        ({"padding": "full"}, ArgumentError, "`padding`: expected 'same', 'valid' or numbers, got"),
        (
            {"padding": "same", "stride": 2},
            ArgumentError,
            "`padding`: expected numbers where the stride is not 1, got 'same' with stride (2,)",
        ),
        ({"dilation": 0.5}, ArgumentTypeError, "`dilation`: expected integers, got 0.5"),
        ({"groups": 3}, ArgumentError, "`groups`: expected an int >= 1 that divides the 3 ch"),
        ({"groups": 0}, ArgumentError, "the 3 channels of the input and the 4 of the output, got"),
        ({"groups": 1.0}, ArgumentTypeError, "`groups`: expected an int >= 1, got 1.0"),
        ({"activation": "elu"}, ArgumentError, "`activation`: expected None or one of relu, lea"),
        ({"scale": W[:3, 0, 0]}, ArgumentError, "`scale`: expected shape (4,), an entry per cha"),
        ({"scale": True}, ArgumentTypeError, "expected a torch tensor or a number, got bool"),
        ({"scale": "2"}, ArgumentTypeError, "expected a torch tensor or a number, got str"),
        ({"scale": float("nan")}, ArgumentError, "expected a torch tensor or a number, got nan"),
        ({"bias": W[:, 0, 0].int()}, ArgumentTypeError, "`bias`: expected float16, bfloat16 or"),
        ({"residual": X}, ArgumentError, "`residual`: expected shape (2, 4, 6), that of the"),
        (
            {"residual": torch.zeros(2, 4, 6).int(), "input": X.to(FP8), "weight": W.to(FP8)},
            ArgumentTypeError,
            "`residual`: expected float16, bfloat16 or float32 where the input is torch.float8_e4",
        ),
        ({"out_dtype": torch.int32}, ArgumentTypeError, "`out_dtype`: expected torch.bfloat16, t"),
        ({"out_dtype": "half"}, ArgumentTypeError, "torch.int8 where the input is torch.float32"),
        ({"out_dtype": [1]}, ArgumentTypeError, "`out_dtype`: expected torch.bfloat16, torch.flo"),
        ({"slope": "a"}, ArgumentTypeError, "`slope`: expected a number, got 'a'"),
        ({"slope": float("nan"), "activation": "relu"}, ArgumentTypeError, "`slope`: expected a"),
        (
            {"input": X + 0j, "weight": W + 0j, "activation": "relu"},
            ArgumentError,
            "`activation`: expected None for complex numbers, got 'relu'",
        ),
        (
            {"input": X + 0j, "weight": W + 0j, "return_statistics": True},
            ArgumentError,
            "`return_statistics`: expected False for complex numbers",
        ),
    ],
)  # fmt: skip
def test_errors_name_the_argument(arguments, error, message):
    with pytest.raises(error) as caught:
        lc.conv1d(**{"input": X, "weight": W, **arguments})
    assert message in str(caught.value)
