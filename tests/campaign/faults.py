"""Faults that are planted in results, which the oracle has to see; what a kernel may get wrong.

A fault of the sums is another pair of factors, or another way of multiplying; a fault of the end is
another result. Each gets what a correct call gives, and gives what a broken one would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from .dense import Dense
from .dense_run import bilinear
from .ending import wide
from .layer import Operands, Results
from .oracle import rounded

Fault = Callable[[Dense, Operands, Results], Results]


def _added(results: Results, name: str, more: Tensor) -> Results:
    """Another result in exact arithmetic, rounded as it was."""
    value = wide(results[name]) + more
    return {**results, name: rounded(value, results[name].dtype)}


def _forward(p: Dense, x: Tensor, w: Tensor) -> Tensor:
    return bilinear(p).forward(wide(x), wide(w))


def no_border_of_a_tap(p: Dense, o: Operands, r: Results) -> Results:
    """The outermost tap that reads the last cell does not."""
    x, w, tap = torch.zeros_like(wide(o.x)), torch.zeros_like(wide(o.w)), 0 if p.transposed else -1
    x[..., -1], w[..., tap] = wide(o.x)[..., -1], wide(o.w)[..., tap]
    return _added(r, "y", -_forward(p, x, w))


def a_tap_twice(p: Dense, o: Operands, r: Results) -> Results:
    w = torch.zeros_like(wide(o.w))
    w[..., 0] = wide(o.w)[..., 0]
    return _added(r, "y", _forward(p, o.x, w))


def one_product_missing(p: Dense, o: Operands, r: Results) -> Results:
    """One result, of the last windows that the middle tap has, lacks a product of one channel."""
    taps = list(p.geometry.windows())
    middle, cells, voxels = taps[len(taps) // 2]
    place = [part.start for part in (voxels if p.transposed else cells)]
    x, w = torch.zeros_like(wide(o.x)), torch.zeros_like(wide(o.w))
    channel = int(wide(o.x)[(0, slice(None), *place)].abs().argmax())
    at = (0, channel, *place)
    tap = (channel, 0, *middle) if p.transposed else (0, channel, *middle)
    x[at], w[tap] = wide(o.x)[at], wide(o.w)[tap]
    return _added(r, "y", -_forward(p, x, w))


def a_k_tile_short(p: Dense, o: Operands, r: Results) -> Results:
    """The last channels of the last tap are left out of all sums."""
    w = torch.zeros_like(wide(o.w))
    mode = 0 if p.transposed else 1
    last = w.narrow(mode, max(0, w.shape[mode] - 8), min(8, w.shape[mode]))
    last[..., -1] = wide(o.w).narrow(mode, max(0, w.shape[mode] - 8), last.shape[mode])[..., -1]
    return _added(r, "y", -_forward(p, o.x, w))


def rows_moved(p: Dense, o: Operands, r: Results) -> Results:
    return {**r, "y": r["y"].roll(1, -1)}


def columns_moved(p: Dense, o: Operands, r: Results) -> Results:
    return {**r, "y": r["y"].roll(1, 1)}


def a_stale_row(p: Dense, o: Operands, r: Results) -> Results:
    """The last row of a tile has what the one before has."""
    y = r["y"].clone()
    y[..., -1] = y[..., -2]
    return {**r, "y": y}


def one_unwritten(p: Dense, o: Operands, r: Results) -> Results:
    y = r["y"].clone()
    y[tuple(extent // 2 for extent in y.shape)] = torch.nan
    return {**r, "y": y}


def summed_in_fp16(p: Dense, o: Operands, r: Results) -> Results:
    """Every tap's sum is rounded to fp16, and so is the total."""
    total = torch.zeros_like(wide(r["y"]))
    for tap in range(o.w.shape[-1]):
        w = torch.zeros_like(wide(o.w))
        w[..., tap] = wide(o.w)[..., tap]
        total = (total + _forward(p, o.x, w)).half().double()
    return {**r, "y": rounded(total, r["y"].dtype)}


def summed_in_bf16(p: Dense, o: Operands, r: Results) -> Results:
    return {**r, "y": rounded(_forward(p, o.x, o.w).bfloat16().double(), r["y"].dtype)}


def cut_off(p: Dense, o: Operands, r: Results) -> Results:
    """Results are cut off to their type, not rounded."""
    value, y = _forward(p, o.x, o.w), r["y"]
    word = {2: torch.int16, 4: torch.int32}[y.itemsize]
    less = (y.double().abs() > value.abs()).to(word)
    return {**r, "y": (y.contiguous().view(word) - less).view(y.dtype)}


def tf32_cut_off(p: Dense, o: Operands, r: Results) -> Results:
    """Factors are cut off to tf32, not rounded."""
    x, w = ((t.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (o.x, o.w))
    return {**r, "y": _forward(p, x, w).float()}


def tf32_rounded(p: Dense, o: Operands, r: Results) -> Results:
    """Round operands to tf32 as tensor cores do: this is no fault."""
    return {**r, "y": _forward(p, to_tf32(o.x), to_tf32(o.w)).float()}


def to_tf32(t: Tensor) -> Tensor:
    """Rounded to nearest."""
    bits = t.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def another_bias(p: Dense, o: Operands, r: Results) -> Results:
    by = (wide(o.finish.bias).roll(1) - wide(o.finish.bias)).view(1, -1, *[1] * p.rank)
    return _added(r, "y", by)


def no_residual(p: Dense, o: Operands, r: Results) -> Results:
    return _added(r, "y", -wide(o.finish.residual))


def no_scale(p: Dense, o: Operands, r: Results) -> Results:
    finish = replace(o.finish, scale=None)
    z, _ = finish.of_sums(_forward(p, o.x, o.w), None, 0.0)
    return {**r, "y": rounded(finish.forward(z, None).value, r["y"].dtype)}


def no_activation(p: Dense, o: Operands, r: Results) -> Results:
    z, _ = o.finish.of_sums(_forward(p, o.x, o.w), None, 0.0)
    return {**r, "y": rounded(z, r["y"].dtype)}


def wrapped(p: Dense, o: Operands, r: Results) -> Results:
    """Results wrap around where they should saturate."""
    value = _forward(p, o.x, o.w)
    return {**r, "y": ((value + 128) % 256 - 128).to(torch.int8)}


def of_gradient(name: str, mode: int) -> Fault:
    """A gradient lacks what the last image, or row, gives."""

    def fault(p: Dense, o: Operands, r: Results) -> Results:
        grad = r[name].clone()
        last = grad.narrow(mode, grad.shape[mode] - 1, 1)
        last.mul_(0)
        return {**r, name: grad}

    return fault


def an_image_short(p: Dense, o: Operands, r: Results) -> Results:
    """The filter's gradient is summed over all images but the last."""
    form, grad = bilinear(p), wide(o.grad)
    less = form.back_w(grad[-1:], wide(o.x)[-1:])
    return _added(r, "grad w", -less)


def unmasked(p: Dense, o: Operands, r: Results) -> Results:
    """The gradient of relu is that of the identity."""
    return {**r, "grad x": rounded(bilinear(p).back_x(wide(o.grad), wide(o.w)), o.x.dtype)}


def a_row_not_counted(p: Dense, o: Operands, r: Results) -> Results:
    """Statistics lack one row."""
    row = wide(r["y"]).movedim(1, -1).reshape(-1, p.K)[-1]
    more = torch.stack((row, row.square()))
    return {**r, "statistics": (wide(r["statistics"]) - more).float()}
