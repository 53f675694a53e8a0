"""The meaning of layouts and operations on them, written from the definitions, without speed.

Nothing here uses the code under test, not even to evaluate a layout: values follow from the
attributes of an object (``shape``, ``stride``, ``outer``, ``offset``, ``inner``, ``engine``), by
the definitions of CuTe's documentation and of Cecka's paper (arXiv 2603.02298).

A value is an integer, or for coordinates a dict of the nonzero components by path.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any


def leaves(tree: Any) -> Any:
    """Return the leaves of a nested tuple."""
    return [leaf for mode in tree for leaf in leaves(mode)] if isinstance(tree, tuple) else [tree]


def nested(flat: Any, profile: Any) -> Any:
    """Return ``flat`` leaves in the nesting of ``profile``."""
    left = iter(flat)

    def fill(part: Any) -> Any:
        return tuple(map(fill, part)) if isinstance(part, tuple) else next(left)

    return fill(profile)


def volume(shape: Any) -> Any:
    """Return the number of coordinates of a shape."""
    size = 1
    for s in leaves(shape):
        size *= s
    return size


def coordinates(shape: Any) -> Any:
    """Return every coordinate of the flattened shape, the first leaf fastest."""
    extents = [range(s) for s in reversed(leaves(shape))]
    return [c[::-1] for c in itertools.product(*extents)]


def flat_strides(shape: Any, stride: Any) -> Any:
    """Return the strides of the leaves of ``shape``."""
    if not isinstance(shape, tuple):
        return [stride]
    return [d for s, t in zip(shape, stride, strict=True) for d in flat_strides(s, t)]


def kind_of(x: Any) -> Any:
    """Return the name of an object's class."""
    return type(x).__name__


# ---- values ----------------------------------------------------------------------------------


def components(v: Any, path: Any = ()) -> Any:
    """Return a coordinate (a tuple, a dict or a scaled basis) as the dict of its components."""
    if isinstance(v, dict):
        return {p: x for p, x in v.items() if x}
    if kind_of(v) == "ScaledBasis":
        return {path + v.path: v.value} if v.value else {}
    if isinstance(v, tuple):
        found: dict[Any, Any] = {}
        for i, part in enumerate(v):
            found |= components(part, (*path, i))
        return found
    return {path: v} if v else {}


def plain(v: Any) -> Any:
    """Return a value in its canonical form: an integer, or the dict of a nonzero coordinate."""
    if isinstance(v, int) and not isinstance(v, bool):
        return int(v)
    found = components(v)
    return found.get((), 0) if set(found) <= {()} else found


def plus(v: Any, w: Any) -> Any:
    """Return the sum of two values, or of two tuples of integers."""
    if isinstance(v, tuple):
        return tuple(x + y for x, y in zip(v, w, strict=True))
    if isinstance(v, int) and isinstance(w, int):
        return v + w
    a, b = components(v), components(w)
    return plain({p: a.get(p, 0) + b.get(p, 0) for p in {*a, *b}})


def times(c: Any, v: Any) -> Any:
    """Return ``c`` times a value, or a tuple of integers."""
    if isinstance(v, tuple):
        return tuple(c * x for x in v)
    return c * v if isinstance(v, int) else {p: c * x for p, x in v.items() if c * x}


def carryless(c: Any, d: Any) -> Any:
    """Return the product of polynomials over F2 whose coefficients are the bits of c and d."""
    total = 0
    for i in range(c.bit_length() if c >= 0 else 64):
        if c >> i & 1:
            total ^= d << i
    return total


def of_stride(c: Any, d: Any) -> Any:
    """Return the value of a stride at a coordinate; :func:`total` handles XOR strides."""
    kind = kind_of(d)
    if isinstance(d, int):
        return int(c) * int(d)
    if kind in ("ScaledBasis", "ArithmeticTuple"):
        return plain(times(c, components(d)))
    if kind == "CustomStride":
        return of_stride(applied(d.func, c), d.stride)
    if kind == "SummedStride":
        parts = [of_stride(c, part) for part in d.addends]
        result = 0
        for part in parts:
            result = plus(result, part)
        return result
    return plain(d.oracle(c))  # a stride that tests define


def applied(func: Any, c: Any) -> Any:
    """Return the value of the function of a custom stride."""
    if kind_of(func) == "IndexedGather":
        return int(func.index[c])
    if kind_of(func) == "StridedGather":
        return c * func.stride
    return func(c)


