"""What happens to the sums of a GEMM view before they are stored: a few steps, applied in order.

A step works on accumulators, in fp32: those of int8, which are int32, are converted at the first
step; those of float64 stay in fp64. After the last step the value is converted to the dtype of D:
rounded to nearest even; to an integer or to an fp8 type also *saturated*, to the least or the
greatest (finite) number of the type. NaN stays NaN where the type has one, and is 0 in an integer.

Tensors are known by their ``dtype`` and ``shape`` here; this file does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError

ACTIVATIONS = (
    "relu",
    "leaky_relu",
    "gelu",
    "gelu_tanh",
    "silu",
    "sigmoid",
    "tanh",
    "hardswish",
)  # fmt: skip

STEPS = "steps: Scale, Bias, Residual, Activation or Clamp"  # what executors and kernels know


@dataclass(frozen=True, eq=False)
class Step:
    """A function of one accumulator, of numbers, and of what tensors have at its place."""

    @property
    def structure(self) -> str:
        """Return what code it takes: a name, and the dtype of a tensor that it reads."""
        raise NotImplementedError

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers that it takes when it runs."""
        return ()


@dataclass(frozen=True, eq=False)
class Scale(Step):
    """``value * by``: ``by`` is a number, or a tensor with one for each column.

    A column is an ``n`` of the view; where the view has groups there are ``l * n`` columns, the
    ``n`` of a group side by side. Where a view has nothing but ``l`` (``m = n = 1``: a depthwise
    convolution) columns are the coordinates of the first mode of ``l``, which are the channels.

    >>> Scale(0.5).structure, Scale(0.5).numbers
    ('scale', (0.5,))
    """

    by: Any

    def __post_init__(self) -> None:
        if not _is_tensor(self.by):
            object.__setattr__(self, "by", check_number("by", self.by, " or a tensor"))

    @property
    def structure(self) -> str:
        return f"scale:{_dtype(self.by)}" if _is_tensor(self.by) else "scale"

    @property
    def numbers(self) -> tuple[float, ...]:
        return () if _is_tensor(self.by) else (self.by,)


@dataclass(frozen=True, eq=False)
class Bias(Step):
    """``value + by``, a tensor with a number for each column, as in :class:`Scale`.

    >>> Bias(0.5)
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `by`: expected a tensor, got 0.5
    """

    by: Any

    def __post_init__(self) -> None:
        _require_tensor("by", self.by)

    @property
    def structure(self) -> str:
        return f"bias:{_dtype(self.by)}"


@dataclass(frozen=True, eq=False)
class Residual(Step):
    """``value + scale * source``: a tensor with the shape and the strides of D.

    The ``alpha`` and ``beta`` of a BLAS are ``Scale(alpha), Residual(c, beta)``. The source may be
    D itself, which then is added to.

    >>> import numpy as np
    >>> Residual(np.zeros((2, 3), np.float16), 0.5).structure
    'residual:float16'
    """

    source: Any
    scale: float = 1.0

    def __post_init__(self) -> None:
        _require_tensor("source", self.source)
        object.__setattr__(self, "scale", check_number("scale", self.scale))

    @property
    def structure(self) -> str:
        return f"residual:{_dtype(self.source)}"

    @property
    def numbers(self) -> tuple[float, ...]:
        return (self.scale,)


@dataclass(frozen=True, eq=False)
class Activation(Step):
    """A pointwise function, as torch defines it; ``slope`` is that of ``leaky_relu`` below zero.

    ``gelu`` is by the error function, ``gelu_tanh`` its approximation by the hyperbolic tangent.

    Raises :class:`~layoutconv.errors.ArgumentError` for a name that is not in ``ACTIVATIONS``.

    >>> Activation("leaky_relu", 0.2).numbers, Activation("relu").numbers
    ((0.2,), ())
    """

    kind: str
    slope: float = 0.01

    def __post_init__(self) -> None:
        if self.kind not in ACTIVATIONS:
            raise ArgumentError("activation", f"one of {', '.join(ACTIVATIONS)}", repr(self.kind))
        object.__setattr__(self, "slope", check_number("slope", self.slope))

    @property
    def structure(self) -> str:
        return self.kind

    @property
    def numbers(self) -> tuple[float, ...]:
        return (self.slope,) if self.kind == "leaky_relu" else ()


