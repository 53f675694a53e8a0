"""The data that each rank sends, receives and computes: one process plays the ranks in turn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view
from layoutconv.distributed import Slab, SyncBatchNorm, conv2d
from layoutconv.distributed.convolution import _numbers
from layoutconv.distributed.exchange import Rows, _cut
from layoutconv.distributed.halo import Split, dgrad_plan, fprop_plan, output_bounds, reads
from layoutconv.errors import ArgumentError
from layoutconv.ops.dense_passes import dgrad, fprop

few = settings(max_examples=60, deadline=None)


@st.composite
def problems(draw, rank=1, batch=2):
    numbers = st.integers
    taps = [draw(numbers(1, 4)) for _ in range(rank)]
    apart = [draw(numbers(1, 3)) for _ in range(rank)]
    padding = [(draw(numbers(0, 7)), draw(numbers(0, 7))) for _ in range(rank)]
    spatial = []
    for t, d, (near, far) in zip(taps, apart, padding, strict=True):
        least = max(1, d * (t - 1) + 1 - near - far)
        spatial.append(draw(numbers(least, least + 8)))
    stride = [draw(numbers(1, 4)) for _ in range(rank)]
    groups = draw(st.sampled_from([1, 2]))
    return ConvProblem((batch, *spatial, 2), (4, *taps), stride, padding, apart, groups)


@st.composite
def splits(draw, extent):
    """Bounds of up to four slabs, of any length, 0 included."""
    ranks = draw(st.integers(1, 4))
    cuts = sorted(draw(st.integers(0, extent)) for _ in range(ranks - 1))
    return (0, *cuts, extent)


@given(problems())
@few
def test_reads_are_the_windows_of_the_convolution(problem):
    """Against a loop over taps: what voxel p reads, and which voxels read cell h."""
    (extent,), (voxels,), (taps,) = problem.spatial, problem.output_spatial, problem.taps
    (stride,), (apart,), ((near, _),) = problem.stride, problem.dilation, problem.padding
    met = [(p, p * stride - near + t * apart) for p in range(voxels) for t in range(taps)]
    forward = reads([fprop_view(problem)], 0, voxels)
    for p in range(voxels):
        cells = [h for q, h in met if q == p]
        assert (forward.low[p], forward.high[p]) == (min(cells), max(cells) + 1)
    backward = reads(dgrad_views(problem), 0, extent).inside(voxels)
    for h in range(extent):
        reached = [p for p, g in met if g == h]
        if reached:  # bounds are those of taps, of which some may be over voxels outside
            assert backward.low[h] <= min(reached)
            assert backward.high[h] > max(reached)


def played(plans, whole, mode, compute):
    """All ranks' results, each from its own rows and from those that others send it."""
    results = []
    for rank, plan in enumerate(plans):
        for other, theirs in enumerate(plans):
            assert list(plan.receive[other]) == list(theirs.send[rank])
            assert set(plan.receive[other]) <= set(theirs.own)
        received = [row for rows in plan.receive for row in rows]
        assert received == [*plan.near, *plan.far]
        assert plan.inner is None or set(plan.inner.reads) <= set(plan.own)
        parts = [*([plan.inner] if plan.inner else []), *plan.outer]
        assert sorted(row for part in parts for row in part.rows) == list(plan.rows)
        everything = range(whole.shape[mode + 1])
        held, near, far = (
            _cut(whole, mode + 1, everything, rows) for rows in (plan.own, plan.near, plan.far)
        )
        rows = Rows(plan, mode + 1, held, near, far)
        for part in sorted(parts, key=lambda part: part.rows.start):
            results.append(compute(part.problem, rows.read(part)))
    return torch.cat(results, mode + 1)


def of_memory(function, a, w, *numbers):
    """A pass of tensors in the order of memory."""
    return function(a.movedim(-1, 1), w.movedim(-1, 1), *numbers).movedim(1, -1)


@given(st.data())
@few
def test_ranks_together_compute_both_passes(data):
    rank = data.draw(st.integers(1, 2))
    mode = data.draw(st.integers(0, rank - 1))
    problem = data.draw(problems(rank))
    before = data.draw(splits(problem.spatial[mode]))
    after = data.draw(
        st.one_of(
            splits(problem.output_spatial[mode]).filter(lambda found: len(found) == len(before)),
            st.just(output_bounds(problem, mode, before)),
        )
    )
    ranks = range(len(before) - 1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(problem.activation, generator=generator, dtype=torch.float64)
    w = torch.randn(problem.stored_filter, generator=generator, dtype=torch.float64)
    dy = torch.randn(problem.output, generator=generator, dtype=torch.float64)

    def forward(part, a):
        return of_memory(fprop, a, w, *_numbers(part))

    def backward(part, a):
        return of_memory(dgrad, a, w, part.spatial, *_numbers(part))

    plans = [fprop_plan(problem, Split(mode, before, after, r)) for r in ranks]
    torch.testing.assert_close(played(plans, x, mode, forward), forward(problem, x))

    plans = [dgrad_plan(problem, Split(mode, before, after, r)) for r in ranks]
    torch.testing.assert_close(played(plans, dy, mode, backward), backward(problem, dy))


@pytest.mark.parametrize("bounds", [(0, 4, 8), (0, 3, 8), (0, 0, 8)])
def test_a_convolution_that_keeps_the_extent_keeps_the_slabs(bounds):
    for taps, apart in ((3, 1), (5, 1), (3, 2)):
        near = apart * (taps - 1) // 2
        problem = ConvProblem((1, 8, 2), (4, taps), 1, near, apart)
        assert output_bounds(problem, 0, bounds) == bounds


def test_an_even_kernel_of_its_stride_needs_no_halo():
    problem = ConvProblem((1, 16, 2), (4, 2), 2)
    after = output_bounds(problem, 0, (0, 6, 16))
    assert after == (0, 3, 8)
    assert not fprop_plan(problem, Split(0, (0, 6, 16), after, 0)).exchanged
    assert not dgrad_plan(problem, Split(0, (0, 6, 16), after, 0)).exchanged


def test_most_rows_need_no_halo():
    problem = ConvProblem((1, 32, 2), (4, 3), padding=1)
    plan = fprop_plan(problem, Split(0, (0, 10, 20, 32), (0, 10, 20, 32), 1))
    assert plan.inner.rows == range(11, 19)
    assert (plan.near, plan.far) == (range(9, 10), range(20, 21))


@pytest.mark.parametrize("extent", [8, np.int64(8), torch.tensor(8)])
def test_an_extent_is_any_integer(extent):
    slab = Slab(extent, bounds=np.array([0, 8]))
    assert slab == Slab(extent) == Slab(8)
    assert {type(bound) for bound in (*slab.bounds, *Slab(extent).bounds)} == {int}


X, W = torch.ones(1, 4, 8, 5), torch.ones(4, 4, 3, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Slab(8, bounds=3), "`bounds`: expected a sequence of integers, or None, got 3"),
        (lambda: Slab(8, bounds=np.array(3)), "`bounds`: expected a sequence of integers"),
        (lambda: conv2d(X, W, groups=None, slab=Slab(8)), "`groups`: .* got None"),
        (lambda: conv2d(X, W, groups="1", slab=Slab(8)), "`groups`: .* got '1'"),
        (lambda: conv2d(X, W, groups=1.0, slab=Slab(8)), "`groups`: .* got 1.0"),
        (lambda: SyncBatchNorm(4)(None), "`input`: expected a torch tensor, .* got NoneType"),
        (lambda: SyncBatchNorm(4)([[1.0] * 4]), "`input`: expected a torch tensor, .* got list"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
