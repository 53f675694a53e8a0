"""Layouts as functions and as values."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.algebra import (
    F2,
    ArithmeticTuple,
    ComposedLayout,
    CustomStride,
    E,
    IndexedGather,
    Layout,
    LayoutError,
    LayoutTypeError,
    LayoutValueError,
    ScaledBasis,
    Stride,
    StridedGather,
    Swizzle,
    SymInt,
    Tensor,
    crd2crd,
    crd2idx,
    idx2crd,
    slice_,
    slice_and_offset,
)
from layoutconv.algebra.int_tuple import product, unflatten
from layoutconv.testing.oracle import coordinates, evaluate, flat_strides
from layoutconv.testing.strategies import layouts

from .tables import table

EVERY = settings(max_examples=60, deadline=None)


@EVERY
@given(layouts(), st.integers(-70, 200))
def test_an_integer_coordinate_is_split_colexicographically(layout, n):
    assert layout(n) == evaluate(layout.shape, layout.stride, n)[0]


@EVERY
@given(layouts())
def test_a_coordinate_is_the_inner_product_with_the_strides(layout):
    strides = flat_strides(layout.shape, layout.stride)
    for i, c in enumerate(coordinates(layout.shape)):
        crd = unflatten(iter(c), layout.shape)
        assert layout(crd) == sum(x * d for x, d in zip(c, strides, strict=True))
        assert layout(i) == layout(crd)
        assert idx2crd(i, layout.shape) == crd
        assert crd2idx(crd, layout.shape) == i


@EVERY
@given(layouts())
def test_arrays_of_coordinates_give_arrays_of_offsets(layout):
    np = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    expected = table(layout)
    assert layout(np.arange(layout.size())).tolist() == expected
    assert layout(torch.arange(layout.size())).tolist() == expected
    if layout.rank > 1:
        grid = np.meshgrid(*[np.arange(product(m.shape)) for m in layout], indexing="ij")
        assert layout(*grid).tolist() == layout.offsets()


@given(st.integers(-50, 99))
def test_idx2crd_is_undone_by_crd2idx_outside_the_shape_too(i):
    assert crd2idx(idx2crd(i, (4, (2, 3))), (4, (2, 3))) == i


def test_crd2crd():
    for i in range(24):
        assert crd2crd(crd2crd(i, (4, (2, 3))), 24, (4, (2, 3))) == i
        assert crd2crd(crd2crd(i, (4, (2, 3))), (4, 6), (4, (2, 3))) == idx2crd(i, (4, 6))
    assert crd2crd((1, 2), (4, 8), (8, 4)) == (1, 2)  # mode by mode, as in CuTe and pycute
    with pytest.raises(LayoutError):
        crd2crd((3, 5), (8, 3), (4, 6))


VALUES = [
    Layout((4, (2, 3)), (1, (16, 4))),
    Layout(5, 3 * E(1)),
    Layout((2, 2), (F2(1), F2(3))),
    Layout((4, 2), (CustomStride(IndexedGather([3, 1, 2, 0]), 2), 1)),
    Layout((2,), (ArithmeticTuple((1, 2)),)),
    Layout(4, CustomStride(StridedGather(3))),
    ComposedLayout(Swizzle(2, 0, 3), 5, Layout((8, 4))),
    Swizzle(3, 4, -3),
    E(0, 1),
    ArithmeticTuple((1, ArithmeticTuple((2, 3)))),
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_are_immutable_hashable_picklable_and_their_repr_evaluates(value):
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value) == value
    assert eval(repr(value)) == value
    assert hash(value) == hash(eval(repr(value)))
    assert value != "something else"
    if not isinstance(value, tuple):
        with pytest.raises(AttributeError):
            value.shape = 3


def test_text_is_that_of_the_literature():
    assert str(Layout((4, (2, 3)), (1, (16, 4)))) == "(4,(2,3)):(1,(16,4))"
    assert str(Layout((4, 2), (2 * E(0), E(0, 1)))) == "(4,2):(2@0,1@1@0)"
    assert str(Layout(4, ArithmeticTuple((1, 2)))) == "4:1@0+2@1"
    assert str(Layout((4,), (F2(5),))) == "(4):(f5)"


@pytest.mark.parametrize(
    ("shape", "stride", "kind", "says"),
    [
        ((4, 2), (1, (2, 4)), LayoutTypeError, "profile"),
        ((4, (2, 3)), (1, 4), LayoutTypeError, "profile"),
        ((4, 2), 1, LayoutTypeError, "profile"),
        (4, (1,), LayoutTypeError, "profile"),
        ((4, 2.0), (1, 4), LayoutTypeError, "2.0"),
        ((4, True), (1, 4), LayoutTypeError, "True"),
        ([4, 2], (1, 4), LayoutTypeError, "tuple"),
        ([4, 2], None, LayoutTypeError, "tuple"),
        ((4, "2"), None, LayoutTypeError, "'2'"),
        (None, None, LayoutTypeError, "None"),
        ((4, (2, 0)), None, LayoutValueError, "extent 0"),
        ((4, -2), (1, 4), LayoutValueError, "extent -2"),
        ((4, 2), (1, 0.5), LayoutTypeError, "0.5"),
        ((4, 2), (1, None), LayoutTypeError, "None"),
        ((4, 2), (IndexedGather([3, 1, 2, 0]), 1), LayoutTypeError, r"CustomStride\(function"),
        (np.ones((40, 8)), None, LayoutTypeError, r"x\.strides\)"),
        (torch.ones(40, 8), None, LayoutTypeError, r"Layout\(t\.shape, t\.stride\(\)\)"),
    ],
)
def test_malformed_layouts_are_refused_and_the_wrong_part_is_named(shape, stride, kind, says):
    with pytest.raises(kind, match=says):
        Layout(shape, stride)


@pytest.mark.parametrize("array", [np.ones((40, 8)), torch.ones(40, 8)])
def test_an_array_in_place_of_a_shape_is_shown_in_a_line(array):
    with pytest.raises(LayoutTypeError) as caught:
        Layout(array)
    _, shown, carets = str(caught.value).splitlines()
    assert len(shown) == len(carets) <= 60


def test_the_path_of_a_scaled_basis_is_a_mode_or_modes():
    assert ScaledBasis(3, 1) == ScaledBasis(3, [1]) == ScaledBasis(3, (1,)) == 3 * E(1)
    for path in (-1, [-1], (0, -1), 0.5, "a", None):
        with pytest.raises(LayoutTypeError, match="`path`"):
            ScaledBasis(3, path)


def test_carets_point_at_the_wrong_part():
    with pytest.raises(LayoutValueError) as caught:
        Layout((4, (20, -2)), (1, (4, 8)))
    *_, expression, carets = str(caught.value).splitlines()
    assert expression[carets.index("^") : carets.rindex("^") + 1] == "-2"


@pytest.mark.parametrize("crd", [(1, 2, 3), (1, (2, 3, 4)), ((1, 2), 3), 1.5, None, (1, None), "1"])
def test_coordinates_of_another_profile_are_refused(crd):
    with pytest.raises(LayoutTypeError):
        Layout((4, (2, 3)))(crd)


def test_arrays_of_floats_are_no_coordinates():
    np = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    for bad in (np.arange(3.0), torch.arange(3.0), np.float64(1)):
        with pytest.raises(LayoutTypeError):
            Layout((4, 2))(bad)
        with pytest.raises(LayoutTypeError):
            Layout((4, 2))(bad, 1)


def test_integers_of_other_libraries_become_plain():
    np = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    layout = Layout((np.int64(4), torch.tensor(2)), (np.int32(1), torch.tensor(-4)))
    assert layout == Layout((4, 2), (1, -4))
    assert all(type(x) is int for pair in layout._leaves for x in pair)
    with pytest.raises(LayoutTypeError):
        Layout((np.float32(4), 2))
    with pytest.raises(LayoutTypeError):
        Layout(torch.tensor(4.0))


def test_symbolic_integers_keep_their_names():
    H, W = SymInt(6, "H"), SymInt(4, "W")
    layout = Layout((W, H), (1, W))
    assert str(layout) == "(W,H):(1,W)"
    assert layout(3, 5) == 23
    assert str(layout.coalesce()) == "H*W:1"
    assert Layout((SymInt(0, "N"), 3)).size() == 0  # a runtime extent may be empty


def test_basis_strides_give_coordinates():
    layout = Layout((4, (2, 3)), (E(1), (2 * E(0), E(2))))
    assert layout(3, 5) == (2, 3, 2)
    assert Layout(4, E(1))(2) == (0, 2)
    outer = Layout((5, 6, 7), (42, 7, 1))
    assert outer(layout(3, 5)) == outer(2, 3, 2)
    assert outer(ArithmeticTuple((2, 3))) == outer(2, 3, 0)


def test_f2_strides_add_without_carry():
    swizzle = Swizzle(3, 0, 3)
    layout = Layout((8, 8), (F2(1), F2(9)))
    assert [layout(i) for i in range(64)] == [swizzle(i) for i in range(64)]
    np = pytest.importorskip("numpy")
    assert layout(np.arange(64)).tolist() == swizzle(np.arange(64)).tolist()
    with pytest.raises(LayoutTypeError):
        Layout((2, 2), (F2(1), 2))(1, 1)


def test_an_index_buffer_is_not_wrapped_around():
    gather = Layout((4, 2), (CustomStride(IndexedGather([7, 5, 3, 1]), 10), 1))
    assert [gather(i, 1) for i in range(4)] == [71, 51, 31, 11]
    for outside in (-1, 4):
        with pytest.raises(LayoutError, match="outside"):
            gather(outside, 0)


@EVERY
@given(layouts(max_rank=4), st.data())
def test_a_slice_and_its_offset_are_the_layout_at_the_fixed_coordinate(layout, data):
    if not isinstance(layout.shape, tuple):
        return

    def choose(shape):
        if isinstance(shape, tuple) and data.draw(st.booleans()):
            return tuple(map(choose, shape))
        return None if data.draw(st.booleans()) else data.draw(st.integers(0, product(shape) - 1))

    crd = tuple(map(choose, layout.shape))
    rest, offset = slice_and_offset(crd, layout)
    composed = slice_(crd, ComposedLayout(Layout(1000, 3), 5, layout))
    for c in coordinates(rest.shape):
        open_modes = iter(unflatten(iter(c), rest.shape))

        def fill(part, open_modes=open_modes):
            if isinstance(part, tuple):
                return tuple(map(fill, part))
            return next(open_modes) if part is None else part

        full = layout(fill(crd))
        assert offset + rest(unflatten(iter(c), rest.shape)) == full
        assert composed(unflatten(iter(c), rest.shape)) == 3 * (full + 5)


def test_a_slice_of_a_gather_is_a_gather_with_an_offset():
    gather = Layout((4, 2), (CustomStride(IndexedGather([7, 5, 3, 1]), 10), 1))
    view = ComposedLayout(gather, 0, Layout((2, (2, 2)), (2 * E(0), (E(0), E(1)))))
    row = view[1, None]
    assert [row(i) for i in range(4)] == [view(1, i) for i in range(4)] == [30, 10, 31, 11]


def test_layout_indexing():
    layout = Layout((4, (2, 3), 5), (1, (4, 8), 24))
    assert layout[1] == Layout((2, 3), (4, 8))
    assert layout[-1] == Layout(5, 24)
    assert layout[0:2] == Layout((4, (2, 3)), (1, (4, 8)))
    assert layout[:, 0, 1] == slice_((None, 0, 1), layout) == Layout((4,), (1,))
    assert list(layout) == [layout[0], layout[1], layout[2]]
    with pytest.raises(IndexError):
        layout[3]
    with pytest.raises(LayoutTypeError):
        layout[1, 2, 3]


def test_tensors_read_write_and_slice_over_lists_numpy_and_torch():
    np = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    for engine in (list(range(24)), np.arange(24), torch.arange(24)):
        tensor = Tensor(engine, Layout((4, (2, 3)), (6, (3, 1))))
        assert [int(tensor(i, 5)) for i in range(4)] == [5, 11, 17, 23]
        column = tensor[:, (1, 2)]
        column[2] = 99
        assert int(tensor[2, 5]) == 99
        with pytest.raises(IndexError):
            tensor(4, 0)
    assert Tensor(np.arange(24), Layout(24))(np.arange(3)).tolist() == [0, 1, 2]
    grid = np.arange(12).reshape(3, 4)
    assert int(Tensor(grid, Layout((4, 3), (E(1), E(0))))[3, 2]) == grid[2, 3]


class Square(Stride):
    """A stride that says nothing of its bounds."""

    def at(self, c):
        return c * c


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64"])
@pytest.mark.parametrize(
    "layout",
    [
        Layout((4, 2), (F2(64), F2(128))),
        Layout((100, 2), (Square(), 7)),
        Layout((4, 2), (CustomStride(lambda c: c * c, 100), 1)),
        Layout((4, 2), (CustomStride(IndexedGather([3, 1, 0, 2]), 1000), 1)),
    ],
    ids=str,
)
def test_narrow_arrays_are_widened_for_strides_of_every_kind(layout, dtype):
    np = pytest.importorskip("numpy")
    numbers = np.arange(min(layout.size(), 120)).astype(dtype)
    assert layout(numbers).tolist() == [layout(int(n)) for n in numbers]


def test_bits_that_64_do_not_hold_are_refused():
    np = pytest.importorskip("numpy")
    shifted = Layout(4, F2(1 << 40))
    assert shifted(np.array([1 << 21])).tolist() == [1 << 61]
    with pytest.raises(LayoutError, match="72 bits"):
        shifted(np.array([1 << 30]))


@pytest.mark.parametrize(
    ("crd", "shape", "stride"),
    [
        ((1, 2), (4, 8), (8,)),
        ((1, 2), (4, 8), 8),
        (5, (4, 8), (8,)),
        ((1, (1, 2)), (4, (2, 3)), (1, (4,))),
        ((1, (1, 2)), (4, (2, 3)), (1, 4)),
    ],
)
def test_a_stride_of_another_profile_is_refused(crd, shape, stride):
    """It gave the offset of as many modes as it has."""
    with pytest.raises(LayoutTypeError, match="does not have the profile of"):
        crd2idx(crd, shape, stride)


@pytest.mark.parametrize("layout", [Layout((4, 8), (8, 1)), Layout(8, 3), Layout((), ())])
def test_modes_are_a_sequence(layout):
    """As a list of the modes: ends, negative places, slices; the error says which there are."""
    modes, rank = list(layout), len(layout)
    assert list(reversed(layout)) == modes[::-1]
    for i in range(-rank - 3, rank + 3):
        for key in (i, np.int64(i), torch.tensor(i)):
            if -rank <= i < rank:
                assert layout[key] == modes[i]
                continue
            with pytest.raises(IndexError, match=f"one of the {rank} modes of .*, got"):
                layout[key]
    for cut in (slice(None), slice(0, 1), slice(1, None), slice(None, None, -1)):
        assert list(layout[cut]) == modes[cut]
    for key in (True, 1.5, "a", None, [0], slice("a"), torch.tensor(1.5)):
        with pytest.raises(LayoutTypeError, match="expected a mode, a slice of modes"):
            layout[key]


def test_values_are_aligned_as_their_text():
    layout = Layout((4, 8))
    for x in (layout, Swizzle(3, 0, 3) @ layout, Tensor(range(32), layout), F2(3), E(0, 1)):
        assert f"{x:>60}|{x:*<60}|{x}" == f"{x!s:>60}|{x!s:*<60}|{x!s}"
