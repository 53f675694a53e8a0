"""Floating-point formats narrower than float64: bits to values, and values rounded to bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from .masks import every, some


@dataclass(frozen=True)
class Format:
    """A binary format: widths of exponent and mantissa in bits; IEEE formats have infinities.

    ``shift`` is the number of unused low bits (tf32 sits in the upper 19 bits of a word).
    """

    name: str
    exponent: int
    mantissa: int
    ieee: bool = True
    shift: int = 0

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def largest(self) -> int:
        """The bits of the largest finite magnitude (in e4m3 only the last code is NaN)."""
        top = ((1 << self.exponent) - 1) << self.mantissa
        return top - 1 if self.ieee else (top | ((1 << self.mantissa) - 1)) - 1

    @property
    def sign(self) -> int:
        """The position of the sign bit."""
        return self.exponent + self.mantissa

    @property
    def nan(self) -> int:
        """The bits of the NaN that conversions produce: all ones but the sign."""
        return ((1 << self.sign + self.shift) - 1) if self.shift else (1 << self.sign) - 1


FORMATS = {
    f.name: f
    for f in (
        Format("f32", 8, 23),
        Format("tf32", 8, 10, shift=13),
        Format("bf16", 8, 7),
        Format("f16", 5, 10),
        Format("e4m3", 4, 3, ieee=False),
        Format("e5m2", 5, 2),
    )
}


def encode(
    values: NDArray, name: str, rounding: str = "rn", *, satfinite: bool = False
) -> NDArray[np.uint32]:
    """Return the bits of ``values`` (float32 or float64) rounded once to a format.

    ``rounding``: rn to nearest even, rna to nearest away from zero, rz, rm (down), rp (up). With
    ``satfinite`` an overflow becomes the largest finite value.

    >>> [hex(b) for b in encode(np.array([1.0, 65520.0, -65519.0]), "f16")]
    ['0x3c00', '0x7c00', '0xfbff']
    """
    form = FORMATS[name]
    if name == "f16" and rounding == "rn" and not satfinite:  # by NumPy, in a tenth of the time
        with np.errstate(over="ignore", under="ignore"):
            halves = values.astype(np.float16).view(np.uint16)
        return np.where(np.isnan(values), form.nan, halves).astype(np.uint32)
    shorter = name in ("bf16", "tf32") and values.dtype == np.float32
    if shorter and rounding in ("rn", "rna") and not satfinite:
        return _shortened(values, form, rounding == "rn")
    exact = values.astype(np.float64)
    negative = np.signbit(exact)
    magnitude = np.abs(exact)
    finite = np.isfinite(exact)
    _, exponent = np.frexp(np.where(finite, magnitude, 0.0))
    # The binade that the value is rounded in: at least that of the subnormals, for zero too.
    binade = np.where(magnitude > 0, np.maximum(exponent - 1, 1 - form.bias), 1 - form.bias)
    scaled = np.ldexp(np.where(finite, magnitude, 0.0), form.mantissa - binade)
    away = {"rm": negative, "rp": ~negative}.get(rounding, np.False_)
    match rounding:
        case "rn":
            rounded = np.rint(scaled)
        case "rna":
            rounded = np.floor(scaled + 0.5)
        case "rz":
            rounded = np.floor(scaled)
        case "rm" | "rp":
            rounded = np.where(away, np.ceil(scaled), np.floor(scaled))
        case _:
            raise ValueError(f"unknown rounding {rounding!r}")
    # A mantissa that rounds up to the next power of two carries into the exponent by itself.
    codes = ((binade + form.bias - 1).astype(np.int64) << form.mantissa) + rounded.astype(np.int64)
    infinity = (form.largest + 1) if form.ieee else form.nan
    stays = satfinite | ((rounding == "rz") | ((rounding in ("rm", "rp")) & ~away))
    codes = np.where(codes > form.largest, np.where(stays, form.largest, infinity), codes)
    codes = np.where(np.isinf(exact), form.largest if satfinite else infinity, codes)
    codes = (codes | (negative.astype(np.int64) << form.sign)) << form.shift
    return np.where(np.isnan(exact), form.nan, codes).astype(np.uint32)


def _shortened(values: NDArray[np.float32], form: Format, to_even: bool) -> NDArray[np.uint32]:
    """:func:`encode` to a format with float32's exponents: its upper bits, rounded by a carry."""
    bits, dropped = values.view(np.uint32), np.uint32(23 - form.mantissa)
    half = np.uint32(1 << 22 - form.mantissa)
    carry = half - np.uint32(1) + (bits >> dropped & np.uint32(1)) if to_even else half
    codes = (bits + carry) >> dropped << np.uint32(form.shift)
    return np.where(np.isnan(values), np.uint32(form.nan), codes)


