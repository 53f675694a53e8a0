"""Layouts with names: what holds for all values holds for each, and the rest is refused or said."""

from __future__ import annotations

import copy
import itertools
import operator
import pickle
import random

import pytest

import layoutconv.algebra as lc
from layoutconv.algebra import Layout, LayoutError, SymInt, assuming, substitute, symbols

from .test_symbolic_law import holds

H, W, C = symbols("H W C")
VALUES = [dict(zip("HWC", v, strict=True)) for v in itertools.product((1, 3, 8), (2, 4, 8), (1, 5))]
BASES = [
    Layout((H, W), (W, 1)),
    Layout((W, H), (1, W)),
    Layout((H, W, C), (W * C, C, 1)),
    Layout((C, W, H), (1, C, C * W)),
    Layout(H * W, 1),
    Layout((8, H), (H, 1)),
    Layout((H, 4), (1, 2 * H)),
    Layout((H, W), (0, 2)),
    Layout(((H, 2), W), ((2 * W, W), 1)),
]
OPERATIONS = {
    "coalesce": lambda x: lc.coalesce(x),
    "filter": lambda x: lc.filter(x),
    "flatten": lambda x: lc.flatten_layout(x),
    "complement": lambda x: lc.complement(x, lc.cosize(x) * 3),
    "logical_product": lambda x: lc.logical_product(x, Layout((2, 3), (3, 1))),
    "zipped_product": lambda x: lc.zipped_product(x, Layout(4)),
    "blocked_product": lambda x: lc.blocked_product(x, Layout((2, 2))),
    "right_inverse": lambda x: lc.right_inverse(x),
    "left_inverse": lambda x: lc.left_inverse(x),
    "divide by mode": lambda x: lc.zipped_divide(x, (2, 4)[: x.rank]),
    "divide by 4": lambda x: lc.logical_divide(x, 4),
    "compose": lambda x: lc.composition(x, Layout(2)),
    "compose by mode": lambda x: lc.composition(x, (2,) * x.rank),
    "upcast": lambda x: lc.upcast(x, 4),
    "downcast": lambda x: lc.downcast(x, 2),
    "nullspace": lambda x: lc.nullspace(x),
    "sort": lambda x: lc.sort(x),
    "make_layout_like": lambda x: lc.make_layout_like(x),
}


def values_of(layout):
    return [layout(i) for i in range(lc.size(layout))]


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("given", [(), (W % 4 == 0, H > 1)], ids=["nothing", "W % 4 == 0, H > 1"])
def test_a_result_holds_for_all_values(name, given):
    operation, decided = OPERATIONS[name], 0
    for base in BASES:
        try:
            with assuming(*given):
                result = operation(base)
        except LayoutError:
            continue
        decided += 1
        for values in VALUES:
            if holds((*given, *result.assumptions), values):
                here = substitute(result, **values)
                assert _same(name, here, operation(substitute(base, **values)), base, values)
    assert decided >= 1


def _same(name, result, expected, base, values):
    """The same function; an inverse need only undo, and a right inverse may be shorter."""
    if name == "right_inverse":
        layout = substitute(base, **values)
        return all(layout(result(k)) == k for k in range(lc.size(result)))
    if name == "left_inverse":
        layout = substitute(lc.filter_zeros(base), **values)
        positions = substitute(base, **values)
        return all(
            result(positions(c)) == lc.crd2idx(c, positions.shape)
            for c in lc.coordinates(layout.shape)
        )
    if name == "downcast":  # the mode that grows may be another one where an extent is 1
        return sorted(values_of(result)) == sorted(values_of(expected))
    if name == "complement":
        return values_of(result)[: lc.size(expected)] == values_of(expected)
    return values_of(result) == values_of(expected)


def test_unknown_relations_are_named_and_can_be_given():
    with pytest.raises(LayoutError, match="unknown if H > 7") as caught:
        lc.composition(Layout((H, W), (W, 1)), Layout(8))
    with assuming(caught.value.unknown):
        found = lc.composition(Layout((H, W), (W, 1)), Layout(8))
    assert str(found) == "8:W"
    assert "H > 7" in map(str, found.assumptions)
    with pytest.raises(LayoutError, match="cannot hold"), assuming(W < 1):
        pass


