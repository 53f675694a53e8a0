"""Arrays of coordinates: every type of NumPy and torch, evaluated where it holds or refused."""

from __future__ import annotations

import operator
import random

import numpy as np
import pytest
import torch

import layoutconv.algebra as lc
from layoutconv.algebra import ComposedLayout, CustomStride, E, IndexedGather, Layout, LayoutError
from layoutconv.testing.random_layouts import Cyclic

INDEX = np.array([5, 0, 7, 2, 1 << 40, 0, 3, 9])
LAYOUTS = [
    Layout((100, 100), (100, 1)),
    Layout((4, (2, 4)), (-8, (4, 1))),
    Layout((2, 3), (1 << 40, -(1 << 41))),
    Layout((5, 4), (1 << 62, 1)),
    Layout((1, 3), (1 << 70, 3)),
    Layout((4, 4), (lc.F2(1), lc.F2(5))),
    Layout((8, 4), (CustomStride(IndexedGather(INDEX), 1), 1)),
    Layout((8, 4), (CustomStride(IndexedGather(torch.arange(8)), 300), 1)),
    Layout((4, 4), (E(0), 3 * E(1) + E(0))),
    Layout((4, 4), (Cyclic(3, 1000), 1)),
    lc.parse("S<2,0,2> o 3 o (4,4):(4,1)"),
    ComposedLayout(Layout((100, 100), (1000, 1)), (1, 2), Layout((4, 4), (E(0), E(1)))),
    ComposedLayout(lc.Swizzle(3, 3, 3), 1 << 62, Layout((8, 64), (64, 1))),
]
TYPES = [np.dtype(name) for name in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]
NAMES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
TYPES += [getattr(torch, name) for name in NAMES if hasattr(torch, name)]


def array(values, dtype):
    if isinstance(dtype, torch.dtype):
        return torch.tensor(values, dtype=dtype)
    return np.array(values, dtype=dtype)


def entry(result, k):
    if isinstance(result, tuple):
        return tuple(entry(part, k) for part in result)
    return int(result[k]) if hasattr(result, "dtype") else result


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_an_array_gives_what_its_integers_give(layout, dtype):
    """In whatever type it comes: no offset is cut off, and all that is raised is a refusal."""
    rng = random.Random(str(dtype))
    limits = (torch if isinstance(dtype, torch.dtype) else np).iinfo(dtype)
    sizes = [min(lc.product(s), limits.max) for s in layout.shape]
    for below in (0, 4):
        crds = [[rng.randrange(-min(below, -limits.min), s) for _ in range(4)] for s in sizes]
        linear = [min(c, limits.max) for c in crds[0]]
        for crd, scalars in (
            ([array(c, dtype) for c in crds], list(zip(*crds, strict=True))),
            ([array(crds[0], dtype), crds[1][0]], [(c, crds[1][0]) for c in crds[0]]),
            ([array(linear, dtype)], linear),
        ):
            try:
                found = layout(*crd)
            except LayoutError:
                continue
            assert [entry(found, k) for k in range(4)] == [layout(c) for c in scalars]


def test_offsets_that_were_cut_off_or_took_a_mask():
    small = np.array([99], dtype=np.int8)
    assert lc.crd2idx((small, small), (100, 100), (100, 1)).tolist() == [9999]
    assert lc.crd2idx(small, (100, 100), (100, 1)).tolist() == [9900]
    wide, _ = lc.idx2crd(np.array([200], dtype=np.uint8), (1000, 10))
    assert wide.tolist() == [200]
    gathered = Layout(8, CustomStride(IndexedGather(torch.arange(8) * 10), 100))
    assert gathered(torch.tensor([1, 0, 2], dtype=torch.uint8)).tolist() == [1000, 0, 2000]
    assert lc.Swizzle(3, 3, 3)(np.int8(100)) == 108


@pytest.mark.parametrize(
    "ask",
    [
        lambda: Layout(8, CustomStride(IndexedGather(INDEX), 1))(np.array([-1])),
        lambda: Layout(8, CustomStride(IndexedGather(torch.arange(8)), 1))(torch.tensor([8])),
        lambda: Layout(4, CustomStride(lambda i: i * (1 << 40), 1 << 40))(np.array([1])),
        lambda: Layout(4)(torch.tensor([(1 << 64) - 1], dtype=torch.uint64)),
        lambda: lc.inner_product((np.array([99], dtype=np.int8), 1), (100, 1)),
        lambda: lc.Swizzle(3, 3, 3)(np.array([1.5])),
        lambda: lc.Swizzle(3, 3, 3)(None),
        lambda: Layout((4, 4))[...],
        lambda: Layout((4, 4))(slice(None), 1),
        lambda: Layout((4, 4))(Layout(4)),
        lambda: lc.overlaps(Layout(4), Layout(4), lc.symbols("N")),
        lambda: lc.overlaps(Layout(4), Layout(4), 1.5),
        lambda: lc.vector_width(Layout(4), 0),
        lambda: lc.shape_div((6, 4), 0),
        lambda: lc.symbols(3),
        lambda: lc.symbols("x", minimum=2.5),
        lambda: lc.coalescing(Layout(32), 0),
        lambda: lc.coalescing(Layout(32), 1 << 40),
    ],
)
def test_what_is_no_integer_or_in_no_type_is_refused(ask):
    with pytest.raises(LayoutError):
        ask()


