"""A view as a loop nest: extents to run over, and linear forms of the indices. Needs no compiler.

A reduction, or a batch of dot products, computes ``offset + sum(index * step)`` over its loops:
once per operand for the address, and once per coordinate that can leave its bounds. Chains of maps
are folded into these forms, contiguous modes are merged, and loops are sorted into memory order.
Kernels are compiled only for the number of loops and forms: every extent and step is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod
from operator import mul
from typing import Any

from layoutconv.algebra.int_tuple import flatten
from layoutconv.algebra.stride import ScaledBasis

from ..view.gemm_view import OperandLayout, gathers, stages
from .view_rules import UnsupportedViewError


@dataclass(frozen=True)
class Form:
    """``offset + sum(index * step)`` over the loops of a nest.

    Without a ``bound``, an offset into the memory of ``operand``, in elements. With one, a
    coordinate: outside ``[0, bound)`` the operand has no element.
    """

    operand: int
    bound: Any
    offset: Any
    outer: tuple[Any, ...]
    inner: tuple[Any, ...]


@dataclass(frozen=True)
class Nest:
    """Extents of the ``outer`` loops (kept) and ``inner`` loops (summed), fastest first, and forms.

    Operands count from 0; the last one is written. The first forms are their memories, in order.
    """

    outer: tuple[Any, ...]
    inner: tuple[Any, ...]
    forms: tuple[Form, ...]

    @property
    def memories(self) -> tuple[Form, ...]:
        """The memory form of each operand."""
        return tuple(form for form in self.forms if form.bound is None)

    def bounds(self, operand: int) -> tuple[Form, ...]:
        """Return the coordinates of an operand that the kernel has to check."""
        return tuple(f for f in self.forms if f.bound is not None and f.operand == operand)

    def ordered(self, order: Sequence[int]) -> Nest:
        """Return the nest with its outer loops in the given order."""
        forms = (replace(f, outer=tuple(f.outer[i] for i in order)) for f in self.forms)
        return Nest(tuple(self.outer[i] for i in order), self.inner, tuple(forms))

    def mapped(self, visit: Callable[[Any], Any]) -> Nest:
        """Return the nest with ``visit`` applied to every argument: all integers but steps of 0."""

        def step(value: Any) -> Any:
            return value if isinstance(value, int) and value == 0 else visit(value)

        outer, inner = tuple(map(visit, self.outer)), tuple(map(visit, self.inner))
        forms = tuple(
            Form(
                form.operand,
                None if form.bound is None else visit(form.bound),
                step(form.offset),
                tuple(map(step, form.outer)),
                tuple(map(step, form.inner)),
            )
            for form in self.forms
        )
        return Nest(outer, inner, forms)

    def structure(self) -> Nest:
        """Return the compile-time part: the nest with "n" for every argument."""
        return self.mapped(lambda _: "n")

    def arguments(self) -> tuple[Any, ...]:
        """Return the integer arguments in the order in which ``mapped`` visits them."""
        found: list[Any] = []
        self.mapped(found.append)
        return tuple(found)


def make_nest(operands: Sequence[tuple[str, OperandLayout, int | None]]) -> Nest:
    """Return the nest of operands, each a name for errors, a layout, and the mode that is summed.

    The other modes are kept, in the order of the layout. All layouts have the same kept size and
    the same summed size; neither is 0.

    Raises ``UnsupportedViewError`` for an index buffer, for nested coordinates, and if the extents
    of two operands have no common refinement: (4,6) and (6,4).

    >>> from layoutconv.algebra import Layout
    >>> nest = make_nest([("x", Layout(((2, 3), 4), ((1, 2), 6)), 1), ("out", Layout(6), None)])
    >>> nest.outer, nest.inner, [form.outer for form in nest.forms]
    ((6,), (4,), [(1,), (1,)])
    """
    kept, summed = [], []  # per operand: loop extents, and per form a step for each loop
    for number, (name, layout, mode) in enumerate(operands):
        extents, forms = linear_forms(name, number, layout)
        at = range(0)
        if mode is not None:
            first = sum(len(flatten(s)) for s in layout.shape[:mode])
            at = range(first, first + len(flatten(layout.shape[mode])))
        rest = [i for i in range(len(extents)) if i not in at]
        kept.append(([extents[i] for i in rest], [[f.outer[i] for i in rest] for f in forms]))
        summed.append(([extents[i] for i in at], [[f.outer[i] for i in at] for f in forms]))
        if number == 0:
            found: list[Form] = []
        found += forms
    outer, outer_steps = _refined(operands, kept)
    inner, inner_steps = _refined(operands, [part for part in summed if part[0]])
    inner_steps += [[0] * len(inner)] * (len(found) - len(inner_steps))
    outer, outer_steps = _merged(outer, outer_steps)
    inner, inner_steps = _merged(inner, inner_steps)
    forms = [
        replace(form, outer=tuple(a), inner=tuple(b))
        for form, a, b in zip(found, outer_steps, inner_steps, strict=True)
    ]
    forms.sort(key=lambda form: form.bound is not None)  # stable: memories first
    return Nest(tuple(outer), tuple(inner), tuple(forms))


def split(nest: Nest, pieces: int, first: int = 0) -> tuple[Nest, Nest]:
    """Split a nest into two: about ``pieces`` partial results, then their reduction.

    The longest inner loop, from number ``first`` on, is split into pieces (``logical_divide``).
    Partial results lie in a workspace, contiguous in loop order, pieces slowest. If the last piece
    is not full, the operands get one more bound.

    >>> from layoutconv.algebra import Layout
    >>> whole = make_nest([("x", Layout((2, 10), (1, 2)), 1), ("out", Layout(2), None)])
    >>> first, second = split(whole, 3)
    >>> first.outer, first.inner, [(form.bound, form.outer) for form in first.forms]
    ((2, 3), (4,), [(None, (1, 8)), (None, (1, 2)), (10, (0, 4))])
    >>> second.outer, second.inner
    ((2,), (3,))
    """
    at = max(range(first, len(nest.inner)), key=lambda i: (nest.inner[i], i))
    extent = nest.inner[at]
    length = max(-(-extent // pieces), 1)
    length += -length % (16 if at == 0 and extent >= 1024 else 1)  # whole vectors
    pieces = -(-extent // length)
    compact = tuple(accumulate((1, *nest.outer[:-1]), mul)) if nest.outer else ()
    kept = prod(nest.outer)
    target = len(nest.memories) - 1
    partial = [
        replace(form, outer=(*form.outer, form.inner[at] * length))
        for form in nest.forms
        if form.operand != target
    ]
    partial.insert(target, Form(target, None, 0, (*compact, kept), (0,) * len(nest.inner)))
    if pieces * length != extent:
        outer = (*(0 for _ in nest.outer), length)
        inner = tuple(int(i == at) for i in range(len(nest.inner)))
        partial += [Form(operand, extent, 0, outer, inner) for operand in range(target)]
    finish = [Form(0, None, 0, compact, (kept,))]
    finish += [replace(f, operand=1, inner=(0,)) for f in nest.forms if f.operand == target]
    loops = tuple(length if i == at else e for i, e in enumerate(nest.inner))
    return (
        Nest((*nest.outer, pieces), loops, tuple(partial)),
        Nest(nest.outer, (pieces,), tuple(finish)),
    )


def together(nest: Nest, operand: int, inner: bool, limit: int) -> int:
    """Return how many consecutive indices of the first loop, outer or inner, are contiguous in an
    operand: the vector length.

    A power of two up to ``limit``. Vectors are as aligned as the memory, and no bound cuts one.
    """
    extents = nest.inner if inner else nest.outer
    vector = limit if extents else 1
    while vector > 1 and not _divides(nest, operand, inner, vector):
        vector //= 2
    return vector


def shares_a(nest: Nest) -> bool:
    """Return whether the elements of a vector along the first outer loop share one of A."""
    return bool(nest.outer) and nest.outer[0] > 1 and not nest.memories[0].outer[0]


def in_vectors(nest: Nest, inner: bool, vector: int) -> Nest:
    """Return the nest with its first loop, outer or inner, in steps of ``vector``."""
    if vector == 1:
        return nest

    def steps(form: Form) -> Form:
        if inner:
            return replace(form, inner=(form.inner[0] * vector, *form.inner[1:]))
        return replace(form, outer=(form.outer[0] * vector, *form.outer[1:]))

    forms = tuple(map(steps, nest.forms))
    if inner:
        return Nest(nest.outer, (nest.inner[0] // vector, *nest.inner[1:]), forms)
    return Nest((nest.outer[0] // vector, *nest.outer[1:]), nest.inner, forms)


def _divides(nest: Nest, operand: int, inner: bool, vector: int) -> bool:
    if (nest.inner if inner else nest.outer)[0] % vector:
        return False
    for form in nest.forms:
        first, *rest = (*form.inner, *form.outer) if inner else (*form.outer, *form.inner)
        whole = not any(step % vector for step in (*rest, form.offset))
        if form.bound is None:
            if form.operand == operand and not (first == 1 and whole):
                return False
        elif first and not (first == 1 and whole and form.bound % vector == 0):
            return False
    return True


def linear_forms(name: str, number: int, layout: OperandLayout) -> tuple[list[int], list[Form]]:
    """Return the extents of a layout's domain leaves, and its forms, all steps in ``outer``."""
    chain = stages(layout)
    if any(map(gathers, chain)):
        raise UnsupportedViewError(f"operand `{name}` of the view: expected no index buffer")
    extents = [int(s) for s in flatten(chain[0].layout.shape)]
    coords = [_unit(len(extents), i) for i in range(len(extents))]  # each: offset, steps
    forms: list[Form] = []
    for at, stage in enumerate(chain):
        strides = flatten(stage.layout.stride)
        if at:
            bounds = flatten(stage.layout.shape)
            if len(bounds) != len(coords):
                raise UnsupportedViewError(
                    f"operand `{name}` of the view: expected flat coordinates behind the first "
                    f"map, got {stage.layout}"
                )
            for (offset, steps), bound in zip(coords, bounds, strict=True):
                ends = [(s - 1) * d for s, d in zip(extents, steps, strict=True)]
                low, high = (offset + sum(pick(e, 0) for e in ends) for pick in (min, max))
                if low < 0 or high >= bound:
                    forms.append(Form(number, int(bound), offset, tuple(steps), ()))
        if at + 1 == len(chain):
            offset, steps = _sum(coords, [int(d) for d in strides], int(stage.offset or 0))
            forms.insert(0, Form(number, None, offset, tuple(steps), ()))
            break
        count = len(flatten(chain[at + 1].layout.shape))
        moved: list[list[int]] = [[] for _ in range(count)]  # per mode, weights of the coordinates
        for d in strides:
            if not isinstance(d, ScaledBasis) or len(d.path) != 1:
                raise UnsupportedViewError(
                    f"operand `{name}` of the view: expected scaled-basis strides before memory, "
                    f"got {stage.layout}"
                )
            for mode in range(count):
                moved[mode].append(int(d.value) if d.path == (mode,) else 0)
        offsets = flatten(stage.offset) if isinstance(stage.offset, tuple) else (0,) * count
        coords = [_sum(coords, m, int(o)) for m, o in zip(moved, offsets, strict=True)]
    return extents, forms


