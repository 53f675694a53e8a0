"""The taps of sparse convolutions: which cell each reads, seen from an output's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from ..conv.problem import Padding, padding_pairs
from ..errors import ArgumentError

Ints = int | Sequence[int]

MAX_TAPS = 4096


def tap_offsets(kernel_size: Ints, dilation: Ints = 1, rank: int = 3) -> list[tuple[int, ...]]:
    """Offsets ``(dz, dy, dx)`` of the taps of a centred filter, in the order of the taps: x
    fastest.

    Tap ``s + S*(r + R*t)`` of a T x R x S filter has the offset ``((t - T//2) * dilation_z, (r -
    R//2) * dilation_y, (s - S//2) * dilation_x)``, so an even filter reaches one cell further down
    than up.

    >>> tap_offsets((1, 2, 3), dilation=(1, 1, 2))
    [(0, -1, -2), (0, -1, 0), (0, -1, 2), (0, 0, -2), (0, 0, 0), (0, 0, 2)]
    """
    sizes = per_axis("kernel_size", kernel_size, rank)
    steps = per_axis("dilation", dilation, rank)
    near = [size // 2 * step for size, step in zip(sizes, steps, strict=True)]
    return _offsets(sizes, steps, near)


def _offsets(
    sizes: Sequence[int], steps: Sequence[int], near: Sequence[int]
) -> list[tuple[int, ...]]:
    modes = zip(sizes, steps, near, strict=True)
    return list(product(*([t * step - pad for t in range(size)] for size, step, pad in modes)))


def per_axis(name: str, value: Ints, rank: int, least: int = 1) -> tuple[int, ...]:
    """``value`` for every spatial mode; raises ``ArgumentError`` for fewer or smaller numbers."""
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(values) != rank or not all(
        isinstance(v, int) and not isinstance(v, bool) and v >= least for v in values
    ):
        raise ArgumentError(name, f"an integer >= {least}, or {rank} of them", value)
    return values


@dataclass(frozen=True)
class Taps:
    """Taps of a filter: output cell ``y`` reads input cell ``y * stride + offset``.

    Args:
        extents: of the filter's modes, ``(T, R, S)``; ``(taps,)`` of a set of offsets.
        offsets: a cell ``(dz, dy, dx)`` for each tap, the last mode of the filter fastest.
        stride: cells of the input that outputs lie apart, for every spatial mode.
    """

    extents: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]
    stride: tuple[int, ...]

    @classmethod
    def centred(
        cls,
        rank: int,
        kernel_size: Ints = 3,
        dilation: Ints = 1,
        offsets: Sequence[Sequence[int]] | None = None,
    ) -> Taps:
        """Those of a submanifold convolution; ``offsets`` stand in for a size and a dilation.

        >>> Taps.centred(2, offsets=[(0, 0), (1, 0)])
        Taps(extents=(2,), offsets=((0, 0), (1, 0)), stride=(1, 1))
        """
        if offsets is not None:
            return cls._of_set(rank, offsets, (1,) * rank)
        sizes = per_axis("kernel_size", kernel_size, rank)
        return cls(_few(sizes), tuple(tap_offsets(sizes, dilation, rank)), (1,) * rank)

    @classmethod
    def strided(
        cls,
        rank: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Padding = 0,
        dilation: Ints = 1,
        offsets: Sequence[Sequence[int]] | None = None,
    ) -> Taps:
        """Those of a convolution, with ``padding`` cells before the first: offset ``t * dilation -
        padding``.

        >>> Taps.strided(1, kernel_size=3, stride=2, padding=1)
        Taps(extents=(3,), offsets=((-1,), (0,), (1,)), stride=(2,))
        """
        steps = per_axis("stride", stride, rank)
        if offsets is not None:
            return cls._of_set(rank, offsets, steps)
        sizes = per_axis("kernel_size", kernel_size, rank)
        dilations = per_axis("dilation", dilation, rank)
        near = [pair[0] for pair in padding_pairs(padding, rank)]
        return cls(_few(sizes), tuple(_offsets(sizes, dilations, near)), steps)

    @classmethod
    def _of_set(cls, rank: int, offsets: Sequence[Sequence[int]], stride: tuple[int, ...]) -> Taps:
        found = tuple(tuple(int(c) for c in offset) for offset in offsets)
        if not found or any(len(offset) != rank for offset in found):
            raise ArgumentError("offsets", f"one or more offsets of {rank} cells each", offsets)
        if len(set(found)) != len(found):
            raise ArgumentError("offsets", "no offset twice", offsets)
        return cls(_few((len(found),)), found, stride)

    @property
    def mirrored(self) -> bool:
        """Whether the last tap is opposite to the first, the last but one to the second, ..."""
        opposite = tuple(tuple(-c for c in offset) for offset in reversed(self.offsets))
        return opposite == self.offsets and set(self.stride) <= {1}


def _few(extents: tuple[int, ...]) -> tuple[int, ...]:
    if prod(extents) > MAX_TAPS:
        raise ArgumentError("kernel_size", f"at most {MAX_TAPS} taps", extents)
    return extents
