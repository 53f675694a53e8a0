"""Run a dense problem: a call that is checked, one that is remembered, and what both should give."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

import layoutconv as lc

from . import limits
from .bench import Bench, check_same, poison
from .data import Memory, Sizes, alike, exact_sizes, strides_of
from .dense import Dense
from .dense_reference import Geometry, Sums, real_type, terms_of
from .draws import Draw
from .ending import BY_VALUE, GRAIN, Finish, dtype_of, stored_type, wide
from .oracle import Expected, Wrong, rounded

Results = dict[str, Tensor]
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


class Operands(NamedTuple):
    """What a call gets, and the gradient that goes back through it."""

    x: Tensor
    w: Tensor
    finish: Finish
    grad: Tensor
    more: tuple[Tensor, Tensor] | None  # of the second order: factors of the gradients


def run_dense(p: Dense, bench: Bench) -> None:
    """Raises ``Wrong`` where a result is not what it should be, and whatever a call raises."""
    memory = Memory(bench.device, p.seed)
    bench.stage("tensors")
    operands = make_operands(p, memory)
    sizes = [max(p.N * p.K * prod(p.result_cells), 1) * size for size in (1, 2, 4, 8)]
    found: list[Results] = []
    with _precision(p):
        for name in ("first call", "second call"):
            poison(bench.device, sizes)
            bench.stage(name)
            found.append(call(p, operands))
            bench.wait(f"{name}: the device")
    if not bench.runs:
        return
    for name in found[0]:
        check_same(name, found[0][name], found[1][name])
    touched = memory.check_untouched()
    if touched:
        raise Wrong(f"{touched}: memory that is only read, or beside it, was written")
    bench.stage("reference")
    check_results(p, operands, found[1], bench)


# -- what goes in ----------------------------------------------------------------------------------


def make_operands(p: Dense, memory: Memory) -> Operands:
    draw = Draw("dense numbers", p.seed)
    dtype = dtype_of(p.dtype)
    exact = p.numbers != "normal"
    shapes = (p.N, p.C, *p.spatial), p.filter, (p.N, p.K, *p.result_cells)
    values = _values(p, memory, draw, shapes)
    given = torch.float32 if p.call == "autocast" else dtype
    strides = [strides_of(shapes[0], p.order_x, draw), strides_of(shapes[1], p.order_w, draw)]
    x = memory.place("x", alike(values[0], strides[0]), given, strides[0], p.start_x)
    w = memory.place("w", values[1], given, strides[1], p.start_w)
    finish = Finish.make(
        p.ending, memory, shapes[2], 1, exact=exact, order=p.order_residual, draw=draw
    )
    out = p.ending.result_type(dtype)
    grad = rounded(values[2], out) if not out.is_complex else values[2].to(out)
    more = None
    if p.call == "second order":
        top = [memory.integers(s, 2) if exact else memory.normal(s, dtype) for s in shapes[:2]]
        more = top[0].to(dtype), top[1].to(dtype)
    return Operands(x, w, finish, grad, more)


def _values(p: Dense, memory: Memory, draw: Draw, shapes: Any) -> list[Tensor]:
    """The activation, the filter, and the gradient of the result, in float64."""
    dtype, real = dtype_of(p.dtype), real_type(dtype_of(p.dtype))
    make: Any
    if p.numbers == "rounded":
        # Odd, of 13 bits, which tf32 rounds to 11 without a tie; all else is 1 or -1.
        some = memory.integers(shapes[0], 2047, min(1.0, 2048 / max(*_terms(p), 1)))
        return [4097 * some.sign() + 2 * some, *(memory.integers(s, 1) for s in shapes[1:])]
    if p.numbers == "normal":
        shrink = max(1, _terms(p)[0]) ** -0.5 if real != torch.int8 else 1.0
        make = [partial(_normal, memory, shape, real, scale)
                for shape, scale in zip(shapes, (1.0, shrink, 1.0), strict=True)]  # fmt: skip
    else:
        sizes = _exact_sizes(p, draw, real)
        make = [partial(memory.integers, shape, top, share) for shape, top, share in
                zip(shapes, sizes.tops, (sizes.share, 1.0, sizes.share), strict=True)]  # fmt: skip
    if dtype.is_complex:
        return [torch.complex(one(), one()) for one in make]
    return [one() for one in make]


def _normal(memory: Memory, shape: Any, dtype: torch.dtype, scale: float) -> Tensor:
    if dtype == torch.int8:
        return memory.normal(shape, dtype)
    return rounded(scale * memory.normal(shape, torch.float64), dtype).double()


def _exact_sizes(p: Dense, draw: Draw, real: torch.dtype) -> Sizes:
    out = p.ending.result_type(dtype_of(p.dtype))
    most = limits.arithmetic(real, p.precision, tensor_cores=True).integers / 2
    if out not in (torch.float64, torch.int32, torch.complex128) or not p.ending.is_linear:
        most = min(most, 2.0**24)
    if not p.ending.is_linear:
        most /= 4 * GRAIN
    if dtype_of(p.dtype).is_complex:
        most /= 4
    return exact_sizes(draw, real, _terms(p), 3, most, TYPICAL.get(out, 2.0**24))


# Results should be about so large, so that they neither overflow nor are all the greatest.
TYPICAL = {
    torch.float16: 6000.0, torch.int8: 60.0, torch.float8_e4m3fn: 100.0,
    torch.float8_e5m2: 8000.0, torch.complex64: 2.0**24,
}  # fmt: skip


def _terms(p: Dense) -> list[int]:
    """The lengths of the sums of all passes that run."""
    passes = ["dgrad" if p.transposed else "fprop"]
    if p.gradients:
        passes = ["fprop", "dgrad", "wgrad"]
    return [terms_of(name, p.geometry, p.N, *_channels(p)) for name in passes]


def _channels(p: Dense) -> tuple[int, int]:
    """C and K of the convolution that ``geometry`` is of."""
    return (p.K, p.C) if p.transposed else (p.C, p.K)


# -- the call --------------------------------------------------------------------------------------


def _precision(p: Dense) -> Any:
    return torch.backends.cudnn.flags(
        enabled=torch.backends.cudnn.enabled, allow_tf32=p.precision == "tf32"
    )


def call(p: Dense, operands: Operands) -> Results:
    """One call, and one backward: the results by name."""
    x, w, finish, grad, more = operands
    leaves = {"x": x, "w": w, **finish.tensors()}
    leaves = {name: t.detach() for name, t in leaves.items()}
    for name in p.gradients:
        leaves[name].requires_grad_()
    found: Results = {}
    y = _forward(p, leaves, finish)
    if p.statistics:
        y, found["statistics"] = y
    found["y"] = y.detach()
    if not p.gradients:
        return found
    wanted = [leaves[name] for name in p.gradients]
    first = torch.autograd.grad(
        y, wanted, grad.requires_grad_(more is not None), create_graph=more is not None
    )
    found |= {f"grad {name}": t.detach() for name, t in zip(p.gradients, first, strict=True)}
    if more is not None:
        inputs = [leaves["x"], leaves["w"], grad]
        product = sum((a * b).sum(dtype=torch.float64) for a, b in zip(first, more, strict=True))
        second = torch.autograd.grad(product, inputs)
        for name, t in zip(("x", "w", "grad"), second, strict=True):
            found[f"second {name}"] = t.detach()
        grad.requires_grad_(False)
    return found


def _forward(p: Dense, leaves: Results, finish: Finish) -> Any:
    x, w = leaves["x"], leaves["w"]
    numbers: dict[str, Any] = {"stride": p.stride, "padding": p.padding, "dilation": p.dilation,
                               "groups": p.groups}  # fmt: skip
    if p.transposed:
        numbers["output_padding"] = p.output_padding
    options = dict(p.ending.options)
    scale = leaves.get("scale", finish.scale)
    if p.call == "module":
        return _module(p, leaves)(x)
    if scale is not None:
        options["scale"] = scale
    if "residual" in leaves:
        options["residual"] = leaves["residual"]
    function = getattr(lc, f"conv{'_transpose' if p.transposed else ''}{p.rank}d")
    if p.statistics:
        options["return_statistics"] = True
    if p.call == "unbatched":
        if "residual" in options:
            options["residual"] = options["residual"][0]
        return function(x[0], w, leaves.get("bias"), **numbers, **options)[None]
    lowered = torch.autocast(x.device.type, dtype_of(p.dtype)) if p.call == "autocast" else (
        nullcontext()
    )  # fmt: skip

    def forward() -> Any:
        with lowered:
            return function(x, w, leaves.get("bias"), **numbers, **options)

    if p.call == "graph" and x.device.type == "cuda" and not p.gradients:
        return _captured(forward)
    return forward()


def _captured(forward: Any) -> Any:
    """What a CUDA graph of a call gives when it is replayed."""
    with torch.no_grad():
        forward()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = forward()
        for tensor in result if isinstance(result, tuple) else (result,):
            tensor.view(torch.uint8).fill_(255) if tensor.numel() else None
        graph.replay()
    return result


def _module(p: Dense, leaves: Results) -> torch.nn.Module:
    kind = getattr(lc.nn, f"Conv{'Transpose' if p.transposed else ''}{p.rank}d")
    near = tuple(pair[0] for pair in p.padding)
    more = {"output_padding": p.output_padding} if p.transposed else {}
    activation = {k: v for k, v in p.ending.options.items() if k != "out_dtype"}
    module: torch.nn.Module = kind(
        p.C, p.K, p.taps, stride=p.stride, padding=near, dilation=p.dilation, groups=p.groups,
        bias="bias" in leaves, device=leaves["x"].device, dtype=dtype_of(p.dtype), **more,
        **activation,
    )  # fmt: skip
    # The leaves themselves, whose gradients are wanted.
    del module.weight
    module.weight = leaves["w"]
    if "bias" in leaves:
        del module.bias
        module.bias = leaves["bias"]
    return module


# -- what should come out --------------------------------------------------------------------------


def check_results(p: Dense, operands: Operands, found: Results, bench: Bench) -> None:
    """Compare all results with float64."""
    passes = Passes(p, operands, bench)
    out, sums = p.ending.result_type(dtype_of(p.dtype)), passes.forward()
    value, error = sums.value, passes.error(sums)
    if passes.rounds == "sums":
        value, error = as_stored(value, error, passes.middle)
    unit = 2.0**-53 if real_type(passes.dtype) == torch.float64 else 2.0**-24
    z, z_error = operands.finish.of_sums(value, error, unit)
    if passes.rounds == "before activation":
        z, z_error = as_stored(z, z_error, passes.middle)
    want = operands.finish.forward(z, z_error)
    if error is not None and p.ending.is_linear and out.is_floating_point:
        drift = passes.drift(sums)
        want = Expected(want.value, want.error, drift, sums.terms)
    bench.check("y", found["y"], Expected(want.value, want.error, want.drift, sums.terms), out)
    if p.statistics:
        check_statistics(found["y"], found["statistics"], bench)
    if p.gradients:
        passes.check_gradients(found, z, z_error, value, error)


def check_statistics(y: Tensor, found: Tensor, bench: Bench) -> None:
    """Sums and sums of squares of every channel of what was stored."""
    stored = wide(y).movedim(1, -1).reshape(-1, y.shape[1])
    want = torch.stack((stored.sum(0), stored.square().sum(0)))
    s1 = torch.stack((stored.abs().sum(0), want[1]))
    off = 2.0**-24 * min(len(stored), 64 + 4 * len(stored) ** 0.5) * s1
    bench.check("statistics", found, Expected(want, off, terms=len(stored)), torch.float32)


def as_stored(value: Tensor, error: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Any]:
    """Numbers, and how far they may be off, once they are rounded to ``dtype``."""
    if error is None:
        return wide(rounded(value, dtype)), None
    return value, limits.of_result(value.abs(), error, real_type(dtype))


class Passes:
    """The sums of a problem's passes, and their limits."""

    def __init__(self, p: Dense, operands: Operands, bench: Bench) -> None:
        self.p, self.bench, self.operands = p, bench, operands
        self.dtype, self.exact = dtype_of(p.dtype), p.numbers != "normal"
        self.geometry: Geometry = p.geometry
        real = real_type(self.dtype)
        self.arithmetic = bench.arithmetic(real, p.precision)
        if p.is_depthwise and real in (torch.float16, torch.bfloat16, torch.float32):
            self.arithmetic = limits.arithmetic(real, tensor_cores=False)
        self.x, self.w = self.read(operands.x), self.read(operands.w)

    @property
    def rounds(self) -> str:
        """Where a call rounds once more, as ``lc.conv3d`` says: where torch computes an ending."""
        p = self.p
        if not p.gradients:
            return ""
        if "scale" in p.gradients:
            return "sums"
        return "" if p.ending.activation in BY_VALUE else "before activation"

    @property
    def middle(self) -> torch.dtype:
        """What torch gets of an operator: all numbers of the result's type, and of the sums'."""
        stored, out = stored_type(self.dtype), self.p.ending.result_type(self.dtype)
        return torch.promote_types(stored, out) if out in FLOATS else stored

    def read(self, t: Tensor) -> Tensor:
        """A factor as it is multiplied: of whole numbers, rounded to tf32."""
        values = wide(rounded(wide(t), self.dtype) if self.p.call == "autocast" else t)
        if self.p.numbers == "rounded" and self.arithmetic.operand > 2.0**-12:
            values = torch.where(values.abs() > 2048, 4 * (values / 4).round(), values)
        return values

    def sums(self, name: str, a: Tensor, b: Tensor) -> Sums:
        """Of a pass of the convolution that ``geometry`` is of."""
        multiply = getattr(self.geometry, name)
        terms = terms_of(name, self.geometry, self.p.N, *_channels(self.p))
        if self.dtype.is_complex:
            terms *= 2
        if self.exact:
            value = multiply(a, b)
            return Sums(value, value, value, terms)
        return Sums.of(multiply, a, b, terms)

    def forward(self) -> Sums:
        return self.sums("dgrad" if self.p.transposed else "fprop", self.x, self.w)

    def error(self, sums: Sums, more: float = 0.0) -> Tensor | None:
        if self.exact:
            return None
        return self.arithmetic.of_sums(sums.s1, sums.s2, sums.terms, more)

    def drift(self, sums: Sums) -> float:
        numbers = min(self.x.numel(), self.w.numel())
        few = limits.SPREAD * self.arithmetic.operand / max(numbers, 1) ** 0.5
        return self.arithmetic.drift(sums.terms) + few

    def check_gradients(
        self, found: Results, z: Tensor, z_error: Any, sums: Tensor, error: Any
    ) -> None:
        p, finish = self.p, self.operands.finish
        grad, y = wide(self.operands.grad), wide(found["y"])
        dz, off = finish.backward(z, z_error, y, grad)
        unit = limits.UNITS[real_type(p.ending.result_type(self.dtype))]
        lowest = max(unit, limits.UNITS[real_type(self.dtype)])
        roundings = 0.0 if self.exact else 4 * lowest
        columns = [mode for mode in range(dz.dim()) if mode != 1]
        for name, tensor in finish.tensors().items():
            if name not in p.gradients:
                continue
            if name == "residual":
                error_of = (
                    None if self.exact else roundings * dz.abs() + (0 if off is None else off)
                )
                want = Expected(dz, error_of)
            else:
                by = dz if name == "bias" else dz * sums.conj() if sums.is_complex() else dz * sums
                by = by.real if by.is_complex() and not tensor.is_complex() else by
                want = self._column(name, by, columns, dz, off, roundings, error)
            self.bench.check(f"grad {name}", found[f"grad {name}"], want, tensor.dtype)
        ds = dz * finish._columns(1.0 if finish.scale is None else finish.scale, dz)
        if off is not None:
            off = off * abs(finish._columns(1.0 if finish.scale is None else finish.scale, dz))
        self._check_factors(found, self._as_stored(ds), off, roundings)

    def _as_stored(self, ds: Tensor) -> Tensor:
        """The gradient of sums in the type that is multiplied; exact numbers stay what they are."""
        if not self.exact:
            return ds
        return wide(ds.to(self.dtype))

    def _column(
        self, name: str, by: Tensor, columns: list[int], dz: Tensor, off: Any, roundings: float,
        error: Any,
    ) -> Expected:  # fmt: skip
        """Sums over all that a channel has, which torch adds."""
        count = max(1, by.numel() // max(by.shape[1], 1))
        value, size = by.sum(columns), by.abs().sum(columns)
        growth = 2.0**-24 * min(count, 64 + 4 * count**0.5) + roundings
        limit = growth * size
        if off is not None:
            limit = limit + off.sum(columns)
        if name == "scale" and error is not None:
            limit = limit + (dz.abs() * error).sum(columns)
        return Expected(value, limit, terms=count)

    def _check_factors(self, found: Results, ds: Tensor, off: Any, roundings: float) -> None:
        """The gradients of ``x`` and ``w``, and those of the second order."""
        p, dtype = self.p, self.dtype
        given = torch.float32 if p.call == "autocast" else dtype
        passes = {"x": "fprop", "w": "wgrad"} if p.transposed else {"x": "dgrad", "w": "wgrad"}
        for name, pass_ in passes.items():
            if f"grad {name}" not in found:
                continue
            want = self._product(name, pass_, ds, self.x, self.w, off, roundings)
            if given != dtype and want.error is None:
                want = Expected(wide(rounded(want.value, dtype)))
            elif given != dtype:
                assert want.error is not None
                want = Expected(want.value, limits.of_result(want.value, want.error, dtype))
            elif limits.UNITS.get(dtype, 0) > 2.0**-8:  # fp8: results are fp16, then rounded again
                inner = rounded(want.value, torch.float16).double()
                want = Expected(inner, want.error)
            self.bench.check(f"grad {name}", found[f"grad {name}"], want, given)
        if self.operands.more is not None:
            self._check_second(found)

    def _product(
        self, name: str, pass_: str, ds: Tensor, x: Tensor, w: Tensor, off: Any, roundings: float
    ) -> Expected:
        p = self.p
        if name == "w":
            left, right = (x.conj(), ds) if p.transposed else (ds, x.conj())
        else:
            left, right = ds, w.conj()
        sums = self.sums(pass_, left, right)
        error = self.error(sums, roundings)
        if error is not None and off is not None:
            other = w.abs() if name == "x" else x.abs()
            pair = (other, off) if name == "w" and p.transposed else (off, other)
            error = error + getattr(self.geometry, pass_)(*pair)
        return Expected(sums.value, error, terms=sums.terms)

    def _check_second(self, found: Results) -> None:
        """Of ``<grad x, u> + <grad w, v>``, a sum of two trilinear forms of ``x``, ``w``, ``g``."""
        assert self.operands.more is not None
        u, v = (wide(t) for t in self.operands.more)
        g, x, w = wide(self.operands.grad), self.x, self.w
        forward = "dgrad" if self.p.transposed else "fprop"
        back = "fprop" if self.p.transposed else "dgrad"
        pairs = (u, g) if self.p.transposed else (g, u)
        wants: dict[str, list[Sums]] = {
            "x": [self.sums(back, g, v)],
            "w": [self.sums("wgrad", *pairs)],
            "grad": [self.sums(forward, u, w), self.sums(forward, x, v)],
        }
        unit = limits.UNITS[self.dtype]
        for name, terms in wants.items():
            # Each part is stored, and torch adds both.
            if self.exact:
                parts = [wide(rounded(s.value, self.dtype)) for s in terms]
                want = Expected(sum(parts[1:], parts[0]))
            else:
                value = sum((s.value for s in terms[1:]), terms[0].value)
                errors = [self.error(s) for s in terms]
                stored = [limits.of_result(s.value, e, self.dtype)
                          for s, e in zip(terms, errors, strict=True) if e is not None]  # fmt: skip
                want = Expected(value, sum(stored[1:], stored[0]) + unit * value.abs())
            name = f"second {name}"
            self.bench.check(name, found[name], want, found[name].dtype)
