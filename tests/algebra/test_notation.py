"""Layouts read from the notations that CuTe writes and prints."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv.algebra as lc
from layoutconv.algebra import Layout, LayoutError, parse
from layoutconv.algebra.symbols import Symbolic
from layoutconv.drawing.expression import evaluate
from layoutconv.testing.oracle import leaves
from layoutconv.testing.strategies import layouts, operands

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


@settings(deadline=None)
@given(layouts(), st.sampled_from(SPELLINGS))
def test_what_the_dsl_writes_is_the_layout(layout, spelling):
    shape, stride = spelt(layout.shape, spelling, ""), spelt(layout.stride, spelling, "")
    order = tuple(range(len(layout.shape)))[::-1] if isinstance(layout.shape, tuple) else 0
    for call in ("cute.make_layout", "make_layout", "cute::make_layout", "Layout"):
        for read in (parse, evaluate):
            assert read(f"{call}({shape}, stride={stride})") == layout
            assert read(f"{call}(shape = {shape},stride = {stride})") == layout
            nested = f"cute.make_layout({call}({shape}, stride={stride}))"
            assert read(nested) == lc.make_layout(layout)
    assert evaluate(f"cute.make_ordered_layout({shape}, order={order})") == lc.make_ordered_layout(
        layout.shape, order
    )


def typed(tree, name):
    """A tuple as a type of C++."""
    if isinstance(tree, tuple):
        return f"{name}<{', '.join(typed(part, name) for part in tree)}>"
    return f"_{tree}"


@settings(deadline=None)
@given(layouts())
def test_types_of_cpp_are_layouts(layout):
    shape, stride = typed(layout.shape, "Shape"), typed(layout.stride, "Stride")
    assert parse(f"Layout<{shape}, {stride}>{{}}") == layout
    assert evaluate(f"Layout<{shape},{stride}>{{}}") == layout
    assert parse(f"Layout<{shape}>") == Layout(layout.shape)
    assert evaluate(f"make_layout({shape}{{}}, {stride}{{}})") == layout
    assert evaluate(f"make_layout({shape}{{}}, GenRowMajor{{}})") == lc.make_layout(
        layout.shape, lc.LayoutRight
    )


@settings(deadline=None)
@given(layouts(), st.sampled_from([(3, 3, 3), (2, 4, 3), (1, 0, 2)]), st.integers(0, 99))
def test_what_is_printed_is_read(layout, swizzle, offset):
    """The law of the notation: parse(str(x)) == x, by itself and on the command line."""
    swizzled = lc.ComposedLayout(lc.Swizzle(*swizzle), offset, layout)
    for x in (layout, lc.Swizzle(*swizzle), swizzled, lc.ComposedLayout(layout, offset, layout)):
        assert parse(str(x)) == evaluate(str(x)) == x
        blank = re.sub(r"(?<=[(,: ])(-?[0-9]+)(?![0-9@,>]*>)", r"_\1", str(x))  # as C++ prints it
        assert parse(blank) == x


@pytest.mark.parametrize("strides", ["int", "basis", "F2", "strided"])
@settings(deadline=None)
@given(st.data())
def test_every_stride_with_a_notation_is_read(strides, data):
    """The law of the notation, for each kind of stride that is printed as a whole."""
    x = data.draw(operands(data.draw(st.sampled_from(["layout", "swizzled", "offset"])), strides))
    assert parse(str(x)) == evaluate(str(x)) == x


@pytest.mark.parametrize("kind", ["layout", "swizzled", "offset", "tensor"])
@pytest.mark.parametrize("strides", ["gather", "user"])
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_what_is_printed_in_part_is_refused(kind, strides, data):
    """The text of a buffer, a function and an engine holds no more than a name."""
    for read in (parse, evaluate):
        with pytest.raises(LayoutError):
            read(str(data.draw(operands(kind, strides))))


@settings(deadline=None)
@given(layouts(kind="symbolic"))
def test_of_values_that_have_names_the_names_are_read(layout):
    """A kernel's integers are printed without their values, so the names come back."""
    values = {str(x): int(x) for x in leaves(layout.shape) if isinstance(x, lc.SymInt)}
    assert lc.substitute(parse(str(layout)), **values) == layout.map_integers(int)


