"""Compare a result with what it should be: to the last bit, or within a limit of each element."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan, sqrt

import torch
from torch import Tensor

from . import limits


class WrongResultError(Exception):
    """A result is not what it should be; the message says where."""

    def __init__(self, message: str, ratio: float = inf) -> None:
        super().__init__(message)
        self.ratio = ratio


@dataclass(frozen=True)
class Expected:
    """The expected value of an output, and its limits.

    Args:
        value: in float64 (complex128 of complex numbers), before it is rounded to the output's
            type.
        error: how far ``value`` may be from what is rounded, of each element; None of integers,
            which have none.
        drift: the relative error that all elements may have in common; of sums that nothing but a
            rounding follows.
        terms: of a sum, for messages.
    """

    value: Tensor
    error: Tensor | None = None
    drift: float | None = None
    terms: int = 0


def rounded(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Round float64 to nearest even, and saturate where a type has no infinity; NaN stays NaN.

    Of numbers that fit float32: torch goes by way of that. Complex numbers, whose parts are rounded
    apart, do not saturate.

    >>> rounded(torch.tensor([2.5, -300.0], dtype=torch.float64), torch.int8)
    tensor([   2, -128], dtype=torch.int8)
    >>> rounded(torch.tensor([2 + 1e300j], dtype=torch.complex128), torch.complex64)
    tensor([2.+infj])
    """
    if dtype.is_complex:
        return value.to(dtype)
    whole = dtype in (torch.int8, torch.int32)
    held = (value.round() if whole else value).clamp(*limits.ends(dtype))
    return (held.nan_to_num(0) if whole else held).to(dtype)


def check(name: str, got: Tensor, want: Expected, dtype: torch.dtype) -> float:
    """The worst error over its limit, 0 of what is equal; raises ``WrongResultError``.

    ``dtype`` is what ``got`` is said to have.
    """
    if got.dtype != dtype:
        raise WrongResultError(f"{name}: dtype {got.dtype}, not {dtype}")
    if got.shape != want.value.shape:
        raise WrongResultError(f"{name}: shape {tuple(got.shape)}, not {tuple(want.value.shape)}")
    if got.is_complex():
        parts = ("real", "imag")
        found = [
            check(f"{name}.{part}", getattr(got, part), _part(want, part), got.real.dtype)
            for part in parts
        ]
        return max(found)
    if not got.numel():
        return 0.0
    if want.error is None:
        _check_equal(name, got, want)
        return 0.0
    return _check_near(name, got, want)


def _part(want: Expected, part: str) -> Expected:
    return Expected(getattr(want.value, part), want.error, want.drift, want.terms)


def _check_equal(name: str, got: Tensor, want: Expected) -> None:
    exact = rounded(want.value, got.dtype).double()
    found = got.double()
    bad = (found != exact) & ~(found.isnan() & exact.isnan())
    if bad.any():
        raise WrongResultError(_where(name, bad, found, exact, None, want.terms))


def _check_near(name: str, got: Tensor, want: Expected) -> float:
    assert want.error is not None
    found, value = got.double(), want.value
    exact = value.clamp(*limits.ends(got.dtype))
    limit = limits.of_result(exact, want.error, got.dtype)
    error = (found - exact).abs()
    error = torch.where(found == exact, 0.0, error)  # infinities
    both_nan = found.isnan() & exact.isnan()
    over = torch.where(both_nan, 0.0, error / limit).nan_to_num(inf)
    over = torch.where(_overflowed(found, exact, limit), 0.0, over)
    worst = float(over.max())
    if worst > 1:
        raise WrongResultError(_where(name, over > 1, found, exact, limit, want.terms), worst)
    if want.drift is not None:
        worst = max(worst, _check_drift(name, found, exact, want.drift, got.dtype))
    return worst


def _overflowed(found: Tensor, exact: Tensor, limit: Tensor) -> Tensor:
    """Infinities of results that are so near to the greatest number that either is right."""
    return found.isinf() & (exact.sign() == found.sign()) & (exact.abs() + limit >= 65504)


def _check_drift(
    name: str, found: Tensor, exact: Tensor, drift: float, dtype: torch.dtype
) -> float:
    """Check that errors have no sign in common with results, as those of truncation do.

    Rounding errors are as often up as down, so that the slope of a line through them goes to zero
    with the root of their number.
    """
    there = exact.isfinite() & found.isfinite()
    exact, found = exact[there], found[there]
    power = float(exact.square().sum())
    if exact.numel() < 1000 or power == 0:
        return 0.0
    residual = found - exact
    slope = float((residual * exact).sum()) / power
    noise = sqrt(float((residual * exact).square().sum())) / power
    limit = drift + 8 * noise + limits.UNITS[dtype] * 2**-6
    if isnan(slope) or abs(slope) > limit:
        share = f"{slope:.2e} of the result, more than {limit:.2e}"
        raise WrongResultError(f"{name}: errors have a common part, {share}", abs(slope) / limit)
    return abs(slope) / limit


def _where(
    name: str, bad: Tensor, found: Tensor, exact: Tensor, limit: Tensor | None, terms: int
) -> str:
    count = int(bad.sum())
    first = int(bad.reshape(-1).to(torch.uint8).argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(first), bad.shape))
    within = "" if limit is None else f" within {float(limit[place]):.3g}"
    of = f" (sums of {terms})" if terms else ""
    return (
        f"{name}: {count} of {bad.numel()} wrong{of}, first at {place}: {float(found[place]):.9g}, "
        f"not {float(exact[place]):.9g}{within}"
    )
