"""The kinds of operands, by the names of parameters, and the error that names one of another kind.

An operation converts what it is given and computes with it; it looks for what is senseless only
after something went wrong, so that right calls pay nothing for it. The names of parameters are
those of the whole algebra, each with one meaning: :data:`KINDS` is the list.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .checks import as_integer
from .errors import LayoutError, LayoutTypeError
from .int_tuple import is_no_integer
from .late import late
from .protocol import is_stride
from .symbols import Symbolic
from .values import Immutable, Shaped

Function = TypeVar("Function", bound=Callable[..., Any])

_SHOWN = 60  # characters of what came


def _is_leaf(x: Any) -> bool:
    return is_stride(x) or isinstance(x, Symbolic) or as_integer(x) is not None


def _is_tree(x: Any) -> bool:
    return all(map(_is_tree, x)) if isinstance(x, tuple) else _is_leaf(x)


def _is_operand(x: Any) -> bool:
    if isinstance(x, str):
        return _says_a_layout(x)
    return isinstance(x, Immutable) or _is_tree(x) or hasattr(x, "as_layout_like")


def _is_coordinate(x: Any) -> bool:
    if isinstance(x, tuple):
        return all(map(_is_coordinate, x))
    if x is None or isinstance(x, Shaped) or _is_leaf(x):
        return True
    return isinstance(getattr(x, "ndim", None), int) and not is_no_integer(x)  # an array of them


def _is_path(x: Any) -> bool:
    if isinstance(x, Iterable) and not isinstance(x, str | bytes) and not hasattr(x, "dtype"):
        return all(type(i) is int for i in x)
    return type(x) is int


def _says_a_layout(text: str) -> bool:
    try:
        late("parse")(text)
    except LayoutError:
        return False
    return True


_OPERAND = (_is_operand, "an int, a nested tuple of them, a layout, or text that says one")
_COORDINATE = (_is_coordinate, "a coordinate: an int, an array of them, None, or a tuple of those")
_PATH = (_is_path, "an index or a sequence of them")
_COUNT = (_is_leaf, "an int")
_TEXT = (lambda x: isinstance(x, str), "a str")
_FLAG = (lambda x: isinstance(x, bool), "a bool")
_CALLABLE = (callable, "a function")

KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("crd", "idx"), _COORDINATE),
    "mode": _PATH,
    **dict.fromkeys(("fn", "splitter"), _CALLABLE),
    **dict.fromkeys(("name", "notation", "language", "swizzle"), _TEXT),
    **dict.fromkeys(("weight_stationary", "sparse", "a_in_registers"), _FLAG),
}


def naming_operands(fn: Function) -> Function:
    """``fn``, with an error of the algebra in place of Python's for a senseless operand.

    >>> from .shapes import ceil_div
    >>> naming_operands(ceil_div)((9, 10), (4, {}))
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutTypeError: ceil_div: argument `b`: expected an int, a nested \
tuple of them, a layout, or text that says one, got (4, {})
    """

    if "_naming" in vars(fn):  # another name of the same function
        return vars(fn)["_naming"]  # type: ignore[no-any-return]

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except LayoutTypeError as error:
            found = refused(fn, args, kwargs)
            if found and found not in str(error):
                error.args = (f"{error}; {found}",)
            raise
        except LayoutError:
            raise
        except Exception as error:
            found = refused(fn, args, kwargs)
            if not found:
                raise
            raise LayoutTypeError(f"{fn.__name__}: {found}", operation=fn.__name__) from error

    call.__module__ = __package__  # where a pickle finds it
    vars(fn)["_naming"] = call
    return call  # type: ignore[return-value]


def refused(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Name the first operand of another kind, what was expected and what came; "" if there is none.

    >>> from .shapes import ceil_div
    >>> refused(ceil_div, (9, 2j), {})
    'argument `b`: expected an int, a nested tuple of them, a layout, or text that says one, got 2j'
    """
    import inspect  # which takes as long to import as the rest of the algebra

    signature = inspect.signature(fn)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # too few or unknown ones: Python's own error says it
        return ""
    for name, value in given.items():
        parameter = signature.parameters[name]
        counted = parameter.annotation in ("int", "int | None")
        fits, expected = _COUNT if counted else KINDS.get(name, _OPERAND)
        many = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        for x in value if many else (value,):
            if x is not parameter.default and not fits(x):
                return f"argument `{name}`: expected {expected}, got {_short(x)}"
    return ""


def _short(x: Any) -> str:
    try:
        shown = repr(x)
    except Exception:
        shown = f"a {type(x).__name__}"
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
