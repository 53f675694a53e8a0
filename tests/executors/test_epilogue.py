"""Steps, types and statistics of sums before they are stored, element by element."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv as lc
from layoutconv import Activation, Bias, Clamp, Epilogue, Residual, Scale
from layoutconv.algebra import Layout
from layoutconv.conv import ConvProblem, fprop_view, gather_fprop_view
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.ops.execute import execute
from layoutconv.tensors.epilogue_in_torch import apply_steps, convert
from layoutconv.testing.problems import conv_problems
from layoutconv.view.epilogue import ACTIVATIONS, EpilogueStep
from layoutconv.view.gemm_view import GemmView

from .blocking import blocked

BY_HAND = {
    "relu": lambda v, _: max(v, 0.0),
    "relu6": lambda v, _: min(max(v, 0.0), 6.0),
    "leaky_relu": lambda v, slope: v if v > 0 else slope * v,
    "gelu": lambda v, _: 0.5 * v * (1 + math.erf(v / math.sqrt(2))),
    "gelu_tanh": lambda v, _: (
        0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
    ),
    "silu": lambda v, _: v / (1 + math.exp(-v)),
    "sigmoid": lambda v, _: 1 / (1 + math.exp(-v)),
    "tanh": lambda v, _: math.tanh(v),
    "hardswish": lambda v, _: v * min(max(v + 3, 0), 6) / 6,
}


@pytest.fixture(params=["one tile", "many tiles"])
def tiles(request, monkeypatch):
    """Once with the usual tiles, once with tiles so small that every loop repeats."""
    if request.param == "many tiles":
        blocked(monkeypatch, rows=3)


@st.composite
def drawn_steps(draw, shape):
    """Up to 4 steps for a result of ``shape``, in fp64."""

    def numbers(*extents):
        return torch.randn(extents, dtype=torch.float64)

    makers = [
        lambda: Scale(0.75),
        lambda: Scale(numbers(shape[-1])),
        lambda: Bias(numbers(shape[-1])),
        lambda: Residual(numbers(*shape), -0.5),
        lambda: Activation(draw(st.sampled_from(ACTIVATIONS)), 0.3),
        lambda: Clamp(-1, 0.5),
    ]
    return tuple(make() for make in draw(st.lists(st.sampled_from(makers), max_size=4)))


def by_hand(steps, value, at):
    """One accumulator through the steps, as Python's floats."""
    for step in steps:
        if isinstance(step, Scale):
            value *= step.by if isinstance(step.by, float) else step.by[at[-1]].item()
        elif isinstance(step, Bias):
            value += step.by[at[-1]].item()
        elif isinstance(step, Residual):
            value += step.scale * step.source[at].item()
        elif isinstance(step, Clamp):
            value = min(max(value, step.low), step.high)
        else:
            value = BY_HAND[step.kind](value, step.slope)
    return value


@settings(max_examples=30, deadline=None)
@given(problem=conv_problems(3), data=st.data(), seed=st.integers(0, 99))
def test_steps_are_applied_in_order(problem, data, seed):
    torch.manual_seed(seed)
    steps = data.draw(drawn_steps(problem.output))
    x = torch.randn(problem.activation, dtype=torch.float64)
    w = torch.randn(*problem.filter, problem.C, dtype=torch.float64)
    view = fprop_view(problem)
    y = execute(view, x, w)
    expected = [by_hand(steps, y[at].item(), at) for at in map(tuple, (y == y).nonzero().tolist())]
    found = execute(view, x, w, epilogue=steps)
    torch.testing.assert_close(found.reshape(-1), torch.tensor(expected, dtype=torch.float64))


def random_operands(problem, dtype):
    x = torch.randint(-4, 5, problem.activation).to(dtype)
    return x, torch.randint(-4, 5, (*problem.filter, problem.C)).to(dtype)


