"""The ending that follows a problem's sums: drawn, given to a call, and computed in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import layoutconv as lc
from layoutconv import pointwise as pw

from . import limits
from .data import WHOLE, Memory, strides_of
from .dense_reference import real_type
from .draws import Draw
from .oracle import Expected, rounded

FLOATS = ("float16", "bfloat16", "float32")
NARROW = ("int8", "float8_e4m3fn", "float8_e5m2")
EXACT = {
    "": 10.0,
    "relu": 4.0,
    "relu6": 1.0,
    "leaky_relu": 2.0,
}  # activations that keep integers exact
SMOOTH = {"gelu": 1.0, "gelu_tanh": 1.0, "silu": 1.0, "sigmoid": 1.0, "tanh": 1.0, "hardswish": 1.0}
BY_VALUE = (
    "",
    "relu",
    "relu6",
    "leaky_relu",
    "sigmoid",
    "tanh",
)  # whose slope is a function of the result
STEPS = (0.25, 0.5, 1.0, 2.0)  # scales, exact in every type
GRAIN = 16.0  # the reciprocal of the least step between results


def dtype_of(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


@dataclass(frozen=True)
class Ending:
    """``activation(scale * sum + bias + residual)`` and a type; "" for what is not there.

    ``scale`` is "number", or, as ``bias`` and ``residual``, the type of a tensor. ``own`` is a
    leaky_relu that is given as a user's function.
    """

    scale: str = ""
    bias: str = ""
    residual: str = ""
    activation: str = ""
    slope: float = 0.25
    out_dtype: str = ""
    own: bool = False

    @property
    def is_linear(self) -> bool:
        return not (self.activation or self.scale or self.bias or self.residual)

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments but for tensors."""
        found: dict[str, Any] = {}
        if self.own:
            found["activation"] = lc.Pointwise(own_leaky_relu, values={"slope": self.slope})
            return found | ({"out_dtype": dtype_of(self.out_dtype)} if self.out_dtype else {})
        if self.activation:
            found["activation"] = self.activation
        if self.activation == "leaky_relu":
            found["slope"] = self.slope
        if self.out_dtype:
            found["out_dtype"] = dtype_of(self.out_dtype)
        return found

    def result_type(self, dtype: torch.dtype) -> torch.dtype:
        if self.out_dtype:
            return dtype_of(self.out_dtype)
        return stored_type(dtype)


def own_leaky_relu(x: Any, slope: Any) -> Any:
    """Compute a leaky_relu, as a user writes it."""
    return pw.where(x > 0.0, x, slope * x)