def total(digits: Any, strides: Any) -> Any:
    """Return the value of a layout at the digits of its leaves."""
    result = 0
    if any(adds_by_xor(d) for d in strides):
        return by_axis(digits, strides)
    if any(kind_of(d) == "F2" and d.value for d in strides):
        for c, d in zip(digits, strides, strict=True):
            result ^= carryless(c, int(d.value)) if kind_of(d) == "F2" else of_stride(c, d)
        return result
    for c, d in zip(digits, strides, strict=True):
        result = plus(result, 0 if kind_of(d) == "F2" else of_stride(c, d))
    return result


def adds_by_xor(d: Any) -> Any:
    """Return whether a stride is a basis scaled by an XOR stride."""
    return kind_of(d) == "ScaledBasis" and kind_of(d.value) == "F2"


def by_axis(digits: Any, strides: Any) -> Any:
    """Return a coordinate with axes that add by XOR; other strides add on other axes."""
    result: dict[Any, Any] = {}
    rest: Any = 0
    for c, d in zip(digits, strides, strict=True):
        if adds_by_xor(d):
            result[d.path] = result.get(d.path, 0) ^ carryless(c, int(d.value.value))
        else:
            rest = plus(rest, of_stride(c, d))
    others = components(rest)
    if set(others) & {path for path, x in result.items() if x}:
        raise ValueError("an axis that adds by XOR and as integers")
    return plain({**result, **others})


def split(n: Any, shape: Any) -> Any:
    """Return the digits of an integer in a shape, by floor division; the last one is unbounded."""
    extents = leaves(shape)
    digits = []
    for s in extents[:-1]:
        digits.append(n % s)
        n //= s
    return [*digits, n] if extents else []


def spread(crd: Any, shape: Any) -> Any:
    """Return the digits of a coordinate: a tuple, an integer, or components by mode."""
    if isinstance(crd, dict):
        if not isinstance(shape, tuple):
            raise ValueError("a coordinate of an integer shape")
        result = []
        for i, s in enumerate(shape):
            inner = {p[1:]: x for p, x in crd.items() if p[0] == i}
            result += spread(inner.get((), 0) if set(inner) <= {()} else inner, s)
        return result
    if isinstance(crd, tuple):
        return [d for c, s in zip(crd, shape, strict=True) for d in spread(c, s)]
    return split(crd, shape)


def value(f: Any, crd: Any) -> Any:
    """Return the value of a function of the algebra at a coordinate or an integer."""
    kind = kind_of(f)
    if kind == "Swizzle":
        ones = (1 << f.bits) - 1
        if f.shift >= 0:
            return crd ^ ((crd & (ones << (f.base + f.shift))) >> f.shift)
        return crd ^ ((crd & (ones << f.base)) << -f.shift)
    if kind == "ComposedLayout":
        inner = value(f.inner, crd)
        if kind_of(f.offset) == "F2":
            return value(f.outer, inner ^ int(f.offset.value))
        return value(f.outer, plus(inner, plain(f.offset)))
    if kind == "Tensor":
        return int(f.engine[plus(value(f.layout, crd), plain(f.offset))])
    if kind == "Layout":
        return total(spread(crd, f.shape), flat_strides(f.shape, f.stride))
    return plain(f(crd))


def table(f: Any, stride: Any = None, paths: Any = None) -> Any:
    """Return the values at all linear coordinates; for a shape and a stride, as vectors."""
    if stride is None:
        return [value(f, i) for i in range(volume(f.shape))]
    return [evaluate(f, stride, i, paths or ((),)) for i in range(volume(f))]


def image(f: Any) -> Any:
    """Return the set of values, hashable."""
    return {hashable(v) for v in table(f)}


def hashable(v: Any) -> Any:
    """Return a value in a hashable form."""
    return v if isinstance(v, int) else tuple(sorted(v.items()))


# ---- layouts as tables of vectors --------------------------------------------------------------


def vector(d: Any, paths: Any) -> Any:
    """Return a stride as a vector: integers at the path (), scaled bases at their own."""
    if isinstance(d, int):
        return tuple(d if p == () else 0 for p in paths)
    found = components(d)
    return tuple(found.get(p, 0) for p in paths)


def evaluate(shape: Any, stride: Any, n: Any, paths: Any = ((),)) -> Any:
    """Return the vector of a layout at any integer."""
    result = (0,) * len(paths)
    for digit, d in zip(split(n, shape), flat_strides(shape, stride), strict=True):
        result = plus(result, times(digit, vector(d, paths)))
    return result


