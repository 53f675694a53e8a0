"""The common parts of dense and sparse layers: numbers for tensors, and the expected results.

A layer is bilinear in its input and its filter, and an ending follows. The gradients of a bilinear
form are two others of the same kind, so that three functions say all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import limits
from .bench import Bench
from .data import Memory, Sizes, exact_sizes
from .dense_reference import Sums, real_type
from .draws import Draw
from .ending import BY_VALUE, GRAIN, Finish, dtype_of, stored_type, wide
from .oracle import Expected, rounded

Results = dict[str, Tensor]
Multiply = Callable[[Tensor, Tensor], Tensor]
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
# Results should be about so large that their type has all integers: a product that is missing
# shows. In some problems they are larger, and all bits of a factor take part; none overflows.
WHOLE_RESULTS = {torch.float16: 500.0, torch.bfloat16: 60.0}
TYPICAL = {
    torch.float16: 6000.0,
    torch.int8: 90.0,
    torch.float8_e4m3fn: 60.0,
    torch.float8_e5m2: 8000.0,
}
LONGEST = 2048  # products of numbers of 13 bits, whose sum fits float32


@dataclass(frozen=True)
class Bilinear:
    """``y = forward(x, w)``, and the gradients ``back_x(g, w)`` and ``back_w(g, x)``, in float64.

    ``terms``: how many products a result of each is a sum of, at most.
    """

    forward: Multiply
    back_x: Multiply
    back_w: Multiply
    terms: tuple[int, int, int]


class Operands(NamedTuple):
    """The operands of a call, and the gradient that goes back through it."""

    x: Tensor
    w: Tensor
    finish: Finish
    grad: Tensor
    more: tuple[Tensor, Tensor] | None  # of the second order: factors of both gradients


# -- what goes in ----------------------------------------------------------------------------------


def draw_values(
    p: Any, memory: Memory, draw: Draw, shapes: Sequence[Sequence[int]], terms: Sequence[int]
) -> list[Tensor]:
    """The input, the filter, and the gradient of the result, in float64.

    ``p`` has ``dtype``, ``precision``, ``ending``, ``gradients`` and ``numbers``.
    """
    dtype, real = dtype_of(p.dtype), real_type(dtype_of(p.dtype))
    used = terms if p.gradients else terms[:1]
    make: list[Callable[[], Tensor]]
    if p.numbers == "rounded":
        # Odd, of 13 bits, which tf32 rounds to 11 without a tie; all else is 1 or -1.
        some = memory.integers(shapes[0], 2047, min(1.0, LONGEST / max(*used, 1)))
        return [4097 * some.sign() + 2 * some, *(memory.integers(s, 1) for s in shapes[1:])]
    if p.numbers == "normal":
        shrink = max(1, terms[0]) ** -0.5
        make = [
            partial(_normal, memory, shape, real, scale)
            for shape, scale in zip(shapes, (1.0, shrink, 1.0), strict=True)
        ]
    else:
        sizes = _exact_sizes(p, draw, real, used)
        shares = sizes.share, 1.0, sizes.share
        make = [
            partial(memory.integers, shape, top, share)
            for shape, top, share in zip(shapes, sizes.tops, shares, strict=True)
        ]
    if dtype.is_complex:
        return [torch.complex(one(), one()) for one in make]
    return [one() for one in make]


def factors(
    p: Any, memory: Memory, shapes: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor] | None:
    """Return the factors of both gradients in a problem of the second order; else None."""
    if p.call != "second order":
        return None
    exact, dtype = p.numbers != "normal", dtype_of(p.dtype)
    u, v = (memory.integers(s, 2) if exact else memory.normal(s, dtype) for s in shapes)
    return u.to(dtype), v.to(dtype)


def _normal(memory: Memory, shape: Any, dtype: torch.dtype, scale: float) -> Tensor:
    if dtype == torch.int8:
        return memory.normal(shape, dtype)
    return rounded(scale * memory.normal(shape, torch.float64), dtype).double()


def _exact_sizes(p: Any, draw: Draw, real: torch.dtype, terms: Sequence[int]) -> Sizes:
    out = p.ending.result_type(dtype_of(p.dtype))
    most = limits.arithmetic(real, p.precision, tensor_cores=True).integers / 2
    if out not in (torch.float64, torch.int32, torch.complex128) or not p.ending.is_linear:
        most = min(most, 2.0**24)
    if not p.ending.is_linear:
        most /= 4 * GRAIN
    if dtype_of(p.dtype).is_complex:
        most /= 4
    used = 3 if p.gradients else 2
    sizes = exact_sizes(draw, real, terms, used, most, typical(draw, out))
    return sizes if p.gradients else Sizes((*sizes.tops, 1), sizes.share)


def typical(draw: Draw, out: torch.dtype) -> float:
    """Return about how large results of a type should be."""
    large = TYPICAL.get(out, 2.0**24)
    return WHOLE_RESULTS.get(out, large) if draw.chance(0.75) else large


# -- the call --------------------------------------------------------------------------------------


def precision_of(p: Any) -> Any:
    """torch's setting of how float32 is multiplied, as a context."""
    return torch.backends.cudnn.flags(
        enabled=torch.backends.cudnn.enabled, allow_tf32=p.precision == "tf32"
    )


