"""Programs of a few operations over mixed operands, compared value by value with functions.

A program begins with a layout, a composed layout or a tensor over strides of one kind, a user's own
class among them. Each operation says at which position of its operand its result reads; no other
part of this library is asked. ``LAYOUTCONV_CAMPAIGN`` is the number of programs.
"""

from __future__ import annotations

import copy
import os
import random

import pytest

import layoutconv.algebra as lc
from layoutconv.algebra import F2, ComposedLayout, CustomStride, E, IndexedGather, Layout, Swizzle
from layoutconv.algebra.protocol import Stride

PROGRAMS = int(os.environ.get("LAYOUTCONV_CAMPAIGN", "400"))


class Square(Stride):
    """A user's own stride, whose values follow no step."""

    __slots__ = ("factor",)

    def __init__(self, factor):
        object.__setattr__(self, "factor", factor)

    def at(self, c):
        return self.factor * c * c

    def __eq__(self, other):
        return isinstance(other, Square) and other.factor == self.factor

    def __hash__(self):
        return hash((Square, self.factor))

    def __str__(self):
        return f"square({self.factor})"


def gather(rng):
    return CustomStride(IndexedGather(tuple(rng.randrange(40) for _ in range(64))), 1)


STRIDES = {
    "int": lambda rng: rng.choice([0, 1, 2, 3, 4, 6, 8, 12, 16, -1]),
    "F2": lambda rng: F2(rng.choice([0, 1, 2, 4, 3, 5, 8, 9, 16])),
    "basis": lambda rng: rng.choice([1, 2, 3]) * E(rng.randrange(2)),
    "gather": lambda rng: gather(rng) if rng.random() < 0.6 else rng.choice([0, 1, 4]),
    "user": lambda rng: Square(rng.randint(1, 3)),
}


def shape_of(rng, most):
    extents, room = [], most
    for _ in range(rng.randint(1, 3)):
        extents.append(rng.choice([s for s in (1, 2, 2, 3, 4, 4, 5, 6, 8) if s <= room]))
        room //= extents[-1]
    halves = lambda s: (2, s // 2) if s in (4, 6, 8) and rng.random() < 0.2 else s  # noqa: E731
    return tuple(map(halves, extents))


def strided(rng, shape, kind):
    return tuple(
        strided(rng, s, kind) if isinstance(s, tuple) else STRIDES[kind](rng) for s in shape
    )


def layout(rng, kinds, most=48):
    shape = shape_of(rng, most)
    return Layout(shape, strided(rng, shape, rng.choice(kinds)))


def beginning(rng):
    inner = layout(rng, list(STRIDES))
    values = [inner(i) for i in range(lc.size(inner))]
    way = rng.random()
    if way < 0.5 or not all(isinstance(v, int | F2) and int(v) >= 0 for v in values):
        return inner
    if way < 0.7:
        return ComposedLayout(
            Swizzle(rng.randint(1, 2), rng.randint(0, 1), 2), rng.choice([0, 8]), inner
        )
    if way < 0.85:
        return ComposedLayout(layout(rng, ["int", "F2"], 64), rng.choice([0, 3]), inner)
    return lc.make_tensor([7 * i + 1 for i in range(2 * max(map(int, values)) + 90)], inner)


def values_of(x):
    return [plain(x(i)) for i in range(lc.size(x))]


def plain(value):
    """A value in one form: integers, or tuples without zeros at the end."""
    if isinstance(value, F2):
        return int(value)
    if not isinstance(value, tuple):
        return plain(value.as_tuple()) if hasattr(value, "as_tuple") else value
    parts = [plain(part) for part in value]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts) or 0


def colex(crd, extents):
    position, place = 0, 1
    for c, s in zip(crd, extents, strict=True):
        position, place = position + c * place, place * s
    return position


def digits(position, extents):
    found = []
    for s in extents:
        position, c = divmod(position, s)
        found.append(c)
    return tuple(found)


def modes(x):
    shape = x.shape
    return [lc.size(s) for s in shape] if isinstance(shape, tuple) else [lc.size(shape)]


def divisors(rng, extents):
    return tuple(rng.choice([t for t in range(1, s + 1) if s % t == 0]) for s in extents)


