"""Random operands of every kind, of the small sizes at which libraries go wrong.

Each function takes a ``random.Random``, so that a seed identifies a case.
"""

from __future__ import annotations

from array import array
from typing import Any

from ..algebra import (
    F2,
    ComposedLayout,
    CustomStride,
    E,
    IndexedGather,
    Layout,
    Stride,
    StridedGather,
    Swizzle,
    SymInt,
    Tensor,
)
from .oracle import flat_strides, leaves, nested, volume

EXTENTS = [1, 2, 3, 4, 5, 6, 8]
STRIDES = [*range(10), 12, 16]
SIGNED = [*STRIDES, 0, -1, -2, -3, -8]
STRIDE_KINDS = ("int", "symbolic", "basis", "F2", "gather", "strided", "user")
OPERAND_KINDS = ("layout", "swizzled", "offset", "tensor", "shape", "string")


class Cyclic(Stride):
    """A user-defined stride, of which the protocol knows only single values."""

    __slots__ = ("period", "step")

    period: int
    step: int

    def __init__(self, period: Any, step: Any) -> None:
        object.__setattr__(self, "period", period)
        object.__setattr__(self, "step", step)

    def at(self, c: Any) -> Any:
        return c % self.period * self.step

    oracle = at

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Cyclic) and self.__str__() == str(other)

    def __hash__(self) -> int:
        return hash((self.period, self.step))

    def __str__(self) -> str:
        return f"cyclic({self.period},{self.step})"

    __repr__ = __str__


