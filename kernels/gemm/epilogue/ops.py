"""The steps of an epilogue on vectors of accumulators, traced from their structure.

``layoutconv.view.epilogue`` defines them. A structure is a text: ``"scale bias:float16 relu"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import cutlass.cute as cute

from layoutconv.view.epilogue import POINTWISE, is_by_row, programs_of
from layoutconv.view.traced import PointwiseProgram

from .convert import converted
from .instructions import greatest, least, relu
from .traced_ops import LOG2_E, run_program

Vector = Any  # cute.TensorSSA
_math: Any = cute.math

_SQRT_HALF = 0.7071067811865476
_GELU_SCALE, _GELU_CUBE = 0.7978845608028654, 0.044715


class Steps:
    """The steps of a structure.

    ``vectors``: dtype names of the vectors that the steps read, one value per column or row, in
    order. ``sources``: dtype names of the tensors like D. ``per_row``: which ``vectors`` are per
    row, by number. ``numbers``: how many scalars the steps take.
    """

    def __init__(self, structure: str) -> None:
        words = structure.split()
        self.statistics = "statistics" in words
        self.words = [word for word in words if word != "statistics"]
        self.by_row = is_by_row(structure)
        self.programs = programs_of(structure)
        self.vectors: list[str] = []
        self.sources: list[str] = []
        self.per_row: set[int] = set()
        self.numbers, programs = 0, iter(self.programs)
        for word in self.words:
            name, _, dtype = word.partition(":")
            if name == POINTWISE:
                program = next(programs)
                self.vectors += program.columns
                self.per_row.update(range(len(self.vectors), len(self.vectors) + len(program.rows)))
                self.vectors += program.rows
                self.sources += program.sources
                self.numbers += program.numbers
            else:
                (self.sources if name == "residual" else self.vectors).extend([dtype] * bool(dtype))
                self.numbers += 0 if name == "scale" and dtype else _NUMBERS.get(name, 0)

    @property
    def keep_zero(self) -> bool:
        """Return whether zero stays zero."""
        return all(word.split(":")[0] in _KEEP_ZERO for word in self.words)

    def __bool__(self) -> bool:
        return bool(self.words)

    def __call__(self, x: Vector, numbers: tuple[Any, ...], places: Places, kind: Any) -> Vector:
        """Apply all steps to ``x``, the sums at ``places``, and convert the result to ``kind``."""
        number, vectors, sources = iter(numbers), count(), count()
        programs, positive = iter(self.programs), self.words[-1:] == ["relu"]
        for word in self.words[: -1 if positive else None]:
            name, _, dtype = word.partition(":")
            if name == "scale":
                x = x * (places.vector(next(vectors)) if dtype else next(number))
            elif name == "bias":
                x = x + places.vector(next(vectors))
            elif name == "residual":
                x = x + next(number) * places.source(next(sources))
            elif name == POINTWISE:
                program = next(programs)
                given = _given(program, number, vectors, sources)
                x = run_program(program, x, partial(_read, places, given))
            else:
                x = _FUNCTIONS[name](x, number)
        return converted(x, kind, positive=positive)


@dataclass
class Places:
    """Values that steps read at the positions of a vector of sums, as vectors of its shape.

    ``vector(i)`` reads the i-th tensor per column or row, ``source(i)`` the i-th tensor like D;
    ``row()`` and ``column()`` are coordinates, Int32.
    """

    vector: Callable[[int], Vector]
    column: Callable[[], Vector]
    source: Any = None
    row: Any = None


def _read(places: Places, given: dict[str, tuple[str, Any]], name: str) -> Any:
    """Return the value of a program's operand ``name`` at ``places``."""
    kind, which = given[name]
    if kind in ("row", "column"):
        return getattr(places, kind)()
    return which if kind == "number" else getattr(places, kind)(which)


def _given(
    program: PointwiseProgram, number: Iterator[Any], vectors: Iterator[int], sources: Iterator[int]
) -> dict[str, tuple[str, Any]]:
    """Return the kind of each of a program's operands, by name, with its number or scalar."""
    found: dict[str, tuple[str, Any]] = {"row": ("row", 0), "column": ("column", 0)}
    found.update({f"c{i}": ("vector", next(vectors)) for i in range(len(program.columns))})
    found.update({f"r{i}": ("vector", next(vectors)) for i in range(len(program.rows))})
    found.update({f"s{i}": ("source", next(sources)) for i in range(len(program.sources))})
    found.update({f"n{i}": ("number", next(number)) for i in range(program.numbers)})
    return found


def _sigmoid(x: Vector) -> Vector:
    return 1.0 / (1.0 + _math.exp2(x * -LOG2_E, fastmath=True))


def _gelu_tanh(x: Vector) -> Vector:
    return 0.5 * x * (1.0 + _math.tanh(_GELU_SCALE * (x + _GELU_CUBE * x * x * x)))


def _clamp(x: Vector, low: Any, high: Any) -> Vector:
    """Clamp to ``[low, high]``; NaN stays NaN."""
    return least(greatest(x, cute.full_like(x, low)), cute.full_like(x, high))


_KEEP_ZERO = {
    "scale", "relu", "relu6", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh", "hardswish",
}  # fmt: skip
_NUMBERS = {"scale": 1, "residual": 1, "leaky_relu": 1, "clamp": 2}
_FUNCTIONS: dict[str, Callable[[Vector, Iterator[Any]], Vector]] = {
    "relu": lambda x, _: relu(x),
    "relu6": lambda x, _: _clamp(x, 0.0, 6.0),
    "leaky_relu": lambda x, n: cute.where(x < 0.0, x * next(n), x),
    "gelu": lambda x, _: 0.5 * x * (1.0 + _math.erf(x * _SQRT_HALF)),
    "gelu_tanh": lambda x, _: _gelu_tanh(x),
    "silu": lambda x, _: x * _sigmoid(x),
    "sigmoid": lambda x, _: _sigmoid(x),
    "tanh": lambda x, _: _math.tanh(x),
    "hardswish": lambda x, _: x * _clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0),
    "clamp": lambda x, n: _clamp(x, next(n), next(n)),
}
