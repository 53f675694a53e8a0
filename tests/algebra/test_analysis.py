"""The offsets that a layout reaches and the cost of an access, compared with counting."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import layoutconv.algebra as lc
from layoutconv.algebra import (
    ComposedLayout,
    E,
    Layout,
    LayoutError,
    LayoutValueError,
    Swizzle,
    bank_conflicts,
    coalesce,
    coalescing,
    composition,
    contiguity,
    coshape,
    cosize,
    explain,
    is_injective,
    is_surjective,
    logical_divide,
    make_ordered_layout,
    max_common_layout,
    max_common_vector,
    overlaps,
    parse,
    right_inverse,
    size,
    vector_width,
)
from layoutconv.testing.strategies import layouts, swizzles

from .tables import table

EVERY = settings(max_examples=80, deadline=None)


@EVERY
@given(layouts(max_rank=4), layouts())
def test_images_are_counted(a, b):
    values = table(a)
    assert cosize(a) == coshape(a) == max(values) - min(values) + 1
    assert is_injective(a) == (len(set(values)) == len(values))
    assert is_surjective(a) == (set(values) == set(range(min(values), max(values) + 1)))
    assert is_surjective(a, 3) == ({0, 1, 2} <= set(values))
    for shift in (0, 1, -5):
        assert overlaps(a, b, shift) == bool(set(values) & {v + shift for v in table(b)})
    run = contiguity(a)
    assert values[:run] == list(range(run))
    assert run == len(values) or values[run] != run


@EVERY
@given(layouts(max_rank=3, strides=(0, 1, 2, 4, 8, 3, 6, 12, 16)))
def test_vector_width_is_the_largest_aligned_block(layout):
    offsets = set(table(layout))

    def tiled(width):
        return all(o - o % width + i in offsets for o in offsets for i in range(width))

    width = vector_width(layout)
    assert tiled(width)
    if is_injective(layout):
        powers = [1 << i for i in range(7) if tiled(1 << i)]
        assert width >= max(powers)


@EVERY
@given(layouts(), layouts())
def test_common_layouts_are_the_identity_along_both(a, b):
    common = max_common_layout(a, b)
    for k in range(common.size()):
        assert a(common(k)) == k == b(common(k))
    assert max_common_vector(a, b) == common.size()
    assert max_common_layout(a, a).size() == right_inverse(a).size()


@st.composite
def packed_layouts(draw):
    """The same offsets 0, 1, 2, ... in another order of modes."""
    extents = draw(st.lists(st.sampled_from([2, 3, 4, 8]), min_size=1, max_size=3))
    return make_ordered_layout(tuple(extents), tuple(draw(st.permutations(range(len(extents))))))


@EVERY
@example(Swizzle(1, 1, 1), Layout((2, 3), (3, 1)), Layout((2, 3), (3, 1)))  # 4 of (3,2):(2,1)
@given(swizzles(), packed_layouts(), packed_layouts())
def test_common_layouts_of_one_swizzle_undo_it(swizzle, a, b):
    one, two = composition(swizzle, a), composition(swizzle, b)
    common = max_common_layout(one, two)
    assert [one(common(k)) for k in range(size(common))] == list(range(size(common)))
    assert [two(common(k)) for k in range(size(common))] == list(range(size(common)))
    assert max_common_vector(one, two) == size(common)
    plain = size(max_common_layout(a, b))
    kept = [n for n in range(1, plain + 1) if all(swizzle(k) < plain for k in range(n))]
    assert size(common) == max(kept)


def test_vector_width_of_swizzles_and_offsets():
    tile = Layout((8, 64), (64, 1))
    assert vector_width(tile) == 512
    assert vector_width(ComposedLayout(Swizzle(3, 3, 3), 0, tile)) == 8
    assert vector_width(ComposedLayout(Swizzle(3, 3, 3), 4, tile)) == 4
    assert vector_width(tile, limit=8) == 8


def test_bank_conflicts():
    column = Layout(((8, 4), 8), ((64, 8), 1))
    assert bank_conflicts(column, 16, vector=8) == (32, 4, 8)
    swizzled = bank_conflicts(ComposedLayout(Swizzle(3, 3, 3), 0, column), 16, vector=8)
    assert swizzled.conflict_free
    assert swizzled.wavefronts == swizzled.ideal == 4
    assert bank_conflicts(Layout(32, 32), 32).ways == 32
    assert bank_conflicts(Layout(32, 33), 32).ways == 1
    assert bank_conflicts(Layout(32, 0), 32).ways == 1  # one word for all is a broadcast
    assert bank_conflicts(Layout(32, 2), 32).ways == 2
    assert bank_conflicts(Layout((32, 2), (2, 1)), 32, vector=2).ways == 1
    with pytest.raises(LayoutValueError, match="not next to"):
        bank_conflicts(Layout((32, 2), (1, 32)), 32, vector=2)
    with pytest.raises(LayoutValueError, match="aligned"):
        bank_conflicts(Layout((32, 2), (3, 1)), 32, vector=2)
    with pytest.raises(LayoutValueError, match="bytes"):
        bank_conflicts(Layout((32, 3), (4, 1)), 32, vector=3)


def test_coalescing_counts_sectors():
    assert coalescing(Layout(32, 1), 32) == (4, 4, 1)
    assert coalescing(Layout(32, 2), 32) == (8, 4, 2)
    assert coalescing(Layout((32, 8), (8, 1)), 16, vector=8) == (16, 16, 4)
    assert coalescing(Layout(32, 0), 32).efficiency == 1
    assert coalescing(Layout(32, 64), 16).sectors == 32


def test_explain_ends_with_the_result_or_the_reason():
    a, b = Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1))
    assert explain("composition", a, b).splitlines()[-1] == "  = ((2,2),3):((24,2),8)"
    text = explain(logical_divide, Layout(24), Layout(4, 2))
    assert text.splitlines()[-1] == f"  = {logical_divide(Layout(24), Layout(4, 2))}"
    assert "(2,3):(1,8)" in text
    assert "8 is right" in explain("composition", Layout((6, 2), (1, 7)), Layout((3, 2), (2, 3)))
    assert explain("logical_product", Layout(4), 3).splitlines()[-1] == "  = (4,3):(1,4)"
    assert "copies would overlap" in explain("logical_product", Layout((2, 2), (3, 2)), 3)
    with pytest.raises(LayoutError, match=r"expected one of composition, .*, got 'coalesce'"):
        explain(coalesce, Layout(4))
    with pytest.raises(LayoutError, match=r"argument `b`: expected a layout.*, got None$"):
        explain("composition", Layout(4))
    assert explain("composition", Layout((2, 2), (E(0), E(1))), Layout(2, 2)).endswith("2:1@1")
    by_mode = explain("logical_divide", Layout((4, 8)), (2, None))
    assert by_mode.endswith(f"= {logical_divide(Layout((4, 8)), (2, None))}")
    with pytest.raises(LayoutValueError):
        explain("coalesce", a, b)


NOTATIONS = [
    "((2,2),(4,2)):((1,8),(2,16))",
    "(4,2):(2@0,1@1@0)",
    "4:1@0+2@1",
    "(8,(2,2)):(f1,(f9,f18))",
    "S<3,4,-3>",
    "S<3,3,3> o 16 o (8,64):(64,1)",
    "(6):(10) o (-1) o (4,3):(1@0,1@0)",
    "S<1,0,1> o 0 o (8):(1) o 2 o 4:1",
    "5:-1",
    "():()",
]


@pytest.mark.parametrize("notation", NOTATIONS)
def test_what_is_written_is_read(notation):
    assert str(parse(notation)) == notation
    assert parse(str(parse(notation))) == parse(notation)


@EVERY
@given(layouts(max_rank=4))
def test_every_layout_is_read_back(layout):
    assert parse(str(layout)) == layout


def test_notation_is_forgiving_about_spaces_and_underscores():
    assert parse(" ( _4 , (2, _3) ) : (_1,(4,8)) ") == Layout((4, (2, 3)))
    assert parse("(4,8)") == Layout((4, 8))
    assert parse("Sw<2,0,3> o (8,4)") == ComposedLayout(Swizzle(2, 0, 3), 0, Layout((8, 4)))


@pytest.mark.parametrize(
    ("notation", "at"),
    [
        ("(4,2:(1,4)", 4),
        ("(4,2):(1,!)", 9),
        ("(4,2):(1,2*3)", 10),
        ("(4,2):", 6),
        ("4:1]", 3),
        ("4:1+2", 5),
        ("S<1,2>", 5),
        ("", 0),
    ],
)
def test_what_cannot_be_read_is_pointed_at(notation, at):
    with pytest.raises(LayoutValueError) as caught:
        parse(notation)
    assert str(caught.value).splitlines()[-1] == " " * at + "^"


@pytest.mark.parametrize("notation", ["(4,2):(1,(2,3))", "(4,0):(1,4)", 3])
def test_layouts_that_are_malformed_stay_so_in_text(notation):
    with pytest.raises((LayoutValueError, TypeError)):
        parse(notation)


def test_a_swizzle_of_no_bits_moves_nothing():
    for inner in (Layout(2, lc.F2(0)), Layout((4, 2), (1, 4)), Layout(4, lc.F2(2)), Layout(4, -1)):
        still = lc.ComposedLayout(lc.Swizzle(0, 2, 3), 0, inner)
        for ask in (lc.is_injective, lc.is_surjective, lc.contiguity, lc.vector_width, lc.cosize):
            assert ask(still) == ask(inner)
        assert lc.overlaps(still, inner)
    assert lc.is_surjective("S<0,0,-4> o 5 o 2:f0")
