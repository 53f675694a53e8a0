"""The kinds of operands, by parameter name, and errors that name an operand of the wrong kind.

An operation converts its operands and computes; it looks for a senseless operand only after
something went wrong, so that valid calls pay nothing for the check. A parameter name means the same
throughout the algebra: :data:`KINDS` lists them. An operation that passes an operand on, and a
value that keeps it, check first: :func:`expect_entries`, :func:`expect_fields`, and for numbers
:func:`~.int_tuple.expect_numbers`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from .checks import as_integer, is_leaf
from .errors import (
    LayoutError,
    LayoutTypeError,
    LayoutValueError,
    shortly,
    too_deep,
    wrong_argument,
)
from .late import late
from .numbers import is_no_integer
from .protocol import is_stride
from .values import Immutable, Shaped

Function = TypeVar("Function", bound=Callable[..., Any])

Kind = tuple[Callable[[Any], bool], str]  # a test of an operand, and the description for errors


def _is_tree(x: Any) -> bool:
    return all(map(_is_tree, x)) if isinstance(x, tuple) else is_leaf(x)


def _has_strides(x: Any) -> bool:
    return any(map(_has_strides, x)) if type(x) is tuple else is_stride(x)


def _is_operand(x: Any) -> bool:
    if isinstance(x, str):
        return _says_a_layout(x)
    return isinstance(x, Immutable) or _is_tree(x) or hasattr(x, "as_layout_like")


def _is_coordinate(x: Any) -> bool:
    if isinstance(x, tuple):
        return all(map(_is_coordinate, x))
    if x is None or isinstance(x, Shaped) or is_leaf(x):
        return True
    return isinstance(getattr(x, "ndim", None), int) and not is_no_integer(x)  # an integer array


def is_entry(x: Any) -> bool:
    """Tell if a value may stand in a tuple of the algebra: a leaf, a layout, or a tuple of these.

    >>> from .swizzle import Swizzle
    >>> is_entry((4, (None, Swizzle(2, 0, 3)))), is_entry((4, 2.5)), is_entry(True)
    (True, False, False)
    """
    if type(x) is tuple:
        for part in x:  # a loop takes half the time of all()
            if type(part) is not int and part is not None and not is_entry(part):
                return False
        return True
    return isinstance(x, Immutable) or _is_coordinate(x) or _is_operand(x)


def expect_entries(operation: str, argument: str, x: Any) -> None:
    """Refuse a value that cannot stand in a tuple of the algebra; callers skip it for plain ints.

    For operations that pass their operands on, and would accept anything.

    >>> expect_entries("append", "entry", (2, "x"))
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutTypeError: append: argument `entry`: expected an int, None, \
a layout, or a tuple of them, got (2, 'x')
    """
    if not _fits(is_entry, x):
        raise wrong_argument(operation, argument, "an int, None, a layout, or a tuple of them", x)


def _is_path(x: Any) -> bool:
    if isinstance(x, Iterable) and not isinstance(x, str | bytes | Shaped | Iterator):
        return not hasattr(x, "dtype") and all(type(as_integer(i)) is int for i in x)
    return type(as_integer(x)) is int


def of_class(kind: type) -> Kind:
    """Return the kind of operands of a class; a bool is not an int.

    >>> fits, expected = of_class(int)
    >>> fits(3), fits(True), fits(3.0), expected
    (True, False, False, 'an int')
    """
    article = "an" if kind.__name__[0] in "aeio" else "a"
    return (
        lambda x: type(x) is kind or (isinstance(x, kind) and not isinstance(x, bool))
    ), f"{article} {kind.__name__}"


INTS: Kind = (
    lambda x: isinstance(x, tuple) and all(type(i) is int for i in x),
    "a tuple of ints",
)
TILERS: Kind = (
    lambda x: type(x) is tuple and is_entry(x),
    "a tuple of tilers: an int, a layout, None, or a tuple of them for each mode",
)


def expect_fields(value: Any, kinds: dict[str, Kind]) -> None:
    """Refuse a value if one of its fields is of the wrong kind.

    >>> from .layout import Layout
    >>> expect_fields(Layout(4), {"shape": INTS})
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutTypeError: Layout: argument `shape`: expected a tuple of \
ints, got 4
    """
    for name, (fits, expected) in kinds.items():
        x = getattr(value, name)
        if not _fits(fits, x):
            raise wrong_argument(type(value).__name__, name, expected, x)


def _fits(is_one: Callable[[Any], bool], x: Any) -> bool:
    try:
        return is_one(x)
    except RecursionError:  # tuples nested too deeply
        return False


def _says_a_layout(text: str) -> bool:
    try:
        late("parse")(text)
    except LayoutError:
        return False
    return True


_OPERAND = (_is_operand, "an int, a nested tuple of them, a layout, or text that says one")
_COORDINATE = (_is_coordinate, "a coordinate: an int, an array of them, None, or a tuple of those")
_PATH = (_is_path, "an index or a sequence of them")
_COUNT = (is_leaf, "an int")
_WHOLE = (lambda x: x is None or type(as_integer(x)) is int, "an int")
_INTS = (
    lambda x: not _has_strides(x) and _is_operand(x),
    "an int, a nested tuple of them, a layout, or text that says one",
)
_TEXT = (lambda x: isinstance(x, str), "a str")
_NAMES = (
    lambda x: isinstance(x, str) or (type(x) is tuple and all(isinstance(n, str) for n in x)),
    "a str or a tuple of them",
)
_COUNTS = ("int", "int | None")  # annotations
_RECORDS = ("CopyAtom", "CopyUnit", "MmaAtom", "TiledCopy", "TiledMma")  # modules above this one
_FLAG = (lambda x: isinstance(x, bool), "a bool")
_CALLABLE = (callable, "a function")

KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("crd", "idx"), _COORDINATE),
    "mode": _PATH,
    **dict.fromkeys(("fn", "splitter"), _CALLABLE),
    "operation": (lambda x: callable(x) or isinstance(x, str), "an operation or its name"),
    **dict.fromkeys(("name", "notation", "language", "swizzle"), _TEXT),
    **dict.fromkeys(("names", "index"), _NAMES),
    **dict.fromkeys(("weight_stationary", "sparse", "a_in_registers"), _FLAG),
}


def _named(kind: str) -> Kind:
    """Return the kind of operands whose class, or a base of it, has this name."""
    article = "an" if kind == "MmaAtom" else "a"
    return lambda x: any(cls.__name__ == kind for cls in type(x).__mro__), f"{article} {kind}"


def naming_operands(fn: Function) -> Function:
    """Wrap ``fn`` to raise an error of the algebra instead of Python's for a senseless operand.

    Counts from NumPy, sympy and torch are converted to plain ints first.

    >>> from .shapes import ceil_div
    >>> naming_operands(ceil_div)((9, 10), (4, {}))
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutTypeError: ceil_div: the leaf {} is not an integer; argument \
`b`: expected an int, a nested tuple of them, a layout, or text that says one, got (4, {})
    """

    if "_naming" in vars(fn):  # the same function under another name
        return vars(fn)["_naming"]  # type: ignore[no-any-return]
    counts = _counts_of(fn)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if counts:
                args = _with_plain_counts(counts, args, kwargs)
            return fn(*args, **kwargs)
        except LayoutTypeError as error:
            found = refused(fn, args, kwargs)
            if found and "argument `" not in str(error):
                error.args = (f"{error}; {found}",)
            raise
        except LayoutError:
            raise
        except RecursionError:
            raise too_deep(fn.__name__) from None
        except ZeroDivisionError:
            message = f"{fn.__name__}: an extent of 0 divides nothing"
            raise LayoutValueError(message, operation=fn.__name__) from None
        except Exception as error:
            found = refused(fn, args, kwargs) or refused(fn, args, kwargs, strictly=True)
            if not found:
                raise
            raise LayoutTypeError(f"{fn.__name__}: {found}", operation=fn.__name__) from error

    call.__module__ = __package__  # where pickle looks it up
    vars(fn)["_naming"] = call
    return call  # type: ignore[return-value]


def _counts_of(fn: Any) -> dict[str, int]:
    """Return the parameters of a function that are counts, each with its position."""
    code = getattr(fn, "__wrapped__", fn).__code__  # unwrap a cached function
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: i for i, name in enumerate(names) if fn.__annotations__.get(name) in _COUNTS}


def _with_plain_counts(
    counts: dict[str, int], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Return the positional operands with plain counts; keyword counts are changed in place."""
    for name, i in counts.items():
        x = args[i] if i < len(args) else kwargs.get(name)
        if x is None or type(x) is int or (number := as_integer(x)) is None:
            continue
        if i < len(args):
            args = (*args[:i], number, *args[i + 1 :])
        else:
            kwargs[name] = number
    return args


def refused(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    strictly: bool = False,
) -> str:
    """Name the first operand of the wrong kind, what was expected and what came; "" if none is.

    ``strictly`` also refuses strides and symbols, which only some operations accept.

    >>> from .shapes import ceil_div
    >>> refused(ceil_div, (9, 2j), {})
    'argument `b`: expected an int, a nested tuple of them, a layout, or text that says one, got 2j'
    """
    import inspect  # which takes as long to import as the rest of the algebra

    signature = inspect.signature(fn)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # missing or unknown arguments: Python's own error says so
        return ""
    counts, operand = (_WHOLE, _INTS) if strictly else (_COUNT, _OPERAND)
    for name, value in given.items():
        parameter = signature.parameters[name]
        if parameter.annotation in _RECORDS:
            fits, expected = _named(parameter.annotation)
        elif parameter.annotation in _COUNTS:
            fits, expected = counts
        else:
            fits, expected = KINDS.get(name, operand)
        many = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        for x in value if many else (value,):
            if x is not parameter.default and not _fits(fits, x):
                return f"argument `{name}`: expected {expected}, got {shortly(x)}"
    return ""
