"""Trace a module's ``forward`` by calling it once with stand-ins.

The function's code runs unchanged, with a stand-in for the module and one for a sparse tensor;
these record calls of submodules, ``features``, ``replace_feature`` and sums, and refuse everything
else. Its globals are stand-ins, too, for the functions that it calls, and the only builtin is
``getattr``: the code cannot reach existing objects, and so cannot change any. First
:func:`_refuses` checks the code for ways around that, such as an import.
"""

from __future__ import annotations

import dis
from functools import partial
from inspect import getattr_static
from types import CodeType, FunctionType
from typing import Any, NamedTuple, NoReturn

from torch import nn

_CONSTANTS = (type(None), bool, int, float, str)
_GONE = object()
OWN, MODULE, CLASS, GLOBAL = "own", "module", "class", "global"
# Name prefixes of instructions that have effects outside a function, or hide events from callers.
_LASTING = (
    "STORE_GLOBAL", "STORE_NAME", "STORE_SUBSCR", "STORE_SLICE", "STORE_DEREF", "DELETE_GLOBAL",
    "DELETE_NAME", "DELETE_DEREF", "IMPORT_", "YIELD_", "SEND", "GET_A", "SETUP_", "BEFORE_",
    "WITH_", "LOAD_SPECIAL", "LOAD_CLOSURE", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT",
    "LOAD_BUILD_CLASS", "LOAD_SUPER", "MAKE_FUNCTION", "CALL_FUNCTION_EX",
)  # fmt: skip


class TracedOperation(NamedTuple):
    """A call of a module on a sparse value or on features, or a sum of features.

    Attributes:
        kind: "sparse", "features" or "add".
        of: places of the operands: a sparse value and its features, features, or both terms.
        made: places of the results.
    """

    kind: str
    name: str
    of: tuple[int, ...]
    made: tuple[int, ...]


class Guard(NamedTuple):
    """An answer that a function got while it was traced, and must get again for the trace to hold.

    Attributes:
        where: OWN for an attribute of the module itself, MODULE for an existing submodule, CLASS
            for an attribute of its class, and GLOBAL for a global of a function.
        of: that function.
    """

    where: str
    name: str
    value: Any
    of: Any = None


class Trace:
    """The operations of a call, in order; places count up from 0, the function's argument."""

    def __init__(self, block: Any) -> None:
        self.block = block
        self.operations: list[TracedOperation] = []
        self.guards: list[Guard] = []
        self.result = (0, 0)
        self._features: dict[int, _Features] = {}
        self._sparse = self._places = 0
        self.refused = False

    def refuse(self, why: str) -> NoReturn:
        """End the trace, even if the function catches this."""
        self.refused = True
        raise TypeError(why)  # caught by :func:`traced`

    def features(self, place: int) -> _Features:
        """Return the features at a place, the same object at every request."""
        if place not in self._features:
            self._features[place] = _Features(self, place)
        return self._features[place]

    def note(self, kind: str, name: str, of: tuple[int, ...]) -> Any:
        """Record an operation; return a stand-in for its result."""
        self._places += 1
        made: tuple[int, ...] = (self._places,)
        if kind == "sparse":
            self._sparse += 1
            made = self._sparse, self._places
        self.operations.append(TracedOperation(kind, name, of, made))
        return _Sparse(self, *made) if kind == "sparse" else self.features(self._places)

    def guard(self, guard: Guard) -> None:
        """Record an answer that the function was given."""
        if guard not in self.guards:
            self.guards.append(guard)

    def users(self, place: int) -> list[int]:
        """Return the operations that read features, once per read; past the last, the result."""
        found = []
        for at, operation in enumerate(self.operations):
            read = operation.of[1:] if operation.kind == "sparse" else operation.of
            found += [at] * read.count(place)
        return found + [len(self.operations)] * (self.result[1] == place)


def traced(block: Any) -> Trace | None:
    """Trace a module's ``forward`` on one sparse tensor; return None if that is impossible."""
    kind = type(block)
    forward = getattr_static(kind, "forward", None)
    if not isinstance(forward, FunctionType) or kind.__call__ is not nn.Module.__call__:
        return None
    if (
        kind.__getattr__ is not nn.Module.__getattr__
        or kind.__getattribute__ is not object.__getattribute__
    ):
        return None
    trace = Trace(block)
    try:
        trace.guard(Guard(CLASS, "forward", forward))
        result = _run(trace, forward, _Self(trace), _Sparse(trace, 0, 0))
    except Exception:  # stand-ins are no tensors: an error is no fault of the function
        return None
    if trace.refused or not isinstance(result, _Sparse):
        return None
    trace.result = result._at
    return trace


# -- stand-ins ------------------------------------------------------------------------------------


