"""The taps of sparse convolutions: the offset of the cell that each reads from an output's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from numbers import Integral
from operator import index
from typing import Any

from ...base.caches import remembered
from ...conv.problem import Ints, Padding, padding_pairs
from ...errors import ArgumentError, ArgumentTypeError, are_several, shown
from ..coords.lattice import check_rank
from ..coords.no_tensor import NoTensor
from .row_orders import TapOrder, tap_order

_PLAIN = {int}

MAX_TAPS = 4096
MAX_OFFSET = 2**31 - 1  # of int32 cells


def tap_offsets(kernel_size: Ints, dilation: Ints = 1, rank: int = 3) -> list[tuple[int, ...]]:
    """Return offsets ``(dz, dy, dx)`` of the taps of a centred filter, in the order of the taps: x
    fastest.

    Tap ``s + S*(r + R*t)`` of a T x R x S filter has the offset ``((t - T//2) * dilation_z, (r -
    R//2) * dilation_y, (s - S//2) * dilation_x)``, so an even filter reaches one cell further down
    than up.

    >>> tap_offsets((1, 2, 3), dilation=(1, 1, 2))
    [(0, -1, -2), (0, -1, 0), (0, -1, 2), (0, 0, -2), (0, 0, 0), (0, 0, 2)]
    """
    return list(Taps.centred(check_rank(rank), kernel_size, dilation).offsets)


def _offsets(
    sizes: Sequence[int], steps: Sequence[int], near: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    if prod(sizes) > MAX_TAPS:
        raise ArgumentError("kernel_size", f"at most {MAX_TAPS} taps", tuple(sizes))
    modes = list(zip(sizes, steps, near, strict=True))
    for size, step, pad in modes:
        if pad > MAX_OFFSET or (size - 1) * step - pad > MAX_OFFSET:
            raise ArgumentError(
                "dilation", "taps fewer than 2**31 cells from the output", tuple(steps)
            )
    return tuple(product(*([t * step - pad for t in range(size)] for size, step, pad in modes)))


def per_axis(name: str, value: Ints, rank: int, least: int = 1) -> tuple[int, ...]:
    """Return ``value`` per spatial mode; ``ArgumentError`` for too few or too small numbers."""
    if type(value) is tuple:
        values = value
    else:
        values = tuple(value) if isinstance(value, Sequence) else (value,) * rank
    # One test if all are plain ints: layers of a network ask at every call.
    if {*map(type, values)} != _PLAIN:
        numbers = all(isinstance(v, Integral) and not isinstance(v, bool) for v in values)
        values = tuple(map(index, values)) if numbers else ()  # NumPy's hash by value, too
    if len(values) != rank or min(values) < least:
        raise ArgumentError(name, f"an integer >= {least}, or {rank} of them", repr(value))
    if max(values) > MAX_OFFSET:
        raise ArgumentError(name, "integers below 2**31", value)
    return values


def frozen(**arguments: Any) -> tuple[Any, ...]:
    """Convert lists to tuples, also pairs in them, so that arguments can be keys of results.

    A string and a sparse tensor stay as they are, though they can be iterated. Raises
    :class:`~layoutconv.errors.ArgumentError` for values that still have no hash.

    >>> frozen(stride=[2, 1], padding=[[0, 1], 2])
    ((2, 1), ((0, 1), 2))
    """
    return tuple(_frozen(name, value) for name, value in arguments.items())


def _frozen(name: str, value: Any) -> Any:
    found = _as_tuples(value, 2)
    try:
        hash(found)
    except TypeError:
        raise ArgumentTypeError(name, "an integer, or several", shown(value)) from None
    return found


def _as_tuples(value: Any, levels: int) -> Any:
    several = levels and are_several(value) and not isinstance(value, NoTensor)
    return tuple(_as_tuples(part, levels - 1) for part in value) if several else value


@dataclass(frozen=True)
class Taps:
    """Taps of a filter: output cell ``y`` reads input cell ``y * stride + offset``.

    Args:
        extents: of the filter's modes, ``(T, R, S)``; ``(taps,)`` for a set of offsets.
        offsets: a cell ``(dz, dy, dx)`` for each tap, the last mode of the filter fastest.
        stride: the distance of outputs in input cells, for every spatial mode.
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
        """Return the taps of a submanifold convolution; ``offsets`` replace size and dilation.

        >>> Taps.centred(2, offsets=[(0, 0), (1, 0)])
        Taps(extents=(2,), offsets=((0, 0), (1, 0)), stride=(1, 1))
        """
        if offsets is not None:
            _not_with_offsets(dilation=(dilation, per_axis("dilation", dilation, rank), 1))
            return cls._of_set(rank, offsets, (1,) * rank)
        try:
            return _centred(rank, kernel_size, dilation)
        except TypeError:  # lists have no hash
            return _centred(rank, *frozen(kernel_size=kernel_size, dilation=dilation))

    @classmethod
    def strided(
        cls,
        rank: int,
        kernel_size: Ints,
        stride: Ints,
        padding: Padding = 0,
        dilation: Ints = 1,
        offsets: Sequence[Sequence[int]] | None = None,
    ) -> Taps:
        """Return the taps of a convolution: tap ``t`` at ``t * dilation - padding``.

        >>> Taps.strided(1, kernel_size=3, stride=2, padding=1)
        Taps(extents=(3,), offsets=((-1,), (0,), (1,)), stride=(2,))
        """
        if offsets is not None:
            pads = [side for pair in padding_pairs(padding, rank) for side in pair]
            _not_with_offsets(
                padding=(padding, pads, 0),
                dilation=(dilation, per_axis("dilation", dilation, rank), 1),
            )
            return cls._of_set(rank, offsets, per_axis("stride", stride, rank))
        try:
            return _strided(rank, kernel_size, stride, padding, dilation)
        except TypeError:
            given = {"kernel_size": kernel_size, "stride": stride, "padding": padding}
            return _strided(rank, *frozen(**given, dilation=dilation))

    @classmethod
    def _of_set(cls, rank: int, offsets: Sequence[Sequence[int]], stride: tuple[int, ...]) -> Taps:
        try:
            found = tuple(tuple(map(index, offset)) for offset in offsets)
        except TypeError:
            expected = f"offsets of {rank} integers each"
            raise ArgumentTypeError("offsets", expected, offsets) from None
        if not found or any(len(offset) != rank for offset in found):
            raise ArgumentError("offsets", f"one or more offsets of {rank} cells each", offsets)
        if len(found) > MAX_TAPS:
            raise ArgumentError("offsets", f"at most {MAX_TAPS} taps", len(found))
        if max(abs(c) for offset in found for c in offset) > MAX_OFFSET:
            raise ArgumentError("offsets", "taps fewer than 2**31 cells from the output", offsets)
        if len(set(found)) != len(found):
            raise ArgumentError("offsets", "distinct offsets", offsets)
        return cls((len(found),), found, stride)

    def __hash__(self) -> int:
        # Taps are looked up at every call: hash their hundreds of numbers once, and only if they
        # are: ``torch.compile`` of torch 2.11 traces no hash of a tuple; and not in a cached
        # property, whose lock, in Python until 3.11, that of torch 2.14 does not trace.
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = hash((self.extents, self.offsets, self.stride))
            object.__setattr__(self, "_hash", found)
        return found

    @cached_property
    def order(self) -> TapOrder:
        """The order by which rows of a map are sorted."""
        return tap_order(self.extents)

    @cached_property
    def mirrored(self) -> bool:
        """Return whether each tap ``t`` is opposite to tap ``taps - 1 - t``."""
        return self.is_mirrored()

    def is_mirrored(self) -> bool:
        """Return :attr:`mirrored`, computed again: ``torch.compile`` follows no cached property."""
        opposite = tuple(tuple(-c for c in offset) for offset in reversed(self.offsets))
        return opposite == self.offsets and set(self.stride) <= {1}

    def moved(self, inputs: Sequence[int], outputs: Sequence[int], *, transposed: bool) -> Taps:
        """Return the taps between cells whose coordinates are relative to corners.

        >>> Taps.strided(1, 2, stride=2).moved((-16,), (-8,), transposed=False).offsets
        ((0,), (1,))
        >>> Taps.strided(1, 2, stride=2).moved((-16,), (-9,), transposed=False).offsets
        ((-2,), (-1,))
        """
        ends = (inputs, outputs) if transposed else (outputs, inputs)
        steps = tuple(a * s - b for a, b, s in zip(*ends, self.stride, strict=True))
        return _moved(self, steps) if any(steps) else self


def reached_box(
    taps: Taps, corner: Sequence[int], spatial_shape: Sequence[int], *, transposed: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the corner and the extents of the box of all cells that the cells of a box can reach.

    >>> reached_box(Taps.strided(1, 3, 2, 1), (-16,), (17,), transposed=False)
    ((-8,), (9,))
    >>> reached_box(Taps.strided(1, 3, 1, 1), (-16,), (17,), transposed=True)
    ((-17,), (19,))
    """
    if not min(spatial_shape):
        return tuple(corner), tuple(spatial_shape)
    first, extents = [], []
    along = zip(*taps.offsets, strict=True)
    for low, extent, s, steps in zip(corner, spatial_shape, taps.stride, along, strict=True):
        high = low + extent - 1
        if transposed:
            least, most = low * s + min(steps), high * s + max(steps)
        else:
            least, most = -((max(steps) - low) // s), (high - min(steps)) // s
        first.append(least)
        extents.append(max(0, most - least + 1))
    return tuple(first), tuple(extents)


@remembered(64)
def _moved(taps: Taps, steps: tuple[int, ...]) -> Taps:
    offsets = (tuple(map(sum, zip(o, steps, strict=True))) for o in taps.offsets)
    return Taps(taps.extents, tuple(offsets), taps.stride)


@remembered(64)
def _centred(rank: int, kernel_size: Ints, dilation: Ints) -> Taps:
    sizes = per_axis("kernel_size", kernel_size, rank)
    steps = per_axis("dilation", dilation, rank)
    near = [size // 2 * step for size, step in zip(sizes, steps, strict=True)]
    return Taps(sizes, _offsets(sizes, steps, near), (1,) * rank)


@remembered(64)
def _strided(rank: int, kernel_size: Ints, stride: Ints, padding: Padding, dilation: Ints) -> Taps:
    sizes = per_axis("kernel_size", kernel_size, rank)
    steps = per_axis("dilation", dilation, rank)
    near = [pair[0] for pair in padding_pairs(padding, rank)]
    return Taps(sizes, _offsets(sizes, steps, near), per_axis("stride", stride, rank))


def _not_with_offsets(**arguments: tuple[Any, Sequence[int], int]) -> None:
    for name, (given, values, default) in arguments.items():
        if set(values) != {default}:
            raise ArgumentError(
                name, f"{default} beside `offsets`, which say where the taps are", given
            )
