"""Strategies of hypothesis for layouts of every kind, and for what operations take beside them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from ..algebra import Swizzle
from .oracle import volume
from .random_layouts import SIGNED, STRIDE_KINDS, of_kind, operand, random_layout

_SEEDS = st.integers(0, 2**32)


@st.composite
def layouts(
    draw: Callable[..., Any],
    max_rank: int = 3,
    kind: str = "int",
    strides: tuple[int, ...] = tuple(SIGNED),
    max_size: int = 64,
    nested: bool = True,
) -> Any:
    """A layout of at most ``max_size`` elements, whose strides are of one kind.

    ``kind`` is one of ``STRIDE_KINDS``: int, symbolic, basis, F2, gather, strided or user.
    """
    rng = random.Random(draw(_SEEDS))
    if kind != "int":
        return of_kind(rng, kind, max_rank, max_size, list(strides))
    while True:
        layout = random_layout(rng, max_rank, list(strides), nested=nested)
        if layout.size() <= max_size:
            return layout


@st.composite
def operands(draw: Callable[..., Any], kind: str = "layout", strides: str = "int") -> Any:
    """An operand of one kind over strides of one kind: a layout, swizzled, a tensor, a string.

    ``kind`` is one of ``OPERAND_KINDS``, ``strides`` of ``STRIDE_KINDS``.
    """
    return operand(random.Random(draw(_SEEDS)), kind, strides)


@st.composite
def tilers(draw: Callable[..., Any], shape: Any) -> Any:
    """A tiler by mode for a shape: divisors of its modes, or None."""
    modes = shape if isinstance(shape, tuple) else (shape,)
    divisors = [[d for d in range(1, volume(s) + 1) if volume(s) % d == 0] for s in modes]
    return tuple(draw(st.none() | st.sampled_from(found)) for found in divisors)


@st.composite
def shapes(draw: Callable[..., Any], max_size: int = 64) -> Any:
    """A shape of at most so many elements."""
    return draw(layouts(max_size=max_size)).shape


def swizzles() -> Any:
    """A swizzle of up to three bits."""
    return st.builds(
        lambda bits, base, more, sign: Swizzle(bits, base, sign * (bits + more)),
        st.integers(0, 3),
        st.integers(0, 4),
        st.integers(0, 2),
        st.sampled_from([1, -1]),
    )


__all__ = ["STRIDE_KINDS", "layouts", "operands", "shapes", "swizzles", "tilers"]
