"""Symbolic integers: extents and strides that have a name, and expressions of them.

A :class:`Symbolic` is an exact expression. If an operation has to know how two of them compare, it
asks; if the answer follows neither from the minima of the names nor from :func:`assuming`, the
operation is refused, and the error names the unknown relation.

The integers of kernels, :class:`~layoutconv.SymInt`, have a name *and* a value. Operations compute
with their names as well. If the names leave a question open, the values answer it, and the result
records the answer as an assumption.
"""

from __future__ import annotations

from collections.abc import Callable
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from .budget import charge
from .errors import LayoutTypeError, LayoutValueError
from .polynomial import (
    Frozen,
    Name,
    Poly,
    add,
    constant,
    evaluate,
    freeze,
    is_constant,
    multiply,
    names_of,
    of_atom,
    show,
)
from .relations import Relation, holds, is_divided, product, quotient, record, remainder
from .symint import SymInt, both_ways
from .values import Immutable

if TYPE_CHECKING:
    import ast

_SET = object.__setattr__


class Symbolic(Immutable):
    """An integer expression over names, such as ``2*H*W`` or ``W//8``.

    It computes with integers and its own kind, and equals the same expression. A comparison that
    holds for all values of the names, or for none, is True or False; any other raises
    :class:`~layoutconv.LayoutValueError` if its truth is asked for.

    >>> H, W = symbols("H W")
    >>> H * (W + 2) - 2 * H, (4 * H * W) // (2 * W), (8 * W + 5) % 8
    (H*W, 2*H, 5)
    >>> bool(H * W >= W)
    True
    """

    __slots__ = ("terms", "value")

    terms: Frozen
    value: int | None  # of a kernel's integer; None for a name that stands for any value

    def __init__(self, terms: Frozen, value: int | None = None) -> None:
        _SET(self, "terms", terms)
        _SET(self, "value", value)

    def __reduce__(self) -> Any:
        return Symbolic, (self.terms, self.value)

    def __hash__(self) -> int:
        return hash(self.terms)

    def __str__(self) -> str:
        return show(dict(self.terms))

    __repr__ = __str__

    def _sympy_(self) -> Any:
        """Return the same expression in sympy, which calls this method."""
        from sympy import Symbol, sympify

        names = {
            name: Symbol(name, integer=True, **_at_least(atom.minimum))
            for name, atom in names_of(dict(self.terms)).items()
        }
        return sympify(str(self), locals=names)

    def __bool__(self) -> bool:
        return not (self == 0)  # noqa: SIM201  # the relation that errors name

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    __add__, __radd__ = both_ways("add", lambda a, b: _apply(a, b, add, int.__add__))
    __sub__, __rsub__ = both_ways("sub", lambda a, b: _apply(a, b, _minus, int.__sub__))
    __mul__, __rmul__ = both_ways("mul", lambda a, b: _apply(a, b, product, int.__mul__))
    __floordiv__, __rfloordiv__ = both_ways(
        "floordiv", lambda a, b: _apply(a, b, quotient, int.__floordiv__)
    )
    __mod__, __rmod__ = both_ways("mod", lambda a, b: _apply(a, b, remainder, int.__mod__))

    def __eq__(self, other: object) -> Any:
        return _relation("==", self, other)

    def __ne__(self, other: object) -> Any:
        return _relation("!=", self, other)

    def __lt__(self, other: Any) -> Any:
        return _relation("<", self, other)

    def __le__(self, other: Any) -> Any:
        return _relation("<=", self, other)

    def __gt__(self, other: Any) -> Any:
        return _relation(">", self, other)

    def __ge__(self, other: Any) -> Any:
        return _relation(">=", self, other)


def _at_least(minimum: int | None) -> dict[str, bool]:
    """Return a name's minimum as assumptions of sympy."""
    if minimum is None or minimum < 0:
        return {}
    return {"positive": True} if minimum > 0 else {"nonnegative": True}


def symbols(names: str, minimum: int | None = 1) -> Any:
    """Make integers without a value from their names: one for one name, a tuple for several.

    They are extents by default, so at least 1. ``minimum`` is the smallest integer that they may
    stand for, None if there is none.

    A name is an identifier of Python that the :func:`notation <layoutconv.parse>` does not use: no
    keyword, nothing that begins with two underscores or ``make_``, no ``o``, ``f5`` or ``_5``.

    Raises :class:`~layoutconv.LayoutValueError` for an invalid name.

    >>> H, W = symbols("H W")
    >>> from layoutconv.algebra import Layout, logical_divide
    >>> print(logical_divide(Layout((H, W), (W, 1)), (2, 8)))
    ((2,(H+1)//2),(8,(W+7)//8)):((W,2*W),(1,8))
    """
    if minimum is not None and type(minimum) is not int:
        raise LayoutTypeError(f"symbols: expected an integer for the minimum, got {minimum!r}")
    found = names.replace(",", " ").split() if isinstance(names, str) else ()
    if not found or not all(map(is_name, found)):
        raise LayoutValueError(f"symbols: expected names, got {names!r}")
    made = tuple([Symbolic(freeze(of_atom(Name(name, minimum)))) for name in found])
    return made[0] if len(made) == 1 else made