def as_they_are(operation):
    return lambda rng, x: (operation(x), lambda i: i)


def grouped(rng, x):
    end = rng.randint(1, len(modes(x)))
    return lc.group_modes(x, rng.randrange(end), end), lambda i: i


def composed(kind):
    def operation(rng, x):
        b = layout(rng, [kind], 32)
        at = [int(b(i)) for i in range(lc.size(b))]
        inside = min(at) >= 0 and max(at) < lc.size(x)
        return (lc.composition(x, b), at.__getitem__) if inside else None

    return operation


def cut(rng, x):
    extents = modes(x)
    tile = tuple(rng.randint(1, s) for s in extents)
    return lc.composition(x, tile), lambda i: colex(digits(i, tile), extents)


def divided(operation):
    def tiles(rng, x):
        extents = modes(x)
        tile = divisors(rng, extents)
        rest = [s // t for s, t in zip(extents, tile, strict=True)]
        size = lc.size(tile)

        def at(i):
            pairs = zip(digits(i % size, tile), digits(i // size, rest), tile, strict=True)
            return colex([c + t * k for c, k, t in pairs], extents)

        return operation(x, tile), at

    return tiles


def selected(rng, x):
    extents = modes(x)
    order = rng.sample(range(len(extents)), len(extents))

    def at(i):
        crd = dict(zip(order, digits(i, [extents[k] for k in order]), strict=True))
        return colex([crd[k] for k in range(len(extents))], extents)

    return lc.select(x, order), at


def appended(rng, x):
    size = lc.size(x)
    return lc.append(x, Layout(rng.randint(1, 3), 0)), lambda i: i % size


OPERATIONS = {
    "coalesce": as_they_are(lc.coalesce),
    "flatten": as_they_are(lc.flatten),
    "with_shape": as_they_are(lambda x: lc.with_shape(x, x.shape)),
    "copy": as_they_are(copy.deepcopy),
    "reshape": as_they_are(lambda x: lc.composition(x, Layout(tuple(lc.flatten(x.shape))))),
    "parse": as_they_are(lambda x: lc.parse(str(x)) if read_back(x) else x),
    "group_modes": grouped,
    "composition": composed("int"),
    "composition of XOR": composed("F2"),
    "composition of a tile": cut,
    "zipped_divide": divided(lc.zipped_divide),
    "tiled_divide": divided(lc.tiled_divide),
    "flat_divide": divided(lc.flat_divide),
    "select": selected,
    "append": appended,
}


def read_back(x):
    return not any(word in str(x) for word in ("gather", "square", "over list"))


def run(rng):
    """The trail of one program, and what is wrong of its last step; None where all is right."""
    x = beginning(rng)
    values, trail = values_of(x), [str(x)]
    for name in rng.choices(list(OPERATIONS), k=rng.randint(3, 5)):
        if not isinstance(x.shape, tuple):
            x = lc.wrap(x)
        try:
            step = OPERATIONS[name](rng, x)
        except lc.LayoutError:
            continue
        if step is None:
            continue
        trail.append(f"{name}: {step[0]}")
        result = values_of(step[0])
        wanted = [values[step[1](i)] for i in range(len(result))]
        if result != wanted:
            return f"{trail}: {result}, not {wanted}"
        wrong = questions(step[0], result)
        if wrong is not None:
            return f"{trail}: {wrong}"
        if len(result) <= 200:
            x, values = step[0], result
    return None


def questions(x, values):
    """The first question that a layout with these values answers wrongly; None without."""
    if isinstance(x, lc.Tensor) or "@" in str(x) or not all(type(v) is int for v in values):
        return None
    answers = {
        "cosize": (lc.cosize(x), max(values) - min(values) + 1),
        "image": (list(lc.image(x)), sorted(set(values))),
        "is_injective": (lc.is_injective(x), len(set(values)) == len(values)),
        "is_surjective": (
            lc.is_surjective(x, max(values) + 1),
            set(values) >= set(range(max(values) + 1)),
        ),
    }
    return next((f"{n}: {a}, not {b}" for n, (a, b) in answers.items() if a != b), None)


@pytest.mark.parametrize("part", range(4))
def test_a_program_is_the_function_that_it_says(part):
    for program in range(PROGRAMS // 4):
        wrong = run(random.Random(f"{part} {program}"))
        assert wrong is None, wrong


TABLE = Layout((4,), (CustomStride(IndexedGather((5, 12, 7, 9)), 1),))


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: lc.select(x, [0]),
        lambda x: lc.append(x, Layout(2, 0)),
        lambda x: lc.prepend(x, Layout(2, 0)),
        lambda x: lc.replace(x, 0, Layout(1, 0)),
        lambda x: lc.take(x, 0, 1),
        lambda x: lc.wrap(x),
        lambda x: lc.unwrap(x),
        lambda x: lc.unflatten(x, (1,)),
    ],
)
def test_entries_of_a_layout_that_is_composed_twice(operation):
    """The gather between the swizzle and the domain was lost: the value was 0, not 15."""
    x = lc.local_partition(ComposedLayout(Swizzle(2, 0, 2), 0, TABLE), Layout((4,)), 1)
    assert x(0) == 15
    assert operation(x)(0) == 15


def test_concat_does_not_lose_a_swizzle():
    swizzled = ComposedLayout(Swizzle(2, 0, 2), 0, Layout((4, 4)))
    with pytest.raises(lc.LayoutTypeError, match="append joins modes"):
        lc.concat(swizzled, Layout(2, 16))
    assert str(lc.append(swizzled, Layout(2, 16))) == "S<2,0,2> o 0 o (4,4,2):(1,4,16)"


def test_xor_strides_that_are_reached_by_coordinates_add_by_xor():
    x = lc.parse("(6,8):(f4,f16) o (1,1) o (2,2):(3@0,4@1)")
    assert [x(i) for i in range(4)] == [20, 0, 84, 64]
    assert (lc.cosize(x), lc.image(x), lc.is_injective(x)) == (85, [0, 20, 64, 84], True)


def test_a_coordinate_that_ends_early_goes_on_with_zeros():
    g = CustomStride(IndexedGather((5, 12, 7, 9)), 1)
    x = lc.composition(Layout((4, 2, 1), (g, 0, g)), (2, 2, 1))
    assert values_of(lc.coalesce(x)) == values_of(x) == [10, 17, 10, 17]


def test_an_offset_of_xor_is_read_back():
    for text in ("1:1 o f1 o (1):(f0)", "(2,1):(1,3) o 0 o 1:1 o f68 o (2,1):(f16,0)"):
        x = lc.parse(text)
        assert str(x) == text
    for text in ("f1", "3:1 o f1"):
        with pytest.raises(lc.LayoutError, match="expected a layout"):
            lc.parse(text)


@pytest.mark.parametrize("step", [Square(2), gather(random.Random(0))], ids=["user", "gather"])
def test_units_of_a_function_after_positions_are_refused(step):
    behind = ComposedLayout(Layout((2, 5), (1, step)), 0, Layout(5))
    with pytest.raises(lc.LayoutTypeError, match="upcast: expected integer strides"):
        lc.upcast(behind, 2)
    thrice = ComposedLayout(Layout((4, 5), (1, CustomStride(lc.StridedGather(3), 4))), 4, Layout(8))
    units = lc.upcast(thrice, 2)
    assert [units(i) for i in range(4)] == [thrice(2 * i) // 2 for i in range(4)]


def test_copies_that_a_function_places_are_refused():
    with pytest.raises(lc.LayoutTypeError, match="is not a layout of copies"):
        lc.logical_product(Layout((6, 4)), Layout((6, 4), (1, Square(2))))


def test_a_function_and_xor_strides_overlap_as_their_values_do():
    squares, xors = Layout((4, 3), (Square(2), 100)), Layout((8, 4), (F2(3), F2(40)))
    meets = not {squares(i) for i in range(12)}.isdisjoint(xors(i) + 1 for i in range(32))
    assert lc.overlaps(squares, xors, 1) is meets
    assert lc.overlaps(xors, squares, -1) is meets


def test_a_stride_of_a_users_own_is_copied():
    x = Layout((3, 2), (Square(2), Square(1)))
    assert copy.deepcopy(x) == x
    assert values_of(copy.deepcopy(x)) == values_of(x)