PROBLEM = ConvProblem((2, 7, 5, 12), (6, 3, 2), stride=(2, 1), padding=1)
FLOATS = [torch.float16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", FLOATS)
def test_steps_are_in_fp32_and_round_once(tiles, dtype, kind):
    """Scaled by a third up and by three down: in a smaller type this would not come back."""
    x, w = random_operands(PROBLEM, dtype)
    bias = torch.randn(6, dtype=kind)
    residual = torch.randn(PROBLEM.output).to(dtype)
    sums = execute(fprop_view(PROBLEM), x.double(), w.double())
    steps = Scale(1 / 3), Bias(bias), Scale(torch.full((6,), 3.0)), Residual(residual, 2)
    y = execute(fprop_view(PROBLEM), x, w, epilogue=steps, out_dtype=kind)
    assert y.dtype == kind
    expected = sums + 3 * bias.double() + 2 * residual.double()
    eps = torch.finfo(kind).eps / 2 + 8 * torch.finfo(torch.float32).eps
    magnitude = sums.abs() + 3 * bias.double().abs() + 2 * residual.double().abs()
    assert (y.double() - expected).abs().le(eps * magnitude).all()


@pytest.mark.parametrize("channels", [12, 512, 2048])
def test_sums_of_int8_are_exact(tiles, channels):
    """-128 squared, many times: beyond the 24 bits of fp32."""
    torch.manual_seed(0)
    x = torch.randint(-128, 128, (2, 5, channels), dtype=torch.int8)
    w = torch.randint(-128, 128, (3, 3, channels), dtype=torch.int8)
    x[0], w[0] = -128, -128
    x[0, :, 0], w[0, 0, 0] = -127, 1  # an odd sum
    view = fprop_view(ConvProblem(tuple(x.shape), (3, 3), padding=1))
    y = execute(view, x, w)
    assert y.dtype == torch.int32
    expected = execute(view, x.double(), w.double())
    assert torch.equal(y, expected.to(torch.int32))
    assert channels == 12 or expected.max() > 2**24
    # To int8 they saturate, and so do they after a step; halves go to the even neighbour.
    small = execute(view, x, w, out_dtype=torch.int8)
    assert torch.equal(small, expected.clamp(-128, 127).to(torch.int8))
    scaled = execute(view, x, w, epilogue=Scale(2.0**-17), out_dtype=torch.int8)
    fp32 = expected.float() * 2.0**-17
    assert torch.equal(scaled, fp32.round().clamp(-128, 127).to(torch.int8))


def test_sums_beyond_32_bits_wrap():
    x = torch.full((1, 1, 2**17), -128, dtype=torch.int8)
    y = execute(fprop_view(ConvProblem((1, 1, 2**17), (1, 1))), x, x)
    assert y.item() == -(2**31)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8(tiles, dtype):
    """Gathered with padding, summed in fp32, stored as fp16; and to fp8, through a scatter."""
    x, w = random_operands(PROBLEM, dtype)
    expected = execute(fprop_view(PROBLEM), x.float(), w.float())
    y = execute(fprop_view(PROBLEM), x, w)
    assert y.dtype == torch.float16
    assert torch.equal(y.float(), expected)

    voxels = math.prod(PROBLEM.output[:-1])
    scatter = torch.randperm(voxels).int()
    scatter[:5] = -1
    view = gather_fprop_view(PROBLEM, None, scatter)
    stored = execute(view, x, w, epilogue=Scale(20), out_dtype=dtype)
    wanted = torch.zeros(voxels, 6)
    greatest = torch.finfo(dtype).max
    rows = (20 * expected).clamp(-greatest, greatest).view(voxels, 6)
    wanted[scatter[5:].long()] = rows[5:]
    assert torch.equal(stored.float(), wanted.to(dtype).float())


def test_conversion():
    values = torch.tensor([0.5, 1.5, 2.5, -0.5, -129.5, 3e9, -3e9, torch.inf, torch.nan])
    least, greatest = -(2**31), 2**31 - 1
    assert convert(values, torch.int8).tolist() == [0, 2, 2, 0, -128, 127, -128, 127, 0]
    assert convert(values, torch.int32).tolist() == [
        0, 2, 2, 0, -130, greatest, least, greatest, 0
    ]  # fmt: skip
    for dtype, most in ((torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)):
        stored = convert(values, dtype).float().tolist()
        assert stored[5:8] == [most, -most, most]
        assert math.isnan(stored[8])
    assert convert(torch.tensor(1.0625), torch.float8_e4m3fn) == 1.0  # the even neighbour


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64, torch.int8])
def test_statistics_are_of_what_is_stored_where_it_is_written(tiles, dtype):
    x, w = random_operands(PROBLEM, dtype)
    voxels = math.prod(PROBLEM.output[:-1])
    scatter = torch.randperm(voxels + 4)[:voxels].int()
    scatter[::3] = -1
    view = gather_fprop_view(PROBLEM, None, scatter, out_rows=voxels + 4)
    epilogue = Epilogue((Scale(1 / 3), Activation("silu")), statistics=True)
    out = torch.full((voxels + 4, 6), 100).to(torch.int32 if dtype == torch.int8 else dtype)
    y, statistics = execute(view, x, w, out, epilogue=epilogue)
    assert y is out
    stored = y[scatter[scatter >= 0].long()].double()
    assert statistics.dtype == torch.float32
    torch.testing.assert_close(
        statistics, torch.stack((stored.sum(0), stored.square().sum(0))).float()
    )
    assert statistics[1].min() > 0
    only = execute(view, x, w, out.clone(), epilogue=Epilogue(statistics=True))
    assert torch.equal(only[0], execute(view, x, w, out.clone()))


