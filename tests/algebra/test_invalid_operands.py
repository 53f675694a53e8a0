"""Invalid operands: an error of the algebra names each, and never one of Python's."""

from __future__ import annotations

import inspect
import pickle
import time
from types import FunctionType

import pytest

import layoutconv.algebra as lc
from layoutconv.algebra import Layout, LayoutError, LayoutTypeError

from .invalid_operands import ACCEPTED, CALLS, MAKERS, OTHER_CALLS, SENSELESS

# A user's function may raise what it likes: theirs is handed on.
USERS_OWN = {("transform_leaf", 0), ("hier_unzip", "splitter")}
FUNCTIONS = [
    name
    for name in lc.__all__
    if isinstance(getattr(lc, name), FunctionType) or hasattr(getattr(lc, name), "cache_info")
]


def with_each(name, call):
    """A call of a name with one operand in the place of another, and which one it is."""
    args, named = call
    for place in [*range(len(args)), *named]:
        for kind, senseless in SENSELESS.items():
            if (name, place) in USERS_OWN and callable(senseless()):
                continue
            positional, by_name = list(args), dict(named)
            (positional if isinstance(place, int) else by_name)[place] = senseless()
            yield place, kind, positional, by_name


def what_is_raised(fn, args, named):
    try:
        fn(*args, **named)
    except Exception as error:
        return error
    return None


def calls_of(name):
    """The right calls of a name: of a function, or of a class that keeps what it is given."""
    if name in MAKERS:
        return [((), MAKERS[name])]
    return [CALLS[name], *[call for other, call in OTHER_CALLS if other == name]]


def is_default(fn, place, value):
    """Tell if an operand is what the parameter is by default."""
    parameter = inspect.signature(fn).parameters.get(place)
    return parameter is not None and value is parameter.default


def test_every_function_has_a_right_call():
    assert not [name for name in FUNCTIONS if name not in {*CALLS, "E"}]


@pytest.mark.parametrize("name", sorted({*FUNCTIONS, *MAKERS} - {"E"}))
def test_a_senseless_operand_is_refused_by_an_error_of_the_algebra(name):
    fn = getattr(lc, name)
    for call in calls_of(name):
        fn(*call[0], **call[1])
        for place, kind, args, named in with_each(name, call):
            started = time.process_time()
            raised = what_is_raised(fn, args, named)
            assert isinstance(raised, LayoutError | None), f"{place}={kind}: {raised!r}"
            assert time.process_time() - started < 0.1, (place, kind)
            taken = (f"{name}.{place}", kind) in ACCEPTED or is_default(fn, place, named.get(place))
            assert raised or taken, f"{name}: {place}={kind} is accepted"


def test_what_is_right_to_accept_is_accepted():
    found = set()
    for name in {*FUNCTIONS, *MAKERS} - {"E"}:
        fn = getattr(lc, name)
        for call in calls_of(name):
            for place, kind, args, named in with_each(name, call):
                if (f"{name}.{place}", kind) in ACCEPTED and not what_is_raised(fn, args, named):
                    found.add((f"{name}.{place}", kind))
    assert found == ACCEPTED


@pytest.mark.parametrize(
    ("call", "argument", "came"),
    [
        (lambda x: lc.ceil_div((9, 10), x), "b", "<class 'object'>"),
        (lambda x: lc.append((1, 2), 3, x), "rank", "<class 'object'>"),
        (lambda x: lc.rank((4, 8), mode=x), "mode", "<class 'object'>"),
        (lambda x: lc.mma_atom({"a": x}), "name", "{'a': <class 'object'>}"),
        (lambda x: lc.transform_leaf(3, (1, x)), "fn", "3"),
    ],
)
def test_the_error_names_the_argument_what_was_expected_and_what_came(call, argument, came):
    with pytest.raises(LayoutTypeError) as raised:
        call(object)
    assert f"argument `{argument}`: expected " in str(raised.value)
    assert str(raised.value).endswith(f"got {came}")
    assert isinstance(raised.value, TypeError)


@pytest.mark.parametrize("senseless", [True, 1.5, "a", None, {}, (1, True), (1, "a")])
def test_a_coordinate_computes_with_integers_alone(senseless):
    bad = (1, senseless)
    for coordinate in (lc.E(1), lc.ArithmeticTuple((1, (2, 3)))):
        for compute in (
            lambda c: c * senseless,
            lambda c: senseless * c,
            lambda c: c + bad,
            lambda c: bad - c,
            lambda c: lc.ArithmeticTuple((c, senseless)),
        ):
            with pytest.raises((LayoutTypeError, TypeError)) as raised:
                compute(coordinate)
            assert isinstance(raised.value, LayoutTypeError) or isinstance(senseless, tuple)


@pytest.mark.parametrize("name", ["logical_divide", "tiled_divide", "flat_divide"])
def test_a_class_is_no_tiler_of_a_symbol(name):
    with pytest.raises(LayoutTypeError, match="Layout'>"):
        getattr(lc, name)(lc.SymInt(8, "H"), lc.Layout)


def test_a_bool_is_no_mode_of_a_layout():
    with pytest.raises(LayoutTypeError, match="got True"):
        Layout((4, 8))[True]


def test_what_a_users_function_raises_is_the_users():
    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        lc.transform_leaf(fails, (1, 2))


def test_too_few_operands_are_pythons_own_error():
    with pytest.raises(TypeError, match="missing"):
        lc.ceil_div(3)


@pytest.mark.parametrize("name", ["rank", "shape_div", "mma_atom", "slice_and_offset"])
def test_a_function_that_names_its_operands_can_be_pickled(name):
    fn = getattr(lc, name)
    again = pickle.loads(pickle.dumps(fn))
    args, named = CALLS[name]
    assert again(*args, **named) == fn(*args, **named)
    assert fn.__doc__


def test_what_stands_for_no_shape_has_no_rank():
    for senseless in (object(), Layout, int, 2j, len):
        with pytest.raises(LayoutTypeError, match="rank"):
            lc.rank(senseless)
