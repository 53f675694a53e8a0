"""Reductions on the CPU are what their definition says, element by element."""

from __future__ import annotations

import operator
from functools import reduce as fold

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv as lc
from layoutconv.algebra import ComposedLayout, CustomStride, E, IndexedGather, Layout
from layoutconv.algebra.int_tuple import product
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.gpu.reduction_plan import sum_partials
from layoutconv.gpu.user_functions import function_key
from layoutconv.view.gemm_view import locate
from layoutconv.view.operands import row_major

extents = st.integers(1, 4)
modes = st.one_of(extents, st.lists(extents, min_size=1, max_size=3).map(tuple))
NAMED = {"sum": sum, "max": max, "min": min, "mean": lambda v: sum(v) / len(v)}


def strides_of(shape, draw, least):
    if isinstance(shape, tuple):
        return tuple(strides_of(s, draw, least) for s in shape)
    return draw(st.integers(least, 7))


@st.composite
def views(draw):
    """Any affine source, also with negative steps behind an offset; a target in any order."""
    shape = draw(modes), draw(modes)
    source = Layout(shape, strides_of(shape, draw, draw(st.sampled_from([0, -3]))))
    least = min(min(row) for row in source.offsets())
    if least < 0:
        wide = 1 + max(max(row) for row in source.offsets()) - least
        coordinates = Layout(shape, scaled(source.stride))
        source = ComposedLayout(Layout((wide,), (1,)), (-least,), coordinates)
    kept = draw(st.sampled_from([shape[0], (product(shape[0]),), product(shape[0])]))
    order = draw(st.permutations(range(len(kept)))) if isinstance(kept, tuple) else [0]
    step, stride = 1 + draw(st.integers(0, 1)), {}
    for i in order:
        stride[i] = step
        step *= kept[i] if isinstance(kept, tuple) else kept
    steps = tuple(stride[i] for i in range(len(order)))
    return lc.ReductionView(source, Layout(kept, steps if isinstance(kept, tuple) else steps[0]))


def scaled(stride):
    return tuple(map(scaled, stride)) if isinstance(stride, tuple) else stride * E(0)


def reference(view, x, function, out, empty=0):
    """``out`` after the reduction, from ``locate`` alone; a place at a time."""
    memory, out = x.flatten().tolist(), out.clone()
    flat = out.as_strided((span(out),), (1,))
    for r in range(view.r):
        found = []
        for s in range(view.s):
            offset, valid = locate(view.source, r, s)
            if valid:
                found.append(memory[offset])
        offset, valid = locate(view.target, r)
        if valid:
            flat[int(offset)] = function(found) if found else empty
    return out


def span(t):
    return 1 + sum((s - 1) * d for s, d in zip(t.shape, t.stride(), strict=True))


def numbers(view, dtype=torch.float64, seed=0):
    """Enough memory for a source, of integers other than 0."""
    size = 1 + max(int(locate(view.source, r, s)[0]) for r in range(view.r) for s in range(view.s))
    torch.manual_seed(seed)
    if isinstance(view.source, ComposedLayout):
        size = int(product(view.source.outer.shape))
    return (torch.randint(1, 9, (size,)) * (2 * torch.randint(0, 2, (size,)) - 1)).to(dtype)


def poisoned(view, dtype):
    layout = view.target
    return torch.full((layout.cosize(),), 77, dtype=dtype)


@settings(max_examples=150, deadline=None)
@given(views(), st.sampled_from(sorted(NAMED)), st.sampled_from([torch.float64, torch.int32]))
def test_named_operations_over_any_affine_layout(view, op, dtype):
    if op == "mean":
        dtype = torch.float64
    x, out = numbers(view, dtype), poisoned(view, dtype)
    want = reference(view, x, NAMED[op], out)
    got = lc.reduce(view, x, op, out=out)
    assert got is out
    torch.testing.assert_close(out, want, rtol=1e-12, atol=0)


@settings(max_examples=60, deadline=None)
@given(views())
def test_a_function_over_any_affine_layout(view):
    x, out = numbers(view), poisoned(view, torch.float64)
    want = reference(view, x, lambda v: fold(lambda a, b: a * b, v), out)
    lc.reduce(view, x, lambda a, b: a * b, initial=1, out=out)
    torch.testing.assert_close(out, want, rtol=1e-12, atol=0)


def windows(extent, window, stride, padding, channels):
    """Pooling of (cells, channels): a window that leaves the cells has fewer elements."""
    outputs = (extent + 2 * padding - window) // stride + 1
    domain = Layout(((channels, outputs), window), ((E(1), stride * E(0)), E(0)))
    memory = row_major((extent, channels))
    target = Layout((channels, outputs), (1, channels))
    return lc.ReductionView(ComposedLayout(memory, (-padding, 0), domain), target)


