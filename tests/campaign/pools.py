"""Pooling of sparse tensors: what it should give, tap by tap, and image by image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.sparse import SparseTensor

from .bench import Bench, check_same, poison
from .data import Memory
from .ending import dtype_of, wide
from .oracle import Expected, rounded
from .sparse import Sparse
from .sparse_geometry import Cloud, Geometry, check_cells

Results = dict[str, Tensor]


def run_pool(p: Sparse, geometry: Geometry, cells: Tensor, memory: Memory, bench: Bench) -> None:
    """Raise ``WrongResultError`` for what is not as it should be, and whatever a call raises."""
    dtype, rows = dtype_of(p.dtype), len(geometry.outputs)
    images = p.layer.startswith("global")
    shape = (p.images if images else rows, p.C)
    exact = p.numbers != "normal"
    draw: Any = (lambda s: memory.integers(s, 9)) if exact else lambda s: memory.normal(s, dtype)
    x = memory.place("x", draw((geometry.inputs, p.C)), dtype, (p.C, 1), p.start_x)
    grad = rounded(draw(shape), dtype)
    found: list[Results] = []
    cloud = Cloud(p, geometry, cells)
    for name in ("first call", "second call", "call on new coordinates"):
        if name == "call on new coordinates":
            cloud = Cloud(p, geometry, cells.clone())
        poison(bench.device, [shape[0] * p.C * size for size in (2, 4, 8)])
        bench.stage(name)
        found.append(bench.fault(call(p, x, grad, cloud), x))
        bench.wait(f"{name}: the device")
    if not bench.runs:
        return
    for other in found[1:]:
        for name in found[0]:
            check_same(name, found[0][name], other[name])
    memory.check_untouched()
    bench.stage("reference")
    results = found[-1]
    if not images:
        check_cells(p, geometry, results.pop("cells"), cloud)
    check_pool(p, geometry, wide(x), wide(grad), results, bench)


def call(p: Sparse, x: Tensor, grad: Tensor, cloud: Cloud) -> Results:
    """One call, and one backward."""
    leaf = x.detach().requires_grad_("x" in p.gradients)
    source = cloud.fine if cloud.down is None else cloud.down.outputs
    given = SparseTensor(leaf, source)
    if p.layer.startswith("global"):
        y = lc.nn.sparse_pool.sparse_global_pool(given, p.layer.removeprefix("global "))
        found = {"y": y.detach()}
    else:
        if p.layer == "unpool":
            result = lc.nn.sparse_unpool(given)
        else:
            pools = {"max": lc.nn.sparse_max_pool, "sum": lc.nn.sparse_sum_pool,
                     "mean": lc.nn.sparse_avg_pool}  # fmt: skip
            numbers: dict[str, Any] = {"padding": p.padding, "dilation": p.dilation}
            if p.layer == "mean":
                numbers["count_include_pad"] = _counts_all(p)
            result = pools[p.layer](given, p.taps, p.stride, **numbers)
        cloud.result = result.coordinates
        y = result.features
        found = {"y": y.detach(), "cells": result.coords}
    if p.gradients:
        (found["grad x"],) = torch.autograd.grad(y, leaf, grad)
    return found


def _counts_all(p: Sparse) -> bool:
    """Return whether a mean divides by the number of taps; the seed of the kind decides."""
    return p.C % 2 == 0


def check_pool(
    p: Sparse, geometry: Geometry, x: Tensor, grad: Tensor, found: Results, bench: Bench
) -> None:
    """Compare a pooling, and the gradient of its features, with the definition."""
    dtype = dtype_of(p.dtype)
    index = geometry.index
    if p.layer.startswith("global"):
        index = _by_image(p, geometry.cells)
    op = "sum" if p.layer == "unpool" else p.layer.removeprefix("global ")
    rows, taps = index.shape
    source = torch.cat([x, x.new_zeros(1, p.C)])
    there = index >= 0
    count = there.sum(1)[:, None]
    if op == "max":
        value, winners = _maxima(source, index, there)
        error = None
    else:
        value, size = x.new_zeros(rows, p.C), x.new_zeros(rows, p.C)
        for tap in range(taps):
            row = source[index[:, tap]] * there[:, tap, None]
            value, size = value + row, size + row.abs()
        error = None if p.numbers != "normal" else 2.0**-24 * min(taps, 64) * size
        if p.dtype == "float64" and error is not None:
            error = error * 2.0**-29
    divisor = torch.ones_like(count)
    if op == "mean":
        every = _counts_all(p) and not p.layer.startswith("global")
        divisor = torch.full_like(count, taps) if every else count.clamp(min=1)
        value = value / divisor
        unit = 2.0**-52 if p.dtype == "float64" else 2.0**-23
        error = unit * value.abs() + (0 if error is None else error / divisor)
    bench.check("y", found["y"], Expected(value, error, terms=taps), dtype)
    if "grad x" not in found:
        return
    back = x.new_zeros(len(x) + 1, p.C)
    size = torch.zeros_like(back)
    for tap in range(taps):
        part = grad * there[:, tap, None] / divisor
        if op == "max":
            part = part * (winners == tap)
        back.index_add_(0, index[:, tap].clamp(min=-1) % len(back), part)
        size.index_add_(0, index[:, tap].clamp(min=-1) % len(back), part.abs())
    unit = 2.0**-52 if p.dtype == "float64" else 2.0**-23
    exact = p.numbers != "normal" and op != "mean"
    error = None if exact else unit * (min(taps, 64) + 1) * size[:-1]
    bench.check("grad x", found["grad x"], Expected(back[:-1], error, terms=taps), dtype)


def _maxima(source: Tensor, index: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """The greatest of the rows that are there, 0 of none, and the first tap that has it, or -1."""
    value = source.new_full((len(index), source.shape[1]), -torch.inf)
    winners = torch.full(value.shape, -1, device=value.device)
    for tap in range(index.shape[1]):
        row = source[index[:, tap]]
        better = ((row > value) | (winners < 0)) & there[:, tap, None]
        value, winners = torch.where(better, row, value), torch.where(better, tap, winners)
    return torch.where(winners < 0, 0.0, value), winners


def _by_image(p: Sparse, cells: Tensor) -> Tensor:
    """The rows of each image, -1 behind them: a map of a global pooling."""
    rows = [(cells[:, 0] == image).nonzero()[:, 0] for image in range(p.images)]
    found = cells.new_full((p.images, max(1, *map(len, rows))), -1)
    for image, own in enumerate(rows):
        found[image, : len(own)] = own
    return found
