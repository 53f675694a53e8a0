"""Run a sparse problem: a cloud, a layer on it, and what should come out at which cells."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.errors import ArgumentError
from layoutconv.sparse import (
    SparseTensor,
    strided_map,
    submanifold_map,
    transposed_map,
)

from .bench import Bench, check_same, poison
from .clouds import draw_cells
from .data import Memory
from .draws import Draw
from .ending import Finish, dtype_of
from .layer import (
    Bilinear,
    Checks,
    Operands,
    Results,
    draw_values,
    factors,
    gradients,
    leaves_of,
    precision_of,
)
from .oracle import WrongResultError, rounded
from .pools import run_pool
from .sparse import Sparse
from .sparse_geometry import Cloud, Geometry, check_cells, geometry_of
from .sparse_reference import TapSums


def run_sparse(p: Sparse, bench: Bench) -> None:
    """Raise ``WrongResultError`` for what is not as it should be, and whatever a call raises."""
    bench.stage("cloud")
    generator = torch.Generator().manual_seed(p.seed)
    cells = draw_cells(p, generator).to(bench.device)
    geometry = geometry_of(p, cells.long(), generator)
    # Nobody waits for a GPU to say that a capacity was too small; a CPU says it at once.
    refused = 0 <= p.capacity < geometry.total and not cells.is_cuda
    try:
        _run(p, geometry, cells, bench)
    except ArgumentError as error:
        if not refused or error.name != "capacity":
            raise
        return
    if refused:
        raise WrongResultError(f"{geometry.total} cells in a capacity of {p.capacity}: no error")


def _run(p: Sparse, geometry: Geometry, cells: Tensor, bench: Bench) -> None:
    memory = Memory(bench.device, p.seed)
    bench.stage("tensors")
    if not p.is_convolution:
        run_pool(p, geometry, cells, memory, bench)
        return
    operands = make_operands(p, geometry, memory)
    found: list[Results] = []
    coordinates = Cloud(p, geometry, cells)
    with precision_of(p):
        # The second call has the map of the first; the third has new coordinates.
        for name in ("first call", "second call", "call on new coordinates"):
            if name == "call on new coordinates":
                coordinates = Cloud(p, geometry, cells.clone())
            sizes = [len(geometry.outputs) * p.K * size for size in (2, 4, 8)]
            poison(bench.device, [*sizes, len(geometry.index) * geometry.index.shape[1] * 4])
            bench.stage(name)
            found.append(bench.fault(call(p, operands, coordinates), operands))
            bench.wait(f"{name}: the device")
    if not bench.runs:
        return
    memory.check_untouched()
    for other in found[1:]:
        for name in found[0]:
            check_same(name, found[0][name], other[name])
    bench.stage("reference")
    cells_found = found[-1].pop("cells")
    check_cells(p, geometry, cells_found, coordinates)
    form = bilinear(p, geometry)
    depthwise = p.is_depthwise
    checks = Checks(p, form, operands, bench, cores=not depthwise, by_torch=depthwise)
    checks.check(found[-1])


def bilinear(p: Sparse, geometry: Geometry) -> Bilinear:
    of = TapSums(geometry.index, geometry.inputs, p.groups)
    taps, longest = prod(p.filter[1:-1]), len(geometry.index)
    terms = p.C // p.groups * taps, p.K // p.groups * taps, max(longest, 1)

    def back_w(g: Tensor, x: Tensor) -> Tensor:
        return of.back_w(g, x, p.filter[1:-1])

    return Bilinear(of.forward, of.back_x, back_w, terms)


# -- what goes in, and the call --------------------------------------------------------------------


def make_operands(p: Sparse, geometry: Geometry, memory: Memory) -> Operands:
    draw, dtype = Draw("sparse numbers", p.seed), dtype_of(p.dtype)
    exact = p.numbers != "normal"
    rows = len(geometry.outputs)
    shapes = (geometry.inputs, p.C), p.filter, (rows, p.K)
    form = bilinear(p, geometry)
    values = draw_values(p, memory, draw, shapes, form.terms)
    given = torch.float32 if p.call == "autocast" else dtype
    x = memory.place("x", values[0], given, (p.C, 1), p.start_x)
    w = memory.place("w", values[1], given, torch.empty(p.filter, device="meta").stride())
    finish = Finish.make(p.ending, memory, shapes[2], 1, exact=exact)
    grad = rounded(values[2], p.ending.result_type(dtype))
    return Operands(x, w, finish, grad, factors(p, memory, shapes[:2]))


def call(p: Sparse, operands: Operands, cloud: Cloud) -> Results:
    """One call, and one backward: the results by name."""
    leaves = leaves_of(p, operands)
    result = forward(p, leaves, operands.finish, cloud)
    cloud.result = result.coordinates
    y = result.features
    found: Results = {"y": y.detach(), "cells": result.coords}
    return found | gradients(p, y, leaves, operands)


def forward(p: Sparse, leaves: Results, finish: Finish, cloud: Cloud) -> SparseTensor:
    source = cloud.fine if cloud.down is None else cloud.down.outputs
    x = SparseTensor(leaves["x"], source)
    if p.call == "module":
        found: SparseTensor = module_of(p, leaves)(x)
        return found
    options: dict[str, Any] = {**p.ending.options, "groups": p.groups}
    scale = leaves.get("scale", finish.scale)
    if scale is not None:
        options["scale"] = scale
    if "residual" in leaves:
        options["residual"] = leaves["residual"]
    lowered: Any = nullcontext()
    if p.call == "autocast":
        lowered = torch.autocast(x.features.device.type, dtype_of(p.dtype))
    with lowered:
        return _function(p, x, leaves, cloud, options)


def _function(p: Sparse, x: SparseTensor, leaves: Results, cloud: Cloud, options: Any) -> Any:
    w, bias = leaves["w"], leaves.get("bias")
    if p.layer == "inverse":
        if p.call == "map":
            options["kernel_map"] = cloud.down
        return lc.sparse_inverse_conv(x, w, bias, **options)
    numbers: dict[str, Any] = {}
    if p.offsets:
        numbers["offsets"] = p.offsets
    else:
        numbers["dilation"] = p.dilation
    if p.layer == "subm":
        if p.call == "map":
            numbers = {"kernel_map": submanifold_map(x.coordinates, p.taps, **numbers)
                       if not p.offsets else submanifold_map(x.coordinates, **numbers)}  # fmt: skip
        return lc.subm_conv(x, w, bias, **numbers, **options)
    numbers |= {"stride": p.stride, "padding": p.padding}
    if p.layer == "transposed":
        numbers["output_padding"] = p.output_padding
    if p.capacity >= 0:
        numbers["capacity"] = p.capacity
    if cloud.given is not None:
        numbers["outputs"] = cloud.given
        numbers.pop("output_padding", None)
    if p.call == "map":
        make = transposed_map if p.layer == "transposed" else strided_map
        numbers = {"kernel_map": make(x.coordinates, p.taps, **numbers)}
    convolve = lc.sparse_conv_transpose if p.layer == "transposed" else lc.sparse_conv
    return convolve(x, w, bias, **numbers, **options)


def module_of(p: Sparse, leaves: Results) -> torch.nn.Module:
    """The module of ``lc.nn`` with these leaves for parameters."""
    names = {"subm": "SubmConv", "strided": "SparseConv", "transposed": "SparseConvTranspose",
             "inverse": "SparseInverseConv"}  # fmt: skip
    near = tuple(pair[0] for pair in p.padding)
    options: dict[str, Any] = replace(p.ending, own=False, out_dtype="").options
    if p.layer != "inverse":
        options["dilation"] = p.dilation
    if p.layer in ("strided", "transposed"):
        options |= {"stride": p.stride, "padding": near}
    if p.layer == "transposed":
        options["output_padding"] = p.output_padding
    kind = getattr(lc.nn, f"{names[p.layer]}{p.rank}d")
    made: torch.nn.Module = kind(
        p.C, p.K, p.taps, groups=p.groups, bias="bias" in leaves, dtype=dtype_of(p.dtype),
        device=leaves["x"].device, **options,
    )  # fmt: skip
    for name in ("weight", "bias"):
        leaf = leaves.get("w" if name == "weight" else name)
        if leaf is not None:
            delattr(made, name)
            setattr(made, name, leaf)
    return made
