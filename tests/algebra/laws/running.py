"""Running an operation: its result, or the error that refuses; anything else breaks a law."""

from __future__ import annotations

import time

import layoutconv.algebra as lc
from layoutconv.algebra import Layout, LayoutBudgetError, LayoutError
from layoutconv.testing.oracle import flat_strides, kind_of, value, volume

SLOW = 0.1  # seconds of the processor that an operation may take
VOID = "void"  # the outcome of a case to which an operation does not apply; another is drawn
CALLED = {}  # operation: how often the laws ran it


class LawError(AssertionError):
    """A law does not hold."""


def run(operation, *operands, best_of=3):
    """The result and None, or None and the error; an answer has to come in time."""
    name = getattr(operation, "__name__", "call")
    CALLED[name] = CALLED.get(name, 0) + 1
    for attempt in range(best_of):
        started = time.process_time()
        try:
            result, error = operation(*operands), None
        except LayoutBudgetError:
            raise LawError(f"out of budget: {shown(operation, operands)}") from None
        except LayoutError as caught:
            result, error = None, caught
        except Exception as caught:
            what = f"{kind_of(caught)}: {caught}"
            raise LawError(f"{what}: {shown(operation, operands)}") from caught
        if time.process_time() - started < SLOW:
            return result, error
        del attempt
    raise LawError(f"slow: {shown(operation, operands)}")


def shown(operation, operands):
    name = getattr(operation, "__name__", operation)
    return f"{name}({', '.join(map(str, operands))})"


def holds(condition, why, operation, operands, result=None):
    if not condition:
        raise LawError(f"{why}: {shown(operation, operands)} = {result}")


def required(operation, *operands):
    """The result of an operation that every operand has."""
    result, error = run(operation, *operands)
    if error is not None:
        raise LawError(f"refused: {shown(operation, operands)}: {error}")
    return result


def as_function(x):
    """A shape or a string as the layout that it stands for."""
    if isinstance(x, str):
        return lc.parse(x)
    return Layout(x) if isinstance(x, int | tuple) else x


def as_layout(x):
    """As :func:`as_function`, and a tensor as its layout."""
    f = as_function(x)
    return f.layout if kind_of(f) == "Tensor" else f


def same(f, g, size=None):
    """Tell if two functions agree at every linear coordinate."""
    n = volume(f.shape) if size is None else size
    return all(value(f, i) == value(g, i) for i in range(n))


def has_xor(layout):
    """Tell if a layout has strides that add by XOR."""
    return any(kind_of(d) == "F2" for d in flat_strides(layout.shape, layout.stride))


def gives_coordinates(f):
    """Tell if the values of a function are coordinates, be they all 0."""
    kind = kind_of(f)
    if kind == "Tensor":
        return gives_coordinates(f.layout)
    outer = f.outer if kind == "ComposedLayout" else f
    return kind_of(outer) == "Layout" and any(
        kind_of(d) in ("ScaledBasis", "ArithmeticTuple")
        for d in flat_strides(outer.shape, outer.stride)
    )


def nest(flat, shape):
    left = iter(flat)

    def fill(s):
        return tuple(map(fill, s)) if isinstance(s, tuple) else next(left)

    return fill(shape)
