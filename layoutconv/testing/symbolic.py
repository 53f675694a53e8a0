"""Symbolic layouts: a law that holds for all values of names must hold for the drawn ones."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from ..algebra import Layout, Relation, symbols


class SymbolicCase(NamedTuple):
    """A layout over names, values for them, and relations that the values satisfy.

    >>> W = symbols("W")
    >>> case = SymbolicCase(Layout((4, W), (W, 1)), {"W": 8}, (W % 4 == 0,))
    >>> print(case.layout, case.given)
    (4,W):(W,1) (W % 4 == 0,)
    """

    layout: Layout
    values: dict[str, int]
    given: tuple[Relation, ...]


def _packed(rng: Random, extents: list[Any]) -> Layout:
    """Return a layout whose modes are packed in any order, sometimes with a doubled pitch."""
    steps, current = [0] * len(extents), 1
    for i in rng.sample(range(len(extents)), len(extents)):
        steps[i] = current
        current = current * extents[i] * rng.choice([1, 1, 1, 2])
    return Layout(tuple(extents), tuple(steps))


def _pitched(rng: Random) -> Layout:
    H, W, C = symbols("H W C")
    return Layout((H, W, 4), (4 * W + 4 * C, 4, 1))


_SHAPES: list[Callable[[Random], Layout]] = [
    lambda rng: Layout(symbols("H W"), (symbols("W"), 1)),
    lambda rng: _packed(rng, list(symbols("H W"))),
    lambda rng: _packed(rng, list(symbols("H W C"))),
    lambda rng: _packed(rng, [rng.choice([2, 3, 8]), *symbols("H W")]),
    lambda rng: _packed(rng, [rng.choice([2, 4, 8]) * symbols("H"), symbols("W")]),
    lambda rng: Layout(symbols("H") * symbols("W"), rng.choice([1, 2])),
    lambda rng: Layout(((symbols("H"), 2), symbols("W")), ((2 * symbols("W"), symbols("W")), 1)),
    lambda rng: Layout(symbols("H W"), (0, rng.choice([1, 2]))),
    _pitched,
]


def symbolic_case(rng: Random) -> SymbolicCase:
    """Return a layout over H, W and C, values for these, and some of their true relations."""
    layout = rng.choice(_SHAPES)(rng)
    values = {name: rng.choice([1, 2, 3, 4, 5, 8, 12]) for name in "HWC"}
    names = dict(zip("HWC", symbols("H W C"), strict=True))
    true = []
    for name, value in values.items():
        true += [names[name] % n == 0 for n in (2, 4, 8) if value % n == 0]
        true += [names[name] > n for n in (1, 3, 7) if value > n]
        true += [names[name] < n for n in (4, 9) if value < n]
    return SymbolicCase(layout, values, tuple(rng.sample(true, min(len(true), rng.randint(0, 3)))))
