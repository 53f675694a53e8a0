"""Layouts with names: what holds for all values holds for each, and the rest is refused or said."""

from __future__ import annotations

import itertools
import random

import pytest

import layoutconv.algebra as lc
from layoutconv.algebra import Layout, LayoutError, SymInt, assuming, substitute, symbols

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


def holds(relations, values):
    """Tell if relations between names hold at values."""
    return all(eval(str(relation), dict(values)) for relation in relations)


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
    signs = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
    names = {"H": H, "W": W}
    for _ in range(300):
        values = {name: rng.randint(1, 50) for name in names}
        found = [(names[n], values[n]) for n in names] + [(k, k) for k in (2, 3, 4)]
        for _ in range(5):
            (a, x), (b, y) = rng.choice(found), rng.choice(found)
            sign = rng.choice([*signs, "//", "%"])
            if sign in signs:
                found.append((eval(f"a {sign} b"), signs[sign](x, y)))
            else:
                n = rng.randint(2, 6)
                found.append((a // n, x // n) if sign == "//" else (a % n, x % n))
        for expression, value in found:
            got = lc.substitute(Layout((2,), (expression,)), **values)(1)
            assert got == value, f"{expression} at {values} is {value}"
    assert str(2 * (W % 4) - W // 4) == "2*(W%4)-W//4"
