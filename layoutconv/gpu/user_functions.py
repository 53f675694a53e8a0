"""Signatures of user functions, as text that keys compiled kernels."""

from __future__ import annotations

import dis
import math
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError

_CONSTANTS = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))


def function_key(name: str, function: Callable[..., Any]) -> str:
    """Return text that is equal for identical functions, and differs if results may differ.

    It contains the bytecode and, by value, everything the function refers to: constants, defaults,
    closure cells, globals. These may be numbers, strings, tuples of them, other such functions,
    functions of the module ``operator``, and the module ``math``. ``name`` is the caller's
    argument.

    Raises :class:`~layoutconv.errors.ArgumentError` for a function that refers to anything else,
    which could change without changing the text.

    >>> def scaled(c):
    ...     return lambda a, b: a + b * c
    >>> function_key("op", scaled(2)) == function_key("op", scaled(2))
    True
    >>> function_key("op", scaled(2)) == function_key("op", scaled(3))
    False
    """
    if not isinstance(function, FunctionType | BuiltinFunctionType):
        raise ArgumentTypeError(name, "a function of two values", repr(function))
    return _text(name, function, ())


def _text(name: str, value: Any, within: tuple[Any, ...]) -> str:
    if type(value) in _CONSTANTS:
        return f"{type(value).__name__} {value!r}"
    if type(value) in (tuple, frozenset):
        parts = [_text(name, part, within) for part in value]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, CodeType):
        return _code(name, value, within)
    if value is math:
        return "math"
    if isinstance(value, BuiltinFunctionType) and value.__module__ in (
        "_operator", "builtins", "math"
    ):  # fmt: skip
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, FunctionType):
        if value in within:
            return f"itself {within.index(value)}"
        return _function(name, value, (*within, value))
    kind = value.__name__ if isinstance(value, ModuleType) else repr(value)
    raise ArgumentError(
        name,
        "a function that uses only numbers and functions, as it becomes part of a kernel",
        kind,
    )


def _function(name: str, function: FunctionType, within: tuple[Any, ...]) -> str:
    parts = [_code(name, function.__code__, within)]
    parts.append(_text(name, function.__defaults__, within))
    parts.append(_text(name, tuple((function.__kwdefaults__ or {}).items()), within))
    try:
        enclosed = tuple(cell.cell_contents for cell in function.__closure__ or ())
    except ValueError:  # a cell is empty
        raise ArgumentError(
            name, "a function whose closure has its values", repr(function)
        ) from None
    parts.append(_text(name, enclosed, within))
    builtins = function.__globals__.get("__builtins__", {})
    builtins = vars(builtins) if isinstance(builtins, ModuleType) else builtins
    for global_name in sorted(_globals(function.__code__)):
        if global_name in function.__globals__:
            value = function.__globals__[global_name]
            parts.append(f"{global_name} = {_text(name, value, within)}")
        elif global_name in builtins:
            parts.append(f"{global_name} of the builtins")
        else:
            raise ArgumentError(
                name, "a function whose globals exist", f"the undefined name {global_name}"
            )
    return f"def({'; '.join(parts)})"


def _code(name: str, code: CodeType, within: tuple[Any, ...]) -> str:
    parts = [
        code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
        code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags,
        getattr(code, "co_exceptiontable", b""),
    ]  # fmt: skip
    return f"{parts!r} {_text(name, code.co_consts, within)}"


def _globals(code: CodeType) -> set[str]:
    """Return the globals that code, or code inside it, loads."""
    found = {
        i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    return found.union(*(_globals(c) for c in code.co_consts if isinstance(c, CodeType)))