@pytest.mark.parametrize("op", ["sum", "max", "min", "mean"])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_pooling_is_a_view(op, padding):
    view, x = windows(9, 3, 2, padding, 4), torch.randn(9, 4)
    y = lc.reduce(view, x, op)
    lines = x.T[None]
    if op in ("max", "min"):
        sign = 1 if op == "max" else -1
        padded = torch.nn.functional.pad(lines, (padding, padding), value=-sign * torch.inf)
        want = sign * torch.nn.functional.max_pool1d(sign * padded, 3, 2)
    else:
        padded = torch.nn.functional.pad(lines, (padding, padding))
        want = torch.nn.functional.avg_pool1d(padded, 3, 2) * (3 if op == "sum" else 1)
    torch.testing.assert_close(y, want[0])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=0, max_size=4), st.data())
def test_modes_of_a_tensor_are_those_of_torch(shape, data):
    chosen = data.draw(st.sets(st.integers(-len(shape), -1) if shape else st.nothing()))
    x = torch.randn(shape, dtype=torch.float64)
    view = lc.reduction_view(shape, sorted(chosen))
    want = x.sum(sorted(chosen)) if chosen else x
    torch.testing.assert_close(lc.reduce(view, x), want)
    if view.s:
        want = x.amax(sorted(chosen)) if chosen and x.numel() else want if x.numel() else None
        if want is not None:
            assert torch.equal(lc.reduce(view, x, "max"), want if chosen else x)


