"""The CPU executor against plain loops, exactly: small integers have one sum in every dtype."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from layoutconv.algebra import (
    ComposedLayout,
    CustomStride,
    E,
    IndexedGather,
    Layout,
    SymInt,
    make_ordered_layout,
)
from layoutconv.conv import (
    ConvProblem,
    depthwise_dgrad_views,
    depthwise_fprop_view,
    depthwise_wgrad_view,
    dgrad_views,
    fprop_view,
    gather_fprop_view,
    interleaved,
    interleaved_filter,
    wgrad_view,
)
from layoutconv.ops.execute import execute
from layoutconv.sparse import kernel_map_view
from layoutconv.testing.problems import conv_problems
from layoutconv.view.gemm_view import GemmView

from .blocking import blocked

FIXTURE = HealthCheck.function_scoped_fixture  # tile sizes are the same for all examples
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture(params=["one tile", "many tiles"])
def tiles(request, monkeypatch):
    """Once with the usual tiles, once with tiles so small that every loop repeats."""
    if request.param == "many tiles":
        blocked(monkeypatch, rows=3, columns=4, depth=2, small=0, products=64)


def integers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(-2, 3, shape).to(dtype)


def convolved(problem: ConvProblem, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The definition, in Python loops over voxels and taps."""
    y = torch.zeros(problem.output)
    for n, *voxel in product(range(problem.N), *map(range, problem.output_spatial)):
        for tap in product(*map(range, problem.taps)):
            cell = [
                v * s - near + t * d
                for v, s, (near, _), t, d in zip(
                    voxel, problem.stride, problem.padding, tap, problem.dilation, strict=True
                )
            ]
            if all(0 <= c < e for c, e in zip(cell, problem.spatial, strict=True)):
                y[(n, *voxel)] += w[(slice(None), *tap)].float() @ x[(n, *cell)].float()
    return y


@settings(max_examples=40, deadline=None, suppress_health_check=[FIXTURE])
@given(problem=conv_problems(5), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99))
def test_fprop(tiles, problem, dtype, seed):
    torch.manual_seed(seed)
    x = integers(*problem.activation, dtype=dtype)
    w = integers(*problem.filter, problem.C, dtype=dtype)
    y = execute(fprop_view(problem), x, w)
    assert y.dtype == dtype
    assert torch.equal(y.float(), convolved(problem, x, w))


@settings(max_examples=25, deadline=None, suppress_health_check=[FIXTURE])
@given(problem=conv_problems(5), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99))
def test_dgrad_and_wgrad(tiles, problem, dtype, seed):
    torch.manual_seed(seed)
    x = integers(*problem.activation, dtype=dtype).requires_grad_()
    w = integers(*problem.filter, problem.C, dtype=dtype).requires_grad_()
    g = integers(*problem.output, dtype=dtype)
    y = convolved(problem, x, w) + 0 * (x.sum() + w.sum())  # which may not meet at all
    dx, dw = torch.autograd.grad(y, (x, w), g.float())

    assert torch.equal(execute(wgrad_view(problem), g, x.detach()), dw)
    k_fastest = make_ordered_layout(tuple(w.shape), (0, *range(problem.rank, 0, -1), w.dim()))
    for stored in (None, k_fastest):
        assert torch.equal(_dgrad(problem, g, w.detach(), stored), dx)


def _dgrad(problem, g, w, stored):
    out = torch.full(problem.activation, 77, dtype=g.dtype)
    if stored is not None:
        w = torch.empty_strided(w.shape, stored.stride, dtype=w.dtype).copy_(w)
    for view in dgrad_views(problem, stored):
        execute(view, g, w, out)
    return out