def test_a_kernels_integers_say_what_their_values_decided():
    for h, w in ((8, 8), (6, 9), (16, 2)):
        rows = Layout((SymInt(h, "H"), SymInt(w, "W")), (SymInt(w, "W"), 1))
        for tile in (2, 4, 8):
            try:
                result = lc.logical_divide(rows, Layout(tile))
            except LayoutError:
                continue
            for values in VALUES:
                if not holds(result.assumptions, values):
                    continue
                plain = Layout((values["H"], values["W"]), (values["W"], 1))
                shape, stride = _now(result.shape, values), _now(result.stride, values)
                expected = values_of(lc.logical_divide(plain, Layout(tile)))
                assert values_of(Layout(shape, stride)) == expected


def _now(tree, values):
    """A tree of a kernel's integers with their names replaced by values."""
    return lc.transform_leaf(lambda x: eval(str(getattr(x, "expr", x)), dict(values)), tree)


def test_sympy_symbols_are_names():
    sympy = pytest.importorskip("sympy")
    h, w = sympy.symbols("H W", positive=True, integer=True)
    assert lc.zipped_divide(Layout((h, w), (w, 1)), (2, 8)) == lc.zipped_divide(
        Layout((H, W), (W, 1)), (2, 8)
    )


def test_random_extents_agree():
    rng = random.Random(0)
    for _ in range(200):
        base, name = (
            rng.choice(BASES),
            rng.choice(["coalesce", "divide by mode", "logical_product"]),
        )
        values = {n: rng.randint(1, 12) for n in "HWC"}
        try:
            result = OPERATIONS[name](base)
        except LayoutError:
            continue
        assert values_of(substitute(result, **values)) == values_of(
            OPERATIONS[name](substitute(base, **values))
        )


