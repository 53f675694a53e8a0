"""Activations after norms, and their gradients, element by element in float32.

A backward pass recomputes the activation's input. NaN stays NaN.
"""

from __future__ import annotations

from math import log
from typing import Any

from ..common.dsl import Float32, cute
from ..common.walk import select

_math: Any = cute.math
_rcp: Any = cute.arch.rcp_approx
_LOG2_E_BELOW_0 = -1.0 / log(2.0)


def activated(kind: str, y: Any, slope: Any = None) -> Any:
    """Apply the activation named ``kind``; "" is none. ``slope`` is that of "leaky_relu"."""
    if kind == "relu":
        return select(y < 0.0, Float32(0.0), y)
    if kind == "relu6":
        return select(y > 6.0, Float32(6.0), select(y < 0.0, Float32(0.0), y))
    if kind == "leaky_relu":
        return select(y < 0.0, y * slope, y)
    if kind == "silu":
        return y * _sigmoid(y)
    if kind == "hardswish":
        inner = select(y < -3.0, Float32(0.0), y * (y + 3.0) * (1.0 / 6.0))
        return select(y > 3.0, y, inner)
    return y


def passed(kind: str, grad: Any, y: Any, slope: Any = None) -> Any:
    """Return the gradient of an activation's input, ``y``; for a ReLU ``y`` may be its output."""
    nothing = Float32(0.0)
    if kind == "relu":
        return select(y <= 0.0, nothing, grad)
    if kind == "relu6":
        return select((y <= 0.0) | (y >= 6.0), nothing, grad)
    if kind == "leaky_relu":
        return select(y > 0.0, grad, grad * slope)
    if kind == "silu":
        share = _sigmoid(y)
        return grad * share * (1.0 + y * (1.0 - share))
    if kind == "hardswish":
        inner = select(y <= -3.0, nothing, grad * (y * (1.0 / 3.0) + 0.5))
        return select(y >= 3.0, grad, inner)
    return grad


def _sigmoid(y: Any) -> Any:
    # To an ulp, in one instruction: the exact reciprocal takes eight, and a branch, per element.
    return _rcp(1.0 + _math.exp2(y * _LOG2_E_BELOW_0, fastmath=True))
