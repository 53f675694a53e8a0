"""The public checks see what is wrong, and the suite sees it in another library."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

import layoutconv.algebra as lc
from layoutconv import testing
from layoutconv.algebra import Layout, LayoutError
from layoutconv.testing.__main__ import main
from layoutconv.testing.conformance import OPERATIONS, table
from layoutconv.testing.random_layouts import domain
from layoutconv.testing.strategies import (
    arguments,
    layouts,
    operands,
    shapes,
    subtiles,
    swizzles,
    tilers,
)

# What other libraries give (docs/algebra/discrepancies.md): the operation, operands, their result.
WRONG = [
    ("composition", (Layout((6, 2), (1, 7)), Layout((3, 2), (2, 3))), Layout((3, 2), (2, 3))),
    ("composition", (Layout((4, 3), (1, 8)), Layout(6)), Layout(4)),
    ("complement", (Layout((2, 2), (3, 2)), 24), Layout((2, 4), (1, 6))),
    ("logical_divide", (Layout((6, 2), (7, 6)), Layout(2, 4)), Layout((2, 4), (28, 7))),
    ("logical_product", (Layout(4), 3), Layout((3, 2), (1, 3))),
    ("left_inverse", (Layout((4, 8), (1, 5)),), Layout(4)),
    ("left_inverse", (Layout((2, 2), (2, 3)),), Layout((2, 2), (4, 1))),
    ("right_inverse", (Layout((2, 4), (0, 1)),), Layout(4)),
    ("coalesce", (Layout((2, (1, 6)), (1, (6, 2))),), Layout((1, 1), (0, 0))),
]


@pytest.mark.parametrize(("name", "operands", "result"), WRONG, ids=str)
def test_what_other_libraries_give_is_seen(name, operands, result):
    with pytest.raises(testing.WrongResultError, match=name):
        OPERATIONS[name].check(*operands, result)


def ours(name, *operands):
    return getattr(lc, OPERATIONS[name].names[0])(*operands)


@pytest.mark.parametrize("name", [n for n, o in OPERATIONS.items() if o.anything])
def test_what_ours_gives_passes(name):
    rng = random.Random(name)
    for _ in range(60):
        operands = OPERATIONS[name].anything(rng)
        try:
            result = ours(name, *operands)
        except LayoutError:
            continue
        OPERATIONS[name].check(*operands, result)


# Operations whose admissible operands may have strides of every kind, or be of every kind.
EVERY_STRIDE = {
    "coalesce", "filter", "filter_zeros", "flatten", "group_modes", "slice_and_offset",
    "local_tile", "local_partition", "domain_offset", "cosize", "is_injective",
}  # fmt: skip
TILED = {"composition", "logical_divide", "composition by mode", "logical_divide by mode",
         "zipped_divide", "tiled_divide", "flat_divide"}  # fmt: skip
PRODUCTS = {"logical_product", "zipped_product", "tiled_product", "flat_product",
            "blocked_product", "raked_product", "tile_to_shape"}  # fmt: skip
CELLS = (
    [(name, "layout", "int") for name in testing.ADMISSIBLE]
    + [(name, "layout", s) for name in sorted(EVERY_STRIDE) for s in testing.STRIDE_KINDS[1:]]
    + [(name, "layout", s) for name in sorted(TILED) for s in ("symbolic", "basis", "strided")]
    + [(name, k, "int") for name in sorted(EVERY_STRIDE | TILED - {"composition by mode"})
       for k in ("swizzled", "offset", "tensor")]
    + [(name, k, "int") for name in sorted(PRODUCTS) for k in ("swizzled", "offset", "tensor")]
)  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "strides"), CELLS, ids=str)
def test_admissible_operands_have_an_exact_result(name, kind, strides):
    @settings(deadline=None, max_examples=12)
    @given(arguments(name, kind, strides))
    def play(operands):
        OPERATIONS[name].check(*operands, ours(name, *operands))

    play()


def faulty(name, function):
    """A library like ours with one operation replaced."""
    found = {n: getattr(lc, n) for operation in OPERATIONS.values() for n in operation.names[:1]}
    return SimpleNamespace(Layout=Layout, **(found | {OPERATIONS[name].names[0]: function}))


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_the_suite_sees_faults_refusals_and_crashes(name):
    def refuse(*_):
        raise AssertionError

    def crash(*_):
        raise RuntimeError

    def play(function):
        others = set(OPERATIONS) - {name}
        return testing.conformance(faulty(name, function), 40, skip=others)[name]

    right = play(lambda *operands: ours(name, *operands))
    assert (right.wrong, right.over_refused, right.crashed, right.first) == (0, 0, 0, "")
    refusing = play(refuse)
    assert (refusing.over_refused, refusing.refused) == (right.exact, right.refused)
    assert "is refused" in refusing.first
    crashing = play(crash)
    assert crashing.crashed == 40
    wrong = play(lambda *_: Layout((2, 2), (5, 7)))
    assert wrong.wrong > 10
    assert name in table({name: wrong})


def test_a_refusal_of_what_exists_by_construction_counts_for_this_library_too(monkeypatch):
    def refuse(a, b):
        raise lc.LayoutValueError("no")

    monkeypatch.setattr(lc, "composition", refuse)
    others = set(OPERATIONS) - {"composition"}
    assert testing.conformance(lc, 40, skip=others)["composition"].over_refused == 20


def test_functions_of_tuples_are_no_operations_on_layouts():
    def flatten(t):
        """As pycute's: a layout is a leaf."""
        return tuple(part for x in t for part in flatten(x)) if isinstance(t, tuple) else (t,)

    def slice_(crd, t):
        assert isinstance(t, tuple)
        return lc.slice_(crd, t)

    library = SimpleNamespace(Layout=Layout, flatten=flatten, slice_=slice_, cosize=lc.cosize)
    assert list(testing.conformance(library, 10)) == ["cosize"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--library", "no_such_library"], "No module named 'no_such_library'"),
        (["--library", "math"], "no Layout, or no operation"),
        (["--skip", "coalesce,composit"], "no operation composit to skip"),
        (["--cases", "0"], "argument `cases`: expected an int >= 1, got 0"),
        (["--library", ""], "argument `library`: expected a module or its name"),
    ],
)
def test_what_cannot_be_played_is_said(options, why, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--cases", "1", *options])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda: arguments("compose"), "argument `operation`: expected one of coalesce, "),
        (lambda: arguments("composition", "swizzle"), "argument `kind`: expected one of layout, "),
        (lambda: arguments("composition", strides="f2"), "argument `strides`: expected one of int"),
        (lambda: layouts(kind="f2"), "layouts: argument `kind`: expected one of int, .*, got 'f2'"),
        (lambda: layouts(max_rank=0), "argument `max_rank`: expected an int >= 1, got 0"),
        (lambda: operands("swizzle"), "operands: argument `kind`: expected one of layout, "),
        (lambda: subtiles("x"), "expected a layout, found 'x'"),
        (lambda: tilers(None), "tilers: None is not a layout"),
        (lambda: testing.conformance(lc, cases=2.5), "`cases`: expected an int >= 1, got 2.5"),
        (lambda: testing.conformance(lc, 1, skip="filter"), "`skip`: expected a sequence of names"),
    ],
)
def test_a_wrong_argument_is_named(ask, why):
    with pytest.raises(lc.LayoutError, match=why):
        ask()