# Words of the notation, beside those that begin with `make_`; `_` keeps a mode as it is.
_WORDS = frozenset({
    "Layout", "LayoutLeft", "LayoutRight", "GenColMajor", "GenRowMajor", "ArithTuple",
    "ArithTupleIter", "gather", "o", "O", "_",
})  # fmt: skip


def is_name(word: str) -> bool:
    """Tell if an integer may have this name: Python and the notation both read it as a name.

    >>> [word for word in ("W", "_w2", "complement", "lambda", "__w", "o", "f5") if is_name(word)]
    ['W', '_w2', 'complement']
    """
    if not word.isidentifier() or iskeyword(word) or word in _WORDS:
        return False
    return not word.startswith(("__", "make_")) and not (word[0] in "f_" and word[1:].isdecimal())


def poly_of(x: Any) -> Poly:
    """Return the polynomial of an integer, symbolic or not."""
    return dict(x.terms) if isinstance(x, Symbolic) else constant(int(x))


def _value_of(x: Any) -> int | None:
    return x.value if isinstance(x, Symbolic) else int(x)


def _relation(sign: str, left: Any, right: Any) -> Any:
    if isinstance(right, SymInt):
        right = symbolic_of(right)
    if not isinstance(right, int | Symbolic):
        return NotImplemented
    a, b = poly_of(left), poly_of(right)
    difference = add(a, b, -1)
    if is_constant(difference):
        return holds(sign, difference.get((), 0))
    now = _value_of(left), _value_of(right)
    order = None if now[0] is None or now[1] is None else now[0] - now[1]
    return Relation(sign, freeze(a), freeze(b), order)


def _minus(a: Poly, b: Poly) -> Poly:
    return add(a, b, -1)


def _apply(
    a: Any, b: Any, on_polys: Callable[[Poly, Poly], Poly], on_values: Callable[[int, int], int]
) -> Any:
    """Apply an operation to two operands, at least one of them symbolic."""
    for x in (a, b):
        if not isinstance(x, int | Symbolic):
            if hasattr(x, "dtype"):
                raise LayoutTypeError(f"cannot combine an array with {a if x is b else b}")
            return NotImplemented
    a, b = (symbolic_of(x) if isinstance(x, SymInt) else x for x in (a, b))
    values = _value_of(a), _value_of(b)
    value = None
    if values[0] is not None and values[1] is not None:
        try:
            value = on_values(values[0], values[1])
        except ZeroDivisionError:
            raise LayoutValueError(f"{a} is divided by {b}, which is 0") from None
    result = on_polys(poly_of(a), poly_of(b))
    charge(2 + len(result))
    return made(result, value)


def made(p: Poly, value: int | None = None) -> Any:
    """Return the integer of a polynomial: an int if it is constant, else a :class:`Symbolic`."""
    return p.get((), 0) if is_constant(p) else Symbolic(freeze(p), value)


def same(a: Any, b: Any) -> bool:
    """Tell if two trees of leaves are identical: symbols by name, without deciding relations.

    >>> H, W = symbols("H W")
    >>> same((H, (2, W)), (H, (2, W))), same((H, 2), (W, 2))
    (True, False)
    """
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Symbolic) or isinstance(b, Symbolic):
        return isinstance(a, Symbolic) and isinstance(b, Symbolic) and a.terms == b.terms
    return bool(a == b)


