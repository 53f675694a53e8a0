"""Questions asked of layouts over names: the answer at the values, or an error of the algebra.

The answer for integers is held against definitions elsewhere; here an answer for names, at values
that it may assume, is that one.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from test_symbolic_law import assumptions_of, holds

import layoutconv.algebra as lc
from layoutconv.algebra import Layout, LayoutError, assuming, substitute
from layoutconv.testing.strategies import symbolic_layouts

H, W = lc.symbols("H W")
CASES = int(os.environ.get("LAYOUTCONV_SYMBOLIC", "60"))


def each(x, n):
    return tuple([n for _ in x.shape]) if isinstance(x.shape, tuple) else n


ANSWERED = {
    "contiguity": lc.contiguity,
    "mode_contiguity": lc.mode_contiguity,
    "slice_contiguity": lambda x: lc.slice_contiguity(x, each(x, None)),
    "is_contiguous": lc.is_contiguous,
    "is_bijective": lc.is_bijective,
    "coshape": lc.coshape,
    "functionally_equal": lambda x: lc.functionally_equal(x, lc.coalesce(x)),
    "vector_width": lc.vector_width,
    "elem_less": lambda x: lc.elem_less(lc.idx2crd(0, x.shape), x.shape),
    "evenly_divides": lambda x: lc.evenly_divides(4 * x.size(), 2),
    "shape_div": lambda x: lc.shape_div(lc.elem_scale(x.shape, each(x, 2)), 2),
    "ceil_div": lambda x: lc.ceil_div(x.shape, each(x, 3)),
    "round_up": lambda x: lc.round_up(x.size(), 8),
    "idx2crd": lambda x: lc.idx2crd(5, x.shape),
    "increment": lambda x: lc.increment(lc.idx2crd(0, x.shape), x.shape),
    "compatible": lambda x: lc.compatible(x.size(), x.shape),
    "common_refinement": lambda x: lc.common_refinement(x.shape, x.size()),
    "get_hier_coord": lambda x: x.get_hier_coord(0),
    "sort": lc.sort,
    "make_layout_like": lc.make_layout_like,
    "make_fragment_like": lc.make_fragment_like,
    "make_layout_tv": lambda x: lc.make_layout_tv(x, Layout(2)),
}
# What has to look at every offset has no answer; it says that names have no value.
TABLES = {
    "offsets": Layout.offsets,
    "image": lc.image,
    "offset_table": lc.offset_table,
    "footprint": lc.footprint,
    "bank_conflicts": lambda x: lc.bank_conflicts(x, 16),
    "coalescing": lambda x: lc.coalescing(x, 16),
    "cycles": lc.cycles,
    "fixed_points": lc.fixed_points,
    "permutation_parity": lc.permutation_parity,
    "overlaps": lambda x: lc.overlaps(x, x, 1),
    "to_f2": lc.to_f2,
    "coordinates": lambda x: list(lc.coordinates(x.shape)),
}


def alike(name, found, wanted):
    """One answer; layouts of one answer give the same offsets, a width one that is a part."""
    if name == "vector_width":
        return wanted % found == 0
    if isinstance(wanted, Layout):
        return lc.functionally_equal(found, wanted)
    if isinstance(wanted, tuple | list):
        return len(found) == len(wanted) and all(map(alike, [name] * len(wanted), found, wanted))
    return found == wanted


def at(x, values):
    if isinstance(x, tuple | list):
        return type(x)([at(part, values) for part in x])
    return x if isinstance(x, bool) or x is None else substitute(x, **values)


@pytest.mark.parametrize("name", ANSWERED)
def test_an_answer_holds_at_the_values(name):
    ask, decided = ANSWERED[name], []

    @settings(deadline=None, max_examples=CASES)
    @given(symbolic_layouts())
    def play(case):
        try:
            with assuming(*case.given):
                found = ask(case.layout)
        except LayoutError:
            return
        if holds(assumptions_of(found), case.values):
            decided.append(found)
            wanted = ask(substitute(case.layout, **case.values))
            assert alike(name, at(found, case.values), wanted)

    play()
    assert decided


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_names_is_refused(name):
    @settings(deadline=None, max_examples=10)
    @given(symbolic_layouts())
    def play(case):
        with pytest.raises(LayoutError, match="not an integer with a known value"):
            TABLES[name](case.layout)

    play()


def test_what_is_open_is_said():
    H, W = lc.symbols("H W")
    for ask, relation in (
        (lambda: lc.shape_div(H, 2), "H % 2 == 0"),
        (lambda: lc.evenly_divides(H, 2), "H % 2 == 0"),
        (lambda: lc.elem_less((H, 1), (W, 2)), "H < W"),
        (lambda: lc.contiguity(Layout((H, 4), (2, 1))), "H == 1"),
    ):
        with pytest.raises(LayoutError, match=f"it is unknown if {relation}"):
            ask()


@pytest.mark.parametrize(("layout", "offset"), [("4:1", 10), ("(4,8):(1,4)", -1), ("4:2", 3)])
def test_an_offset_of_no_coordinate_has_no_coordinate(layout, offset):
    for ask in ("get_1d_coord", "get_hier_coord", "get_flat_coord"):
        with pytest.raises(LayoutError, match=f"no coordinate of .* has the offset {offset}"):
            getattr(lc.parse(layout), ask)(offset)


def test_registers_lie_in_the_order_of_strides_that_have_names():
    H, W = lc.symbols("H W")
    assert str(lc.make_fragment_like(Layout((2, H, W), (W, 4 * W, 1)))) == "(2,H,W):(1,2*W,2)"
    assert str(lc.make_fragment_like(Layout((2, H, W), (1, -2 * W, 2)))) == "(2,H,W):(1,2*W,2)"


@pytest.mark.parametrize(("threads", "values"), [("2:4", "2:1"), ("(4,8):(0,1)", 2), (4, "2:2")])
def test_threads_and_values_are_numbered_from_0_on(threads, values):
    with pytest.raises(
        LayoutError, match=r"numbered from 0|copies would overlap|crosses a mode boundary|carry"
    ):
        lc.make_layout_tv(threads, values)


def test_sizes_in_bytes_are_expressions():
    assert lc.size_in_bytes(16, "(H,W):(W,1)") == 2 * H * W
    for bits in (4, 6, 16):
        found = lc.size_in_bytes(bits, Layout((H, 3), (5, 1)))
        for h in (1, 2, 5, 8):
            there = lc.size_in_bytes(bits, Layout((h, 3), (5, 1)))
            assert lc.substitute(Layout(2, found), H=h).stride == there


@pytest.mark.parametrize(
    ("a", "b"), [((H, W), (H, W)), ((H, W), H * W), ((H, 8), (H, 4, 2)), ((2 * H, W), (2, H, W))]
)
def test_common_domains_of_names_are_those_of_their_values(a, b):
    found = lc.greatest_common_domain(a, b)
    for values in ({"H": 5, "W": 7}, {"H": 4, "W": 6}, {"H": 1, "W": 9}):
        here = lc.greatest_common_domain(
            *[lc.substitute(Layout(x), **values).shape for x in (a, b)]
        )
        assert lc.coalesce(lc.substitute(found, **values)) == lc.coalesce(here)


def test_a_common_domain_says_which_relation_is_unknown():
    with pytest.raises(LayoutError, match="W % 8 == 0") as caught:
        lc.greatest_common_domain((H, W), (H, 8))
    with lc.assuming(caught.value.unknown):
        assert str(lc.greatest_common_domain((H, W), (H, 8))) == "(H,8):(1,H)"
    today = lc.greatest_common_domain((lc.SymInt(4, "H"), lc.SymInt(6, "W")), (2, 12))
    assert lc.functionally_equal(today, lc.greatest_common_domain((4, 6), (2, 12)))
    assert today.assumptions
