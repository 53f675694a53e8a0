"""The steps of an epilogue on vectors of accumulators, traced from their structure.

``layoutconv.view.epilogue`` defines them; a structure is its text: ``"scale bias:float16 relu"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cutlass.cute as cute

Vector = Any  # cute.TensorSSA
_math: Any = cute.math

_LOG2_E = 1.4426950408889634
_SQRT_HALF = 0.7071067811865476
_GELU_SCALE, _GELU_CUBE = 0.7978845608028654, 0.044715


class Steps:
    """The steps of a structure.

    ``columns`` and ``sources`` are the dtypes' names of the tensors that they read, in order;
    ``numbers`` is how many numbers they take.
    """

    def __init__(self, structure: str) -> None:
        words = structure.split()
        self.statistics = "statistics" in words
        self.words = [word for word in words if word != "statistics"]
        pairs = [word.partition(":")[::2] for word in self.words]
        self.columns = [dtype for name, dtype in pairs if dtype and name != "residual"]
        self.sources = [dtype for name, dtype in pairs if name == "residual"]
        self.numbers = sum(_NUMBERS.get(word.split(":")[0], 0) for word in self.words)
        self.numbers -= sum(word.startswith("scale:") for word in self.words)

    @property
    def keep_zero(self) -> bool:
        """Return whether zero stays zero."""
        return all(word.split(":")[0] in _KEEP_ZERO for word in self.words)

    def __bool__(self) -> bool:
        return bool(self.words)

    def __call__(
        self,
        x: Vector,
        numbers: tuple[Any, ...],
        column: Callable[[int], Vector],
        source: Callable[[int], Vector] | None = None,
    ) -> Vector:
        """``x`` after all steps; ``column(i)`` and ``source(i)`` are what the i-th tensor has."""
        of_source: Any = source
        number, columns, sources = iter(numbers), iter(range(99)), iter(range(99))
        for word in self.words:
            name, _, dtype = word.partition(":")
            if name == "scale":
                x = x * (column(next(columns)) if dtype else next(number))
            elif name == "bias":
                x = x + column(next(columns))
            elif name == "residual":
                x = x + next(number) * of_source(next(sources))
            else:
                x = _FUNCTIONS[name](x, number)
        return x


def _where(condition: Any, x: Any, y: Any) -> Vector:
    """``x`` or ``y`` by element; one of both may be a number."""
    shaped = x if isinstance(x, cute.TensorSSA) else y
    x, y = (v if isinstance(v, cute.TensorSSA) else cute.full_like(shaped, v) for v in (x, y))
    return cute.where(condition, x, y)


def _sigmoid(x: Vector) -> Vector:
    return 1.0 / (1.0 + _math.exp2(x * -_LOG2_E, fastmath=True))


def _gelu_tanh(x: Vector) -> Vector:
    return 0.5 * x * (1.0 + _math.tanh(_GELU_SCALE * (x + _GELU_CUBE * x * x * x)))


def _clamp(x: Vector, low: Any, high: Any) -> Vector:
    """A NaN is neither below nor above: it stays."""
    x = _where(x < low, low, x)
    return _where(x > high, high, x)


_KEEP_ZERO = {"scale", "relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh", "hardswish"}
_NUMBERS = {"scale": 1, "residual": 1, "leaky_relu": 1, "clamp": 2}
_FUNCTIONS: dict[str, Callable[[Vector, Iterator[Any]], Vector]] = {
    "relu": lambda x, _: _where(x < 0.0, 0.0, x),
    "leaky_relu": lambda x, n: _where(x < 0.0, x * next(n), x),
    "gelu": lambda x, _: 0.5 * x * (1.0 + _math.erf(x * _SQRT_HALF)),
    "gelu_tanh": lambda x, _: _gelu_tanh(x),
    "silu": lambda x, _: x * _sigmoid(x),
    "sigmoid": lambda x, _: _sigmoid(x),
    "tanh": lambda x, _: _math.tanh(x),
    "hardswish": lambda x, _: x * _clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0),
    "clamp": lambda x, n: _clamp(x, next(n), next(n)),
}
