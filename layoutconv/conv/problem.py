"""``ConvProblem``: the numbers that define a dense convolution, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index as as_int
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError, are_several

INT64_END = 1 << 63
Ints = int | Sequence[int]
Padding = int | Sequence[int | tuple[int, int]]


@dataclass(frozen=True, init=False)
class ConvProblem:
    """A convolution in 1-D to 3-D; as usual in deep learning, it is a cross-correlation.

    Attributes:
        activation: extents of the input in the order of memory: ``(N, D, H, W, C)``, ``(N, H, W,
            C)`` or ``(N, W, C)``. N may be 0.
        filter: ``(K, T, R, S)``, ``(K, R, S)`` or ``(K, S)``.
        stride, dilation: one positive int per spatial mode; a single int, or a sequence of one,
            stands for all modes.
        padding: a ``(near, far)`` pair of zero-padded cells per spatial mode; an int stands for
            both sides, and a single int for all modes. It may exceed the filter. A negative ``far``
            is a number of cells at that end that no window reads.
        groups: the number of groups that C and K are divided into: filters of a group read only the
            channels of that group. ``groups = C`` is a depthwise convolution.

    A filter larger than the padded input is refused, as torch does: an output extent of 0 is more
        often a mistake in a network than intended, and no layout has an extent below 0.

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
    groups: int

    def __init__(
        self,
        activation: Sequence[int],
        filter: Sequence[int],
        stride: Ints = 1,
        padding: Padding = 0,
        dilation: Ints = 1,
        groups: int = 1,
    ) -> None:
        rank = _rank(activation, filter)
        batch, *rest = activation
        fields: dict[str, Any] = {
            "activation": (
                _int("activation", batch, 0, "N"),
                *(_int("activation", e, 1) for e in rest),
            ),
            "filter": tuple(_int("filter", e, 1) for e in filter),
            "stride": per_mode("stride", stride, rank),
            "padding": padding_pairs(padding, rank, least_far=None),
            "dilation": per_mode("dilation", dilation, rank),
            "groups": _int("groups", groups, 1, "a number of groups"),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        if self.C % self.groups or self.K % self.groups:
            expected = f"a divisor of C = {self.C} and of K = {self.K}"
            raise ArgumentError("groups", expected, self.groups)
        for mode, (extent, span) in enumerate(zip(self.padded, self.spans, strict=True)):
            if span > extent:
                raise ArgumentError(
                    "filter",
                    f"a filter that fits the padded input, {extent} cells in spatial mode {mode}",
                    f"one that spans {span}",
                )

    @classmethod
    def transposed(
        cls,
        activation: Sequence[int],
        filter: Sequence[int],
        stride: Ints = 1,
        padding: Padding = 0,
        output_padding: Ints = 0,
        dilation: Ints = 1,
        groups: int = 1,
    ) -> ConvProblem:
        """Return the convolution whose dgrad is a transposed convolution: the roles are exchanged.

        The transposed convolution is ``dgrad_views`` of the problem. The gradient of its input is
        ``fprop_view``, and that of its filter ``wgrad_view`` with the input as the gradient of the
        output.

        Args:
            activation: extents of the transposed convolution's input, ``(N, D, H, W, K)``: the
                problem's output.
            filter: ``(C, T, R, S)``, where C is the output channels per group: the problem has
                ``C * groups`` channels. A weight of torch's transposed convolutions, (K, C, T, R,
                S), is the stored filter (K, T, R, S, C) with C moved to the end.
            output_padding: cells added at the far side of the transposed convolution's output, one
                int or one per spatial mode; below the stride or the dilation, or taken from the far
                padding.
            groups: a divisor of K.

        Its output has ``(D - 1) * stride - near - far + dilation * (T - 1) + 1 + output_padding``
        cells.

        Raises :class:`~layoutconv.errors.ArgumentError`, also if that output would be empty.

        >>> p = ConvProblem.transposed((1, 4, 4, 32), (16, 3, 3), 2, 1, output_padding=1)
        >>> p.activation, p.filter, p.output
        ((1, 8, 8, 16), (32, 3, 3), (1, 4, 4, 32))
        """
        rank = _rank(activation, filter)
        N, *extents, K = activation
        C, *taps = filter
        strides = per_mode("stride", stride, rank)
        dilations = per_mode("dilation", dilation, rank)
        spatial, sides = [], []
        for extent, tap, step, pair, extra, apart in zip(
            (_int("activation", e, 1) for e in extents),
            (_int("filter", e, 1) for e in taps),
            strides,
            padding_pairs(padding, rank),
            per_mode("output_padding", output_padding, rank, least=0),
            dilations,
            strict=True,
        ):
            cells, pair = transposed_mode(extent, tap, step, apart, pair, extra)
            spatial.append(cells)
            sides.append(pair)
        C = _int("filter", C, 1) * _int("groups", groups, 1, "a number of groups")
        return cls((N, *spatial, C), (K, *taps), strides, sides, dilations, groups)

    def reduced(self) -> ConvProblem:
        """Return the problem of the least stride and dilation that has the same results.

        A stride makes no difference if one window fits, a dilation if a filter has one tap.

        >>> few = ConvProblem((1, 4, 16), (8, 3), stride=2, padding=0).reduced()
        >>> one = ConvProblem((1, 3, 16), (8, 3), stride=2, padding=0).reduced()
        >>> few.stride, one.stride
        ((2,), (1,))
        """
        modes = zip(self.stride, self.padded, self.spans, strict=True)
        steps = tuple(min(step, extent - span + 1) for step, extent, span in modes)
        numbers = zip(self.taps, self.dilation, strict=True)
        apart = tuple(1 if taps == 1 else dilation for taps, dilation in numbers)
        return replace(self, stride=steps, dilation=apart)

    @property
    def rank(self) -> int:
        """The number of spatial modes."""
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
    def stored_filter(self) -> tuple[int, ...]:
        """Extents of the filter in the order of memory, ``(K, T, R, S, C / groups)``."""
        return (*self.filter, self.C // self.groups)

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
        """Cells that the dilated filter covers in each spatial mode."""
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


def transposed_mode(
    extent: int, taps: int, stride: int, dilation: int, padding: tuple[int, int], extra: int
) -> tuple[int, tuple[int, int]]:
    """Return a transposed convolution's output cells in a spatial mode, and the problem's padding.

    Whole strides of the output padding ``extra`` reduce the problem's far padding, below 0 if they
    exceed it; the remaining cells lie at the far side, where no window covers them.
    """
    near, far = padding
    whole = extra // stride * stride
    if whole > far and extra >= dilation:
        expected = (
            f"cells below the stride, {stride}, or the dilation, {dilation}, or taken from the far"
            f" padding, {far}"
        )
        raise ArgumentError("output_padding", expected, extra)
    cells = (extent - 1) * stride - near - far + dilation * (taps - 1) + 1 + extra
    if cells < 1:
        raise ArgumentError("padding", "an output of 1 cell or more in every spatial mode", cells)
    return cells, (near, far - whole)


def checked_problem(problem: Any) -> ConvProblem:
    """Return the problem; raise ``ArgumentTypeError`` unless it is a ``ConvProblem``."""
    if not isinstance(problem, ConvProblem):
        raise ArgumentTypeError("problem", "a ConvProblem", type(problem).__name__)
    return problem


def _rank(activation: Sequence[int], filter: Sequence[int]) -> int:
    """Return the number of spatial modes, after checking the extents of both tensors."""
    for name, extents in (("activation", activation), ("filter", filter)):
        if not are_several(extents) or not hasattr(extents, "__len__"):
            raise ArgumentTypeError(name, "integers", repr(extents))
    rank = len(activation) - 2
    if rank not in (1, 2, 3):
        expected = "(N, *spatial, C) with 1, 2 or 3 spatial modes"
        raise ArgumentError("activation", expected, tuple(activation))
    if len(filter) != rank + 1:
        expected = f"(K, *taps) with {rank} taps, one per spatial mode"
        raise ArgumentError("filter", expected, tuple(filter))
    return rank


def _int(name: str, value: Any, least: int | None, what: str = "every extent") -> int:
    try:
        number = as_int(value)
    except TypeError:
        raise ArgumentTypeError(name, "integers", repr(value)) from None
    if isinstance(value, bool):  # torch refuses these, too
        raise ArgumentTypeError(name, "integers", repr(value))
    if least is not None and number < least:
        raise ArgumentError(name, f"{what} >= {least}", number)
    if not -INT64_END <= number < INT64_END:
        raise ArgumentError(name, f"{what} that fits in 64 bits", number)
    return number


def _entries(name: str, value: Any, rank: int, kind: str) -> Sequence[Any]:
    """Return ``value`` once per spatial mode; a single entry stands for all, as in torch."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [value] * rank
    if len(value) == 1:
        return [value[0]] * rank
    if len(value) != rank:
        raise ArgumentError(name, f"an int, or {rank} {kind}, one per spatial mode", tuple(value))
    return value


def per_mode(name: str, value: Any, rank: int, least: int = 1) -> tuple[int, ...]:
    """Return an argument per spatial mode, given as one int for all or as one for each."""
    entries = _entries(name, value, rank, "ints")
    return tuple(_int(name, entry, least, "every entry") for entry in entries)


def padding_pairs(
    padding: Any, rank: int, least_far: int | None = 0
) -> tuple[tuple[int, int], ...]:
    """Return ``(near, far)`` per spatial mode, from any form that :class:`ConvProblem` takes."""
    entries = _entries("padding", padding, rank, "entries, an int or a pair (near, far)")
    return tuple(_pair(entry, least_far) for entry in entries)


def _pair(entry: Any, least_far: int | None) -> tuple[int, int]:
    near_far = entry if isinstance(entry, Sequence) and not isinstance(entry, str) else (entry,) * 2
    if len(near_far) != 2:
        raise ArgumentError("padding", "a pair (near, far)", tuple(near_far))
    near, far = near_far
    return _int("padding", near, 0, "every side"), _int("padding", far, least_far, "every side")
