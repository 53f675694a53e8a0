"""Reference convolutions without layouts, in float64, and error bounds for executors.

They use slices, gathers and one matrix product per tap, and share no idea with the executors, so
that each can be checked against the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Ticker = Callable[[int, int], object]  # called with (taps done, all taps)


@dataclass(frozen=True, eq=False)
class Reference:
    """A result in float64, and the same sums over absolute values, which scale its errors."""

    value: Tensor
    magnitude: Tensor
    length: int  # products added up for one output

    def bound(self, dtype: torch.dtype, *, tensor_cores: bool) -> Tensor:
        """Return the largest admissible error of a result in ``dtype``, for each output.

        A sum of n products in float32, in any order, is off by at most ``n u / (1 - n u)`` times
        the sum of their absolute values (N. Higham, Accuracy and Stability of Numerical Algorithms,
        sections 3.1 and 4.2), where the unit roundoff u is 2^-24, or 2^-23 where tensor cores chop
        instead of rounding. Tensor cores take float32 rounded to tf32, off by 2^-11 of itself at
        most, for both factors. The result is rounded once more, to ``dtype``.
        """
        rounding = torch.finfo(dtype).eps / 2
        factor = 2.0**-11 if tensor_cores and dtype == torch.float32 else 0.0
        unit = self.length * (2.0**-23 if tensor_cores else 2.0**-24)
        relative = (1 + unit / (1 - unit)) * (1 + factor) ** 2 - 1
        least = torch.finfo(dtype).smallest_normal  # smaller values may be flushed to zero
        return relative * (1 + rounding) * self.magnitude + rounding * self.value.abs() + least


def sparse_reference(
    features: Tensor, weight: Tensor, kernel_map: Tensor, tick: Ticker | None = None
) -> Reference:
    """Sum over taps for every row: gather the rows that a tap reads, multiply, add.

    Args:
        features: (rows, C). weight: (K, *filter, C). kernel_map: (rows, taps), -1 = absent.
    """
    x, w = features.double(), weight.double().flatten(1, -2)
    value = x.new_zeros(len(kernel_map), len(w))
    magnitude = value.clone()
    taps = kernel_map.shape[1]
    for tap in range(taps):
        present = (kernel_map[:, tap] >= 0).nonzero()[:, 0]
        rows = x[kernel_map[present, tap].long()]
        value.index_add_(0, present, rows @ w[:, tap].T)
        magnitude.index_add_(0, present, rows.abs() @ w[:, tap].abs().T)
        if tick:
            tick(tap + 1, taps)
    return Reference(value, magnitude, length=taps * x.shape[1])


def dense_reference(grid: Tensor, weight: Tensor, tick: Ticker | None = None) -> Reference:
    """Convolve at stride 1 with "same" padding: multiply a shifted copy of the grid for each tap.

    Args:
        grid: (N, D, H, W, C). weight: (K, T, R, S, C) with T, R, S odd.
    """
    x, w = grid.double(), weight.double()
    D, H, W = x.shape[1:-1]
    T, R, S = w.shape[1:-1]
    padded = torch.nn.functional.pad(x, (0, 0, S // 2, S // 2, R // 2, R // 2, T // 2, T // 2))
    value = x.new_zeros(*x.shape[:-1], len(w))
    magnitude = value.clone()
    for tap in range(T * R * S):
        t, r, s = tap // (R * S), tap // S % R, tap % S
        shifted = padded[:, t : t + D, r : r + H, s : s + W]
        value += shifted @ w[:, t, r, s].T
        magnitude += shifted.abs() @ w[:, t, r, s].abs().T
        if tick:
            tick(tap + 1, T * R * S)
    return Reference(value, magnitude, length=T * R * S * x.shape[-1])