def test_modes_of_a_layout():
    x = torch.randn(4, 5, 6, dtype=torch.float64).permute(2, 0, 1)
    layout = Layout(tuple(x.shape), x.stride())
    assert torch.equal(lc.reduce(lc.reduction_view(layout, 1), x, "min"), x.amin(1))
    nested = Layout((6, (4, 5)), (1, (30, 6)))
    assert torch.equal(lc.reduce(lc.reduction_view(nested, 1), x, "max"), x.amax((1, 2)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("op", ["sum", "max", "min", "mean"])
def test_nan_is_the_result_of_what_it_is_in(op, dtype):
    x = torch.randn(6, 40).to(dtype)
    x[1, 0] = x[4, 39] = torch.nan
    for view in (lc.reduction_view((6, 40), 1), padded_rows()):
        y = lc.reduce(view, x, op)
        assert y.isnan().tolist() == [False, True, False, False, True, False]


def padded_rows():
    """Rows of 40 with one absent element before and after."""
    domain = Layout((6, 42), (E(0), E(1)))
    return lc.ReductionView(ComposedLayout(row_major((6, 40)), (0, -1), domain), Layout(6))


def test_what_accumulates():
    ones = torch.ones(1, 4096, dtype=torch.float16)
    view = lc.reduction_view((1, 4096), 1)
    assert lc.reduce(view, ones).item() == 4096  # in fp16 the sum stops at 2048
    assert lc.reduce(view, ones * 60000, "avg").item() == 60000
    assert lc.reduce(view, ones * 60000, "mean").item() == 60000  # beyond fp16 on the way
    many = torch.full((1, 4096), 2**30, dtype=torch.int32)
    total = lc.reduce(view, many)
    assert total.dtype == torch.int64
    assert total.item() == 2**42
    assert lc.reduce(view, ones, out_dtype=torch.float32).dtype == torch.float32


def test_an_index_buffer_gathers_what_is_reduced():
    index = torch.tensor([3, -1, 0, 3, 1, -1], dtype=torch.int32)  # two of three for each result
    gather = Layout((6, 2), (CustomStride(IndexedGather(index), E(0)), E(1)))
    domain = Layout(((2, 3), 2), ((E(1), 2 * E(0)), E(0)))
    source = ComposedLayout(ComposedLayout(row_major((4, 2)), 0, gather), 0, domain)
    view = lc.ReductionView(source, Layout((2, 3), (1, 2)))
    x = torch.arange(1.0, 9).view(4, 2)
    want = torch.stack([x[3], x[0] + x[3], x[1]], 1)
    assert torch.equal(lc.reduce(view, x), want)


def test_elements_outside_the_target_are_not_written():
    domain = Layout(5, E(0))
    target = ComposedLayout(Layout((3,), (1,)), (-1,), domain)
    view = lc.ReductionView(Layout((5, 2), (2, 1)), target)
    out = torch.zeros(3)
    lc.reduce(view, torch.arange(10.0), out=out)
    assert out.tolist() == [5, 9, 13]


def test_sums_of_partials():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        workspace = torch.randint(-9, 9, (5, 12)).float()
        out = torch.empty(3, 4, dtype=dtype)
        sum_partials(workspace, out)
        assert torch.equal(out.float().view(-1), workspace.sum(0))


# -- what is refused ------------------------------------------------------------------------------

LINE = lc.ReductionView(Layout((4, 3), (1, 4)), Layout(4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lc.reduce(LINE, torch.ones(11)), r"`x`: expected memory .* 0 to 11, got 11"),
        (lambda: lc.reduce(LINE, torch.ones(12), out=torch.ones(3)), r"`out`: expected memory"),
        (lambda: lc.reduce(None, torch.ones(12)), "`view`: expected a ReductionView, got NoneType"),
        (lambda: lc.reduce(LINE, torch.ones(12).numpy()), "`x`: expected a torch tensor, got nda"),
        (lambda: lc.reduce(LINE, torch.ones(12), out=[0] * 4), "`out`: expected a torch tensor"),
        (lambda: lc.reduce(LINE, torch.ones(12), operator.mul, initial="1"), "`initial`: expected"),
        (lambda: lc.reduce(LINE, torch.ones(12), "median"), r"`op`: expected one of sum, max"),
        (lambda: lc.reduce(LINE, torch.ones(12), operator.mul), r"`initial`: expected the neutral"),
        (lambda: lc.reduce(LINE, torch.ones(12), initial=0), r"`initial`: expected None for sum"),
        (lambda: lc.reduce(LINE, torch.ones(12).bool()), r"`x`: expected a tensor of floating"),
        (lambda: lc.reduce(LINE, torch.ones(12).int(), "mean"), r"`x`: expected floating-point"),
        (lambda: lc.reduce(LINE, torch.ones(12), out_dtype=torch.int32), "`out_dtype`: expected a"),
        (lambda: lc.reduce(lc.reduction_view((3, 4), 0), torch.ones(4, 3).T), "`x`: expected"),
        (lambda: lc.reduce(lc.reduction_view((3, 4), 0), torch.ones(4, 3)), "`x`: expected shape"),
        (lambda: lc.reduce(lc.reduction_view((3, 0), 1), torch.ones(3, 0), "max"), "at least one"),
        (lambda: lc.ReductionView(Layout((4, 3)), Layout(5)), "`target`: expected a layout of 4"),
        (lambda: lc.ReductionView(Layout(12), Layout(12)), "`source`: expected a layout of two"),
        (
            lambda: lc.ReductionView(Layout((4, 3)), Layout(4, 0)),
            "`target`: expected .* a place of its own",
        ),
        (lambda: lc.reduction_view((3, 4), 2), "`modes`: expected different modes, of 2 in all"),
        (
            lambda: lc.reduction_view((3, 4), (1, -1)),
            "`modes`: expected different modes, of 2 in all",
        ),
        (lambda: lc.reduction_view((3, 4), "z"), "`modes`: expected an integer, or several, got"),
        (lambda: lc.reduction_view((3, 4.5), 0), "`shape_or_layout`: expected integers, got 4.5"),
        (lambda: lc.reduction_view(12, 0), "`shape_or_layout`: expected a shape or a layout"),
        (lambda: lc.reduction_view(np.array(12), 0), "`shape_or_layout`: expected a shape or a l"),
        (lambda: lc.reduction_view((3, -4), 0), "`shape_or_layout`: expected extents >= 0"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


# -- keys of functions ----------------------------------------------------------------------------

SCALE = 2


def globally(a, b):
    return a + b * SCALE


def through(a, b):
    return globally(a, b)


def test_a_key_has_what_a_function_refers_to(monkeypatch):
    first = function_key("op", globally), function_key("op", through)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "SCALE", 3)
        second = function_key("op", globally), function_key("op", through)
    assert len({*first, *second}) == 4
    assert (function_key("op", globally), function_key("op", through)) == first


def test_keys_differ_where_functions_do():
    def closed(c):
        return lambda a, b: a * c + b

    different = [
        lambda a, b: a + b,
        lambda a, b: b + a,
        lambda a, b: a + b + 1,
        lambda a, b: a + b + 1.0,
        lambda a, b, c=1: a + b + c,
        lambda a, b, c=2: a + b + c,
        lambda a, b, *, c=2: a + b + c,
        lambda a, b: a.x + b,
        lambda a, b: a.y + b,
        lambda a, b: (lambda c: c + 1)(a) + b,
        lambda a, b: (lambda c: c + 2)(a) + b,
        closed(1),
        closed(2),
        closed(0.0),
        closed(-0.0),
        operator.add,
        operator.mul,
    ]
    assert len({function_key("op", f) for f in different}) == len(different)
    assert function_key("op", closed(1)) == function_key("op", closed(1))


def test_a_function_that_could_change_without_a_trace_is_refused():
    table = [1]
    for function in (lambda a, b: a + b * table[0], lambda a, b: torch.add(a, b)):
        with pytest.raises(ArgumentError, match="`op`: expected a function that uses only numbers"):
            function_key("op", function)
    with pytest.raises(ArgumentTypeError, match="`op`: expected a function of two"):
        function_key("op", sum_of())


def sum_of():
    class Sum:
        def __call__(self, a, b):
            return a + b

    return Sum()
