"""Epilogues: steps that are applied in order to the sums before they are stored.

A step works on accumulators in fp32: int32 ones, of int8, are converted at the first step; those of
float64 stay in fp64. After the last step the value is converted to the dtype of D: rounded to
nearest even, and for an integer or fp8 type also *saturated*, to the least or greatest finite
number of the type. NaN stays NaN if the type has one, and becomes 0 in an integer.

Only the ``dtype`` and ``shape`` of tensors are used here; this file does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError, are_several, check_choice
from .traced import PointwiseProgram, check_parameters, trace

ACTIVATIONS = (
    "relu",
    "leaky_relu",
    "gelu",
    "gelu_tanh",
    "silu",
    "sigmoid",
    "tanh",
    "hardswish",
    "relu6",
)  # fmt: skip

# The steps that executors and kernels support.
STEPS = "steps: Scale, Bias, Residual, Activation, Clamp or Pointwise"
POINTWISE = "pointwise"


@dataclass(frozen=True, eq=False)
class EpilogueStep:
    """A function of one accumulator, of numbers, and of tensor elements at its place."""

    @property
    def structure(self) -> str:
        """Return what its code depends on: a name, and the dtype of a tensor that it reads."""
        raise NotImplementedError

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers that it takes at run time."""
        return ()

    @property
    def per_column(self) -> tuple[Any, ...]:
        """The tensors that it reads with a number for each column, in order."""
        return ()

    @property
    def per_row(self) -> tuple[Any, ...]:
        """The tensors that it reads with a number for each row, in order."""
        return ()

    @property
    def like_d(self) -> tuple[Any, ...]:
        """The tensors that it reads with the shape and strides of D, in order."""
        return ()


@dataclass(frozen=True, eq=False)
class Scale(EpilogueStep):
    """``value * by``: ``by`` is a number, or a tensor with one for each column.

    A column is an ``n`` of the view. A view with groups has ``l * n`` columns, the ``n`` of a group
    adjacent. In a view with only ``l`` (``m = n = 1``: a depthwise convolution) columns are the
    coordinates of the first mode of ``l``, which are the channels.

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

    @property
    def per_column(self) -> tuple[Any, ...]:
        return (self.by,) if _is_tensor(self.by) else ()


@dataclass(frozen=True, eq=False)
class Bias(EpilogueStep):
    """``value + by``, a tensor with a number for each column, like in :class:`Scale`.

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

    @property
    def per_column(self) -> tuple[Any, ...]:
        return (self.by,)


