"""Any operand in any place: an answer or an error of the algebra, soon; numbers are numbers.

Operands that are invalid in every place are in ``invalid_operands.py``. Here are those that are
valid somewhere, drawn at random in one place, in several, and deep in a tuple, by position and by
name. ``LAYOUTCONV_CAMPAIGN`` is the number of calls of each name, 40 by default.
"""

from __future__ import annotations

import inspect
import os
import random
import time
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

import layoutconv.algebra as lc
from layoutconv.algebra import F2, ComposedLayout, E, Layout, LayoutError, Swizzle, SymInt, Tensor
from layoutconv.testing.random_layouts import STRIDE_KINDS, Cyclic, of_kind, over

from .invalid_operands import CALLS, COPY, MAKERS, MMA, OTHER_CALLS

CASES = int(os.environ.get("LAYOUTCONV_CAMPAIGN", "40"))
SECONDS = 0.1
H = lc.symbols("H")
EVERY_CALL = [
    *CALLS.items(),
    *OTHER_CALLS,
    *[(name, ((), fields)) for name, fields in MAKERS.items()],
]


def nested(depth):
    t = 4
    for _ in range(depth):
        t = (t,)
    return t


def drawn_layout(rng):
    kind = rng.choice(["layout", "swizzled", "offset", "tensor"])
    strides = rng.choice([k for k in STRIDE_KINDS if (kind, k) != ("swizzled", "basis")])
    return over(rng, kind, of_kind(rng, strides))