def leaves_of(p: Any, operands: Operands) -> Results:
    """The tensors of a call by name; those that have a gradient require it."""
    given = {"x": operands.x, "w": operands.w, **operands.finish.tensors()}
    leaves = {name: t.detach() for name, t in given.items()}
    for name in p.gradients:
        leaves[name].requires_grad_()
    return leaves


def gradients(p: Any, y: Tensor, leaves: Results, operands: Operands) -> Results:
    """The gradients that a problem has, and those of the second order."""
    if not p.gradients:
        return {}
    wanted, grad, more = [leaves[name] for name in p.gradients], operands.grad, operands.more
    second = more is not None
    first = torch.autograd.grad(y, wanted, grad.requires_grad_(second), create_graph=second)
    found = {f"grad {name}": t.detach() for name, t in zip(p.gradients, first, strict=True)}
    if more is not None:
        inputs = [leaves["x"], leaves["w"], grad]
        product = sum((a * b).sum(dtype=torch.float64) for a, b in zip(first, more, strict=True))
        for name, t in zip(("x", "w", "grad"), torch.autograd.grad(product, inputs), strict=True):
            found[f"second {name}"] = t.detach()
        grad.requires_grad_(False)
    return found


# -- what should come out --------------------------------------------------------------------------


class Checks:
    """The results of a layer against float64.

    Args:
        p: the problem, as of ``draw_values``, with ``call``.
        cores: whether tensor cores multiply it, where there are any.
        by_torch: whether torch computes all that follows the sums.
    """

    def __init__(
        self, p: Any, bilinear: Bilinear, operands: Operands, bench: Bench, *, cores: bool = True,
        by_torch: bool = False,
    ) -> None:  # fmt: skip
        self.p, self.bilinear, self.operands, self.bench = p, bilinear, operands, bench
        self.dtype, self.exact = dtype_of(p.dtype), p.numbers != "normal"
        self.out = p.ending.result_type(self.dtype)
        real = real_type(self.dtype)
        self.arithmetic = bench.arithmetic(real, p.precision)
        if not cores and real in (torch.float16, torch.bfloat16, torch.float32):
            self.arithmetic = limits.arithmetic(real, tensor_cores=False)
        self.by_torch = by_torch
        self.x, self.w = self.read(operands.x), self.read(operands.w)

    def check(self, found: Results) -> None:
        """Raises ``WrongResultError``."""
        sums = self.sums(self.bilinear.forward, self.x, self.w, 0)
        value, error = sums.value, self.error(sums)
        if self.rounds == "sums":
            value, error = self.stored(value, error)
        unit = 2.0**-53 if real_type(self.dtype) == torch.float64 else 2.0**-24
        finish = self.operands.finish
        z, z_error = finish.of_sums(value, error, unit)
        if self.rounds == "before activation":
            z, z_error = self.stored(z, z_error)
        want = finish.forward(z, z_error)
        linear = error is not None and self.p.ending.is_linear and self.out.is_floating_point
        drift = self.drift(sums) if linear else None
        self.bench.check(
            "y", found["y"], Expected(want.value, want.error, drift, sums.terms), self.out
        )
        if self.p.gradients:
            self.check_gradients(found, z, z_error, value, error)

    # -- sums and their limits

    @property
    def rounds(self) -> str:
        """Where a call rounds once more, as ``lc.conv3d`` says: where torch computes an ending."""
        p = self.p
        if self.by_torch:
            return "sums"
        if not p.gradients:
            return ""
        if "scale" in p.gradients:
            return "" if p.ending.own else "sums"
        return "" if p.ending.activation in BY_VALUE else "before activation"

    def stored(self, value: Tensor, error: Tensor | None) -> tuple[Tensor, Any]:
        """Numbers as torch gets them of an operator, and how far they may be off.

        Their type has all numbers of the result's, and of the sums'.
        """
        kind = stored_type(self.dtype)
        if self.out in FLOATS and not self.by_torch:
            kind = torch.promote_types(kind, self.out)
        if error is None:
            return wide(rounded(value, kind)), None
        return value, limits.of_result(value.abs(), error, real_type(kind))

    def read(self, t: Tensor) -> Tensor:
        """A factor as it is multiplied: of whole numbers, rounded to tf32."""
        values = wide(rounded(wide(t), self.dtype) if self.p.call == "autocast" else t)
        if self.p.numbers == "rounded" and self.arithmetic.operand > 2.0**-12:
            values = torch.where(values.abs() > 2048, 4 * (values / 4).round(), values)
        return values

    def sums(self, multiply: Multiply, a: Tensor, b: Tensor, which: int) -> Sums:
        """Return the sums of one of the three forms, by its number."""
        terms = self.bilinear.terms[which] * (2 if self.dtype.is_complex else 1)
        if self.exact:
            value = multiply(a, b)
            return Sums(value, value, value, terms)
        return Sums.of(multiply, a, b, terms)

    def error(self, sums: Sums, more: float = 0.0) -> Tensor | None:
        """Return how far sums may be off; ``more`` is a relative error of their factors."""
        if self.exact:
            return None
        return self.arithmetic.of_sums(sums.s1, sums.s2, sums.terms, more)

    def drift(self, sums: Sums) -> float:
        numbers = min(self.x.numel(), self.w.numel())
        few = limits.SPREAD * self.arithmetic.operand / max(numbers, 1) ** 0.5
        return self.arithmetic.drift(sums.terms) + few

    # -- gradients

    def check_gradients(
        self, found: Results, z: Tensor, z_error: Any, sums: Tensor, error: Any
    ) -> None:
        """``z`` is what the activation got, ``sums`` what was scaled."""
        finish = self.operands.finish
        dz, off = finish.backward(z, z_error, found["y"], self.operands.grad)
        units = [limits.UNITS[real_type(dtype)] for dtype in (self.out, self.dtype)]
        roundings = 0.0 if self.exact else 4 * max(units)
        if not self.exact:  # a gradient of the least numbers is rounded to one of these
            least = max(limits.LEAST[real_type(dtype)] for dtype in (self.out, self.dtype))
            off = torch.full_like(dz.abs(), least) if off is None else off + least
        for name, tensor in finish.tensors().items():
            if name not in self.p.gradients:
                continue
            if name == "residual":
                limit = None if self.exact else roundings * dz.abs() + (0 if off is None else off)
                want = Expected(dz, limit)
            else:
                by = dz if name == "bias" else dz * sums.conj()
                by = by.real if by.is_complex() and not tensor.is_complex() else by
                more = None if name == "bias" or error is None else dz.abs() * error
                want = column_sums(by, roundings, off, more)
            self.bench.check(f"grad {name}", found[f"grad {name}"], want, tensor.dtype)
        factor = finish.columns(1.0 if finish.scale is None else finish.scale, dz)
        ds = dz * factor
        off = None if off is None else off * abs(factor)
        if self.exact:
            ds = wide(ds.to(self.dtype))
        self._check_factors(found, ds, off, roundings)
        if self.operands.more is not None:
            self._check_second(found, *map(wide, self.operands.more))

    def _check_factors(self, found: Results, ds: Tensor, off: Any, roundings: float) -> None:
        """The gradients of ``x`` and ``w``, of the gradient ``ds`` of the sums."""
        form = self.bilinear
        wanted = {"x": (form.back_x, self.w, 1), "w": (form.back_w, self.x, 2)}
        for name, (multiply, other, which) in wanted.items():
            got = found.get(f"grad {name}")
            if got is None:
                continue
            sums = self.sums(multiply, ds, other.conj(), which)
            error = self.error(sums, roundings)
            if error is not None and off is not None:
                error = error + multiply(off, other.abs())
            want = Expected(sums.value, error, terms=sums.terms)
            if name == "x" or not self._is_of_sums(got):
                want = self._as_gradient(want, got.dtype)
            self.bench.check(f"grad {name}", got, want, got.dtype)

    def _is_of_sums(self, got: Tensor) -> bool:
        """Return whether a filter's gradient is the sums themselves, in float32, as it may be under
        autocast: all of them, or none.
        """
        rounded_once = got.to(stored_type(self.dtype)).to(got.dtype)
        return self.p.call == "autocast" and not torch.equal(rounded_once, got)

    def _as_gradient(self, want: Expected, dtype: torch.dtype) -> Expected:
        """A gradient that is stored in the type of sums before it has that of the tensor."""
        kind = stored_type(self.dtype)
        if kind == dtype or self.dtype.is_complex:
            return want
        if want.error is None:
            return Expected(wide(rounded(want.value, kind)), terms=want.terms)
        error = limits.of_result(want.value, want.error, kind)
        return Expected(want.value, error, terms=want.terms)

    def _check_second(self, found: Results, u: Tensor, v: Tensor) -> None:
        """Check the gradients of ``<grad x, u> + <grad w, v>``.

        It is a sum of two trilinear forms of ``x``, ``w``, ``g``.
        """
        form, g = self.bilinear, wide(self.operands.grad)
        wants = {
            "x": [self.sums(form.back_x, g, v, 1)],
            "w": [self.sums(form.back_w, g, u, 2)],
            "grad": [
                self.sums(form.forward, u, self.w, 0),
                self.sums(form.forward, self.x, v, 0),
            ],
        }
        for name, parts in wants.items():
            value, error = self._stored_parts(parts)
            got = found[f"second {name}"]
            self.bench.check(f"second {name}", got, Expected(value, error), got.dtype)

    def _stored_parts(self, parts: list[Sums]) -> tuple[Tensor, Any]:
        """The sum of results that are each stored first, and that torch adds."""
        values = [s.value for s in parts]
        if self.exact:
            values = [wide(rounded(value, self.dtype)) for value in values]
            return sum(values[1:], values[0]), None
        total = sum(values[1:], values[0])
        limit = limits.UNITS[self.dtype] * total.abs()
        for s in parts:
            error = self.error(s)
            assert error is not None
            limit = limit + limits.of_result(s.value, error, self.dtype)
        return total, limit


def column_sums(by: Tensor, roundings: float, off: Any, more: Any) -> Expected:
    """Sums over all that a channel, mode 1, has, which torch adds in fp32."""
    modes = [mode for mode in range(by.dim()) if mode != 1]
    count = max(1, by.numel() // max(by.shape[1], 1))
    growth = 2.0**-24 * min(count, 64 + 4 * count**0.5) + roundings
    limit = growth * by.abs().sum(modes)
    for error in (off, more):
        limit = limit if error is None else limit + error.sum(modes)
    return Expected(by.sum(modes), limit, terms=count)


def check_statistics(y: Tensor, found: Tensor, bench: Bench) -> None:
    """Sums and sums of squares of every channel of what was stored."""
    stored = wide(y).movedim(1, -1).reshape(-1, y.shape[1])
    want = torch.stack((stored.sum(0), stored.square().sum(0)))
    s1 = torch.stack((stored.abs().sum(0), want[1]))
    count = len(stored)
    limit = 2.0**-24 * min(count, 64 + 4 * count**0.5) * s1
    bench.check("statistics", found, Expected(want, limit, terms=count), torch.float32)
