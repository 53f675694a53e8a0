"""Torch's own convolutions are the views' sums: same numbers, memory of ``channels_last``."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv as lc
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.cpu import torch_convolution as cpu
from layoutconv.tensors.channels_last import channels_last_stride
from layoutconv.view.epilogue import Activation, Bias, Epilogue, Residual, Scale

from ..warm_process import run_python


@st.composite
def problems(draw):
    """Convolutions of 1 to 3 modes, with any numbers, whose windows fit."""
    rank, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))
    C, K = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    modes = []
    for _ in range(rank):
        taps, apart, step = (
            draw(st.integers(1, 3)),
            draw(st.integers(1, 3)),
            draw(st.integers(1, 4)),
        )
        near, far = draw(st.integers(0, 4)), draw(st.integers(-2, 4))
        extent = draw(st.integers(1, 6)) + max(0, apart * (taps - 1) - near - far)
        modes.append((extent, taps, step, (near, far), apart))
    extents, taps, steps, sides, apart = zip(*modes, strict=True)
    shape = (draw(st.integers(1, 2)), *extents, C)
    return ConvProblem(shape, (K, *taps), steps, sides, apart, groups)


def convolution(problem):
    return cpu.TorchConvolution(problem).fprop


def stored(*shape):
    """A tensor of small integers, whose sums are exact."""
    return torch.randint(-4, 5, shape).double()


def in_torchs_order(tensor):
    return tensor.movedim(-1, 1)


@settings(max_examples=150, deadline=None)
@given(problems(), st.booleans())
def test_passes_are_those_of_the_views(problem, packed):
    x, w = stored(*problem.activation), stored(*problem.stored_filter)
    y = stored(*problem.output)
    given_order = (lambda t: in_torchs_order(t)) if packed else (
        lambda t: in_torchs_order(t).contiguous()
    )  # fmt: skip
    X, W, Y = map(given_order, (x, w, y))
    ours = cpu.TorchConvolution(problem)
    dx = torch.zeros_like(x)
    for view in dgrad_views(problem):
        lc.execute(view, y, w, dx)
    expected = [
        (ours.fprop(X, W), lc.execute(fprop_view(problem), x, w)),
        (ours.dgrad(Y, W), dx),
        (
            ours.wgrad(Y, X),
            lc.execute(wgrad_view(problem), y, x),
        ),
    ]
    for found, exact in expected:
        assert torch.equal(found, in_torchs_order(exact))
        assert found.stride() == channels_last_stride(found.shape)
        assert not found._is_view()


def with_strides(tensor, stride):
    """The same elements; modes of extent 1, whose strides say nothing, have another."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.as_strided(tensor.shape, [s if e > 1 else stride for e, s in pairs])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("taps", [(1, 1), (2, 1), (1, 2), (2, 2), (1, 1, 2)])
def test_strides_of_modes_of_one_cell_say_nothing(taps, transposed, dtype):
    """Torch's convolutions read them: of groups, other sums and other gradients came out."""
    function = getattr(lc, f"conv{'_transpose' * transposed}{len(taps)}d")
    for cells in (2, 3, 1):
        x = stored(1, *map(max, taps, [cells, 3, 2]), 6).to(dtype).movedim(-1, 1)
        w = stored(6, *taps, 3).to(dtype).movedim(-1, 1)
        y = stored(1, *function(x, w, groups=2).shape[2:], 6).to(dtype).movedim(-1, 1)
        made = []
        for stride in (None, 0, 1, 7):
            given = [t if stride is None else with_strides(t, stride) for t in (x, w, y)]
            a, b = (t.detach().requires_grad_() for t in given[:2])
            found = function(a, b, groups=2)
            made.append((found, *torch.autograd.grad(found, (a, b), given[2])))
        for found in made[1:]:
            assert all(map(torch.equal, found, made[0]))