def test_what_is_no_layout_is_a_wrong_result():
    for result in (None, "4:1", [4]):
        with pytest.raises(testing.WrongResultError, match="is not a layout: it has no shape"):
            testing.check_composition(Layout(4), Layout(2), result)


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(testing.OPERAND_KINDS), st.data())
def test_strategies_give_operands(kind, data):
    x = data.draw(operands(kind, "int"))
    assert lc.size(x) >= 1
    shape = lc.shape(x)
    tiler = data.draw(tilers(shape))
    modes = shape if isinstance(shape, tuple) else (shape,)
    assert all(t is None or lc.size(s) % lc.size(t) == 0 for t, s in zip(tiler, modes, strict=True))
    swizzle = data.draw(swizzles())
    assert sorted(map(swizzle, range(swizzle.size()))) == list(range(swizzle.size()))


@pytest.mark.parametrize("kind", testing.STRIDE_KINDS)
def test_layouts_shrink(kind):
    found = find(layouts(kind=kind), lambda a: a.size() > 3)
    assert found.size() == 4
    assert found.rank <= 2
    assert found.depth <= 1


def test_operands_shrink():
    assert lc.size(find(shapes(), lambda s: lc.size(s) > 1 and isinstance(s, tuple))) == 2
    a, b = find(arguments("composition"), lambda x: x[0].size() > x[1].size() > 1)
    assert b.size() == 2
    assert a.size() <= 4
    x, tile = find(arguments("logical_product", "swizzled"), lambda x: lc.size(x[1]) > 2)
    assert domain(x).size() <= 2
    assert lc.size(tile) in (3, 4)