@dataclass(frozen=True, eq=False)
class Clamp(Step):
    """The nearest number in ``[low, high]``, either of which may be infinite.

    >>> Clamp(0, 6).numbers
    (0.0, 6.0)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        low, high = check_number("low", self.low), check_number("high", self.high)
        if not low <= high:
            raise ArgumentError("low", f"a number <= high, {high}", low)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    @property
    def structure(self) -> str:
        return "clamp"

    @property
    def numbers(self) -> tuple[float, ...]:
        return (self.low, self.high)


@dataclass(frozen=True, eq=False)
class Epilogue:
    """Steps in order, and whether the columns of what is stored are summed on the way.

    Attributes:
        steps: what is applied to an accumulator, the first one first.
        statistics: besides D, return the sum and the sum of squares of every column, fp32 (2,
            columns), of the values as they are stored, over the rows that are written.

    >>> epilogue = Epilogue((Scale(2), Activation("leaky_relu", 0.1), Clamp(-1, 1)))
    >>> epilogue.structure, epilogue.numbers
    ('scale leaky_relu clamp', (2.0, 0.1, -1.0, 1.0))
    """

    steps: tuple[Step, ...] = ()
    statistics: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.steps, Iterable):
            kinds = "a sequence of steps, such as (Scale(2.0), Clamp(0, 6))"
            raise ArgumentTypeError("steps", kinds, repr(self.steps))
        object.__setattr__(self, "steps", tuple(self.steps))
        for step in self.steps:
            if not isinstance(step, Scale | Bias | Residual | Activation | Clamp):
                raise ArgumentTypeError("epilogue", STEPS, type(step).__name__)

    @classmethod
    def of(cls, steps: Epilogue | Step | Iterable[Step] | None) -> Epilogue:
        """An epilogue from one, a step, several, or none.

        >>> Epilogue.of(Clamp(0, 1)).structure, Epilogue.of(None).structure
        ('clamp', '')
        """
        if isinstance(steps, Epilogue):
            return steps
        if steps is None:
            return cls()
        if isinstance(steps, Step):
            return cls((steps,))
        if not isinstance(steps, Iterable) or isinstance(steps, str):
            kinds = "None, a step, a sequence of steps or an Epilogue"
            raise ArgumentTypeError("epilogue", kinds, type(steps).__name__)
        return cls(tuple(steps))

    def __bool__(self) -> bool:
        """Return whether it does anything."""
        return bool(self.steps) or self.statistics

    @cached_property
    def structure(self) -> str:
        """What a kernel is compiled for: the steps, the dtypes of their tensors; not the numbers.

        Words with a space between them, such as ``scale bias:float16 residual:float16 relu``, and
        ``statistics`` for the last if it has them.
        """
        words = [step.structure for step in self.steps]
        return " ".join([*words, "statistics"] if self.statistics else words)

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The numbers of the steps, in order: arguments of a kernel."""
        return tuple(number for step in self.steps for number in step.numbers)

    @cached_property
    def columns(self) -> tuple[Any, ...]:
        """The tensors with a number for each column, in order."""
        return tuple(
            step.by
            for step in self.steps
            if isinstance(step, Bias) or (isinstance(step, Scale) and _is_tensor(step.by))
        )

    @cached_property
    def sources(self) -> tuple[Any, ...]:
        """The tensors that are like D, in order."""
        return tuple(step.source for step in self.steps if isinstance(step, Residual))


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _require_tensor(name: str, value: Any) -> None:
    if not _is_tensor(value):
        raise ArgumentTypeError(name, "a tensor", repr(value))


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


_NUMBERS = int, float  # torch 2.8 compiles nothing that asks for ``int | float``


def is_number(value: Any) -> bool:
    """Return whether ``value`` is an int or a float.

    >>> is_number(0.5), is_number(2), is_number(True), is_number("2")
    (True, True, False, False)
    """
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def check_number(name: str, value: Any, other: str = "") -> float:
    """``value`` as a float, or an ``ArgumentTypeError`` for what is none, and for NaN."""
    if not is_number(value) or value != value:  # torch.compile does not follow isnan
        raise ArgumentTypeError(name, f"a number{other}", repr(value))
    return float(value)