@dataclass(frozen=True, eq=False)
class Residual(EpilogueStep):
    """``value + scale * source``: a tensor with the shape and the strides of D.

    The ``alpha`` and ``beta`` of a BLAS are ``Scale(alpha), Residual(c, beta)``. The source may be
    D itself, to accumulate into it.

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

    @property
    def like_d(self) -> tuple[Any, ...]:
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Activation(EpilogueStep):
    """A pointwise function, as torch defines it; ``slope`` is that of ``leaky_relu`` below zero.

    ``gelu`` uses the error function, ``gelu_tanh`` approximates it by the hyperbolic tangent.

    Raises :class:`~layoutconv.errors.ArgumentError` for a name that is not in ``ACTIVATIONS``.

    >>> Activation("leaky_relu", 0.2).numbers, Activation("relu").numbers
    ((0.2,), ())
    """

    kind: str
    slope: float = 0.01

    def __post_init__(self) -> None:
        check_choice("activation", self.kind, ACTIVATIONS)
        object.__setattr__(self, "slope", check_number("slope", self.slope))

    @property
    def structure(self) -> str:
        return self.kind

    @property
    def numbers(self) -> tuple[float, ...]:
        return (self.slope,) if self.kind == "leaky_relu" else ()


@dataclass(frozen=True, eq=False)
class Clamp(EpilogueStep):
    """The nearest number in ``[low, high]``; either bound may be infinite.

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
class Pointwise(EpilogueStep):
    """A function of your own, of one value and of tensor elements and coordinates at its place.

    It is called once, with stand-ins, and may use arithmetic, comparisons and the functions of
    ``layoutconv.pointwise``. The recorded operations are compiled into kernels, and torch runs them
    on a CPU. The first parameter is the value; the others are passed by name.

    Attributes:
        function: of the value, and of the names below; ``row`` and ``column`` are the integer
            coordinates of the result in the view.
        columns: tensors by name, with a number for each column, like in :class:`Scale`.
        rows: tensors by name, (m,), with a number for each row of the view.
        sources: tensors by name with the shape and the strides of D.
        values: numbers by name, which are kernel arguments: other values need no other kernel.
        backward: of the gradient of the result, the result and all tensors and numbers by name:
            returns a dict of gradients, the value's as ``"value"`` and those of tensors by name, of
            their shapes or of shapes that can be summed to them. All are matrices (rows, columns)
            that torch computes with; tensors per column are (columns,), per row (rows, 1).
            ``None``: the sums are computed once more and torch differentiates the function.
            Convolutions go backward; :func:`layoutconv.execute` does not.

    Raises :class:`~layoutconv.errors.ArgumentTypeError` for a function that branches on a value, or
    has a parameter that is not given.

    >>> import numpy as np
    >>> from layoutconv.pointwise import minimum
    >>> threshold = np.zeros(4, np.float32)
    >>> def clamped(x, threshold, slope):
    ...     return minimum(x, threshold + slope * (x - threshold))
    >>> step = Pointwise(clamped, columns={"threshold": threshold}, values={"slope": 0.1})
    >>> step.structure
    'pointwise:float32|||1|sub,x,c0;mul,n0,v0;add,c0,v1;minimum,x,v2'
    """

    function: Callable[..., Any]
    columns: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    backward: Callable[..., Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        for place in ("columns", "rows", "sources"):
            for name, tensor in _named(place, getattr(self, place)).items():
                _require_tensor(name, tensor)
        for name, number in _named("values", self.values).items():
            check_number(name, number)
        if self.backward is not None and not callable(self.backward):
            raise ArgumentTypeError("backward", "a function or None", repr(self.backward))
        if self.backward is not None:
            named = [*self.columns, *self.rows, *self.sources, *self.values]
            check_parameters("backward", self.backward, ["a gradient", "the result"], named)
        columns, rows, sources = (
            {name: _dtype(tensor) for name, tensor in of.items()}
            for of in (self.columns, self.rows, self.sources)
        )
        traced = trace(self.function, columns, rows, sources, tuple(self.values))
        # Not a cached property, which torch.compile cannot trace.
        object.__setattr__(self, "_traced", traced)
        object.__setattr__(self, "_structure", f"{POINTWISE}:{traced.text}")

    @property
    def program(self) -> PointwiseProgram:
        """The instructions that the function was traced to.

        Dtypes are the tensors' current ones: a module's ``half()`` changes its tensors.
        """
        traced: PointwiseProgram = self.__dict__["_traced"]
        places = self.columns, self.rows, self.sources
        columns, rows, sources = (tuple(map(_dtype, of.values())) for of in places)
        if (columns, rows, sources) == (traced.columns, traced.rows, traced.sources):
            return traced
        return replace(traced, columns=columns, rows=rows, sources=sources)

    def with_tensors(
        self, columns: Iterable[Any], rows: Iterable[Any], sources: Iterable[Any]
    ) -> Pointwise:
        """Return the same function of other tensors, in order, of the same names, without a trace.

        >>> import numpy as np
        >>> step = Pointwise(lambda x, low: x + low, {"low": np.zeros(4, np.float32)})
        >>> step.with_tensors([np.zeros(4, np.float16)], [], []).structure
        'pointwise:float16||||add,x,c0'
        """
        made = object.__new__(Pointwise)
        given = {"columns": columns, "rows": rows, "sources": sources}
        for name, value in self.__dict__.items():
            named = dict(zip(value, given[name], strict=True)) if name in given else value
            object.__setattr__(made, name, named)
        return made

    @property
    def key(self) -> tuple[Any, ...]:
        """A key of the computation, without its tensors: text and numbers."""
        return self.structure, self.numbers

    @property
    def structure(self) -> str:
        program = self.program
        if program is self.__dict__["_traced"]:
            structure: str = self.__dict__["_structure"]
            return structure
        return f"{POINTWISE}:{program.text}"

    @property
    def numbers(self) -> tuple[float, ...]:
        return tuple(map(float, self.values.values()))

    @property
    def per_column(self) -> tuple[Any, ...]:
        return tuple(self.columns.values())

    @property
    def per_row(self) -> tuple[Any, ...]:
        return tuple(self.rows.values())

    @property
    def like_d(self) -> tuple[Any, ...]:
        return tuple(self.sources.values())


@dataclass(frozen=True, eq=False)
class Epilogue:
    """Steps in order, and whether to sum the columns of the stored values.

    Attributes:
        steps: applied to an accumulator, the first one first.
        statistics: besides D, return the sum and the sum of squares of every column, fp32 (2,
            columns), of the values as they are stored, over the rows that are written.

    >>> epilogue = Epilogue((Scale(2), Activation("leaky_relu", 0.1), Clamp(-1, 1)))
    >>> epilogue.structure, epilogue.numbers
    ('scale leaky_relu clamp', (2.0, 0.1, -1.0, 1.0))
    """

    steps: tuple[EpilogueStep, ...] = ()
    statistics: bool = False

    def __post_init__(self) -> None:
        if not are_several(self.steps):
            kinds = "a sequence of steps, such as (Scale(2.0), Clamp(0, 6))"
            raise ArgumentTypeError("steps", kinds, repr(self.steps))
        object.__setattr__(self, "steps", tuple(self.steps))
        for step in self.steps:
            if not isinstance(step, Scale | Bias | Residual | Activation | Clamp | Pointwise):
                raise ArgumentTypeError("epilogue", STEPS, type(step).__name__)

    @classmethod
    def of(cls, steps: Epilogue | EpilogueStep | Iterable[EpilogueStep] | None) -> Epilogue:
        """Return an epilogue from an epilogue, a step, several steps, or None.

        >>> Epilogue.of(Clamp(0, 1)).structure, Epilogue.of(None).structure
        ('clamp', '')
        """
        if isinstance(steps, Epilogue):
            return steps
        if steps is None:
            return cls()
        if isinstance(steps, EpilogueStep):
            return cls((steps,))
        if not are_several(steps):
            kinds = "None, a step, a sequence of steps or an Epilogue"
            raise ArgumentTypeError("epilogue", kinds, type(steps).__name__)
        return cls(tuple(steps))

    def __bool__(self) -> bool:
        """Return whether it does anything."""
        return bool(self.steps) or self.statistics

    @cached_property
    def structure(self) -> str:
        """The structure a kernel is compiled for: steps and dtypes of tensors; not the numbers.

        Words with a space between them, such as ``scale bias:float16 residual:float16 relu``; the
        last is ``statistics`` if it has them.
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
        return tuple(tensor for step in self.steps for tensor in step.per_column)

    @cached_property
    def rows(self) -> tuple[Any, ...]:
        """The tensors with a number for each row, in order."""
        return tuple(tensor for step in self.steps for tensor in step.per_row)

    @cached_property
    def vectors(self) -> tuple[Any, ...]:
        """The tensors of both kinds, step by step, as kernels take them."""
        return tuple(t for step in self.steps for t in (*step.per_column, *step.per_row))

    @cached_property
    def sources(self) -> tuple[Any, ...]:
        """The tensors like D, in order."""
        return tuple(tensor for step in self.steps for tensor in step.like_d)


def programs_of(structure: str) -> list[PointwiseProgram]:
    """Return the programs in an epilogue's structure, in order.

    >>> programs_of("relu pointwise:||||add,x,1.0")[0].instructions
    (('add', 'x', '1.0'),)
    """
    pairs = (word.partition(":") for word in structure.split())
    return [PointwiseProgram.parse(text) for name, _, text in pairs if name == POINTWISE]


def is_by_row(structure: str) -> bool:
    """Return whether steps need more than the column of a result.

    >>> is_by_row("scale bias:float16"), is_by_row("residual:float16")
    (False, True)
    """
    return "residual" in structure or any(program.by_row for program in programs_of(structure))


def counts_rows(structure: str) -> bool:
    """Return whether steps need the row number of a result.

    >>> counts_rows("pointwise:||||float,row"), counts_rows("pointwise:||||float,column")
    (True, False)
    """
    return any(program.counts_rows for program in programs_of(structure))


def _named(place: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ArgumentTypeError(place, "a dict whose keys are names of parameters", repr(given))
    return given


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _require_tensor(name: str, value: Any) -> None:
    if not _is_tensor(value):
        raise ArgumentTypeError(name, "a tensor", repr(value))


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


_NUMBERS = int, float  # torch 2.8 cannot compile checks of ``int | float``


def is_number(value: Any) -> bool:
    """Return whether ``value`` is an int or a float.

    >>> is_number(0.5), is_number(2), is_number(True), is_number("2")
    (True, True, False, False)
    """
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def check_number(name: str, value: Any, other: str = "") -> float:
    """Return ``value`` as a float; raise an ``ArgumentTypeError`` for NaN, or if it is no number.

    An integer too large for a float raises an ``ArgumentError``.
    """
    if not is_number(value) or value != value:  # torch.compile cannot trace isnan
        raise ArgumentTypeError(name, f"a number{other}", repr(value))
    try:
        return float(value)
    except OverflowError:
        raise ArgumentError(
            name, "a number that fits in a float", "an integer above 1e308"
        ) from None