def ceil_div(a: Any, b: Any) -> Any:
    """Return ``a / b`` rounded up, for ``b > 0``.

    >>> W = symbols("W")
    >>> ceil_div(9, 4), ceil_div(W, 8), ceil_div(6 * W, 3)
    (3, (W+7)//8, 2*W)
    """
    if isinstance(a, Symbolic) or isinstance(b, Symbolic):
        if is_divided(poly_of(b), poly_of(a)):
            return a // b
        return (a + b - 1) // b
    return -(-a // b)


_OPERATIONS: dict[str, Callable[[Poly, Poly], Poly]] = {
    "Add": add,
    "Sub": _minus,
    "Mult": product,
    "FloorDiv": quotient,
    "Mod": remainder,
}


def symbolic_of(x: SymInt) -> Symbolic | int:
    """Turn a kernel's integer into an expression that has a value.

    >>> symbolic_of(SymInt(24, "2*H*W"))
    2*H*W
    """
    import ast  # 3 ms, which an import of the algebra has no use for

    noted = record()
    try:
        p = _poly_of_text(ast.parse(x.expr, mode="eval").body, x)
    except (SyntaxError, LayoutValueError):
        p = of_atom(Name(x.expr, _minimum_of(x)))
    if noted is not None:
        for name in names_of(p):
            if x.runtime or name not in noted.runtime:
                noted.runtime[name] = x.runtime
    return Symbolic(freeze(p), int(x)) if not is_constant(p) else int(x)


def have_one_value(expressions: list[Symbolic]) -> bool:
    """Tell if every name has one value throughout, like the names of one kernel."""
    values: dict[str, int] = {}
    for x in expressions:
        names = list(names_of(dict(x.terms)))
        if (
            x.value is not None
            and [str(x)] == names
            and values.setdefault(names[0], x.value) != x.value
        ):
            return False
    return all(
        evaluate(dict(x.terms), values) == x.value
        for x in expressions
        if set(names_of(dict(x.terms))) <= set(values)
    )


def _minimum_of(x: SymInt) -> int | None:
    return min(int(x), 1) if x >= 0 else None


def _poly_of_text(node: ast.AST, x: SymInt) -> Poly:
    """Return the polynomial of the expression of a kernel's integer."""
    kind = type(node).__name__
    if kind == "Name":
        name = node.id  # type: ignore[attr-defined]
        return of_atom(Name(name, _minimum_of(x) if name == x.expr else 1))
    if kind == "Constant" and type(node.value) is int:  # type: ignore[attr-defined]
        return constant(node.value)  # type: ignore[attr-defined]
    if kind == "UnaryOp" and type(node.op).__name__ == "USub":  # type: ignore[attr-defined]
        return multiply(_poly_of_text(node.operand, x), constant(-1))  # type: ignore[attr-defined]
    if kind == "BinOp":
        operation = _OPERATIONS.get(type(node.op).__name__)  # type: ignore[attr-defined]
        if operation:
            left = _poly_of_text(node.left, x)  # type: ignore[attr-defined]
            return operation(left, _poly_of_text(node.right, x))  # type: ignore[attr-defined]
    raise LayoutValueError(f"{x.expr} is not an expression of integers")


def symint_of(x: Any) -> Any:
    """Turn an expression that has a value into a kernel's integer; return others unchanged."""
    if not isinstance(x, Symbolic) or x.value is None:
        return x
    noted = record()
    flags = noted.runtime if noted else {}
    runtime = any(flags.get(name, True) for name in names_of(dict(x.terms)))
    return SymInt(x.value, str(x), runtime)


def value_at(x: Any, values: dict[str, int]) -> Any:
    """Evaluate an integer with the values of its names."""
    if not isinstance(x, Symbolic):
        return x
    p = dict(x.terms)
    missing = set(names_of(p)) - set(values)
    if missing:
        raise LayoutValueError(f"substitute: {x} has names without a value: {sorted(missing)}")
    return evaluate(p, values)


def from_sympy(x: Any) -> Any:
    """Turn a sympy expression into an integer; None if it is not one."""
    if getattr(x, "is_Integer", False):
        return int(x)
    if getattr(x, "is_Symbol", False):
        if x.is_integer is False:
            return None
        minimum = 1 if x.is_positive else 0 if x.is_nonnegative else None
        return made(of_atom(Name(str(x), minimum)))
    if type(x).__name__ in ("floor", "ceiling"):
        return _rounded(x)
    parts = [from_sympy(part) for part in getattr(x, "args", ())]
    if not parts or any(part is None for part in parts):
        return None
    kind = type(x).__name__
    if kind in ("Add", "Mul"):
        result = parts[0]
        for part in parts[1:]:
            result = result + part if kind == "Add" else result * part
        return result
    if kind == "Pow" and type(parts[1]) is int and parts[1] >= 0:
        result = 1
        for _ in range(parts[1]):
            result = result * parts[0]
        return result
    return parts[0] % parts[1] if kind == "Mod" else None


def relation_of_sympy(x: Any) -> Any:
    """Turn a relation of sympy into one of ours; return it unchanged if it is not of integers."""
    left, right = from_sympy(x.lhs), from_sympy(x.rhs)
    if left is None or right is None:
        return x
    return _relation(x.rel_op, left, right)


def _rounded(x: Any) -> Any:
    """Return the quotient of sympy's ``floor(a/b)`` or ``ceiling(a/b)``, or None."""
    over, under = (from_sympy(part) for part in x.args[0].as_numer_denom())
    if over is None or under is None:
        return None
    return over // under if type(x).__name__ == "floor" else ceil_div(over, under)