def test_statistics_of_nothing_are_zeros():
    x = torch.empty(0, 7, 5, 12)
    view = fprop_view(ConvProblem(x.shape, (6, 3, 2)))
    y, statistics = execute(view, x, torch.ones(6, 3, 2, 12), epilogue=Epilogue(statistics=True))
    assert y.shape == (0, 5, 4, 6)
    assert torch.equal(statistics, torch.zeros(2, 6))


def test_a_source_may_be_the_result():
    """D = A B + D, as with a BLAS."""
    x, w = random_operands(PROBLEM, torch.float32)
    out = torch.randn(PROBLEM.output)
    expected = 2 * execute(fprop_view(PROBLEM), x, w) + 3 * out
    execute(fprop_view(PROBLEM), x, w, out, epilogue=(Scale(2), Residual(out, 3)))
    torch.testing.assert_close(out, expected)


def test_an_empty_sum_takes_the_steps_too():
    view = lc.conv.dgrad_views(ConvProblem((1, 4, 3), (2, 1), stride=2))[1]
    assert view.k == 0
    out = torch.zeros(1, 4, 3)
    bias = torch.tensor([1.0, 2, 3])
    execute(view, torch.randn(1, 2, 2), torch.randn(2, 1, 3), out, epilogue=Bias(bias))
    assert out[0].tolist() == [[0, 0, 0], [1, 2, 3], [0, 0, 0], [1, 2, 3]]


def test_structure_numbers_and_operands():
    scale, bias = torch.ones(6), torch.ones(6).half()
    source = torch.ones(PROBLEM.output)
    steps = (
        Scale(2), Scale(scale), Bias(bias), Residual(source, 3),
        Activation("leaky_relu", 0.5), Activation("relu"), Clamp(0, 6),
    )  # fmt: skip
    epilogue = Epilogue.of(steps)
    assert epilogue.structure == (
        "scale scale:float32 bias:float16 residual:float32 leaky_relu relu clamp"
    )
    assert epilogue.numbers == (2.0, 3.0, 0.5, 0.0, 6.0)
    assert [t is u for t, u in zip(epilogue.columns, (scale, bias), strict=True)] == [True, True]
    assert epilogue.sources[0] is source
    assert Epilogue.of(epilogue) is epilogue
    assert not Epilogue.of(())
    assert Epilogue(statistics=True).structure == "statistics"


@pytest.mark.parametrize(
    ("epilogue", "error", "message"),
    [
        (lambda: Scale("x"), ArgumentTypeError, "`by`: expected a number or a tensor, got 'x'"),
        (lambda: Scale(math.nan), ArgumentTypeError, "`by`: expected a number or a tensor, got"),
        (lambda: Clamp(2, 1), ArgumentError, "`low`: expected a number <= high, 1.0, got 2.0"),
        (lambda: Activation("elu"), ArgumentError, "`activation`: expected one of relu, leaky"),
        (lambda: "relu", ArgumentTypeError, "`epilogue`: expected None, a step, a seq"),
        (lambda: Epilogue(Scale(2.0)), ArgumentTypeError, "`steps`: expected a sequence of step"),
        (lambda: [1], ArgumentTypeError, "`epilogue`: expected steps: Scale, Bias, R"),
        (lambda: Bias(torch.ones(5)), ArgumentError, "`epilogue`: expected 6 contiguous numbers"),
        (lambda: Bias(torch.ones(12)[::2]), ArgumentError, "6 contiguous numbers, one per column"),
        (lambda: Scale(torch.ones(6).double()), ArgumentTypeError, "got torch.float64"),
        (lambda: Bias(torch.ones(6, device="meta")), ArgumentError, "tensors on cpu, where `a` is"),
        (lambda: Bias(torch.ones(6).numpy()), ArgumentTypeError, "tensors, for Bias, got ndarray"),
        (lambda: Residual(torch.ones(6)), ArgumentError, "shape (2, 4, 6, 6) of (N,P,Q,K):(P*Q*K"),
        (lambda: Residual(torch.ones(2, 4, 6, 6).mT), ArgumentError, "strides (144, 36, 6, 1) of"),
    ],
)  # fmt: skip
def test_errors_name_the_step(epilogue, error, message):
    x, w = random_operands(PROBLEM, torch.float32)
    with pytest.raises(error) as caught:
        execute(fprop_view(PROBLEM), x, w, epilogue=epilogue())
    assert message in str(caught.value)