KINDS = {
    "int": lambda r: r.choice([0, 1, 2, 3, 4, 6, 8, 12, 32, 100, -1, -8]),
    "huge": lambda r: r.choice([1 << 31, 1 << 62, 1 << 63, 10**30, -(1 << 70)]),
    "tuple": lambda r: tuple(
        [r.choice([0, 1, 2, 4, -1, None, (2, 3), ()]) for _ in range(r.randint(0, 4))]
    ),
    "empty": lambda r: r.choice([(), ((),), (4, ()), ((), (4, ()))]),
    "deep": lambda r: nested(r.choice([30, 60])),
    "text": lambda r: r.choice(
        ["", "4", "(4,8)", "(4,8):(8,1)", "S<1,0,1> o 0 o 8:1", "1@0", "f3", "H"]
    ),
    "list": lambda r: r.choice([[], [4], [4, [8]], [(4, 8)], [Layout(4)]]),
    "number of NumPy": lambda r: r.choice([np.int8, np.uint64, np.array])(r.choice([0, 1, 4, 100])),
    "array": lambda r: r.choice([np.arange(4), np.arange(6).reshape(2, 3), np.array([], np.int64)]),
    "no integers": lambda r: r.choice(
        [np.float64(4), np.array([1.5]), np.str_("a"), Fraction(1, 2), Decimal(4)]
    ),
    "number of torch": lambda r: torch.tensor(r.choice([0, 1, 4, 100]), dtype=torch.uint8),
    "tensor of torch": lambda r: r.choice(
        [torch.arange(4), torch.tensor(1.5), torch.tensor([True])]
    ),
    "number without a value": lambda r: torch.tensor(2, device="meta"),
    "kernel's integer": lambda r: r.choice([SymInt(4, "H"), SymInt(0, "Z", runtime=True)]),
    "name": lambda r: r.choice([H, 2 * H, H // 2, -H]),
    "layout": drawn_layout,
    "odd layout": lambda r: r.choice(
        [
            Layout(()),
            Layout(((), 4), ((), 1)),
            Layout((4, 8), (0, 0)),
            Layout(1 << 62),
            Layout((SymInt(0, "Z", runtime=True), 4)),
        ]
    ),
    "function after a layout": lambda r: r.choice(
        [ComposedLayout(abs, 0, Layout(8)), Swizzle(2, 0, -2)]
    ),
    "tensor": lambda r: r.choice(
        [Tensor([1.5], Layout(1)), Tensor([3, 4], Layout(2)), lc.make_identity_tensor((4, 8))]
    ),
    "stride": lambda r: r.choice(
        [
            F2(5),
            E(0, 1),
            E(0) + E(1),
            Cyclic(3, 2),
            lc.IndexedGather([2, 1]),
            lc.ScaledBasis(H, (0,)),
        ]
    ),
    "threads": lambda r: r.choice([MMA, COPY.get_slice(2), MMA.atom]),
    "anything": lambda r: r.choice(
        [range(4), iter((4, 8)), slice(None), ..., Layout, abs, 2.5, True, {4}, b"4"]
    ),
}


def replaced(rng, t, new):
    """``t`` with an operand in place of it, or of something in it."""
    if not isinstance(t, tuple) or not t or rng.random() < 0.3:
        return new
    i = rng.randrange(len(t))
    return (*t[:i], replaced(rng, t[i], new), *t[i + 1 :])


def by_position(rng, fn, args, named):
    """The same call with some of what has a name given by position."""
    parameters = list(inspect.signature(fn).parameters.values())[len(args) :]
    for p in parameters if rng.random() < 0.4 else ():
        if p.kind is not p.POSITIONAL_OR_KEYWORD or p.name not in named:
            break
        args.append(named.pop(p.name))


def called(rng, fn, call):
    """A right call with other operands in some of its places, and which kinds they are of."""
    args, named = list(call[0]), dict(call[1])
    places = [*range(len(args)), *named]
    kinds = []
    for place in rng.sample(places, min(len(places), rng.choice([1, 1, 2, 3]))):
        kinds.append(rng.choice(list(KINDS)))
        operands = args if isinstance(place, int) else named
        operands[place] = replaced(rng, operands[place], KINDS[kinds[-1]](rng))
    by_position(rng, fn, args, named)
    return args, named, kinds


def outcome(fn, args, named):
    """A result, or what was raised, and the seconds of the processor."""
    started = time.process_time()
    try:
        return fn(*args, **named), time.process_time() - started
    except Exception as error:
        return error, time.process_time() - started


@pytest.mark.parametrize("at", range(len(EVERY_CALL)), ids=[name for name, _ in EVERY_CALL])
def test_any_operand_in_any_place(at):
    name, call = EVERY_CALL[at]
    rng, fn = random.Random(at), getattr(lc, name)
    for _ in range(CASES if call != ((), {}) else 0):
        args, named, kinds = called(rng, fn, call)
        if name in ("transform_leaf", "hier_unzip") and callable((*args, *named.values())[0]):
            continue  # a user's function may raise what it likes
        result, seconds = outcome(fn, args, named)
        if isinstance(result, Exception):
            assert isinstance(result, LayoutError), (name, kinds, args, named, result)
        again = min([outcome(fn, args, named)[1] for _ in range(3)]) if seconds > SECONDS else 0
        assert again < SECONDS, (name, kinds, args, named)


NUMBERS = {
    "int8": (np.int8, -(1 << 7), (1 << 7) - 1),
    "uint8": (np.uint8, 0, (1 << 8) - 1),
    "uint64": (np.uint64, 0, (1 << 64) - 1),
    "array": (np.array, -(1 << 63), (1 << 63) - 1),
    "tensor": (lambda v: torch.tensor(v, dtype=torch.int8), -(1 << 7), (1 << 7) - 1),
}
# They keep a number of torch as it is: a coordinate, an offset, an entry that is handed on.
KEEP_TENSORS = [
    *("append", "prepend", "concat", "wrap", "unwrap", "select", "replace", "take", "unflatten"),
    *("make_coord", "make_shape", "make_stride", "make_tile", "slice_", "dice", "substitute"),
    *("idx2crd", "crd2crd", "crd2idx", "increment", "domain_offset", "local_tile", "basis_get"),
    *("slice_and_offset", "get", "transform_leaf", "ScaledBasis", "ArithmeticTuple"),
    *("ComposedLayout", "make_composed_layout"),
]
# What is no public operation but a record takes ints alone, and says so.
RECORDS = ("CopyAtom", "MmaAtom", "TiledCopy", "ThrCopy", "ThrMma")
DATA = ("assuming", "IndexedGather", "repeat_like", "make_tensor", "Tensor")  # keeps what came


def converted(rng, t, make, low, high):
    """A right operand with some of its integers as those of another library."""
    if isinstance(t, tuple | list) and type(t) in (tuple, list):
        return type(t)([converted(rng, part, make, low, high) for part in t])
    return make(t) if type(t) is int and low <= t <= high and rng.random() < 0.7 else t


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("at", range(len(EVERY_CALL)), ids=[name for name, _ in EVERY_CALL])
def test_numbers_of_other_libraries_are_numbers(at, kind):
    name, call = EVERY_CALL[at]
    if name in (*RECORDS, *DATA) or (kind == "tensor" and name in KEEP_TENSORS):
        return
    rng, fn = random.Random(at), getattr(lc, name)
    expected, _ = outcome(fn, *call)
    listed = list(expected) if name == "coordinates" else expected
    for _ in range(4):
        args = converted(rng, list(call[0]), *NUMBERS[kind])
        named = {place: converted(rng, x, *NUMBERS[kind]) for place, x in call[1].items()}
        result, _ = outcome(fn, args, named)
        assert (list(result) if name == "coordinates" else result) == listed, (args, named, result)
        assert "np." not in repr(result), (args, named, result)


STRIDED = lc.CustomStride(lc.StridedGather(3), 1)


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda: lc.overlaps(Layout(8, 2), Layout(8, 2), np.int64(85)), False),
        (lambda: lc.append((4, 8), 2, np.uint8(3)), (4, 8, 2)),
        (lambda: lc.ceil_div(torch.tensor(127, dtype=torch.int8), 4), 32),
        (lambda: len(list(lc.coordinates((torch.tensor(100, dtype=torch.int8), 3)))), 300),
        (lambda: lc.crd2idx((1, 52), (4, 8), (3, torch.tensor(47, dtype=torch.uint8))), 2447),
        (lambda: lc.domain_distribute((torch.tensor(3), 14), 6), Layout(6)),
        (lambda: lc.is_surjective(Layout((4, 2), (F2(1), F2(4))), np.uint64(8)), True),
        (lambda: lc.crd2idx((1, 2), Tensor([9.5] * 32, Layout((4, 8), (8, 1)), 3)), 10),
        (lambda: lc.crd2idx((1, 2), Layout((4, 8), (8, 1)), (1, 4)), 9),
        (lambda: lc.to_f2(Tensor([7, 5, 3, 1], Layout(4))), (1, 2)),
        (lambda: lc.f2_layout(Tensor([0, 2, 1, 3], Layout(4))), Layout(4)),
        (lambda: lc.unflatten(np.int64(3), 1), 3),
        (lambda: lc.unflatten(np.array([2, 3]), (1, 1)), (2, 3)),
        (lambda: lc.make_layout(4, np.int64(2)), Layout(4, 2)),
        (lambda: lc.overlaps(Layout((4, 4), (E(0), E(1))), Layout(2, E(1)), E(1)), True),
        (lambda: lc.overlaps(Layout(2, 1), Layout(2, 0), (0, 1)), False),
        (lambda: lc.flatten(Layout(4, E(1)).stride), E(1)),
        (lambda: lc.flatten(Layout(4, F2(3)).stride), F2(3)),
        (lambda: lc.flatten(lc.symbols("N")), lc.symbols("N")),
        (lambda: lc.flatten(np.int8(3)), 3),
        (lambda: lc.slice_(None, Layout(4, E(1)).stride), E(1)),
        (lambda: lc.slice_(None, np.int8(3)), 3),
        (lambda: lc.basis_get(E(), (4, 8)), (4, 8)),
        (lambda: lc.make_layout((4, ()), (2, ())), Layout((4, ()), (2, ()))),
        (lambda: lc.make_layout(((4, 8), ()), ((8, 1), ())), Layout(((4, 8), ()), ((8, 1), ()))),
        (lambda: lc.make_layout((), ()), Layout((), ())),
        (lambda: lc.make_layout_like(Layout((4, 8), (F2(9), F2(1)))), Layout((4, 8), (8, 1))),
        (lambda: lc.sort(Layout((4, 2), (STRIDED, 1))), Layout((2, 4), (1, 3))),
        (lambda: lc.make_layout((4, ()), stride=(2, ())), Layout((4, ()), (2, ()))),
    ],
)  # fmt: skip
def test_what_was_answered_wrongly_or_not_at_all(ask, answer):
    found = ask()
    assert found == answer
    assert type(found) is type(answer)


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda: lc.crd2idx(3, 4, (8, 1)), "does not have the profile"),
        (lambda: lc.crd2idx(3, (4,), ((8, 1),)), "does not have the profile"),
        (lambda: lc.crd2idx(-5, abs), "is not a shape"),
        (lambda: lc.crd2crd((np.int64(9), 1), (4, 8)), "9 is not a coordinate of the mode 4"),
        (lambda: lc.unflatten([1, 2, 3], (1, 1)), "3 entries"),
        (lambda: lc.unflatten({1, 2}, (1, 1)), "expected an int"),
        (lambda: Layout((4, 8), (8, 1))(Fraction(1, 2)), "is not an integer"),
        (lambda: Layout((4, 8), (8, 1))(Decimal(4)), "is not an integer"),
        (lambda: lc.overlaps(Layout(4), Layout(4), (0, 1)), "cannot be moved by"),
        (lambda: lc.bank_conflicts(Layout(32), 32, banks=0), "at least 1 byte"),
        (lambda: lc.take((4, 8), 0, 1 << 62), "has no entry"),
        (lambda: lc.append((4, 8), 2, 1 << 62), "is longer than"),
        (lambda: lc.rank(nested(4000)), "nested too deeply"),
        (lambda: Layout(nested(4000)), "nested too deeply"),
        (lambda: lc.ceil_div((12, 8), (F2(5), 4)), "argument `b`: expected an int"),
        (lambda: lc.footprint(Layout(SymInt(0, "Z", runtime=True))), "has no coordinates"),
        (lambda: lc.complement(Layout(4), np.arange(3)), "argument `bound`"),
        (lambda: lc.idx2crd(torch.tensor(4), (1 << 70, 2)), "more than 64 bits"),
    ],
)
def test_what_is_refused(ask, why):
    with pytest.raises(LayoutError, match=why):
        ask()
