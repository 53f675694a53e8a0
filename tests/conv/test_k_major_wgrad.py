"""The gradient of a filter from K-major copies computes what that from memory does, to the bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from layoutconv.conv import ConvProblem, wgrad_view
from layoutconv.conv.k_major_wgrad import RUN, KMajorWgrad, k_major_wgrads
from layoutconv.gpu.voxel_runs import voxel_runs
from layoutconv.ops.execute import execute
from layoutconv.planning.kernel_key import signature
from layoutconv.planning.kernel_spec import KernelSpec, vectors_of
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import specialized
from layoutconv.planning.tma_im2col import is_mapped
from layoutconv.tensors.expected_tensors import ExpectedTensor, expected

from ..exact import integers


@st.composite
def problems(draw: st.DrawFn) -> ConvProblem:
    rank = draw(st.integers(1, 3))
    C, K = (4 * draw(st.integers(1, 3)) for _ in range(2))
    taps = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    stride = tuple(draw(st.sampled_from([1, 1, 2])) for _ in range(rank))
    dilation = tuple(draw(st.sampled_from([1, 1, 2])) for _ in range(rank))
    padding = [(draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(rank)]
    spans = [d * (t - 1) + 1 for t, d in zip(taps, dilation, strict=True)]
    cells = [span + draw(st.integers(0, 5)) for span in spans]
    images = draw(st.integers(1, 3))
    return ConvProblem((images, *cells, C), (K, *taps), stride, padding, dilation)


def as_stored(rows: Tensor, stored: ExpectedTensor) -> Tensor:
    spans = zip(stored.shape, stored.stride, strict=True)
    assert sum((extent - 1) * step for extent, step in spans) < rows.numel()
    return rows.as_strided(stored.shape, stored.stride)


def computed(found: KMajorWgrad, y: Tensor, x: Tensor) -> Tensor:
    want = expected(found.view)
    a = as_stored(voxel_runs(y.view(found.a.source), found.a), want.a)
    b = as_stored(voxel_runs(x.view(found.b.source), found.b), want.b)
    result = torch.full(want.d.shape, torch.nan)
    execute(found.view, a, b, result)
    return result


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_every_way_is_the_gradient(problem: ConvProblem) -> None:
    y, x = integers(*problem.output), integers(*problem.activation)
    want = execute(wgrad_view(problem), y, x)
    found = [*k_major_wgrads(problem)]
    assert found  # with copies of all taps at least
    for each in found:
        assert torch.equal(computed(each, y, x).view(want.shape), want)


def test_operands_are_k_major_and_tma_brings_them() -> None:
    problem = ConvProblem((2, 5, 9, 7, 12), (8, 3, 2, 3), padding=1)
    tile = specialized((64, 64, 32), (4, 1), 3, Load.TMA_WARP)
    for found in k_major_wgrads(problem):
        assert vectors_of(found.view, "tfloat32", "float32") == ((4, 4, 4), (1, 1))
        spec = KernelSpec.of(found.view, "tfloat32", "float32", tile, "sm_90a")
        assert is_mapped(found.view, spec)


def test_another_size_is_the_same_kernel() -> None:
    few = ConvProblem((2, 5, 9, 12), (8, 3, 3), padding=1)
    many = ConvProblem((3, 41, 30, 12), (8, 3, 3), padding=1)
    for one, other in zip(k_major_wgrads(few), k_major_wgrads(many), strict=True):
        assert one.view.k < other.view.k
        assert signature(one.view) == signature(other.view)


@pytest.mark.parametrize(
    ("problem", "copies"),
    [
        (ConvProblem((1, 9, 9, 4), (4, 3, 3)), [1, 9]),
        (ConvProblem((1, 9, 9, 4), (4, 3, 3), stride=(2, 1)), [3, 9]),
        (ConvProblem((1, 9, 9, 4), (4, 3, 3), stride=(1, 2)), [3, 9]),
        (ConvProblem((1, 5, 9, 9, 4), (4, 3, 1, 1)), [1, 3]),
        (ConvProblem((1, 5, 9, 9, 4), (4, 3, 3, 3), stride=(1, 2, 1)), [3, 9, 27]),
        (ConvProblem((1, 9, 9, 4), (4, 1, 1), stride=2), [1]),
        (ConvProblem((1, 9, 9, 6), (4, 3, 3)), []),
        (ConvProblem((1, 9, 9, 8), (8, 3, 3), groups=2), []),
    ],
)
def test_which_taps_have_copies(problem: ConvProblem, copies: list[int]) -> None:
    """The taps along strides, or all of them."""
    assert [found.b.shape[2] for found in k_major_wgrads(problem)] == copies


def test_no_images_have_no_runs() -> None:
    for rank in (1, 2, 3):
        empty = ConvProblem((0, *(5, 9, 9)[:rank], 8), (8, *(3,) * rank), padding=1)
        assert not [*k_major_wgrads(empty)]


def test_a_kernel_numbers_voxels_in_32_bits() -> None:
    """A stride leaves few of them in the copy, and all of them in the tensor."""
    few, many = (ConvProblem((1, W, W, 4), (64, 1, 1), stride=3) for W in (46340, 46341))
    for problem, fits in ((few, True), (many, False)):
        (found,) = k_major_wgrads(problem)
        assert found.b.size < 1 << 31
        assert found.b.fits == fits


def test_runs_have_zeros_outside_the_tensor_whatever_is_in_it() -> None:
    (found,) = k_major_wgrads(ConvProblem((2, 5, 4), (4, 3), stride=2, padding=2))
    holes = torch.full(found.b.source, torch.nan)
    runs, of_ones = voxel_runs(holes, found.b), voxel_runs(torch.ones(found.b.source), found.b)
    assert torch.equal(runs.isnan(), of_ones == 1)
    assert torch.equal(runs.nan_to_num(0.0), torch.zeros_like(runs))


@pytest.mark.parametrize("near", [0, 2])
def test_cells_that_no_window_reads_are_in_no_run(near: int) -> None:
    """Negative padding leaves them out: an infinity there would meet a zero of the gradient."""
    problem = ConvProblem((2, 7, 6, 4), (4, 3, 2), padding=((near, -2), (near, -1)))
    y, x = integers(*problem.output), integers(*problem.activation)
    want = execute(wgrad_view(problem), y, x)
    x[:, -2:] = x[:, :, -1:] = torch.inf
    for found in k_major_wgrads(problem):
        assert torch.equal(computed(found, y, x).view(want.shape), want)


def test_zeros_between_images_are_shared() -> None:
    """The padding lies between lines and between images once."""
    found, *_ = k_major_wgrads(ConvProblem((2, 14, 14, 4), (4, 3, 3), padding=1))
    assert found.a.grid == found.b.grid == (1, 15, 15)


def test_taps_start_at_whole_lines() -> None:
    """A windowed tap is some whole runs of 128 bytes further on."""
    found, *_ = k_major_wgrads(ConvProblem((2, 9, 7, 4), (4, 3, 3), padding=1, dilation=(1, 2)))
    of_run = 4 * RUN
    assert expected(found.view).b.stride == (of_run, 8 * of_run, 2 * of_run, RUN, 1)
