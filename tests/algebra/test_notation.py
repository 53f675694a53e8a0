"""What CuTe writes and prints, read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv.algebra as lc
from layoutconv.algebra import Layout, LayoutError, parse
from layoutconv.testing.strategies import layouts

SPELLINGS = ["{}", "_{}", "Int<{}>{{}}", "_{}{{}}", "C<{}>{{}}"]


def spelt(tree, spelling, tuples):
    """A tuple as C++ writes it."""
    if isinstance(tree, tuple):
        return f"{tuples}({','.join(spelt(part, spelling, tuples) for part in tree)})"
    return spelling.format(tree)


@settings(deadline=None)
@given(layouts(), st.sampled_from(SPELLINGS), st.booleans())
def test_what_cpp_writes_is_the_layout(layout, spelling, named):
    shape = spelt(layout.shape, spelling, "make_shape" if named else "")
    stride = spelt(layout.stride, spelling, "make_stride" if named else "")
    assert parse(f"make_layout({shape}, {stride})") == layout
    assert parse(f"make_layout({shape})") == Layout(layout.shape)
    assert parse(f"make_layout({shape}, LayoutRight{{}})") == lc.make_layout(
        layout.shape, lc.LayoutRight
    )
    assert parse(f"{shape}:{stride}") == layout


def test_layouts_side_by_side():
    assert parse("make_layout(make_layout(4,1), (2,3):(4,8))") == Layout((4, (2, 3)), (1, (4, 8)))
    assert str(parse("make_layout((4,8),(8,1)) o make_layout((2,3))")) == (
        "(4,8):(8,1) o 0 o (2,3):(1,2)"
    )


@pytest.mark.parametrize(("bits", "base"), [(4, 5), (8, 4), (16, 3), (32, 2), (64, 1)])
def test_a_swizzle_in_front_of_a_pointer_moves_bytes(bits, base):
    run = 1024 // bits
    printed = f"Sw<3,4,3> o smem_ptr[{bits}b](unset) o (_8,_{run}):(_{run},_1)"
    assert parse(printed) == lc.smem_atom("K_SW128", bits)
    assert parse(printed).outer.base == base


@pytest.mark.parametrize(
    "text",
    [
        "make_layout()",
        "make_layout((4,8),(8,1),(1,1))",
        "make_layout((4,8),4:2)",
        "make_layout(S<1,2,3>)",
        "smem_ptr[16b](unset)",
        "make_foo(4)",
        "Int<4",
        "Sw<3,0,3> o smem_ptr[64b](unset) o 8:1",
    ],
)
def test_what_is_no_layout_is_refused(text):
    with pytest.raises(LayoutError):
        parse(text)
