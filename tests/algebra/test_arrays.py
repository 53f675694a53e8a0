"""Arrays of coordinates: every type of NumPy and torch, evaluated where it holds or refused."""

from __future__ import annotations

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
