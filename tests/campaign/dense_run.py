"""Run a dense problem: by the call that is checked, by the one that is kept, and by definition."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

import layoutconv as lc

from .bench import Bench, check_same, poison
from .data import Memory, alike, strides_of
from .dense import Dense
from .dense_reference import terms_of
from .draws import Draw
from .ending import Finish, dtype_of
from .layer import (
    Bilinear,
    Checks,
    Operands,
    Results,
    check_statistics,
    draw_values,
    factors,
    gradients,
    leaves_of,
    precision_of,
)
from .oracle import rounded


def run_dense(p: Dense, bench: Bench) -> None:
    """Raise ``WrongResultError`` for what is not as it should be, and whatever a call raises."""
    memory = Memory(bench.device, p.seed)
    bench.stage("tensors")
    operands = make_operands(p, memory)
    sizes = [max(p.N * p.K * prod(p.result_cells), 1) * size for size in (1, 2, 4, 8)]
    found: list[Results] = []
    with precision_of(p):
        for name in ("first call", "second call"):
            poison(bench.device, sizes)
            bench.stage(name)
            found.append(bench.fault(call(p, operands), operands))
            bench.wait(f"{name}: the device")
    if not bench.runs:
        return
    memory.check_untouched()
    for name in found[0]:
        check_same(name, found[0][name], found[1][name])
    bench.stage("reference")
    # A complex depthwise convolution is a real one of two channels a group.
    cores = not p.is_depthwise or dtype_of(p.dtype).is_complex
    checks = Checks(p, bilinear(p), operands, bench, cores=cores)
    checks.check(found[1])
    if p.statistics:
        check_statistics(found[1]["y"], found[1]["statistics"], bench)


# -- what goes in ----------------------------------------------------------------------------------


def bilinear(p: Dense) -> Bilinear:
    """The passes by their definition."""
    of = p.geometry
    counts = [terms_of(name, of, p.N, *_channels(p)) for name in ("fprop", "dgrad", "wgrad")]
    if not p.transposed:
        return Bilinear(of.fprop, of.dgrad, of.wgrad, (counts[0], counts[1], counts[2]))

    def back_w(g: Tensor, x: Tensor) -> Tensor:
        return of.wgrad(x, g)

    return Bilinear(of.dgrad, of.fprop, back_w, (counts[1], counts[0], counts[2]))


def _channels(p: Dense) -> tuple[int, int]:
    """C and K of the convolution that ``geometry`` is of."""
    return (p.K, p.C) if p.transposed else (p.C, p.K)


def make_operands(p: Dense, memory: Memory) -> Operands:
    draw, dtype = Draw("dense numbers", p.seed), dtype_of(p.dtype)
    exact = p.numbers != "normal"
    shapes = (p.N, p.C, *p.spatial), p.filter, (p.N, p.K, *p.result_cells)
    values = draw_values(p, memory, draw, shapes, bilinear(p).terms)
    given = torch.float32 if p.call == "autocast" else dtype
    strides = [strides_of(shapes[0], p.order_x, draw), strides_of(shapes[1], p.order_w, draw)]
    x = memory.place("x", alike(values[0], strides[0]), given, strides[0], p.start_x)
    w = memory.place("w", values[1], given, strides[1], p.start_w)
    finish = Finish.make(
        p.ending, memory, shapes[2], 1, exact=exact, order=p.order_residual, draw=draw
    )
    out = p.ending.result_type(dtype)
    grad = rounded(values[2], out) if not out.is_complex else values[2].to(out)
    return Operands(x, w, finish, grad, factors(p, memory, shapes[:2]))


# -- the call --------------------------------------------------------------------------------------


def call(p: Dense, operands: Operands) -> Results:
    """One call, and one backward: the results by name."""
    leaves, found = leaves_of(p, operands), {}
    y = _forward(p, leaves, operands.finish)
    if p.statistics:
        y, found["statistics"] = y
    found["y"] = y.detach()
    return found | gradients(p, y, leaves, operands)


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
    if x.device.type == "cpu" and p.seed % 2:  # as every second one of a kind
        options["executor"] = "view"
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
    """Return what a CUDA graph of a call gives when it is replayed into poisoned memory."""
    with torch.no_grad():
        forward()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = forward()
        tensors = result if isinstance(result, tuple) else (result,)
        for tensor in tensors:
            tensor.fill_(torch.nan if tensor.is_floating_point() or tensor.is_complex() else 77)
        graph.replay()
        found = tuple(tensor.clone() for tensor in tensors)
    return found if isinstance(result, tuple) else found[0]


def _module(p: Dense, leaves: Results) -> torch.nn.Module:
    kind = getattr(lc.nn, f"Conv{'Transpose' if p.transposed else ''}{p.rank}d")
    near = tuple(pair[0] for pair in p.padding)
    more = {"output_padding": p.output_padding} if p.transposed else {}
    activation = replace(p.ending, own=False, out_dtype="").options
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