def test_expressions_are_the_integers_that_they_stand_for():
    """Sums, products, quotients and remainders of names have the value that numbers give."""
    rng = random.Random(3)
    signs = {"+": operator.add, "-": operator.sub, "*": operator.mul}
    names = {"H": H, "W": W}
    for _ in range(300):
        values = {name: rng.randint(1, 50) for name in names}
        found = [(names[n], values[n]) for n in names] + [(k, k) for k in (2, 3, 4)]
        for _ in range(5):
            (a, x), (b, y) = rng.choice(found), rng.choice(found)
            sign = rng.choice([*signs, "//", "%"])
            if sign in signs:
                found.append((signs[sign](a, b), signs[sign](x, y)))
            else:
                n = rng.randint(2, 6)
                found.append((a // n, x // n) if sign == "//" else (a % n, x % n))
        for expression, value in found:
            got = lc.substitute(Layout((2,), (expression,)), **values)(1)
            assert got == value, f"{expression} at {values} is {value}"
    assert str(2 * (W % 4) - W // 4) == "2*(W%4)-W//4"


def test_a_quotient_is_no_remainder():
    """They have the same parts; a sum of one of each once was twice the one."""
    both = 5 // H + 5 % H
    assert str(both) == "5%H+5//H"
    assert [substitute(both, H=h) for h in (1, 2, 7)] == [5 // h + 5 % h for h in (1, 2, 7)]
    nested = Layout(((H, 2), W), ((2 * W, W), 1))
    offset = lc.domain_offset((1, 1), nested)[1]
    for h in (1, 2, 3):
        now = substitute(nested, H=h, W=5)
        assert substitute(offset, H=h, W=5) == now(1, 1)


MATRIX = Layout((H, W), (W, 1))


@pytest.mark.parametrize(
    ("b", "result"),
    [
        (Layout(W, H), "W:1"),  # a row
        (Layout((W, H), (H, 1)), "(W,H):(1,W)"),  # the transposed matrix
        (Layout(H * W), "(H,W):(W,1)"),
        (Layout((H, W)), "(H,W):(W,1)"),
        (lc.right_inverse(MATRIX), "(W,H):(1,W)"),
    ],
    ids=str,
)
def test_a_composition_is_decided_by_what_is_proved(b, result):
    """Modes that end where a mode of A ends compose, however long both are."""
    found = lc.composition(MATRIX, b)
    assert (str(found), found.assumptions) == (result, ())


def test_runs_in_common_and_questions_are_answered_for_names():
    assert str(lc.max_common_layout(MATRIX, MATRIX)) == "(W,H):(H,1)"
    assert lc.max_common_vector(MATRIX, Layout((H, W), (2 * W, 1))) is not None
    assert str(lc.max_common_vector(MATRIX, Layout((H, W), (2 * W, 1)))) == "W"
    assert lc.is_bijective(MATRIX)
    assert lc.is_surjective(MATRIX)
    assert lc.is_contiguous(Layout((H, W, 3), (W, 1, 0))) is False
    with pytest.raises(LayoutError, match="it is unknown if W % 2 == 0"):
        lc.upcast(MATRIX, 2)
    with pytest.raises(LayoutError, match="it is unknown if"):
        lc.with_shape(MATRIX, (2, H * W // 2))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"H": 0, "W": 8}, "H stands for integers from 1 on"),
        ({"H": 6, "W": 12}, "holds where W % 8 == 0, and not at W=12"),
        ({"H": 6}, "without a value"),
        ({"H": 6, "W": 8.0}, "is not an integer"),
    ],
)
def test_values_that_a_layout_does_not_hold_for_are_refused(values, why):
    with assuming(W % 8 == 0):
        tiles = lc.zipped_divide(MATRIX, (2, 8))
    with pytest.raises(LayoutError, match=why):
        substitute(tiles, **values)


def test_relations_and_quotients_of_sympy():
    sympy = pytest.importorskip("sympy")
    h, w = sympy.symbols("h w", integer=True, positive=True)
    with assuming(sympy.Eq(w % 8, 0), sympy.Gt(w, 8)):
        tiles = lc.logical_divide(Layout((h, w), (w, 1)), (2, 8))
        halves = Layout((2 * h, w // 8), (sympy.ceiling(w / 8), 1))
    assert str(tiles) == "((2,(h+1)//2),(8,w//8)):((w,2*w),(1,8))"
    assert str(halves) == "(2*h,w//8):(w//8,1)"
    with pytest.raises(LayoutError, match="expected relations that can hold"):
        assuming(sympy.Lt(h, 0))


def test_operands_in_which_a_name_has_two_values_are_computed_with_as_numbers():
    """Kernels' integers of two kernels: neither A is the other one."""
    small, large = Layout((SymInt(2, "A"), 3)), Layout((SymInt(4, "A"), 3))
    both = lc.max_common_layout(small, large)
    assert (str(both), lc.max_common_vector(small, large)) == ("6:1", 6)
    assert str(lc.composition(large, small)) == "(2,3):(1,2)"
    product = Layout(SymInt(8, "A*B"))  # B is 4, but not beside the larger A
    assert str(lc.max_common_layout(product, Layout((SymInt(2, "A"), SymInt(4, "B"))))) == "A*B:1"
    assert str(lc.max_common_layout(product, Layout((SymInt(4, "A"), SymInt(4, "B"))))) == "8:1"


def test_copies_keep_what_was_taken_for_granted():
    with assuming(W % 8 == 0, H > 4):
        tiles = lc.zipped_divide(Layout((H, W), (W, 1)), (2, 8))
        small = Layout(H - 4)  # an extent that only the assumption makes one
    for layout in (tiles, small, lc.ComposedLayout(lc.Swizzle(1, 2, 3), 0, tiles)):
        for copied in (
            pickle.loads(pickle.dumps(layout)),
            copy.copy(layout),
            copy.deepcopy(layout),
        ):
            assert str(copied) == str(layout)
    assert pickle.loads(pickle.dumps(tiles)).assumptions == tiles.assumptions == (W % 8 == 0,)


@pytest.mark.parametrize("name", ["add", "radd", "sub", "rsub", "mul", "rmul"])
@pytest.mark.parametrize("integer", [H, SymInt(6, "D")])
def test_operations_of_integers_have_names(integer, name):
    """Another process finds them by these, and so do the pages of ``help``."""
    operation = getattr(integer, f"__{name}__")
    assert operation.__name__ == f"__{name}__"
    assert str(pickle.loads(pickle.dumps(operation))(7)) == str(operation(7))


@pytest.mark.parametrize(
    "part",
    [
        lambda x: x[1], lambda x: x[None, (0, None)], lc.flatten_layout, lc.filter_zeros,
        lambda x: lc.group_modes(x, 0), lambda x: lc.select(x, mode=[1, 0]), lc.complement,
        lambda x: lc.make_layout(Layout(3), x), lambda x: lc.append(x, 3), lc.sort,
        lambda x: lc.dice((None, 0), x), lambda x: lc.slice_and_offset((0, None), x)[0],
        lambda x: lc.composition(lc.Swizzle(1, 2, 3), x)[1], lambda x: lc.upcast(x, 2),
    ],
)  # fmt: skip
def test_what_is_made_of_a_result_takes_for_granted_what_it_does(part):
    """And may use it: that W is a multiple of 8 is what the result rests on anyway."""
    with assuming(W % 8 == 0, H > 14):
        tiles = lc.zipped_divide(Layout((H, W), (W, 1)), (2, 8))
        lc.logical_divide(tiles, 2)
    before = tiles.assumptions
    with assuming(H > 14):
        assert set(before) <= set(part(tiles).assumptions)
    assert tiles.assumptions == before == (W % 8 == 0,)


def test_the_order_of_modes_may_be_names_of_which_it_is_known():
    p, q = lc.symbols("P Q")
    low = lc.symbols("Z", minimum=0)
    assert str(lc.make_ordered_layout((4, 8), (1, p))) == "(4,8):(1,4)"
    assert str(lc.make_ordered_layout((4, 8), (1, 0 * low))) == "(4,8):(8,1)"
    with pytest.raises(lc.LayoutValueError, match="it is unknown if Q >= P"):
        lc.make_ordered_layout((4, 8), (p, q))
    with lc.assuming(p > q):
        made = lc.make_ordered_layout((4, 8), (p, q))
    assert str(made) == "(4,8):(8,1)"
    assert made.assumptions


def test_names_of_sympy_are_equal_to_what_they_became():
    sympy = pytest.importorskip("sympy")
    x, y = sympy.symbols("x y", positive=True, integer=True)
    z = sympy.symbols("z", integer=True)
    layout = lc.zipped_divide(lc.Layout((x, y), (y, z)), (128, 512))
    assert layout.shape[1] == ((x + 127) // 128, (y + 511) // 512)
    assert layout.stride == ((y, z), (128 * y, 512 * z))


@pytest.mark.parametrize(("old", "new"), [(6, 8), (6, 32)])
def test_both_steps_of_a_recast_keep_names(old, new):
    """The second step takes for granted what the first one did, without asking again."""
    A, B = SymInt(2, "A"), SymInt(2, "B")
    result = lc.recast(Layout((A, B), (B, 1)), old, new)
    assert {"A", "B"} <= set(str(result))
    plain = lc.recast(Layout((2, 2), (2, 1)), old, new)
    assert [int(result(i)) for i in range(plain.size())] == list(map(plain, range(plain.size())))


def test_what_two_results_took_for_granted_may_not_hold_at_once():
    """Each of two operands was made for other values: neither is used, and none is refused."""
    W = symbols("W")
    with assuming(W > 7):
        longer = lc.composition(Layout((W, 3), (3, 1)), 8)
    with assuming(W < 4):
        assert str(lc.coalesce(longer)) == "8:3"
    assert longer.assumptions == (W > 7,)


def test_numbers_of_sympy_stand_for_extents_wherever_a_shape_is_asked_for():
    sympy = pytest.importorskip("sympy")
    n, m = sympy.symbols("N M", positive=True, integer=True)
    N, M = symbols("N M")
    assert lc.complement(Layout(4, 2), 8 * n) == lc.complement(Layout(4, 2), 8 * N)
    assert lc.greatest_common_domain((n, 4), (n, 2)) == Layout((N, 2), (1, N))
    assert lc.ceil_div((n, m), (4, 8)) == lc.ceil_div((N, M), (4, 8))
    assert lc.shape_div(Layout((n, m)), n) == (1, M)
    assert lc.logical_divide(Layout((24, 8)), n) == lc.logical_divide(Layout((24, 8)), N)
    assert lc.coalesce(Layout((4, 2), (lc.E(0) * n, 4 * n * lc.E(0)))) == Layout(8, N * lc.E(0))
    with pytest.raises(LayoutError, match="the bits of N are not known"):
        lc.Swizzle(1, 0, 1)(n)
    with pytest.raises(LayoutError, match="N/2 is not known to be an integer"):
        lc.complement(Layout(4), n / 2)


@pytest.mark.parametrize("other", [5, 6, 4, 1])
def test_what_an_operand_rests_on_is_no_fact_about_another_value_of_the_name(other):
    """The composed layout becomes numbers, which rest on A == 4; the A of the other is its own."""
    A, B = SymInt(4, "A"), SymInt(6, "B")
    composed = lc.ComposedLayout(Layout(1, 1), -2, Layout((A, B), (1, -1)))
    result = lc.max_common_layout(composed, Layout((SymInt(other, "A"),), (1,)))
    assert lc.size(result) == min(other, 4)
    assert [composed(result(i)) + 2 for i in range(int(result.size()))] == list(
        range(min(other, 4))
    )
