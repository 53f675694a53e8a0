"""``ConvProblem``: the numbers that determine a dense convolution, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index as as_int
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError

Padding = int | Sequence[int | tuple[int, int]]


@dataclass(frozen=True, init=False)
class ConvProblem:
    """A convolution, in truth the cross-correlation that deep learning calls so, in 1-D to 3-D.

    Attributes:
        activation: extents of the input in the order of memory: ``(N, D, H, W, C)``, ``(N, H, W,
            C)`` or ``(N, W, C)``. N may be 0.
        filter: ``(K, T, R, S)``, ``(K, R, S)`` or ``(K, S)``.
        stride, dilation: one positive int per spatial mode; a single int stands for all modes.
        padding: a ``(near, far)`` pair per spatial mode, in cells, zeros; an int stands for both
            sides, and a single int for all modes. It may exceed the filter.

    A filter that is larger than the padded input is refused, as torch does: an output extent of 0
        is more often a mistake in a network than a wish, and no layout has an extent below 0.

    Raises :class:`~layoutconv.errors.ArgumentError`, a ``ValueError``, that names the argument.

    >>> p = ConvProblem((1, 6, 4, 4, 64), (128, 3, 3, 3), stride=2, padding=(1, 0, (0, 1)))
    >>> p.padding, p.output
    (((1, 1), (0, 0), (0, 1)), (1, 3, 1, 2, 128))
    """

    activation: tuple[int, ...]
    filter: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    def __init__(
        self,
        activation: Sequence[int],
        filter: Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: Padding = 0,
        dilation: int | Sequence[int] = 1,
    ) -> None:
        rank = len(activation) - 2
        if rank not in (1, 2, 3):
            raise ArgumentError(
                "activation", "(N, *spatial, C) with 1, 2 or 3 spatial modes", tuple(activation)
            )
        if len(filter) != rank + 1:
            raise ArgumentError(
                "filter", f"(K, *taps) with {rank} taps, one per spatial mode", tuple(filter)
            )
        batch, *rest = activation
        fields: dict[str, Any] = {
            "activation": (
                _int("activation", batch, 0, "N"),
                *(_int("activation", e, 1) for e in rest),
            ),
            "filter": tuple(_int("filter", e, 1) for e in filter),
            "stride": _per_mode("stride", stride, rank),
            "padding": _pairs(padding, rank),
            "dilation": _per_mode("dilation", dilation, rank),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        for mode, (extent, span) in enumerate(zip(self.padded, self.spans, strict=True)):
            if span > extent:
                raise ArgumentError(
                    "filter",
                    f"a filter that fits the padded input, {extent} cells in spatial mode {mode}",
                    f"one that spans {span}",
                )

    @property
    def rank(self) -> int:
        """How many spatial modes there are."""
        return len(self.activation) - 2

    @property
    def N(self) -> int:
        return self.activation[0]

    @property
    def C(self) -> int:
        return self.activation[-1]

    @property
    def K(self) -> int:
        return self.filter[0]

    @property
    def spatial(self) -> tuple[int, ...]:
        """``(D, H, W)``."""
        return self.activation[1:-1]

    @property
    def taps(self) -> tuple[int, ...]:
        """``(T, R, S)``."""
        return self.filter[1:]

    @property
    def padded(self) -> tuple[int, ...]:
        """``(D, H, W)`` with the padding of both sides."""
        return tuple(e + sum(sides) for e, sides in zip(self.spatial, self.padding, strict=True))

    @property
    def spans(self) -> tuple[int, ...]:
        """How many cells the dilated filter covers in each spatial mode."""
        return tuple(d * (t - 1) + 1 for d, t in zip(self.dilation, self.taps, strict=True))

    @property
    def output_spatial(self) -> tuple[int, ...]:
        """``(Z, P, Q)``."""
        return tuple(
            (extent - span) // step + 1
            for extent, span, step in zip(self.padded, self.spans, self.stride, strict=True)
        )

    @property
    def output(self) -> tuple[int, ...]:
        """Extents of the output in the order of memory, ``(N, Z, P, Q, K)``."""
        return (self.N, *self.output_spatial, self.K)


def _int(name: str, value: Any, least: int, what: str = "every extent") -> int:
    try:
        number = as_int(value)
    except TypeError:
        raise ArgumentTypeError(name, "integers", repr(value)) from None
    if number < least:
        raise ArgumentError(name, f"{what} >= {least}", number)
    return number


def _entries(name: str, value: Any, rank: int, kind: str) -> Sequence[Any]:
    """``value`` once per spatial mode."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [value] * rank
    if len(value) != rank:
        raise ArgumentError(name, f"an int, or {rank} {kind}, one per spatial mode", tuple(value))
    return value


def _per_mode(name: str, value: Any, rank: int) -> tuple[int, ...]:
    entries = _entries(name, value, rank, "ints")
    return tuple(_int(name, entry, 1, "every entry") for entry in entries)


def _pairs(padding: Any, rank: int) -> tuple[tuple[int, int], ...]:
    entries = _entries("padding", padding, rank, "entries, an int or a pair (near, far)")
    return tuple(_pair(entry) for entry in entries)


def _pair(entry: Any) -> tuple[int, int]:
    near_far = entry if isinstance(entry, Sequence) and not isinstance(entry, str) else (entry,) * 2
    if len(near_far) != 2:
        raise ArgumentError("padding", "a pair (near, far)", tuple(near_far))
    near, far = (_int("padding", side, 0, "every side") for side in near_far)
    return near, far
