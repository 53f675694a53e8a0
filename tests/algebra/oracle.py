"""What the operations mean, written from their definitions and as slowly as it takes.

Nothing here uses the code under test, not even to evaluate a layout: functions of integers only.
"""

from __future__ import annotations

import itertools
from fractions import Fraction


def leaves(tree):
    """The leaves of a nested tuple."""
    return [leaf for mode in tree for leaf in leaves(mode)] if isinstance(tree, tuple) else [tree]


def coordinates(shape):
    """Every coordinate of the flattened shape, the first leaf fastest."""
    extents = [range(s) for s in reversed(leaves(shape))]
    return [c[::-1] for c in itertools.product(*extents)]


def vector(d, paths):
    """A stride as a vector: integers under the path (), scaled bases under their own."""
    if isinstance(d, int):
        return tuple(d if p == () else 0 for p in paths)
    if hasattr(d, "path"):
        return tuple(d.value if p == d.path else 0 for p in paths)
    parts = [vector_at(d, p) for p in paths]
    return tuple(parts)


def vector_at(d, path):
    for i in path:
        if not isinstance(d, tuple) or i >= len(d):
            return 0
        d = d[i]
    return d if isinstance(d, int) else 0


def paths_of(*strides):
    """Every path that a stride leaf of these trees has a component at, and ()."""
    found = {()}

    def visit(d):
        if hasattr(d, "path"):
            found.add(d.path)
        elif isinstance(d, tuple):
            for mode in d:
                visit(mode)

    for stride in strides:
        visit(stride)
    return sorted(found)


def plus(a, b):
    return tuple(x + y for x, y in zip(a, b, strict=True))


def times(c, a):
    return tuple(c * x for x in a)


def evaluate(shape, stride, n, paths=((),)):
    """The function of a layout at any integer: digits by floor division, the last one unbounded."""
    extents, steps = leaves(shape), flat_strides(shape, stride)
    total = (0,) * len(paths)
    for i, (s, d) in enumerate(zip(extents, steps, strict=True)):
        digit = n if i == len(extents) - 1 else n % s
        total = plus(total, times(digit, vector(d, paths)))
        n //= s
    return total


def flat_strides(shape, stride):
    if not isinstance(shape, tuple):
        return [stride]
    return [d for s, t in zip(shape, stride, strict=True) for d in flat_strides(s, t)]


def factorizations(n):
    """Every ordered factorization of n into factors above 1."""
    if n == 1:
        return [()]
    return [(f, *rest) for f in range(2, n + 1) if n % f == 0 for rest in factorizations(n // f)]


def is_layout(values):
    """Whether a list of vectors is the table of some layout."""
    zero = times(0, values[0])
    if values[0] != zero:
        return False
    for extents in factorizations(len(values)):
        good = True
        for i, value in enumerate(values):
            total, n, place = zero, i, 1
            for e in extents:
                total = plus(total, times(n % e, values[place]))
                n //= e
                place *= e
            if total != value:
                good = False
                break
        if good:
            return True
    return False


def composition_exists(function, shape):
    """Whether some layout whose shape refines ``shape`` is ``function`` of its coordinates."""
    extents = leaves(shape)
    origin = (0,) * len(extents)
    columns = []
    for i, s in enumerate(extents):
        column = [
            function(tuple(x if j == i else 0 for j in range(len(extents)))) for x in range(s)
        ]
        if not is_layout(column):
            return False
        columns.append(column)
    for c in coordinates(shape):
        total = times(0, function(origin))
        for column, x in zip(columns, c, strict=True):
            total = plus(total, column[x])
        if total != function(c):
            return False
    return True


def table(shape, stride, paths=((),)):
    """The values of a layout at every linear coordinate."""
    size = 1
    for s in leaves(shape):
        size *= s
    return [evaluate(shape, stride, i, paths) for i in range(size)]


def forced_complement(distinct, bound):
    """The starts of copies that reach every offset once: forced, or None where one collides."""
    shifted = [o - min(distinct) for o in distinct]
    reached, starts, n = set(), [], 0
    while n < max(bound, max(shifted) + 1):
        copy = {n + o for o in shifted}
        if reached & copy:
            return None
        reached |= copy
        starts.append(n)
        while n in reached:
            n += 1
    return starts


def solved(rows):
    """A solution of linear equations (coefficients, right-hand side), free unknowns at 0."""
    rows = [[Fraction(x) for x in row] for row in rows]
    unknowns = len(rows[0]) - 1
    pivots = []
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