def _unit(count: int, at: int) -> tuple[int, list[int]]:
    return 0, [int(i == at) for i in range(count)]


def _sum(
    coords: list[tuple[int, list[int]]], weights: list[int], offset: int
) -> tuple[int, list[int]]:
    """Return the weighted sum of linear forms, itself a linear form."""
    steps = [0] * len(coords[0][1]) if coords else []
    for (start, by), weight in zip(coords, weights, strict=True):
        offset += start * weight
        steps = [s + d * weight for s, d in zip(steps, by, strict=True)]
    return offset, steps


def _refined(
    operands: Sequence[tuple[str, OperandLayout, int | None]],
    parts: list[tuple[list[int], list[list[int]]]],
) -> tuple[list[int], list[list[int]]]:
    """Return the common refinement of all operands' extents, and each form's steps along it."""
    cuts = sorted({cut for extents, _ in parts for cut in accumulate(extents, mul)} | {1})
    if any(b % a for a, b in pairwise(cuts)):
        shapes = " and ".join(str(tuple(extents)) for extents, _ in parts)
        names = ", ".join(name for name, _, _ in operands)
        raise UnsupportedViewError(
            f"operands `{names}`: expected extents with a common refinement, got {shapes}"
        )
    all_steps = []
    for extents, forms in parts:
        starts = list(accumulate((1, *extents), mul))
        for steps in forms:
            all_steps.append(
                [
                    next(
                        step * (cut // start)
                        for start, end, step in zip(starts, starts[1:], steps, strict=False)
                        if start <= cut < end
                    )
                    for cut in cuts[:-1]
                ]
            )
    return [b // a for a, b in pairwise(cuts)], all_steps


def _merged(extents: list[int], forms: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Return the loops in the memory order of the first form, contiguous ones merged."""
    loops = list(zip(extents, zip(*forms, strict=True), strict=True))
    loops.sort(key=lambda loop: [(step == 0, abs(step)) for step in loop[1]])
    result: list[tuple[int, tuple[int, ...]]] = []
    for extent, steps in loops:
        if result:
            before, last = result[-1]
            if steps == tuple(before * step for step in last):
                result[-1] = before * extent, last
                continue
        result.append((extent, steps))
    merged = [[steps[number] for _, steps in result] for number in range(len(forms))]
    return [extent for extent, _ in result], merged