class _StandIn:
    """A stand-in that refuses every access that a subclass does not define."""

    _trace: Trace

    def __getattr__(self, name: str) -> Any:
        self._trace.refuse(name)

    def _refuse(self, *_: Any) -> Any:
        self._trace.refuse("an operator")

    __setattr__ = __delattr__ = __setitem__ = __delitem__ = _refuse  # type: ignore[assignment]
    __bool__ = __eq__ = __ne__ = __iadd__ = __len__ = __iter__ = _refuse  # type: ignore[assignment]
    __contains__ = __getitem__ = __call__ = __str__ = __repr__ = __format__ = _refuse  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class _Features(_StandIn):
    """Features (rows, C)."""

    def __init__(self, trace: Trace, place: int) -> None:
        self.__dict__.update(_trace=trace, _place=place)

    def dim(self) -> int:
        """Return 2: no plan runs on other features."""
        return 2

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, _Features):
            self._trace.refuse("a sum with something else")
        return self._trace.note("add", "", (self._place, other._place))


class _Sparse(_StandIn):
    """A sparse tensor: cells and features, each by its place."""

    def __init__(self, trace: Trace, cells: int, features: int) -> None:
        self.__dict__.update(_trace=trace, _at=(cells, features))

    @property
    def features(self) -> _Features:
        return self._trace.features(self._at[1])

    def replace_feature(self, feature: Any) -> _Sparse:
        if not isinstance(feature, _Features):
            self._trace.refuse("other features")
        return _Sparse(self._trace, self._at[0], feature._place)

    def __add__(self, other: Any) -> _Sparse:
        if isinstance(other, _Sparse):
            other = other.features
        return self.replace_feature(self.features + other)

    def __dir__(self) -> list[str]:
        return ["features", "replace_feature"]  # projects look for these to tell versions apart


class _Module(_StandIn):
    """A submodule, to be called with one stand-in."""

    def __init__(self, trace: Trace, name: str) -> None:
        self.__dict__.update(_trace=trace, _name=name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        if len(given) != 1 or named:
            self._trace.refuse("a call of other arguments")
        (x,) = given
        if isinstance(x, _Sparse):
            return self._trace.note("sparse", self._name, x._at)
        if isinstance(x, _Features):
            return self._trace.note("features", self._name, (x._place,))
        self._trace.refuse("a call with something else")


class _Self(_StandIn):
    """The module."""

    def __init__(self, trace: Trace) -> None:
        self.__dict__.update(_trace=trace)

    def __getattr__(self, name: str) -> Any:
        trace = self.__dict__["_trace"]
        block = trace.block
        own, modules, kind = block.__dict__, block._modules, type(block)
        if name in own or (name in modules and modules[name] is None):
            value = own.get(name)
            if type(value) not in _CONSTANTS:
                trace.refuse(name)
            trace.guard(Guard(OWN, name, value))
            return value
        there = getattr_static(kind, name, _GONE)
        if there is _GONE:
            if name not in modules:
                trace.refuse(name)
            trace.guard(Guard(MODULE, name, None))
            return _Module(trace, name)
        trace.guard(Guard(CLASS, name, there))
        if isinstance(there, property) and isinstance(there.fget, FunctionType):
            return _run(trace, there.fget, self)
        if isinstance(there, FunctionType) and not name.startswith("__"):
            return _Function(trace, there, self)
        if type(there) not in _CONSTANTS:
            trace.refuse(name)
        return there


class _Function(_StandIn):
    """A function, perhaps a method of the module, to be called."""

    def __init__(self, trace: Trace, function: FunctionType, *first: Any) -> None:
        self.__dict__.update(_trace=trace, _function=function, _first=first)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return _run(self._trace, self._function, *self._first, *given, **named)


# -- what a function could do ---------------------------------------------------------------------


def _run(trace: Trace, function: FunctionType, *given: Any, **named: Any) -> Any:
    """Call a function so that it reaches only stand-ins, and guard the functions that it calls."""
    code, options = function.__code__, function.__kwdefaults__ or {}
    defaults = function.__defaults__ or ()
    if _refuses(code) or any(
        type(value) not in _CONSTANTS for value in (*defaults, *options.values())
    ):
        trace.refuse(function.__qualname__)
    space: dict[str, Any] = {"__builtins__": {"getattr": partial(_attribute, trace)}}
    for name in _globals(code):
        found = function.__globals__.get(name)
        if isinstance(found, FunctionType):
            space[name] = _Function(trace, found)
        trace.guard(Guard(GLOBAL, name, found, function))
    copy = FunctionType(code, space, function.__name__, defaults)
    copy.__kwdefaults__ = options
    return copy(*given, **named)


def _attribute(trace: Trace, of: Any, name: Any) -> Any:
    """``getattr`` on the module, as properties of mmdetection3d's blocks call it."""
    if not isinstance(of, _Self) or type(name) is not str:
        trace.refuse("an attribute of something else")
    return getattr(of, name)


def _globals(code: CodeType) -> set[str]:
    return {
        str(instruction.argval)
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }


def _refuses(code: CodeType) -> bool:
    """Return whether a function could do anything but compute and return."""
    if getattr(code, "co_exceptiontable", b"") or code.co_freevars or code.co_cellvars:
        return True
    before: tuple[str, Any] | None = None
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name.startswith(_LASTING):
            return True
        # Stand-ins are not the objects they stand for: only comparisons with None are valid.
        if name == "IS_OP" and before != ("LOAD_CONST", None):
            return True
        before = name, instruction.argval
    return False