def test_operands_on_the_left_of_a_composition():
    layout = Layout((4, 8))
    assert lc.Swizzle(1, 2, 3) @ layout == lc.composition(lc.Swizzle(1, 2, 3), layout)
    assert "(6,2):(8,2)" @ Layout((4, 3), (3, 1)) == Layout(((2, 2), 3), ((24, 2), 8))
    assert (4, 8) @ Layout(8, 2) == Layout(8, 2)
    swizzled = lc.Swizzle(1, 2, 3) @ layout
    assert swizzled @ 4 == lc.composition(swizzled, 4)


def test_a_width_within_a_limit():
    for width in range(1, 60):
        for limit in range(1, width + 2):
            widest = max(n for n in range(1, limit + 1) if width % n == 0)
            assert lc.vector_width(Layout(width), limit) == widest
    assert lc.vector_width(Layout(1 << 62), 1 << 40) == 1 << 40


INT8, UINT8, INT32 = np.int8, np.uint8, np.int32


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (lambda: lc.product((INT32(65536), INT32(65536))), 1 << 32),
        (lambda: lc.size((2, (INT8(100), 1))), 200),
        (lambda: lc.product_each(((INT32(65536), INT32(65536)), 2)), (1 << 32, 2)),
        (lambda: lc.prefix_product((INT32(65536), INT32(65536), 2)), (1, 65536, 1 << 32)),
        (lambda: lc.elem_scale(INT32(65536), (65536, 2)), 1 << 33),
        (lambda: lc.inner_product((INT8(100), 1), (INT8(100), 1)), 10001),
        (lambda: lc.ceil_div((UINT8(9), 10), (UINT8(4), 4)), (3, 3)),
        (lambda: lc.round_up(UINT8(250), UINT8(100)), 300),
        (lambda: lc.crd2idx((1, INT32(65535)), (4, 4), (1, INT32(65536))), 65535 * 65536 + 1),
        (lambda: lc.idx2crd(1000, (UINT8(7), UINT8(50))), (6, 142)),
        (lambda: lc.compatible(400, (UINT8(200), UINT8(2))), True),
        (lambda: lc.make_ordered_layout((INT8(16), INT8(16), 2), (0, 1, 2)).stride, (1, 16, 256)),
        (lambda: lc.complement(Layout(4), UINT8(200)), Layout(50, 4)),
        (lambda: lc.with_shape(Layout(400), (UINT8(200), UINT8(2))), Layout((200, 2))),
        (lambda: lc.coalesce(np.int64(6)), Layout(6)),
        (lambda: lc.logical_divide(Layout(24), UINT8(6)), lc.logical_divide(Layout(24), 6)),
        (lambda: lc.upcast(Layout(400), UINT8(4)), Layout(100)),
        (lambda: E(0) * INT8(100) * INT8(100), 10000 * E(0)),
        (lambda: lc.ScaledBasis(UINT8(200), (0,)) * UINT8(200), 40000 * E(0)),
        (lambda: lc.ArithmeticTuple((UINT8(200), 1)) * 2, (400, 2)),
        (lambda: operator.add(lc.ArithmeticTuple((200, 1)), (UINT8(100), 1)), (300, 2)),
        (lambda: lc.StridedGather(UINT8(200))(UINT8(200)), 40000),
        (lambda: lc.StridedGather(200)(np.array([200], np.uint8)).tolist(), [40000]),
        (lambda: lc.CustomStride(lc.IndexedGather([0, 200]), UINT8(200)).at(1), 40000),
        (lambda: lc.CustomStride(lambda c: c * INT8(1), 200).at(INT8(100)), 20000),
        (lambda: str(lc.SymInt(6, "A") * INT8(100)), "A*100"),
    ],
)
def test_numbers_of_numpy_do_not_wrap_around(asked, expected):
    found = asked()
    assert found == expected
    assert "np." not in repr(found)  # nothing of a narrow type is handed on
