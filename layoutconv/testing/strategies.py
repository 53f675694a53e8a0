"""Hypothesis strategies for layouts of every kind, and for operands that an operation takes.

They shrink: a failing example has few modes, small extents, and strides near 0.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import strategies as st

from ..algebra import Swizzle
from ..algebra.layout import as_like
from .admissible import ADMISSIBLE, disjoint, positions, tile_by_mode
from .compare import expect_count, expect_known
from .random_layouts import OPERAND_KINDS, SIGNED, STRIDE_KINDS, of_kind, operand, plain_shape
from .symbolic import SymbolicCase, symbolic_case

_RANDOM: Any = st.randoms(use_true_random=False)  # each of its choices is drawn, and shrinks


def _made(make: Callable[[Random], Any]) -> Any:
    """Return a strategy for the results of a function of a ``random.Random``."""

    @st.composite
    def drawn(draw: Callable[..., Any]) -> Any:
        """Draw the choices one by one."""
        return make(draw(_RANDOM))

    return drawn()


def shapes(max_rank: int = 3, max_size: int = 64, nested: bool = True) -> Any:
    """Draw a shape of at most ``max_rank`` leaves and ``max_size`` coordinates, nested or not.

    >>> from hypothesis import find
    >>> len(find(shapes(), lambda shape: isinstance(shape, tuple) and len(shape) == 2))
    2
    """
    expect_count("shapes", "max_rank", max_rank)
    expect_count("shapes", "max_size", max_size)
    return _made(lambda rng: plain_shape(rng, max_rank, max_size, nested=nested))


def layouts(
    max_rank: int = 3,
    kind: str = "int",
    strides: tuple[int, ...] = tuple(SIGNED),
    max_size: int = 64,
    nested: bool = True,
) -> Any:
    """Draw a layout of at most ``max_size`` elements, whose strides are of one kind.

    ``kind`` is one of ``STRIDE_KINDS``: int, symbolic, basis, F2, gather, strided or user.

    >>> from hypothesis import find
    >>> find(layouts(), lambda a: a.size() > 3 and a(1) < 0).size() > 3
    True
    """
    expect_known("layouts", "kind", kind, STRIDE_KINDS)
    expect_count("layouts", "max_rank", max_rank)
    expect_count("layouts", "max_size", max_size)

    def make(rng: Random) -> Any:
        shape = plain_shape(rng, max_rank, max_size, nested=nested)
        return of_kind(rng, kind, strides=list(strides), shape=shape)

    return _made(make)


def operands(kind: str = "layout", strides: str = "int") -> Any:
    """Draw an operand of one kind over strides of one kind: a layout, swizzled, a tensor, a string.

    ``kind`` is one of ``OPERAND_KINDS``, ``strides`` of ``STRIDE_KINDS``.

    >>> from hypothesis import find
    >>> find(operands("swizzled"), lambda x: x(0) > 0)(0) > 0
    True
    """
    expect_known("operands", "kind", kind, OPERAND_KINDS)
    expect_known("operands", "strides", strides, STRIDE_KINDS)
    return _made(lambda rng: operand(rng, kind, strides))


def arguments(operation: str, kind: str = "layout", strides: str = "int") -> Any:
    """Draw the operands of an operation, a tuple, for which it has an exact result.

    ``operation`` is a name of ``ADMISSIBLE``, such as ``composition`` or ``tile_to_shape``.

    >>> from hypothesis import find
    >>> from ..algebra import composition
    >>> from .checks import check_composition
    >>> a, b = find(arguments("composition"), lambda x: x[1].rank == 2)
    >>> check_composition(a, b, composition(a, b))
    """
    expect_known("arguments", "operation", operation, ADMISSIBLE)
    expect_known("arguments", "kind", kind, OPERAND_KINDS)
    expect_known("arguments", "strides", strides, STRIDE_KINDS)
    return _made(lambda rng: ADMISSIBLE[operation](rng, kind, strides))


def disjoint_layouts(max_size: int = 24, gaps: bool = True) -> Any:
    """Draw an injective layout whose modes step over each other, as complement and products need.

    >>> from hypothesis import find
    >>> a = find(disjoint_layouts(), lambda a: a.cosize() > a.size() > 1)
    >>> len({a(i) for i in range(a.size())}) == a.size()
    True
    """
    expect_count("disjoint_layouts", "max_size", max_size)
    return _made(lambda rng: disjoint(rng, max_size=max_size, gaps=gaps))


def subtiles(shape: Any) -> Any:
    """Draw a layout of positions of ``shape`` with which every layout of that shape composes.

    >>> from hypothesis import find
    >>> from layoutconv import Layout, composition
    >>> tile = find(subtiles((4, 6)), lambda b: b.size() == 12)
    >>> composition(Layout((4, 6), (6, 1)), tile).size()
    12
    """
    shape = as_like("subtiles", shape).shape
    return _made(lambda rng: positions(rng, shape))


def tilers(shape: Any) -> Any:
    """Draw a tiler by mode for a shape: divisors of its modes, layouts of their positions, or None.

    >>> from hypothesis import find
    >>> len(find(tilers((4, 6)), lambda t: None not in t))
    2
    """
    shape = as_like("tilers", shape).shape
    return _made(lambda rng: tile_by_mode(rng, shape))


def symbolic_layouts() -> Any:
    """Draw a ``SymbolicCase``: a layout over names, values for them, and true relations.

    >>> from hypothesis import find
    >>> case = find(symbolic_layouts(), lambda case: case.layout.rank == 2)
    >>> case.layout.rank, sorted(case.values)
    (2, ['C', 'H', 'W'])
    """
    return _made(symbolic_case)


def swizzles() -> Any:
    """Draw a swizzle of up to three bits.

    >>> from hypothesis import find
    >>> find(swizzles(), lambda swizzle: swizzle.bits > 1).bits > 1
    True
    """
    return st.builds(
        lambda bits, base, more, sign: Swizzle(bits, base, sign * (bits + more)),
        st.integers(0, 3),
        st.integers(0, 4),
        st.integers(0, 2),
        st.sampled_from([1, -1]),
    )


__all__ = [
    "SymbolicCase",
    "arguments",
    "disjoint_layouts",
    "layouts",
    "operands",
    "shapes",
    "subtiles",
    "swizzles",
    "symbolic_layouts",
    "tilers",
]