def stored_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums over ``dtype`` are stored unless a call names one."""
    if dtype == torch.int8:
        return torch.int32
    return torch.float16 if dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else dtype


def draw_ending(draw: Draw, dtype: str, *, exact: bool, differentiable: bool) -> Ending:
    """Nothing in half of all; else any of it that a call with ``dtype`` takes."""
    if draw.chance(0.4 if dtype in NARROW else 0.5):
        return Ending(out_dtype=_draw_out(draw, dtype, differentiable) if draw.chance(0.3) else "")
    own = "float64" if dtype in ("float64", "complex128") else dtype
    complex_ = dtype.startswith("complex")
    floats = (dtype,) if complex_ else (*FLOATS, own) if own == "float64" else FLOATS
    narrow = (dtype,) if dtype == "int8" else ()
    real = (*FLOATS, "float64") if own == "float64" else FLOATS
    activations = EXACT if exact else EXACT | {"": 3.0} | SMOOTH
    found = Ending(
        scale=draw.weighted({"": 3, "number": 1, draw.of(real): 1}),
        bias=draw.weighted({"": 1, draw.of(floats): 1}),
        residual=draw.weighted({"": 2, draw.of((*floats, *narrow)): 1}),
        activation="" if complex_ else draw.weighted(activations),
        slope=draw.of((0.25, 0.5) if differentiable else (0.25, 0.5, 0.0, -0.5)),
        out_dtype="" if complex_ or draw.chance(0.6) else _draw_out(draw, dtype, differentiable),
    )
    return replace(found, own=found.activation == "leaky_relu" and draw.aside("own").chance(0.5))


def _draw_out(draw: Draw, dtype: str, differentiable: bool) -> str:
    if dtype.startswith("complex"):
        return ""
    own = {"float64": ("float64",), "int8": ("int32",)}.get(dtype, ())
    return draw.of((*FLOATS, *own) if differentiable else (*FLOATS, *own, *NARROW))


@dataclass
class Finish:
    """An ending with its tensors, and what they hold in float64, channels in ``mode``."""

    ending: Ending
    mode: int
    scale: Any = None
    bias: Any = None
    residual: Any = None

    @classmethod
    def make(
        cls, ending: Ending, memory: Memory, shape: Sequence[int], mode: int, *, exact: bool,
        order: str = "last", start: int = 0, draw: Draw | None = None,
    ) -> Finish:  # fmt: skip
        """Tensors for results of ``shape``; the residual in an ``order`` of memory."""
        made = cls(ending, mode)
        width = (shape[mode],)
        if ending.scale:
            kind = torch.float32 if ending.scale == "number" else dtype_of(ending.scale)
            made.scale = memory.place("scale", _scales(memory, width, kind, exact), kind, (1,))
        if ending.scale == "number":
            made.scale = float(made.scale[0]) if width[0] else 1.0
        if ending.bias:
            kind = dtype_of(ending.bias)
            made.bias = memory.place("bias", _values(memory, width, kind, exact), kind, (1,))
        if ending.residual:
            kind = dtype_of(ending.residual)
            values = _values(memory, shape, kind, exact)
            if draw is None:
                strides = torch.empty(tuple(shape), device="meta").stride()
            else:
                strides = strides_of(shape, order, draw)
            made.residual = memory.place("residual", values, kind, strides, start)
        return made

    def tensors(self) -> dict[str, Tensor]:
        found = {"scale": self.scale, "bias": self.bias, "residual": self.residual}
        return {name: t for name, t in found.items() if isinstance(t, Tensor)}

    def columns(self, values: Any, like: Tensor) -> Any:
        if not isinstance(values, Tensor):
            return values
        shape = [1] * like.dim()
        shape[self.mode] = -1
        return wide(values).view(shape)

    def of_sums(self, value: Tensor, error: Tensor | None, unit: float) -> tuple[Tensor, Any]:
        """Return the argument of the activation, and how far it may be off."""
        scale, bias, residual = self.scale, self.bias, self.residual
        factor = 1.0 if scale is None else self.columns(scale, value)
        terms = [value * factor]
        terms += [] if bias is None else [self.columns(bias, value)]
        terms += [] if residual is None else [wide(residual)]
        z = terms[0]
        for term in terms[1:]:
            z = z + term
        if error is None:
            return z, None
        size = sum(term.abs() for term in terms)
        steps = 0 if self.ending.is_linear else 4
        return z, error * abs(factor) + steps * unit * size

    def forward(self, z: Tensor, error: Tensor | None) -> Expected:
        """The result, from what the activation gets."""
        kind, slope = self.ending.activation, self.ending.slope
        value = activate(z, kind, slope)
        if error is not None and kind:
            error = limits.of_activation(value, error, kind, slope)
        return Expected(value, error)

    def backward(
        self, z: Tensor, error: Tensor | None, y: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The gradient of what the activation got, and how far it may be off but for roundings.

        ``y`` is the result as it was stored: slopes that are a function of the value are of that,
        or of what it was before it became one of another dtype, as in depthwise sparse layers.
        torch computes them in its type, 16 bits too: of tanh, ``y * y`` is rounded, and then
        ``1 - y * y``, which may be much smaller.
        """
        stored, y, grad = y.dtype, wide(y), wide(grad)
        kind, slope = self.ending.activation, self.ending.slope
        if kind == "":
            return grad, None
        if kind in ("relu", "leaky_relu"):
            below = slope if kind == "leaky_relu" else 0.0
            if self.ending.own:  # by what the function was given, which is computed once more
                off = None if error is None else (1 - below) * grad.abs() * (z.abs() <= 2 * error)
                return torch.where(z > 0, grad, below * grad), off
            return torch.where(y > 0, grad, below * grad), None
        if kind == "relu6":
            return torch.where((y > 0) & (y < 6), grad, 0), None
        if kind in ("sigmoid", "tanh"):
            slopes = _slopes_of(y, kind)
            off = limits.UNITS[stored] * (y * y + slopes) if kind == "tanh" else 0 * slopes.abs()
            if self.ending.out_dtype and error is not None:
                before = _slopes_of(activate(z, kind, slope), kind)
                off = off + (slopes - before).abs() + error + 2.0**-19
            return grad * slopes, grad.abs() * off
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            (found,) = torch.autograd.grad(activate(leaf, kind, slope), leaf, grad)
        assert error is not None
        off = grad.abs() * (error + 2.0**-19)
        if kind == "hardswish":  # whose slope jumps by a half
            off = off + 0.5 * grad.abs() * ((z.abs() - 3).abs() <= error)
        return found, off


