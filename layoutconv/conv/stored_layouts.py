"""Memory layouts of a convolution's tensors that are not contiguous with the channels fastest.

A memory layout is a function of the coordinate: ``(n, d, h, w, c)`` for an activation, ``(k, t, r,
s, c)`` for a filter. The channel's mode may be nested: the interleaved layouts of CUTLASS's
convolutions keep 32 or 64 channels of a cell contiguous, and the cell's other channels far away.
Such a channel is a number of several digits, and each digit is a mode of the coordinate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import index as as_int
from typing import Any, NamedTuple

from ..algebra import ComposedLayout, E, Layout, SymInt
from ..algebra.int_tuple import flatten, product
from ..errors import ArgumentError, ArgumentTypeError, are_several, shown
from ..view.gemm_view import OperandLayout
from ..view.operands import row_major, runtime, with_mode

_SHAPES = {
    "activation_layout": "(N, *spatial, C)",
    "filter_layout": "(K, *taps, C)",
    "output_layout": "(N, *voxels, K)",
}
_LETTERS = {"activation_layout": "x", "output_layout": "y"}


class StoredLayout(NamedTuple):
    """A map from coordinates ``(n, *cell, *digits of the channel)`` to memory."""

    name: str  # of the argument that describes it
    layout: OperandLayout
    digits: tuple[Any, ...]  # extents of the channel's modes (the last modes), fastest first

    @classmethod
    def of(cls, name: str, given: Layout | None, extents: Sequence[Any]) -> StoredLayout:
        """Return the memory of a tensor: contiguous, or as ``given`` for argument ``name``.

        Extents keep the problem's letters. Plain integer strides of an activation or an output
        become kernel arguments, such as ``xN``, ``xH``, ``yP``, except that of the channel's first
        digit; a filter's strides, and symbolic ones, stay as they are.

        Raises :class:`~layoutconv.errors.ArgumentError` for another shape, or strides of another
        kind.
        """
        if given is None:
            return cls(name, row_major(extents), (extents[-1],))
        if not isinstance(given, Layout):
            raise ArgumentTypeError(name, "a Layout", type(given).__name__)
        if not _covers(given.shape, extents):
            whole = f"{_SHAPES[name]} = {tuple(map(int, extents))}"
            expected = f"the shape {whole}, in which only the last mode may be nested"
            raise ArgumentError(name, expected, given)
        if not all(isinstance(d, int) for d in flatten(given.stride)):
            raise ArgumentTypeError(name, "a layout with integer strides", given)
        channels, strides = given.shape[-1], [*given.stride[:-1], *flatten(given.stride[-1])]
        digits = flatten(channels) if isinstance(channels, tuple) else (extents[-1],)
        if name in _LETTERS:
            modes = ["N", *map(str, extents[1:-1]), *(f"C{i}" for i in range(len(digits)))]
            unit = len(extents) - 1
            for mode, (stride, letter) in enumerate(zip(strides, modes, strict=True)):
                if mode != unit and type(stride) is int and stride:
                    strides[mode] = runtime(stride, _LETTERS[name] + letter)
        return cls(name, Layout((*extents[:-1], *digits), tuple(strides)), digits)

    @property
    def first(self) -> int:
        """The coordinate mode of the channel's first digit."""
        return len(self.layout.shape) - len(self.digits)

    @property
    def origin(self) -> Any:
        """The zero offset: 0, or one per mode if the channel has several modes."""
        return 0 if len(self.digits) == 1 else (0,) * len(self.layout.shape)

    def at(self, *coordinate: Any) -> tuple[Any, ...]:
        """Return an offset in the modes before the channels as one of the whole coordinate."""
        return (*coordinate, *(0 for _ in self.digits))

    def split(self, length: Any, groups: Any, *others: Sequence[Any]) -> tuple[Channels, Channels]:
        """Return the ``length`` channels of a group, and the mode that counts the groups.

        Digits are refined to match those of ``others``. Raises
        :class:`~layoutconv.errors.ArgumentError` if such digits do not divide one another.
        """
        digits = self.common((length, groups), *others)
        count = 0
        while product(digits[:count]) < length:
            count += 1
        within, group = digits[:count] or (length,), digits[count:] or (groups,)
        return (
            Channels(within, self.steps(within)),
            Channels(group, self.steps(group, length)),
        )

    def common(self, *others: Sequence[Any]) -> tuple[Any, ...]:
        """Return the fewest digits whose products give those of the channel and of ``others``.

        >>> layout = interleaved((2, 8, 8, 64), 32)
        >>> memory = StoredLayout.of("activation_layout", layout, (2, 8, 8, 64))
        >>> memory.digits, memory.common((16, 4)), memory.common((64,))
        ((32, 2), (16, 2, 2), (32, 2))
        """
        found: dict[tuple[int, int], Any] = {}
        for digits in (*others, self.digits):  # names are taken in this order
            start = 1
            for extent in digits:
                pair = start, start * int(extent)
                if not isinstance(found.get(pair), SymInt):
                    found[pair] = extent
                start = pair[1]
        bounds = sorted({bound for pair in found for bound in pair})
        for low, high in pairwise(bounds):
            if high % low:
                expected = (
                    f"modes of the channels whose extents divide one another, not {low} and {high}"
                )
                raise ArgumentError(self.name, expected, self.layout)
        return tuple(found.get(pair, pair[1] // pair[0]) for pair in pairwise(bounds))

    def steps(self, digits: Sequence[Any], start: Any = 1) -> tuple[Any, ...]:
        """Return the steps of ``digits`` in the coordinate; the first counts ``start`` channels."""
        result = []
        for extent in digits:
            unit, mode = 1, self.first
            for following, digit in enumerate(self.digits[:-1], start=self.first + 1):
                if unit * digit > start:
                    break
                unit, mode = unit * int(digit), following
            result.append((start if unit == 1 else int(start) // unit) * E(mode))
            start = start * extent
        return tuple(result)


def _covers(shape: Any, extents: Sequence[Any]) -> bool:
    """Return whether a shape has the given extents; its last mode may be nested."""
    if not isinstance(shape, tuple) or len(shape) != len(extents):
        return False
    flat = not any(isinstance(s, tuple) for s in shape[:-1])
    return flat and all(product(s) == e for s, e in zip(shape, extents, strict=True))


class Channels(NamedTuple):
    """Channels of a GEMM mode: extents of their digits, and the coordinate step of each."""

    shape: tuple[Any, ...]
    steps: tuple[Any, ...]

    @property
    def mode(self) -> tuple[Any, Any]:
        """Shape and steps of a mode of only these channels."""
        return (self.shape[0], self.steps[0]) if len(self.shape) == 1 else (self.shape, self.steps)

    def beside(self, others: Iterable[tuple[Any, Any]]) -> tuple[Any, Any]:
        """Return shape and steps of a mode with these digits, then ``others``: (extent, step)."""
        digits = [*zip(self.shape, self.steps, strict=True), *others]
        return Channels(*zip(*digits, strict=True)).mode


def in_groups(operand: ComposedLayout, groups: Channels) -> ComposedLayout:
    """Return an operand with the group as its third mode."""
    return with_mode(operand, *groups.mode)


def interleaved(shape: Sequence[int], width: int) -> Layout:
    """Return CUTLASS's TensorNCxHWx, NC/32HW32 for a width of 32: ``width`` contiguous channels of
    a cell, then all cells.

    ``shape`` is ``(N, *spatial, C)``; C is a multiple of ``width``. The memory is that of a
    contiguous tensor ``t`` of ``(N, C / width, *spatial, width)``; executors take
    ``t.movedim(1, -1)``.

    Raises :class:`~layoutconv.errors.ArgumentError` for other numbers of channels.

    >>> print(interleaved((2, 8, 8, 64), 32))
    (2,8,8,(32,2)):(4096,256,32,(1,2048))
    """
    (N, *cells), pieces = _in_pieces(shape, width)
    image, piece, *cell, unit = row_major((N, pieces, *cells, width)).stride
    return Layout((N, *cells, (width, pieces)), (image, *cell, (unit, piece)))


def interleaved_filter(shape: Sequence[int], width: int) -> Layout:
    """Return CUTLASS's TensorCxRSKx, C/32RSK32 for a width of 32: the filter layout that goes with
    :func:`interleaved`.

    ``shape`` is ``(K, *taps, C)``, where C is the channels of a group. The memory is that of a
    contiguous tensor ``t`` of ``(C / width, *taps, K, width)``; executors take
    ``t.movedim((0, -2), (-1, 0))``.

    >>> print(interleaved_filter((16, 3, 3, 64), 32))
    (16,3,3,(32,2)):(32,1536,512,(1,4608))
    """
    (K, *taps), pieces = _in_pieces(shape, width)
    piece, *tap, filter, unit = row_major((pieces, *taps, K, width)).stride
    return Layout((K, *taps, (width, pieces)), (filter, *tap, (unit, piece)))


def _in_pieces(shape: Any, width: Any) -> tuple[list[int], int]:
    """Return the extents before the channels, and the number of pieces of ``width`` channels."""
    (width,) = _integers("width", (width,))
    extents = _integers("shape", shape) if are_several(shape) else []
    if len(extents) < 2:
        raise ArgumentError("shape", "two or more extents, the channels last", shown(shape))
    if width < 1:
        raise ArgumentError("width", "an int >= 1", width)
    if extents[-1] % width:
        expected = f"a multiple of {width} channels in the last mode"
        raise ArgumentError("shape", expected, extents[-1])
    return extents[:-1], extents[-1] // width


def _integers(name: str, values: Iterable[Any]) -> list[int]:
    try:
        return [as_int(value) for value in values]
    except TypeError:
        raise ArgumentTypeError(name, "integers", shown(values)) from None