@pytest.mark.parametrize("number", [np.array(3), torch.tensor(3.0)])
def test_a_number_that_is_an_array_is_no_sequence_of_steps(number):
    with pytest.raises(ArgumentTypeError, match="`epilogue`: expected None, a step, a sequence"):
        Epilogue.of(number)
    with pytest.raises(ArgumentTypeError, match="`steps`: expected a sequence of steps"):
        Epilogue(number)


def test_a_step_that_nobody_knows_is_refused():
    class Halve(EpilogueStep):
        structure = "halve"

    with pytest.raises(ArgumentTypeError, match=r"`epilogue`: expected steps: Scale, .* got Halve"):
        Epilogue.of([Scale(2), Halve()])
    with pytest.raises(ArgumentTypeError, match="got Halve"):
        apply_steps([Halve()], torch.ones(2, 3), slice(None), [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.float8_e4m3fn])
def test_columns_of_a_batch(tiles, dtype):
    """One number for each column of each problem, those of a problem side by side."""
    x = torch.randint(-4, 5, (5, 3, 7)).to(dtype)  # (m, l, k), as the groups of channels lie
    w = torch.randint(-4, 5, (3, 2, 7)).to(dtype)  # (l, n, k)
    view = GemmView(
        Layout((5, 7, 3), (21, 1, 7)), Layout((2, 7, 3), (7, 1, 14)), Layout((5, 2, 3), (6, 1, 2))
    )
    scale, residual = torch.randn(6), torch.randn(5, 6)
    epilogue = Epilogue((Scale(scale), Residual(residual.view(5, 3, 2).mT, 2)), statistics=True)
    y, statistics = execute(
        view, x.mT, w.mT.movedim(0, -1).transpose(0, 1), epilogue=epilogue, out_dtype=torch.float32
    )
    sums = torch.einsum("mlk,lnk->mln", x.float(), w.float())
    expected = sums.reshape(5, 6) * scale + 2 * residual
    torch.testing.assert_close(y.mT.reshape(5, 6), expected)
    torch.testing.assert_close(statistics, torch.stack((expected.sum(0), expected.square().sum(0))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.float8_e5m2])
def test_columns_where_all_is_a_batch(tiles, dtype):
    """Channels, the first mode of the batch: what a depthwise convolution is."""
    x, w = (torch.randint(-4, 5, shape).to(dtype) for shape in ((9, 6, 3), (6, 3)))
    l = (6, 9)
    view = GemmView(
        Layout((1, 3, l), (0, 1, (3, 18))),
        Layout((1, 3, l), (0, 1, (3, 0))),
        Layout((1, 1, l), (0, 0, (1, 6))),
    )  # fmt: skip
    a, b = (t.as_strided((1, 3, 6, 9), s) for t, s in ((x, (0, 1, 3, 18)), (w, (0, 1, 3, 0))))
    scale, residual = torch.randn(6), torch.randn(9, 6)
    source = residual.as_strided((1, 1, 6, 9), (0, 0, 1, 6))
    epilogue = Epilogue((Scale(scale), Residual(source, 2)), statistics=True)
    y, statistics = execute(view, a, b, epilogue=epilogue, out_dtype=torch.float32)
    expected = torch.einsum("plk,lk->pl", x.float(), w.float()) * scale + 2 * residual
    torch.testing.assert_close(y[0, 0].mT, expected)
    torch.testing.assert_close(statistics, torch.stack((expected.sum(0), expected.square().sum(0))))