class Triangular(lc.Stride):
    """A stride of one's own that says nothing of itself."""

    def at(self, c):
        return c * (c + 1) // 2


@pytest.mark.parametrize(
    "stride", [lc.CustomStride(abs, 3), lc.CustomStride(lambda c: c, 3), Triangular()]
)
def test_functions_are_not_read_as_names(stride):
    """``4:abs*3`` would be a layout whose stride is three times an integer called abs."""
    with pytest.raises(LayoutError):
        parse(str(Layout(4, stride)))


H, W = lc.symbols("H W")

_INTEGERS = st.sampled_from([3, -2, 0, H, -1 * H, H + 1, 3 - W, H * W - W, W // 8, 2 * (H % 3)])
_BASES = st.builds(lambda n, path: n * lc.E(*path), _INTEGERS, st.sampled_from([(0,), (2, 0)]))
_SIMPLE = st.one_of(
    _INTEGERS,
    _BASES,
    st.builds(lambda a, n: a + n * lc.E(1), _BASES, _INTEGERS),
    st.builds(lc.F2, st.integers(0, 9)),
    st.builds(lambda n: lc.ScaledBasis(lc.F2(n), (1, 0)), st.integers(0, 9)),
)
_AFTER_MULTIPLES = st.recursive(
    _SIMPLE,
    lambda d: st.builds(lambda n, d: lc.CustomStride(lc.StridedGather(n), d), _INTEGERS, d),
    max_leaves=4,
)


@settings(deadline=None)
@given(_AFTER_MULTIPLES, _AFTER_MULTIPLES)
def test_strides_after_multiples_are_read(d, e):
    layout = Layout((4, (2, 3)), (d, (1, e)))
    assert parse(str(layout)) == layout


@pytest.mark.parametrize(
    "layout",
    [
        Layout((H, W), (W, 1)),
        lc.logical_divide(Layout((H, W), (W, 1)), (2, 8)),
        Layout((H, 4), (-1 * (W // 8), H - 3 * W)),
        Layout((2, W % 8 + 1), (1, (-1 * W) // 8)),
        Layout((H, W), ((H + 1) * lc.E(0), 2 * W * lc.E(1) + lc.E(0))),
        lc.ComposedLayout(Layout((H, W)), (H // 2 - 1) * 3, Layout(4, W % 8)),
    ],
)
def test_what_is_printed_with_names_is_read(layout):
    assert parse(str(layout)) == layout


def test_expressions_are_read_as_python_reads_them():
    rng = random.Random(5)
    values = {"H": 13, "W": 37}
    for _ in range(300):
        words = [rng.choice(["H", "W", "2", "7", "(H-W)", "-3", "-H"]) for _ in range(5)]
        words[rng.randrange(5)] = "H"  # arithmetic of numbers alone is no notation
        written = "".join(w + rng.choice([*"+-*%", "//"]) for w in words) + "5"
        read = lc.substitute(parse(f"2:{written}"), **values)
        assert read.stride == eval(written, dict(values)), written


@pytest.mark.parametrize(
    "text", ["x", "gather*3", "(4,2):(gather*3,1)", "(H W)", "2:(H+1@0)", "2:H//0", "(H(3),2)"]
)
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(LayoutError, match="expected"):
        parse(text)


@pytest.mark.parametrize("name", ["f", "of", "_w", "complement", "Int", "S", "x5", "make", "α"])
def test_names_of_integers_are_read(name):
    x = lc.symbols(name)
    for layout in (Layout((x, 4), (4, x)), Layout((2, x), (x, lc.E(0)))):
        assert parse(str(layout)) == layout


@pytest.mark.parametrize(
    "word",
    [
        *("o", "O", "f5", "_", "_4", "None", "lambda", "__class__", "__w", "gather", "Layout"),
        *("LayoutLeft", "ArithTuple", "make_layout", "make_4", "make_shapes"),
    ],
)
def test_words_that_are_no_names(word):
    """Integers have no such names, so that nothing printed is read as something else."""
    with pytest.raises(LayoutError, match="expected names"):
        lc.symbols(word)
    if word in ("f5", "_4"):
        assert not isinstance(parse(f"(2,3):({word},1)").stride[0], Symbolic)
    else:
        with pytest.raises(LayoutError, match="expected"):
            parse(f"(2,3):({word},1)")


def test_a_dynamic_extent_takes_no_name_that_is_written():
    assert str(parse("(?,d0,?):(d2,1,?)")) == "(d1,d0,d3):(d2,1,d4)"


@pytest.mark.parametrize("text", ["4-3 o H:1", "4-3 o 8:1", "(4,2)_ptrx", "4:-_1"])
def test_what_a_name_elsewhere_does_not_allow(text):
    with pytest.raises(LayoutError, match="expected"):
        parse(text)


@settings(deadline=None)
@given(layouts(kind="basis"))
def test_bases_are_read_as_each_library_prints_them(layout):
    printed = str(layout)
    assert parse(printed) == layout
    if "+" not in printed:
        cpp = re.sub(r"(?<![0-9-])1@([0-9]+)@([0-9]+)", r"E<\2,\1>{}", printed)
        cpp = re.sub(r"(?<![0-9-])1@([0-9]+)(?!@)", r"E<\1>{}", cpp)
        assert parse(cpp) == evaluate(cpp) == layout


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("Sw<3,4,3>_smem_ptr[16b](0x7f00) o (_8,_64):(_64,_1)", "S<3,3,3> o 0 o (8,64):(64,1)"),
        ("gmem_ptr[16b](0x7f00) o (_8,_64):(_64,_1)", "(8,64):(64,1)"),
        ("tensor<ptr<f16, gmem, align<16>> o (4,8):(8,1)>", "(4,8):(8,1)"),
        (
            "tensor<ptr<f16, smem, align<1024>, S<3,4,3>> o (8,64):(64,1)>",
            "S<3,3,3> o 0 o (8,64):(64,1)",
        ),
        ("raw_ptr(0x00: f32, smem, align<16>, S<2,4,3>) o 8:1", "S<2,2,3> o 0 o 8:1"),
        ("(?,?{div=8}):(?{i64 div=8},1)", "(d0,8*d1):(8*d2,1)"),
        ("make_layout(make_shape(4_c, 8), make_stride(8, 1_c))", "(4,8):(8,1)"),
        ("make_layout((4,8),(1@0,1@1))", "(4,8):(1@0,1@1)"),
        ("Swizzle<3,3,3>{}", "S<3,3,3>"),
    ],
)
def test_printed_tensors_and_forms(text, layout):
    assert str(parse(text)) == str(evaluate(text)) == layout


def test_tensors_of_coordinates_are_read():
    for text in ("tensor<(0,24) o (2,2):(1@1,16@0)>", "ArithTuple(0,_24) o (_2,_2):(_1@1,_16@0)"):
        tensor = parse(text)
        assert [tuple(tensor(i)) for i in range(4)] == [(0, 24), (0, 25), (16, 24), (16, 25)]
        assert evaluate(text).layout == tensor.layout


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
        "Layout<Shape<_4,_8>,Stride<_8>>{}",
        "Layout<Shape<_4,_8>",
        "E<>",
        "E<64>",
        "tensor<4:1 o 8:1>",
        "tensor<(0,0) o 8:1",
        "(?,4):(1@?,2)",
        "S<?,3,3>",
        "(4,8):(E<0>,!)",
        "make_layout(stride=(8,1), shape=(4,8))",
        "make_layout((4,8), order=(1,0))",
        "make_layout((4,8):(8,1), stride=(1,2))",
        "make_layout(make_layout(4), stride=2)",
        "make_layout((4,8), (8,1), stride=2)",
        "make_layout((4,stride=8))",
        "make_layout((4,8), stride==(8,1))",
        "(4,8):(8,stride=1)",
        "cute.(4,8)",
        "cute",
    ],
)
def test_what_is_no_layout_is_refused(text):
    with pytest.raises(LayoutError):
        parse(text)
    if text != "make_layout()":  # an expression that says ():()
        with pytest.raises(LayoutError):
            evaluate(text)