@pytest.mark.parametrize("groups", [1, 2])
def test_one_image_in_channels_last_memory_has_a_batchs_gradients(groups):
    for function in (lc.conv1d, lc.conv_transpose1d):
        w = stored(6, 6 // groups, 1).requires_grad_()
        x = stored(3, 6).mT.requires_grad_()
        for image in (x, x.unsqueeze(0)):
            (function(image, w, groups=groups) ** 2).sum().backward()
        found, w.grad = w.grad / 2, None
        (function(x.detach().contiguous()[None], w, groups=groups) ** 2).sum().backward()
        assert torch.equal(found, w.grad)


@pytest.mark.parametrize(
    ("depth", "taps", "stride", "padding"), [(7, 7, 2, 3), (6, 7, 3, 4), (4, 5, 2, 3), (9, 7, 4, 5)]
)
def test_windows_that_reach_over_both_sides_of_a_depth(depth, taps, stride, padding):
    """In float32, where oneDNN leaves part of the filter's gradient unwritten."""
    sides = [(padding, padding), (0, 0), (0, 0)]
    problem = ConvProblem((2, depth, 3, 10, 2), (3, taps, 3, 3), (stride, 1, 1), sides)
    x, y = (in_torchs_order(stored(*shape)) for shape in (problem.activation, problem.output))
    ours = cpu.TorchConvolution(problem)
    exact = ours.wgrad(y, x)
    filled = [torch.full((3, 2, taps, 3, 3), torch.nan) for _ in range(50)]
    del filled  # what is not written holds NaN, likely
    assert torch.equal(ours.wgrad(y.float(), x.float()).double(), exact)
    w = torch.zeros(3, 2, taps, 3, 3, requires_grad=True)
    ours.recorded(x.float(), w).backward(y.float())
    assert w.grad is not None
    assert torch.equal(w.grad.double(), exact)


@pytest.mark.parametrize(
    "problem",
    [
        ConvProblem((2, 155, 2, 1), (1, 5, 5), (1, 2), [(0, 0), (2, 2)], (2, 1)),
        ConvProblem(
            (2, 14, 10, 5, 1), (4, 1, 4, 6), (1, 1, 3), [(0, 1), (3, 3), (2, 1)], (1, 2, 1)
        ),
        ConvProblem((8, 5, 2, 2, 1), (96, 5, 5, 5), (1, 1, 2), [(0, 0), (4, 4), (2, 2)]),
        ConvProblem((2, 65, 146, 1), (2, 1, 3), (3, 1)),
        ConvProblem((1, 46, 19, 12, 1), (1, 1, 5, 5), (3, 3, 1)),
        ConvProblem((2, 132, 105, 1), (16, 2, 5), (4, 1), [(0, 0), (1, 1)], (2, 1)),
        ConvProblem((1, 5, 569, 1, 16), (16, 5, 1, 1), (1, 4, 3)),
        ConvProblem((1, 600, 3, 32), (3, 1, 3), (3, 3)),
        ConvProblem((1, 3, 200, 2, 64), (2, 3, 1, 2), (1, 3, 2)),
    ],
    ids=str,
)
def test_strides_over_cells_of_one_channel_and_along_a_column_of_windows(problem):
    """Torch made wrong sums of one channel in lines of one window, or wrote beside its memory."""
    shapes = problem.activation, problem.stored_filter, problem.output
    x, w, y = (in_torchs_order(stored(*shape)) for shape in shapes)
    x, w = (t.as_strided(t.shape, channels_last_stride(t.shape)) for t in (x, w))
    ours = cpu.TorchConvolution(problem)
    exact = ours.fprop(x, w), ours.dgrad(y, w), ours.wgrad(y, x)
    ran = []
    for _ in range(20):
        X, W = x.float().requires_grad_(), w.float().requires_grad_()
        found = ours.recorded(X, W)
        ran.append([ours.fprop(X, W), *torch.autograd.grad(found, (X, W), y.float())])
    for found in ran:
        assert all(torch.equal(f.double(), e) for f, e in zip(found, exact, strict=True))


STEPPING = """
import torch
from layoutconv.conv import ConvProblem
from layoutconv.cpu.torch_convolution import TorchConvolution

def stored(N, *spatial, C):
    return torch.ones(N, *spatial, C).movedim(-1, 1)

for N, C, K, spatial, step in {problems}:
    one = (1,) * len(spatial)
    problem = ConvProblem((N, *spatial, C), (K, *one), stride=step)
    x, y = stored(N, *spatial, C=C), stored(*problem.output[:-1], C=K)
    w = stored(K, *one, C=C).requires_grad_()
    for _ in range(20):
        found = TorchConvolution(problem).wgrad(y, x)
        if len(spatial) > 1:
            TorchConvolution(problem).recorded(x, w).sum().backward()
        others = [torch.ones(n) for n in range(1, 4000, 40)]
    assert (found == y[:, 0].numel()).all()
print("done")
"""


@pytest.mark.parametrize(
    "problem",
    [(3, 1, 1, (92, 57), (2, 1)), (2, 4, 8, (2764,), 2), (3, 4, 4, (46, 57), (1, 3))],
    ids=str,
)
def test_a_filter_of_one_tap_that_steps_past_cells_writes_in_its_memory(problem):
    # Torch wrote up to 130 kB beside it, and the process ended by a signal.
    done = run_python(["-c", STEPPING.format(problems=[problem])])
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("out", [torch.float32, torch.int8, torch.float8_e4m3fn, None])
def test_what_follows_the_sums_is_rounded_once(dtype, out):
    problem = ConvProblem((2, 9, 8, 5), (7, 3, 3), 1, 1)
    x, w = torch.randn(2, 9, 8, 5).to(dtype), torch.randn(7, 3, 3, 5).to(dtype)
    steps = (Scale(torch.rand(7)), Bias(torch.randn(7)), Residual(torch.randn(2, 9, 8, 7)))
    epilogue = Epilogue((*steps, Activation("silu")), statistics=True)
    out = out or dtype
    expected, sums = lc.execute(fprop_view(problem), x, w, epilogue=epilogue, out_dtype=out)
    statistics = torch.zeros(2, 7, dtype=torch.float64)
    X, W = map(in_torchs_order, (x, w))
    found = cpu.with_epilogue(convolution(problem), X, W, epilogue, out, statistics)
    assert found.dtype == out
    assert found.stride() == channels_last_stride(found.shape)
    # The order of sums differs, so that few numbers are rounded to another neighbour.
    found = found.movedim(1, -1).double()
    close = torch.isclose(found, expected.double(), rtol=2**-7 if out.itemsize < 4 else 1e-4,
                          atol=1 if out == torch.int8 else 1e-2)  # fmt: skip
    assert close.all()
    assert (found == expected.double()).float().mean() > (0.95 if out.itemsize < 4 else 0)
    assert torch.allclose(statistics.float(), sums, rtol=1e-2, atol=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_bias_and_relu_are_torchs(dtype):
    """Torch adds a bias of fp32; 16 bits, whose sums it rounds in parts, are multiplied in fp32."""
    problem = ConvProblem((2, 6, 5), (4, 3), 1, 1)
    x, w, bias = (torch.randn(shape).to(dtype) for shape in ((2, 5, 6), (4, 5, 3), (4,)))
    seen = []

    def spy(a, b, bias):
        seen.append((a.dtype, bias is not None))
        return convolution(problem)(a, b, bias)

    steps = Bias(bias), Activation("relu")
    found = cpu.with_epilogue(spy, x, w, Epilogue(steps))
    wide = torch.conv1d(x.float(), w.float(), bias.float(), padding=1)
    # CPUs without AVX-512 add sums of fp32 in another order, by the memory of their operands.
    close = 2.0**-21 if dtype == torch.float32 else 0.0
    torch.testing.assert_close(found, torch.relu(wide).to(dtype), rtol=close, atol=close)
    cpu.with_epilogue(spy, x, w, Epilogue((*steps[:1], Activation("silu"))))
    exact = dtype == torch.float32
    assert seen == [(torch.float32, exact)] * 2