def factorizations(n: Any) -> Any:
    """Return every ordered factorization of n into factors above 1."""
    if n == 1:
        return [()]
    return [(f, *rest) for f in range(2, n + 1) if n % f == 0 for rest in factorizations(n // f)]


def is_layout(values: Any, add: Any = plus, multiply: Any = times) -> Any:
    """Return whether values are the table of some layout with this addition; 0 comes first."""
    zero = multiply(0, values[0])
    if values[0] != zero:
        return False
    return any(sums_up(values, extents, zero, add, multiply) for extents in
               factorizations(len(values)))  # fmt: skip


def sums_up(values: Any, extents: Any, zero: Any, add: Any = plus, multiply: Any = times) -> Any:
    """Return whether each value is the sum over its digits in these extents."""
    for i, v in enumerate(values):
        result, n, place = zero, i, 1
        for e in extents:
            result = add(result, multiply(n % e, values[place]))
            n, place = n // e, place * e
        if result != v:
            return False
    return True


def xor(v: Any, w: Any) -> Any:
    """Return the sum of XOR layouts."""
    return v ^ w


def composition_exists(function: Any, shape: Any, add: Any = plus, multiply: Any = times) -> Any:
    """Return whether some layout whose shape refines ``shape`` equals ``function``."""
    extents = leaves(shape)
    columns = []
    for i, s in enumerate(extents):
        column = [function(tuple(x if j == i else 0 for j in range(len(extents))))
                  for x in range(s)]  # fmt: skip
        if not is_layout(column, add, multiply):
            return False
        columns.append(column)
    for c in coordinates(shape):
        result = multiply(0, function((0,) * len(extents)))
        for column, x in zip(columns, c, strict=True):
            result = add(result, column[x])
        if result != function(c):
            return False
    return True


def exists(function: Any, shape: Any, values: Any, by_xor: Any) -> Any:
    """Return whether some layout equals a function: by sums, or by XOR if ``by_xor``."""
    if composition_exists(function, shape):
        return True
    if not by_xor or not all(isinstance(v, int) and v >= 0 for v in values):
        return False
    return composition_exists(function, shape, xor, lambda c, v: carryless(c, v))


def refines(coarse: Any, fine: Any) -> Any:
    """Return whether every coordinate of ``coarse`` is one of ``fine``."""
    if isinstance(coarse, tuple):
        if not isinstance(fine, tuple) or len(coarse) != len(fine):
            return False
        return all(map(refines, coarse, fine))
    return volume(fine) == coarse


def forced_complement(distinct: Any, bound: Any) -> Any:
    """Return the forced starts of copies that reach every offset once; None if copies collide."""
    shifted = [o - min(distinct) for o in distinct]
    reached: set[int] = set()
    starts: list[int] = []
    n = 0
    while n < max(bound, max(shifted) + 1):
        copy = {n + o for o in shifted}
        if reached & copy:
            return None
        reached |= copy
        starts.append(n)
        while n in reached:
            n += 1
    return starts


def solved(rows: Any) -> Any:
    """Return a solution of linear equations (coefficients, right-hand side), free unknowns at 0."""
    rows = [[Fraction(x) for x in row] for row in rows]
    unknowns = len(rows[0]) - 1
    pivots: list[Any] = []
    for column in range(unknowns):
        row = next((r for r in rows if r[column] and not any(r is p for _, p in pivots)), None)
        if row is None:
            continue
        row[:] = [x / row[column] for x in row]
        pivots.append((column, row))
        for other in rows:
            if other is not row and other[column]:
                factor = other[column]
                other[:] = [x - factor * y for x, y in zip(other, row, strict=True)]
    if any(row[-1] and not any(row[:-1]) for row in rows):
        return None
    solution = [Fraction(0)] * unknowns
    for column, row in pivots:
        solution[column] = row[-1]
    return solution


def interpolated(points: Any) -> Any:
    """Return whether a layout goes through points: try all extents, and solve for the strides."""
    span = max(abs(n) for n in points) + 1
    for size in range(1, span + 1):
        for extents in factorizations(size):
            rows = []
            for n, result in points.items():
                row = []
                for e in extents:
                    row.append(n % e)
                    n //= e
                rows.append([*row, n, result])
            solution = solved(rows)
            if solution is not None and all(x.denominator == 1 for x in solution):
                return True
    return False