class ListedCyclic(Cyclic):
    """A cyclic stride with a list of its values."""

    __slots__ = ()

    def values(self, count: Any) -> Any:
        period = [c * self.step for c in range(min(self.period, count))]
        return array("q", period * (count // self.period + 1))[:count]


def random_layout(
    rng: Any, max_rank: Any, strides: Any = STRIDES, *, nested: Any = False, basis: Any = False
) -> Any:
    """Return a layout of rank <= ``max_rank`` with these strides; rank 1 may be an integer shape.

    >>> from random import Random
    >>> random_layout(Random(1), 3).rank <= 3
    True
    """
    rank = rng.randint(1, max_rank)
    shape = [rng.choice(EXTENTS) for _ in range(rank)]
    stride = [rng.choice(strides) for _ in range(rank)]
    if basis:
        stride = [d * E(rng.randrange(2)) if d else 0 for d in stride]
    if rank == 1 and rng.random() < 0.5:
        return Layout(shape[0], stride[0])
    if nested and rank > 2 and rng.random() < 0.7:
        cut = rng.randint(0, rank - 2)
        shape[cut : cut + 2] = [tuple(shape[cut : cut + 2])]
        stride[cut : cut + 2] = [tuple(stride[cut : cut + 2])]
    return Layout(tuple(shape), tuple(stride))


def plain_shape(rng: Any, max_rank: Any = 3, max_size: Any = 64, *, nested: Any = True) -> Any:
    """Return a shape of at most ``max_size`` coordinates, with at most one nested pair."""
    extents, left = [], max_size
    for _ in range(rng.randint(1, max_rank)):
        extents.append(rng.choice([s for s in EXTENTS if s <= left]))
        left //= extents[-1]
    if len(extents) == 1 and rng.random() < 0.5:
        return extents[0]
    if nested and len(extents) > 2 and rng.random() > 0.5:
        cut = rng.randint(0, len(extents) - 2)
        return (*extents[:cut], tuple(extents[cut : cut + 2]), *extents[cut + 2 :])
    return tuple(extents)


def of_kind(
    rng: Any,
    kind: Any,
    max_rank: Any = 3,
    max_size: Any = 64,
    strides: Any = SIGNED,
    shape: Any = None,
) -> Any:
    """Return a layout with strides of one kind: at least one truly is, others may be integers.

    ``shape`` is the layout's shape; by default any of at most ``max_size`` elements.

    >>> from random import Random
    >>> of_kind(Random(1), "basis", shape=(4, 8)).shape
    (4, 8)
    """
    if shape is not None:
        flat = [rng.choice(strides) for _ in leaves(shape)]
        return with_strides(rng, kind, Layout(shape, nested(flat, shape)))
    while True:
        layout = random_layout(rng, max_rank, strides, nested=True)
        if layout.size() <= max_size:
            break
    if kind == "symbolic":
        extents = leaves(layout.shape)
        if max(extents) == 1:
            layout = Layout(nested([2, *extents[1:]], layout.shape), layout.stride)
    elif kind == "F2" and rng.random() < 0.5:
        extents = [rng.choice([1, 2, 4, 8]) for _ in leaves(layout.shape)]
        extents = extents if volume(tuple(extents)) <= max_size else [2] * len(extents)
        layout = Layout(nested(extents, layout.shape), layout.stride)
    return with_strides(rng, kind, layout)


def with_strides(rng: Any, kind: Any, layout: Any) -> Any:
    """Replace the integer strides of a layout by strides of another kind."""
    extents, steps = leaves(layout.shape), flat_strides(layout.shape, layout.stride)
    if kind == "int":
        return layout
    if kind == "symbolic":
        return named(rng, extents, steps, layout.shape)
    chosen = [rng.random() < 0.6 for _ in steps]
    chosen[rng.randrange(len(steps))] = True
    if kind == "basis":
        new = [basis_stride(rng, d) for d in steps]
    elif kind == "F2":
        new = [F2(abs(d)) if c or d else 0 for d, c in zip(steps, chosen, strict=True)]
    elif kind == "gather":
        new = [CustomStride(IndexedGather(entries(rng, s)), d or 1) if c else d
               for s, d, c in zip(extents, steps, chosen, strict=True)]  # fmt: skip
    elif kind == "strided":
        new = [CustomStride(StridedGather(rng.choice([1, 2, 3])), d) if c else d
               for d, c in zip(steps, chosen, strict=True)]  # fmt: skip
    else:
        own = rng.choice([Cyclic, ListedCyclic])
        new = [own(rng.randint(1, 5), d) if c else d
               for d, c in zip(steps, chosen, strict=True)]  # fmt: skip
    return Layout(layout.shape, nested(new, layout.shape))


def basis_stride(rng: Any, d: Any) -> Any:
    """Return a scaled basis, sometimes a sum of two; 0 for 0."""
    if not d:
        return 0
    if rng.random() < 0.1:
        return d * E(0) + rng.choice(STRIDES[1:]) * E(1)
    return d * E(rng.randrange(2))


def entries(rng: Any, length: Any) -> Any:
    """Return the index of a gather: in order from 0, a permutation, or any integers."""
    way = rng.random()
    if way < 0.3:
        return list(range(length))
    if way < 0.6:
        return rng.sample(range(length), length)
    return [rng.randint(-2, 9) for _ in range(length)]


def named(rng: Any, extents: Any, steps: Any, shape: Any) -> Any:
    """Return a symbolic layout: some extents are names, some strides are products of these."""
    names = [SymInt(s, "ABCDH"[i]) if s > 1 and rng.random() < 0.7 else s
             for i, s in enumerate(extents)]  # fmt: skip
    if not any(isinstance(s, SymInt) for s in names):
        first = next((i for i, s in enumerate(extents) if s > 1), 0)
        names[first] = SymInt(extents[first], "A")
    if rng.random() < 0.6:
        order = rng.sample(range(len(names)), len(names))
        current = 1
        steps = list(steps)
        for i in order:
            steps[i] = current
            current = current * names[i]
    return Layout(nested(names, shape), nested(steps, shape))


def operand(rng: Any, kind: Any, strides: Any, max_size: Any = 64) -> Any:
    """Return an operand of one kind over a layout whose strides are of one kind.

    >>> from random import Random
    >>> type(operand(Random(1), "swizzled", "int").outer)
    <class 'layoutconv.algebra.swizzle.Swizzle'>
    """
    return over(rng, kind, of_kind(rng, strides, max_size=max_size))


def over(rng: Any, kind: Any, layout: Any) -> Any:
    """Return a layout as an operand: itself, swizzled, with an offset, a tensor, its text."""
    if kind == "layout":
        return layout
    if kind == "shape":
        return layout.shape
    if kind == "string":
        return str(layout)
    if kind == "tensor":
        return tensor_over(rng, layout)
    if kind == "swizzled":
        bits = rng.randint(0, 3)
        shift = rng.choice([1, -1]) * rng.randint(bits, 4)
        offset = rng.choice([0, 0, 0, 8, 16, 5])
        return ComposedLayout(Swizzle(bits, rng.randint(0, 3), shift), offset, layout)
    return composed_over(rng, layout)


def composed_over(rng: Any, layout: Any) -> Any:
    """Return a layout composed with a random outer layout, with an offset between them."""
    reach = reached(layout)
    if isinstance(reach, int):
        outer = random_layout(rng, 2, SIGNED)
        return ComposedLayout(outer, rng.choice([0, 0, 3, -2]), layout)
    outer = Layout(tuple([s + 3 for s in reach]), tuple([rng.choice(SIGNED) for _ in reach]))
    return ComposedLayout(outer, rng.choice([0, (1, 2), (-1, 1)]), layout)


def reached(layout: Any) -> Any:
    """Return extents for the coordinates that a layout gives, or 0 for integers."""
    paths = [
        getattr(d, "path", None) or (len(d) - 1,)
        for d in flat_strides(layout.shape, layout.stride)
        if hasattr(d, "path") or isinstance(d, tuple)
    ]
    return [8, 8] if paths else 0


class Unbounded:
    """An unbounded engine, whose value at a place identifies the place."""

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, dict):
            return 1000 + sum((path[0] + 1) * 1009 * x for path, x in place.items())
        if isinstance(place, tuple):
            return 1000 + sum((i + 1) * 1009 * x for i, x in enumerate(place))
        return 1000 + place


def tensor_over(rng: Any, layout: Any) -> Any:
    """Return a tensor of a layout, sometimes with an offset."""
    return Tensor(Unbounded(), layout, 0 if reached(layout) else rng.choice([0, 7]))


def domain(x: Any) -> Any:
    """Return the layout below the operand ``x``."""
    kind = type(x).__name__
    return (
        domain(x.inner) if kind == "ComposedLayout" else domain(x.layout) if kind == "Tensor" else x
    )
