"""Limits on how far from float64 a result may be, written down before anything is measured.

The result of a kernel is ``finish(sum of n products)``. What separates it from the exact one:

*Operands.* tf32 takes float32 rounded to nearest, off by 2^-11 of itself. Three products of tf32
lose 2^-22 of each factor, what its remainder is rounded by, and 2^-20 of the product, that of the
remainders: tensor cores cut factors off, which leaves up to 2^-10. They are three additions to a
sum. Operands of other types are multiplied as they are. A rounding is as often up as down, so a sum
of ``n`` such products is off by a few times ``operand * S2``, where ``S2 = sqrt(sum (a b)^2)``, and
never by more than ``operand * S1``, ``S1 = sum |a b|``. ``SPREAD`` deviations are allowed: 4 of the
greatest possible rounding are about 10 standard deviations.

*Accumulation.* A sum in floating point is off by at most ``n u S1`` (N. Higham, Accuracy and
Stability of Numerical Algorithms, 3.1). Of data with mean zero, as ours are, partial sums grow as
``sqrt(n)``, and rounding to nearest is off by about ``u S1`` whatever ``n`` is (Higham and Mary,
2019); truncation, which tensor cores do, drifts towards zero once in each instruction, of ``depth``
products: by about ``u S1 sqrt(n) / depth``. ``growth`` has a factor of 8 and of 4 above those.
Tensor cores of fp8 keep 14 bits of a sum, all others at least 24.

*The end.* Each step of an epilogue rounds once in fp32 (fp64 of float64), an activation passes
errors on times its steepest slope, and the result is rounded once to its type.

Integers that are small enough have no error at all: ``exact_range`` says how large sums may be.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import torch
from torch import Tensor

SPREAD = 4.0
STEADY, DRIFT = 8.0, 4.0  # of what rounding to nearest leaves, and of what truncation does
# The unit of a rounding, and the distance of the least numbers: half of it is lost where results
# are nearly zero. What is below the least normal one of float32 may be flushed.
ROUNDINGS = {
    torch.float16: (2.0**-11, 2.0**-24),
    torch.bfloat16: (2.0**-8, 2.0**-126),
    torch.float32: (2.0**-24, 2.0**-126),
    torch.float64: (2.0**-53, 2.0**-1022),
    torch.float8_e4m3fn: (2.0**-4, 2.0**-9),
    torch.float8_e5m2: (2.0**-3, 2.0**-16),
    torch.int8: (0.0, 1.0),
    torch.int32: (0.0, 1.0),
}
UNITS = {dtype: unit for dtype, (unit, _) in ROUNDINGS.items()}
LEAST = {dtype: least for dtype, (_, least) in ROUNDINGS.items()}
# The steepest slope of an activation. Those of the second table are computed to about 2^-22: of
# their value, and where that is a difference of numbers up to 8, of these.
SLOPES = {
    "": 1.0, "relu": 1.0, "relu6": 1.0, "leaky_relu": 1.0, "gelu": 1.13, "gelu_tanh": 1.13,
    "silu": 1.1, "sigmoid": 0.25, "tanh": 1.0, "hardswish": 1.5,
}  # fmt: skip
SMOOTH, DIFFERENCES = 2.0**-20, {"gelu": 2.0**-19, "gelu_tanh": 2.0**-19, "hardswish": 2.0**-21}


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic that sums products.

    Args:
        unit: of a partial sum, the relative error of an addition.
        depth: products that one instruction adds.
        operand: the relative error of both factors together.
        integers: up to what magnitude of partial sums integers are exact.
    """

    unit: float
    depth: int
    operand: float = 0.0
    integers: float = 2.0**24

    def growth(self, n: int) -> float:
        """The error of a sum of ``n`` products, over ``unit * S1``."""
        return min(float(n), STEADY + DRIFT * sqrt(n) / self.depth)

    def of_sums(self, s1: Tensor, s2: Tensor, n: int, more: float = 0.0) -> Tensor:
        """The error limit of sums of ``n`` products; ``more`` is a relative error of a factor."""
        operand = self.operand + more
        rounded = operand * torch.minimum(s1, SPREAD * s2)
        return self.unit * self.growth(n) * s1 + rounded

    def drift(self, n: int) -> float:
        """The relative error that results of ``n`` products may have in common."""
        return self.unit * (2 + n / self.depth)


_CORES = {
    "float16": Arithmetic(2.0**-23, 16),
    "bfloat16": Arithmetic(2.0**-23, 16),
    "tf32": Arithmetic(2.0**-23, 8, operand=2.0**-10),
    "fp32": Arithmetic(3 * 2.0**-23, 8, operand=2.0**-20 + 2 * 2.0**-22),
    "float64": Arithmetic(2.0**-52, 4, integers=2.0**53),
    "int8": Arithmetic(0.0, 32, integers=2.0**31),
    "float8_e4m3fn": Arithmetic(2.0**-13, 32, integers=2.0**13),
    "float8_e5m2": Arithmetic(2.0**-13, 32, integers=2.0**13),
}


def arithmetic(dtype: torch.dtype, precision: str = "fp32", *, tensor_cores: bool) -> Arithmetic:
    """The arithmetic for data of ``dtype``; ``precision``, "tf32" or "fp32", is that of float32.

    >>> arithmetic(torch.float32, "tf32", tensor_cores=True).operand
    0.0009765625
    """
    name = str(dtype).removeprefix("torch.")
    if name == "float64" or name == "int8":
        return _CORES[name]
    if not tensor_cores:
        return Arithmetic(2.0**-24, 1)
    return _CORES[precision if name == "float32" else name]


def of_result(value: Tensor, error: Tensor, dtype: torch.dtype) -> Tensor:
    """The limit of a stored result that was off by ``error`` before it was rounded to ``dtype``."""
    unit, least = ROUNDINGS[dtype]
    if dtype in (torch.int8, torch.int32):
        return error + 0.5
    return error + unit * (value.abs() + error) + least


def of_activation(value: Tensor, error: Tensor, kind: str, slope: float) -> Tensor:
    """The error of an activation's ``value`` whose argument was off by ``error``."""
    steepest = max(1.0, abs(slope)) if kind == "leaky_relu" else SLOPES[kind]
    return steepest * error + SMOOTH * value.abs() + DIFFERENCES.get(kind, 0.0)


def ends(dtype: torch.dtype) -> tuple[float, float]:
    """The least and the greatest number of a type; infinities where results overflow to them.

    >>> ends(torch.int8), ends(torch.float16)
    ((-128.0, 127.0), (-inf, inf))
    """
    if dtype in (torch.int8, torch.int32):
        return float(torch.iinfo(dtype).min), float(torch.iinfo(dtype).max)
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        return float(torch.finfo(dtype).min), float(torch.finfo(dtype).max)
    return -inf, inf