@settings(max_examples=40, deadline=None, suppress_health_check=[FIXTURE])
@given(problem=conv_problems(5), absent=st.sampled_from([0.0, 0.5, 1.0]), seed=st.integers(0, 99))
def test_gather_and_scatter(tiles, problem, absent, seed):
    torch.manual_seed(seed)

    def index(cells: int) -> torch.Tensor:
        rows = torch.randperm(cells + 3)[:cells].int()
        return rows.masked_fill(torch.rand(cells) < absent, -1)

    *grid, C = problem.activation
    *outputs, K = problem.output
    cells, voxels = (int(torch.tensor(t).prod()) for t in (grid, outputs))
    gather, scatter = index(cells), index(voxels)
    x, w = integers(cells + 3, C), integers(*problem.filter, C)
    dense = torch.where(gather[:, None] < 0, 0, x[gather.long()]).view(problem.activation)
    expected = torch.full((voxels + 3, K), 77.0)
    written = scatter >= 0
    expected[scatter[written].long()] = convolved(problem, dense, w).view(-1, K)[written]

    view = gather_fprop_view(problem, gather, scatter, in_rows=cells + 3, out_rows=voxels + 3)
    out = torch.full((voxels + 3, K), 77.0)
    assert execute(view, x, w, out) is out
    assert torch.equal(out, expected)
    assert torch.equal(execute(view, x, w), expected.masked_fill(expected == 77, 0))


