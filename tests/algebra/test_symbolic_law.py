"""One law for names: a symbolic result, at values that it may assume, is the numeric result.

Every operation of the suite is played on layouts over names, with operands that have names too. The
result is evaluated at the values and held against the definition on the numeric operands.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv.algebra as lc
from layoutconv.algebra import (
    ComposedLayout,
    Layout,
    LayoutError,
    Swizzle,
    Tensor,
    assuming,
    substitute,
)
from layoutconv.testing import ADMISSIBLE, OPERATIONS
from layoutconv.testing.random_layouts import Unbounded
from layoutconv.testing.strategies import symbolic_layouts

CASES = int(os.environ.get("LAYOUTCONV_SYMBOLIC", "20"))
LARGEST = 2000  # elements of a product that are looked at
TILE = Layout((2, 3), (3, 1))


def modes_of(x):
    return x.shape if isinstance(x.shape, tuple) else (x.shape,)


def each(x, n):
    """An entry for each mode of a layout."""
    return (n,) * len(modes_of(x))


def sizes(x):
    return tuple([lc.size(s) for s in modes_of(x)])


def open_first(x):
    return (0, *each(x, None)[1:]) if isinstance(x.shape, tuple) else None


def flat(shape):
    return tuple(lc.flatten(shape)) if isinstance(shape, tuple) else (shape,)


def alone(x):
    return [(x,)]


def with_tiles(x):
    """Tiles by mode: of integers, and all of a mode."""
    return [(x, each(x, 2)), (x, (4, *each(x, None)[1:])), (x, sizes(x))]


def with_copies(x):
    return [(x, TILE), (x, Layout(x.shape))]


def with_blocks(x):
    return [(x, Layout(each(x, 2))), (x, Layout(each(x, 3), each(x, 1)))]


def reversed_modes(x):
    """The positions of a layout's modes, the last one first."""
    extents, places, place = sizes(x), [], 1
    for s in extents:
        places.append(place)
        place = place * s
    return Layout(extents[::-1], tuple(places[::-1]))


ALONE = [
    "coalesce", "coalesce_x", "filter", "filter_zeros", "flatten", "right_inverse", "left_inverse",
    "nullspace", "cosize", "is_injective", "is_surjective",
]  # fmt: skip
# For a layout x the operands to try: of names where it has some, of integers where not.
OPERANDS = {
    **dict.fromkeys(ALONE, alone),
    "group_modes": lambda x: [(x, 0, len(modes_of(x)))] if isinstance(x.shape, tuple) else [],
    "with_shape": lambda x: [(x, flat(x.shape)), (x, lc.size(x)), (x, (2, lc.size(x) // 2))],
    "slice_": lambda x: [(open_first(x), x)],
    "slice_and_offset": lambda x: [(open_first(x), x)],
    "composition": lambda x: [
        (x, Layout(2, 2)),
        (x, Layout(lc.size(x))),
        (x, reversed_modes(x)),
        (x, Layout(x.shape)),
    ],
    "composition by mode": lambda x: [(x, (2,)), (x, sizes(x)), (x, each(x, 2))],
    "complement": lambda x: [(x, lc.cosize(x)), (x, 3 * lc.size(x)), (x, 40)],
    "logical_divide": lambda x: [(x, 4), (x, Layout(2, 3)), (x, modes_of(x)[0])],
    "logical_divide by mode": with_tiles,
    "zipped_divide": with_tiles,
    "tiled_divide": with_tiles,
    "flat_divide": with_tiles,
    "logical_product": with_copies,
    "zipped_product": with_copies,
    "tiled_product": with_copies,
    "flat_product": with_copies,
    "blocked_product": with_blocks,
    "raked_product": with_blocks,
    "tile_to_shape": lambda x: [(x, tuple([2 * s for s in sizes(x)]), tuple(range(x.rank))[::-1])],
    "local_tile": lambda x: [(x, each(x, 2), each(x, 0)), (x, sizes(x), each(x, 0))],
    "local_partition": lambda x: [(x, Layout(each(x, 2)), 1)],
    "domain_offset": lambda x: [(each(x, 1), x)],
    "max_common_layout": lambda x: [(x, x), (x, Layout(x.shape)), (Layout(x.shape), x)],
    "max_common_vector": lambda x: [(x, x), (x, Layout(x.shape))],
    "layout_add": lambda x: [(x, x), (x, Layout(x.shape))],
    "upcast": lambda x: [(x, 2), (x, 1)],
    "downcast": lambda x: [(x, 2)],
    "recast": lambda x: [(x, 16, 8), (x, 8, 16)],
}
# Of what the strategy draws this few are decided, or none, where an answer is a plain one.
FEW = {"upcast": 2, "max_common_layout": 3, "max_common_vector": 3}


def now(x, values):
    """Operands and results at the values."""
    if isinstance(x, tuple):
        return tuple([now(part, values) for part in x])
    return x if x is None or isinstance(x, bool) else substitute(x, **values)


def assumptions_of(x):
    if isinstance(x, tuple):
        return [relation for part in x for relation in assumptions_of(part)]
    return list(getattr(x, "assumptions", ()))


def holds(relations, values):
    return all(eval(str(relation), dict(values)) for relation in relations)


def test_every_operation_is_played():
    assert set(OPERANDS) == set(ADMISSIBLE) == set(OPERATIONS)


def checked(name, operands, result):
    """Hold a result against the definition.

    A mode that has one element at these values keeps its place in a complement, which then is not
    the longest: copies at its offsets are apart still, but need not reach every offset.
    """
    if name == "complement" and 1 in flat(operands[0].shape):
        operands = (operands[0], 1)
    OPERATIONS[name].check(*operands, result)


def played(name, x, case):
    """The operands that an operation has decided; the errors that name no relation."""
    operation = getattr(lc, OPERATIONS[name].names[0])
    decided, unsaid = 0, []
    for operands in OPERANDS[name](x):
        try:
            with assuming(*case.given):
                result = operation(*operands)
        except LayoutError as error:
            if error.unknown is None and "unknown" in str(error):
                unsaid.append(error)
            continue
        at = now(operands, case.values)
        if "product" in name and lc.size(at[0]) * lc.size(at[1]) > LARGEST:
            continue
        if holds(assumptions_of(result), case.values):
            decided += 1
            checked(name, at, now(result, case.values))
    return decided, unsaid


@pytest.mark.parametrize("name", OPERANDS)
def test_a_result_holds_at_the_values_it_allows(name):
    decided, unsaid = [], []

    @settings(deadline=None, max_examples=CASES)
    @given(symbolic_layouts())
    def play(case):
        found, errors = played(name, case.layout, case)
        decided.extend([1] * found)
        unsaid.extend(errors)

    play()
    assert not unsaid
    assert len(decided) > FEW.get(name, 10)


COMPOSED = [
    "coalesce", "filter", "flatten", "composition", "logical_divide by mode", "zipped_divide",
    "tile_to_shape", "logical_product", "local_tile", "slice_and_offset", "group_modes",
]  # fmt: skip


@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.parametrize("kind", ["swizzled", "tensor"])
def test_operands_over_names_hold_too(name, kind):
    decided = []

    @settings(deadline=None, max_examples=CASES // 2)
    @given(symbolic_layouts(), st.integers(0, 2))
    def play(case, bits):
        if kind == "swizzled":
            x = ComposedLayout(Swizzle(bits, 1, 2), 0, case.layout)
        else:
            x = Tensor(Unbounded(), case.layout, 7)
        decided.append(played(name, x, case)[0])

    play()
    assert sum(decided) > 5
