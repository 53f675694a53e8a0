"""Transposed convolutions as a GPU chooses their views, on a CPU: one launch, exact, with steps."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import layoutconv as lc
from layoutconv.conv import ConvProblem, dgrad_views
from layoutconv.errors import ArgumentError
from layoutconv.gpu.phase_choice import COLUMNS, MORE_COLUMNS
from layoutconv.ops.dense_passes import PassViews, dgrad_pass
from layoutconv.ops.epilogue_args import EpilogueArgs
from layoutconv.view.epilogue import Epilogue
from layoutconv.view.gemm_view import GemmView

from .. import exact

TORCHS = functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d


integers = partial(exact.integers, dtype=torch.float64)


def transposed(x: Any, w: Any, numbers: tuple[Any, ...], out: Any, columns: int) -> PassViews:
    """The pass of a transposed convolution with something behind its sums, as on a GPU."""
    stride, padding, groups = numbers
    rank = len(stride)
    first, second = ((t[0], *t[2:], t[1]) for t in (x, w))
    pads = [p for p in padding for _ in range(2)]
    of = stride, pads, (1,) * rank, groups
    return dgrad_pass(first, second, out[2:], of, ends=True, columns=columns)


# (channels in, out, cells), taps, stride, padding
NETWORKS = {
    "U-Net": ((2, 256, 16, 16, 16), 128, (2, 2, 2), 2, 0),
    "U-Net, large": ((2, 64, 64, 64, 64), 32, (2, 2, 2), 2, 0),
    "DCGAN": ((64, 512, 4, 4), 256, (4, 4), 2, 1),
    "DCGAN, last": ((64, 64, 32, 32), 3, (4, 4), 2, 1),
    "CenterPoint by 2": ((4, 256, 124, 108), 256, (2, 2), 2, 0),
    "CenterPoint by 4": ((4, 256, 62, 54), 256, (4, 4), 4, 0),
    "patches": ((8, 768, 14, 14), 3, (16, 16), 16, 0),
    "patches of volumes": ((2, 768, 12, 12, 12), 1, (8, 8, 8), 8, 0),
    "HiFi-GAN": ((16, 512, 32), 256, (16,), 8, 4),
    "HiFi-GAN, last": ((16, 64, 4096), 32, (4,), 2, 1),
    "samples": ((2, 512, 100), 1, (320,), 320, 0),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("columns", [COLUMNS, MORE_COLUMNS])
def test_one_launch_with_an_epilogue(name: str, columns: int) -> None:
    x, channels, taps, stride, padding = NETWORKS[name]
    cells = [(n - 1) * stride + t - 2 * padding for n, t in zip(x[2:], taps, strict=True)]
    rank, out = len(taps), (x[0], channels, *cells)
    numbers = (stride,) * rank, (padding,) * rank, 1
    found = transposed(x, (x[1], channels, *taps), numbers, out, columns)
    assert (len(found.views), found.zeroed) == (1, False)
    # No product but those of a convolution, and of cells beside the border.
    [view] = found.views
    of_windows = prod(x[2:]) * prod(taps) * x[0] * x[1] * channels
    borders = prod(1 + stride / n if padding else 1 for n in cells)
    assert of_windows <= view.m * view.n * view.k <= borders * of_windows


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_problem_is_torchs(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    groups = data.draw(st.sampled_from([1, 1, 2]))
    each = [data.draw(st.integers(1, 4)) for _ in range(2)]
    N, (K, C) = data.draw(st.integers(1, 2)), (groups * n for n in each)
    cells, taps, stride = (
        tuple(data.draw(st.integers(1, most)) for _ in range(rank)) for most in (4, 4, 4)
    )
    padding = tuple(data.draw(st.integers(0, t - 1)) for t in taps)
    more = tuple(data.draw(st.integers(0, s - 1)) for s in stride)
    sizes = [
        (n - 1) * s + t - 2 * p + m
        for n, s, t, p, m in zip(cells, stride, taps, padding, more, strict=True)
    ]
    if min(sizes) < 1:
        return
    x, w = integers(N, K, *cells), integers(K, C // groups, *taps, seed=1)
    bias, scale = integers(C, seed=2), 2.0 ** integers(C, seed=3)
    sums = TORCHS[rank - 1](x, w, None, stride, padding, more, groups)
    residual = integers(*sums.shape, seed=4)
    column = (-1, *(1 for _ in range(rank)))
    want = (sums * scale.view(column) + bias.view(column) + residual).relu()
    columns = data.draw(st.sampled_from([COLUMNS, MORE_COLUMNS]))
    numbers = stride, padding, groups
    found = transposed(x.shape, w.shape, numbers, sums.shape, columns)
    out = torch.full_like(want, torch.nan)
    laid = residual.movedim(1, -1).contiguous().movedim(-1, 1)
    args = EpilogueArgs(bias, scale, laid, "relu")
    result = out.movedim(1, -1).contiguous().movedim(-1, 1)
    assert torch.equal(found.compute(x, w, args, result)[0], want)


@pytest.mark.parametrize("groups", [1, 2])
def test_statistics_are_those_of_channels(groups: int) -> None:
    problem = ConvProblem((2, 6, 8, 6), (4, 2, 2), 2, groups=groups)
    [view] = dgrad_views(problem, alike=(0, 1))
    y, w = integers(2, 3, 4, 4), integers(4, 2, 2, 6 // groups, seed=1)
    bias = integers(6, seed=2)
    steps = Epilogue((lc.Bias(bias),), statistics=True)
    out, statistics = lc.execute(view, y, w, epilogue=steps)
    assert statistics.shape == (2, 6)
    rows = out.view(-1, 6)
    assert torch.equal(statistics.double(), torch.stack((rows.sum(0), rows.square().sum(0))))


def test_a_bias_has_an_entry_for_each_channel() -> None:
    [view] = dgrad_views(ConvProblem((2, 6, 8, 6), (4, 2, 2), 2), alike=(0, 1))
    y, w = integers(2, 3, 4, 4), integers(4, 2, 2, 6)
    with pytest.raises(ArgumentError, match="6 contiguous numbers, one per column"):
        lc.execute(view, y, w, epilogue=lc.Bias(integers(24)))


def test_columns_that_are_none() -> None:
    a, b, d = lc.Layout((4, 8), (8, 1)), lc.Layout((6, 8), (8, 1)), lc.Layout((4, 6), (6, 1))
    assert GemmView(a, b, d, columns=lc.Layout((6,), (0,))).columns is not None
    for columns in (lc.Layout((5,), (1,)), lc.Layout((6, 1), (1, 1)), lc.Layout((6,), (-1,))):
        with pytest.raises(ArgumentError, match="`columns`"):
            GemmView(a, b, d, columns=columns)


@pytest.mark.parametrize(("cells", "taps"), [((32, 16, 3), (16, 16)), ((8, 8, 8, 1), (8, 2, 4))])
def test_patch_embeddings_are_torchs(cells: tuple[int, ...], taps: tuple[int, ...]) -> None:
    """All passes of windows that share no cell, by views, of which every vector is whole."""
    *spatial, C = cells
    conv = {2: functional.conv2d, 3: functional.conv3d}[len(taps)]
    x = integers(2, C, *spatial).requires_grad_()
    w = integers(5, C, *taps, seed=1).requires_grad_()
    want = conv(x, w, stride=taps)
    gradient = integers(*want.shape, seed=2)
    expected = torch.autograd.grad(want, (x, w), gradient)
    ours = {2: lc.conv2d, 3: lc.conv3d}[len(taps)](x, w, stride=taps, executor="view")
    assert torch.equal(ours, want)
    for got, wanted in zip(torch.autograd.grad(ours, (x, w), gradient), expected, strict=True):
        assert torch.equal(got, wanted)