def decode(codes: NDArray, name: str) -> NDArray[np.float32]:
    """Return the exact values of a format's bits, as float32.

    >>> decode(np.array([0x3f80, 0xc040]), "bf16").tolist()
    [1.0, -3.0]
    """
    form = FORMATS[name]
    if name == "f16":
        return codes.astype(np.uint16).view(np.float16).astype(np.float32)
    if form.exponent == 8:
        # The upper bits of a float32.
        unused = form.shift or 23 - form.mantissa
        aligned = codes.astype(np.uint32) >> np.uint32(form.shift)
        return (aligned << np.uint32(unused)).view(np.float32)
    return _table(form)[codes & 0xFF]


def _table(form: Format) -> NDArray[np.float32]:
    """Return the values of all codes of an 8-bit format."""
    codes = np.arange(256)
    field = codes >> form.mantissa & ((1 << form.exponent) - 1)
    fraction = codes & ((1 << form.mantissa) - 1)
    significand = fraction + np.where(field > 0, 1 << form.mantissa, 0)
    values = np.ldexp(
        significand.astype(np.float64), np.maximum(field, 1) - form.bias - form.mantissa
    )
    magnitude = codes & 0x7F
    values = np.where(magnitude > form.largest, np.nan, values)
    if form.ieee:
        values = np.where(magnitude == form.largest + 1, np.inf, values)
    return np.where(codes >> 7, -values, values).astype(np.float32)


def fused_multiply_add_64(
    a: NDArray[np.float64], b: NDArray[np.float64], c: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return a * b + c of float64 values, rounded once.

    If product and sum are exact, as for small integers, it is computed directly; else from the
    rounding errors of both; and with rational numbers if these might overflow or underflow.

    >>> x = np.array([1 + 2.0**-30])
    >>> fused_multiply_add_64(x, x, np.array([-1 - 2.0**-29])).tolist() == [2.0**-60]
    True
    """
    a, b, c = np.broadcast_arrays(a, b, c)
    with np.errstate(all="ignore"):
        plain = a * b + c
        exact = (np.abs(a) < 2**26) & (np.abs(b) < 2**26) & (np.abs(c) < 2**52)
        exact &= (a == np.rint(a)) & (b == np.rint(b)) & (c == np.rint(c))
        exact |= (a == 0) | (b == 0) | ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c))
        if every(exact):
            return plain
        emulated = _emulated(a, b, c)
    tame = _is_tame(a) & _is_tame(b) & (_is_tame(c) | (c == 0)) & (emulated != 0)
    total = np.where(tame & ~exact, emulated, plain)
    for i in np.flatnonzero(~exact & ~tame):
        value = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        if value:  # else the sign of the zero is that of the plain sum
            total[i] = _nearest(value)
    return total


def _is_tame(x: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return where products, and their rounding errors, neither overflow nor underflow."""
    magnitude = np.abs(x)
    return (magnitude > 2.0**-200) & (magnitude < 2.0**200)


def _emulated(
    a: NDArray[np.float64], b: NDArray[np.float64], c: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return a * b + c rounded once, by Boldo and Melquiond's emulation
    (:func:`fused_multiply_add`)."""
    product = a * b
    (a1, a0), (b1, b0) = _halves(a), _halves(b)
    lost = ((a1 * b1 - product) + a1 * b0 + a0 * b1) + a0 * b0  # Dekker's: exact
    low, lowest = _two_sum(c, lost)
    high, rest = _two_sum(product, low)
    return high + _sum_to_odd(lowest, rest)


def _halves(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the upper 26 bits of numbers, and the rest (Veltkamp's splitting)."""
    scaled = x * (2.0**27 + 1)
    upper = scaled - (scaled - x)
    return upper, x - upper


def _two_sum(
    a: NDArray[np.float64], b: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sum of two numbers, and its exact rounding error (Knuth's two-sum)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _sum_to_odd(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of two numbers rounded to odd: if bits are lost, the last bit is set."""
    total, error = _two_sum(a, b)
    if not some(error):
        return total
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & np.isfinite(error)
    # Truncate towards zero (one step back where the sum was rounded away), then set the last bit.
    away = inexact & ((error < 0) == (total > 0))
    truncated = bits - away.astype(np.int64)
    return np.where(inexact, truncated | 1, bits).view(np.float64)


def _nearest(value: Fraction) -> float:
    """Return the nearest float64; an infinity beyond the greatest."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def fused_multiply_add(a: NDArray, b: NDArray, c: NDArray) -> NDArray[np.float64]:
    """Return a * b + c of float32 values such that rounding it to a narrower format rounds once.

    The product is exact in float64. The sum is rounded to odd: if bits are lost, the last bit is
    set, so a later rounding to at most 51 bits sees on which side of a tie it is (Boldo and
    Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE TC 2008).
    """
    return _sum_to_odd(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))