@settings(max_examples=40, deadline=None, suppress_health_check=[FIXTURE])
@given(
    rows=st.integers(0, 12),
    in_rows=st.integers(0, 9),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    C=st.integers(1, 5),
    absent=st.sampled_from([0.0, 0.2, 0.7, 1.0]),
    tap_major=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_kernel_map(tiles, rows, in_rows, sizes, C, absent, tap_major, dtype, seed):
    torch.manual_seed(seed)
    taps, K = int(torch.tensor(sizes).prod()), 3
    entries = torch.randint(0, max(1, in_rows), (rows, taps), dtype=torch.int32)
    entries[(torch.rand(rows, taps) < absent) | (in_rows == 0)] = -1
    kernel_map = entries.T.contiguous().T if tap_major else entries
    x, w = integers(in_rows, C, dtype=dtype), integers(K, *sizes, C, dtype=dtype)
    y = torch.zeros(rows, K)
    for row, tap in product(range(rows), range(taps)):
        if entries[row, tap] >= 0:
            y[row] += w.view(K, taps, C)[:, tap].float() @ x[entries[row, tap]].float()
    view = kernel_map_view(kernel_map, C, K, kernel_size=sizes, in_rows=in_rows)
    assert torch.equal(execute(view, x, w).float(), y)


@pytest.mark.parametrize(
    "problem",
    [
        ConvProblem((2, 33, 5), (7, 4), 3, ((2, 0),), 2),
        ConvProblem((2, 17, 12, 8), (24, 3, 5), (2, 1), (4, (0, 3)), (1, 2)),
        ConvProblem((2, 7, 9, 8, 36), (20, 3, 3, 3), (1, 2, 1), 1),
        ConvProblem((1, 5, 4, 6, 64), (32, 1, 1, 1)),
    ],
    ids=str,
)
def test_fprop_is_torch_convolution_in_fp64(problem):
    torch.manual_seed(0)
    x = torch.randn(problem.activation, dtype=torch.float64)
    w = torch.randn(*problem.filter, problem.C, dtype=torch.float64)
    sides = [side for pair in reversed(problem.padding) for side in pair]
    padded = torch.nn.functional.pad(x.movedim(-1, 1), sides)
    convolution = getattr(torch.nn.functional, f"conv{problem.rank}d")
    expected = convolution(
        padded, w.movedim(-1, 1), stride=problem.stride, dilation=problem.dilation
    )
    torch.testing.assert_close(execute(fprop_view(problem), x, w), expected.movedim(1, -1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_are_in_fp32(dtype):
    """In the input's own precision the ones after 2**11 would vanish, one by one."""
    x = torch.ones(1, 1, 4096 + 2, dtype=dtype)
    x[0, 0, 0], x[0, 0, -1] = 2.0**14, -(2.0**14)
    y = execute(fprop_view(ConvProblem((1, 1, 4098), (1, 1))), x, torch.ones_like(x))
    assert y.item() == 4096


def passes(problem, x, w, g, **where):
    """Output, gradient of the activation, gradient of the filter: by the views of a problem."""
    depthwise = problem.groups == problem.C and not where
    fprop = depthwise_fprop_view if depthwise else fprop_view
    dgrad = depthwise_dgrad_views if depthwise else dgrad_views
    wgrad = depthwise_wgrad_view if depthwise else wgrad_view
    y = execute(fprop(problem, **where), x, w)
    dx = torch.full_like(x, 77)
    assert dx.stride() == x.stride()
    for view in dgrad(problem, **where):
        execute(view, g, w, dx)
    return y, dx, execute(wgrad(problem, **where), g, x)


def passes_of_torch(problem, x, w, g):
    """The same of contiguous tensors, by torch."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    sides = [side for pair in reversed(problem.padding) for side in pair]
    padded = torch.nn.functional.pad(x.movedim(-1, 1), sides)
    y = getattr(torch.nn.functional, f"conv{problem.rank}d")(
        padded, w.movedim(-1, 1), None, problem.stride, 0, problem.dilation, problem.groups
    ).movedim(1, -1)
    return y.detach(), *torch.autograd.grad(y, (x, w), g)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


GROUPED = [
    ConvProblem((2, 33, 15), (10, 4), 3, ((2, 0),), 2, groups=5),
    ConvProblem((2, 17, 12, 8), (24, 3, 5), (2, 1), (4, (0, 3)), (1, 2), groups=2),
    ConvProblem((1, 5, 4, 6, 6), (9, 3, 2, 1), (1, 3, 2), 1, groups=3),
    ConvProblem((2, 33, 5), (5, 4), 3, ((2, 0),), 2, groups=5),
    ConvProblem((2, 17, 12, 7), (14, 3, 5), (2, 1), (4, (0, 3)), (1, 2), groups=7),
    ConvProblem((1, 5, 4, 6, 8), (8, 3, 3, 3), (1, 3, 2), 1, groups=8),
    ConvProblem((2, 9, 1), (3, 3), 2),
]


@pytest.mark.parametrize("problem", GROUPED, ids=str)
def test_groups_and_depthwise_are_torch_in_fp64(tiles, problem):
    torch.manual_seed(0)
    x, w, g = (normal(*s) for s in (problem.activation, problem.stored_filter, problem.output))
    for ours, theirs in zip(
        passes(problem, x, w, g), passes_of_torch(problem, x, w, g), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_interleaved_memory_is_torch_in_fp64(tiles, groups):
    torch.manual_seed(0)
    problem = ConvProblem((2, 9, 7, 32), (32, 3, 2), (2, 1), (1, (0, 2)), (1, 2), groups)
    shapes = problem.activation, problem.stored_filter, problem.output
    x, w, g = (normal(*s) for s in shapes)
    where = {
        "activation_layout": interleaved(problem.activation, 8),
        "filter_layout": interleaved_filter(problem.stored_filter, 4),
        "output_layout": interleaved(problem.output, 4),
    }

    def pieces(t: torch.Tensor, layout: Layout) -> torch.Tensor:
        """The same elements in the memory of a layout: a tensor with a mode for every digit."""
        t = t.unflatten(-1, layout.shape[-1][::-1]).transpose(-1, -2)
        strides = *layout.stride[:-1], *layout.stride[-1]
        return torch.empty_strided(t.shape, strides, dtype=t.dtype).copy_(t)

    def whole(t: torch.Tensor) -> torch.Tensor:
        return t.transpose(-1, -2).flatten(-2)

    stored = (pieces(t, layout) for t, layout in zip((x, w, g), where.values(), strict=True))
    ours, theirs = passes(problem, *stored, **where), passes_of_torch(problem, x, w, g)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(whole(one), other)


@pytest.mark.parametrize("groups", [1, 2])
def test_slices_of_larger_tensors_are_torch_in_fp64(tiles, groups):
    """Channels of a concatenation are read, and written, where they are; so are crops."""
    torch.manual_seed(0)
    problem = ConvProblem((2, 9, 7, 8), (6, 3, 2), 2, 1, groups=groups)
    larger = normal(2, 12, 9, 20), normal(6, 3, 2, 11), normal(*problem.output[:-1], 10)
    x, w = larger[0][:, 2:11, 1:8, 5:13], larger[1][..., 3 : 3 + problem.stored_filter[-1]]
    g = larger[2][..., 4:]
    names = "activation_layout", "filter_layout", "output_layout"
    where = {
        name: Layout(tuple(t.shape), t.stride()) for name, t in zip(names, (x, w, g), strict=True)
    }
    y, dx, dw = passes_of_torch(problem, *(t.contiguous() for t in (x, w, g)))
    before = [t.clone() for t in larger]
    torch.testing.assert_close(execute(fprop_view(problem, **where), x, w), y)
    torch.testing.assert_close(execute(wgrad_view(problem, **where), g, x), dw)
    assert all(map(torch.equal, larger, before))
    for view in dgrad_views(problem, **where):
        execute(view, g, w, x)
    torch.testing.assert_close(x, dx)
    x.copy_(before[0][:, 2:11, 1:8, 5:13])
    assert torch.equal(larger[0], before[0])  # nothing beside the slice was written


@pytest.mark.parametrize("groups", [1, 2])
def test_a_batch_that_is_gathered(tiles, groups):
    torch.manual_seed(0)
    problem = ConvProblem((5, 9, 7, 8), (6, 3, 2), 2, 1, groups=groups)
    x, w = normal(3, 9, 7, 8), normal(*problem.stored_filter)
    index = torch.tensor([2, -1, 0, 2, 1], dtype=torch.int32)
    batch = x[index.long()] * (index >= 0).view(-1, 1, 1, 1)
    view = fprop_view(problem, batch_index=index, images=3)
    y, *_ = passes_of_torch(problem, batch, w, normal(*problem.output))
    torch.testing.assert_close(execute(view, x, w), y)
    channels_first = x.movedim(-1, 1).contiguous().movedim(1, -1)
    where = Layout(tuple(x.shape), channels_first.stride())
    view = fprop_view(problem, batch_index=index, images=3, activation_layout=where)
    torch.testing.assert_close(execute(view, channels_first, w), y)


def test_views_made_by_hand():
    """Columns that are not contiguous, modes that nest, a batch gathered by an index."""
    a, b = integers(6, 5), integers(4, 6)
    transposed = GemmView(Layout((5, 6), (1, 5)), Layout((4, 6), (6, 1)), Layout((5, 4), (4, 1)))
    # The layouts are over (m, k); the memory of A is stored as its flattened layout says.
    assert torch.equal(execute(transposed, a.T, b), a.T @ b.T)

    x, y = integers(3, 4, 2, 5), integers(7, 2, 5)  # contract over two modes: a GETT
    view = GemmView(
        Layout(((4, 3), (5, 2)), ((10, 40), (1, 5))),
        Layout((7, (5, 2)), (10, (1, 5))),
        Layout(((4, 3), 7), ((7, 28), 1)),
    )
    result = execute(view, x.permute(1, 0, 3, 2), y.permute(0, 2, 1))
    assert torch.equal(result.permute(1, 0, 2), torch.einsum("xmkl,nkl->xmn", x, y))

    index = torch.tensor([2, -1, 0, 2], dtype=torch.int32)
    rows = Layout((4, 5), (CustomStride(IndexedGather(index), E(0)), E(1)))
    gathered = ComposedLayout(Layout((3, 5), (5, 1)), 0, rows)
    x, w = integers(3, 5), integers(2, 5)
    view = GemmView(gathered, Layout((2, 5), (5, 1)), Layout((4, 2), (2, 1)))
    picked = torch.stack([x[2], torch.zeros(5), x[0], x[2]])
    assert torch.equal(execute(view, x, w), picked @ w.T)


def test_batches_of_products(tiles):
    a, b = integers(5, 4, 6), integers(5, 3, 6)
    view = GemmView(
        Layout((4, 6, 5), (6, 1, 24)), Layout((3, 6, 5), (6, 1, 18)), Layout((4, 3, 5), (3, 1, 12))
    )
    y = execute(view, a.permute(1, 2, 0), b.permute(1, 2, 0))
    assert torch.equal(y.permute(2, 0, 1), a @ b.mT)

    index = torch.tensor([2, -1, 0, 2], dtype=torch.int32)  # the matrix that each problem takes
    picked = ComposedLayout(
        Layout((3, 3, 6), (18, 6, 1)),
        0,
        Layout((3, 6, 4), (E(1), E(2), CustomStride(IndexedGather(index), E(0)))),
    )
    a, w = integers(4, 7, 6), integers(3, 3, 6)
    view = GemmView(Layout((7, 6, 4), (6, 1, 42)), picked, Layout((7, 3, 4), (3, 1, 21)))
    y = execute(view, a.permute(1, 2, 0), w).permute(2, 0, 1)
    absent = (index < 0).view(-1, 1, 1)
    assert torch.equal(y, a @ w[index.long()].masked_fill(absent, 0).mT)


@settings(max_examples=25, deadline=None, suppress_health_check=[FIXTURE])
@given(
    C=st.integers(1, 6),
    rows=st.integers(0, 9),
    taps=st.integers(1, 4),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_dot_products_side_by_side(tiles, C, rows, taps, dtype, seed):
    """One row and one column each: ``y[l, c] = sum_s x[l + s - 1, c] * w[s, c]``, strided along."""
    torch.manual_seed(seed)
    L, S = SymInt(rows, "L"), SymInt(taps, "S", runtime=False)
    x, w = integers(rows, C, dtype=dtype), integers(C, taps, dtype=dtype)
    view = GemmView(
        a=ComposedLayout(
            Layout((L, C), (C, 1)), (-1, 0), Layout((1, S, (C, L)), (0 * E(0), E(0), (E(1), E(0))))
        ),
        b=ComposedLayout(
            Layout((C, S), (S, 1)), 0, Layout((1, S, (C, L)), (0 * E(0), E(1), (E(0), 0 * E(0))))
        ),
        d=ComposedLayout(
            Layout((L, C), (C, 1)), 0, Layout((1, 1, (C, L)), (0 * E(0), 0 * E(0), (E(1), E(0))))
        ),
    )
    padded = torch.nn.functional.pad(x.float(), (0, 0, 1, taps))
    expected = sum(padded[s : s + rows] * w[:, s].float() for s in range(taps))
    assert torch.equal(execute(view, x, w).float(), expected)


def test_channel_slice_of_a_larger_tensor():
    problem = ConvProblem((1, 5, 6, 4), (8, 3, 3), padding=1)
    whole, w = integers(1, 5, 6, 12), integers(8, 3, 3, 4)
    x = whole[..., 4:8]
    dense = fprop_view(problem)
    memory = Layout((1, 5, 6, 4), x.stride())
    view = GemmView(ComposedLayout(memory, dense.a.offset, dense.a.inner), dense.b, dense.d)
    assert torch.equal(execute(view, x, w), convolved(problem, x, w))


def test_absent_elements_never_reach_the_sum():
    """Memory of an absent vector, or a NaN beside what is read, does not change the sum."""
    problem = ConvProblem((1, 4, 2), (1, 3), padding=1)
    index = torch.tensor([1, -1, 2, -1], dtype=torch.int32)
    x = torch.tensor([[torch.nan, torch.nan], [1.0, 2.0], [3.0, 4.0]])
    w = torch.ones(1, 3, 2)
    y = execute(gather_fprop_view(problem, index, in_rows=3), x, w)
    assert y.flatten().tolist() == [3.0, 10.0, 7.0, 7.0]


def test_workspace_is_bounded():
    """No temporary tensor of a convolution with a 200 MB im2col matrix is larger than 16 MB."""
    problem = ConvProblem((1, 64, 64, 64), (8, 14, 14), padding=7)
    x, w, g = (torch.zeros(s) for s in (problem.activation, (8, 14, 14, 64), problem.output))
    fprop, wgrad = fprop_view(problem), wgrad_view(problem)
    depthwise = ConvProblem((4, 96, 96, 64), (64, 3, 3), padding=1, groups=64)
    many, few = torch.zeros(depthwise.activation), torch.zeros(64, 3, 3, 1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        execute(fprop, x, w)
        execute(wgrad, g, x)
        execute(depthwise_fprop_view(depthwise), many, few, torch.zeros_like(many))
        execute(depthwise_wgrad_view(depthwise), many, many)
    assert fprop.m * fprop.k * 4 > 200 << 20
    assert wgrad.n * wgrad.k * 4 > 200 << 20
    # As they were recorded: to make Python's events of them, a hundred thousand, takes 15 s.
    events = trace.profiler.kineto_results.events()
    taken = [event.nbytes() for event in events if event.name() == "[memory]"]
    assert 1 << 20 < max(map(abs, taken)) <= 16 << 20