def _slopes_of(y: Tensor, kind: str) -> Tensor:
    """Slopes of sigmoid and tanh, by their values."""
    return y * (1 - y) if kind == "sigmoid" else 1 - y * y


def wide(values: Tensor) -> Tensor:
    """In float64, or complex128."""
    return values.detach().to(torch.complex128 if values.is_complex() else torch.float64)


def activate(z: Tensor, kind: str, slope: float) -> Tensor:
    """A pointwise function of torch, in float64."""
    if kind == "":
        return z
    if kind == "leaky_relu":
        return functional.leaky_relu(z, slope)
    if kind == "gelu_tanh":
        return functional.gelu(z, approximate="tanh")
    found: Tensor = getattr(torch if kind in ("sigmoid", "tanh") else functional, kind)(z)
    return found


def _scales(memory: Memory, shape: Sequence[int], dtype: torch.dtype, exact: bool) -> Tensor:
    if not exact:
        return rounded(memory.normal(shape, dtype) / 2 + 1, dtype).double()
    of = {"generator": memory.generator(), "device": memory.device}
    steps = torch.tensor(STEPS, dtype=torch.float64, device=memory.device)
    return steps[torch.randint(0, len(STEPS), tuple(shape), **of)]


def _values(memory: Memory, shape: Sequence[int], dtype: torch.dtype, exact: bool) -> Tensor:
    real = real_type(dtype)
    draw = (lambda: memory.integers(shape, min(WHOLE[real], 99))) if exact else (
        lambda: memory.normal(shape, real)
    )  # fmt: skip
    return torch.complex(draw(), draw()) if dtype.is_complex else draw()


def with_less(p: Any, plain: dict[str, Any]) -> Iterator[Any]:
    """Problems with less behind the sums, with a ``plain`` value, or with a gradient less."""
    for ending in smaller_endings(p.ending):
        present = {"x", "w", *(n for n in ("scale", "bias", "residual") if getattr(ending, n))}
        left = tuple(name for name in p.gradients if name in present)
        yield replace(p, ending=ending, gradients=left)
    for name, value in plain.items():
        if getattr(p, name) != value:
            yield replace(p, **{name: value})
    for name in p.gradients:
        yield replace(p, gradients=tuple(g for g in p.gradients if g != name))


def smaller_endings(ending: Ending) -> list[Ending]:
    """Endings without one of the parts."""
    plain = [replace(ending, own=False)] if ending.own else []
    found = [replace(ending, **{name: ""}, own=ending.own and name != "activation") for name in
             ("scale", "bias", "residual", "activation", "out_dtype")
             if getattr(ending, name)]  # fmt: skip
    return [Ending(), *plain, *found] if len(found) > 1 else [*plain, *found]
