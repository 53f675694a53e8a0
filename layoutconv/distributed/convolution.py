"""The convolution of a split volume and its gradients: interior first, edges after the halo.

    y   the forward pass, of x and its halo
    dx the gradient of the activation, from dy and its halo: a pass like any other, with views
    dw a sum over the voxels of all ranks, from dy and the rows that the forward pass read

The passes for y and dx run in the same way. Result rows that need rows of other ranks wait; the
rest, nearly all, is launched while these travel. dx has no sums across ranks: a cell's whole
gradient is computed on the rank that holds the cell, in the order of the unsplit pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..conv import ConvProblem, wgrad_view
from ..conv.depthwise_views import depthwise_wgrad_view
from ..errors import ArgumentError
from ..gpu.few_terms_choice import ends_in_tiles
from ..ops.dense_passes import VIEW, pass_of
from ..ops.epilogue_args import EpilogueArgs
from ..ops.execute import execute
from ..tensors.tensor_checks import OUTPUTS
from .agreement import Agreement
from .exchange import Exchange, Rows
from .halo import HaloPart, Split, dgrad_plan, fprop_plan
from .slab import Slab

Compute = Callable[[ConvProblem, Tensor, Tensor], None]  # of (part, a, out)


class SplitConv(torch.autograd.Function):
    """Compute ``y`` from this rank's rows of tensors in channels-last order.

    ``problem`` is the whole volume's; ``before`` and ``after`` are the slabs of its activation and
    its output; ``label`` names this call on all ranks.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        problem: ConvProblem,
        before: Slab,
        after: Slab,
        label: str,
    ) -> Tensor:
        x, w, mode = x.contiguous(), w.contiguous(), before.mode
        split = Split(mode, before.bounds, after.bounds, before.rank)
        plan = fprop_plan(problem, split)

        def compute(part: ConvProblem, a: Tensor, out: Tensor) -> None:
            _run("fprop", a, w, out, _numbers(part), EpilogueArgs(bias))

        halo = Exchange(x, mode, plan, before.group)
        shape = [*problem.output]
        shape[mode + 1] = len(plan.rows)
        y = x.new_empty(shape, dtype=OUTPUTS[x.dtype])
        rows = _compute(halo, y, compute)
        needs_x, needs_w, *_ = ctx.needs_input_grad
        kept = rows[2:] if needs_w else (None,) * 3
        ctx.save_for_backward(*kept, w if needs_x else None)
        ctx.split, ctx.plan, ctx.label = (problem, before, split), plan, label
        ctx.x_shape, ctx.w_shape, ctx.w_dtype = x.shape, w.shape, w.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        problem, before, split = ctx.split
        needs_x, needs_w, needs_bias, *_ = ctx.needs_input_grad
        with Agreement(f"backward of {ctx.label}", before.group):
            if torch.is_grad_enabled():  # double backward is not supported
                expected = "False, as a split convolution is differentiable only once"
                raise ArgumentError("create_graph", expected, True)
            *kept, w = ctx.saved_tensors
        dy, mode = dy.contiguous(), before.mode
        dx = dw = db = None
        # Every rank enters the collectives in this order: the halo, then the sums over ranks.
        plan = dgrad_plan(problem, split)
        halo = Exchange(dy, mode, plan, before.group) if needs_x else None
        exact = torch.promote_types(dy.dtype, torch.float32)
        sums = []
        if needs_w:
            rows = Rows(ctx.plan, mode + 1, *kept)
            sums.append(_wgrad(rows, dy, dy.new_zeros(ctx.w_shape, dtype=exact)))
        if needs_bias:
            sums.append(dy.sum(tuple(range(dy.dim() - 1)), dtype=exact))
        flat = torch.cat([part.flatten() for part in sums]) if sums else None
        reduced = None
        if flat is not None and before.size > 1:
            reduced = dist.all_reduce(flat, group=before.group, async_op=True)
        if halo is not None:
            dx = dy.new_empty(ctx.x_shape)

            def compute(part: ConvProblem, a: Tensor, out: Tensor) -> None:
                _run("dgrad", a, w, out, (part.spatial, *_numbers(part)), EpilogueArgs())

            _compute(halo, dx, compute)
        if reduced is not None:
            reduced.wait()
        if flat is not None:
            parts = list(flat.split([part.numel() for part in sums]))
            dw = parts.pop(0).view(ctx.w_shape).to(ctx.w_dtype) if needs_w else None
            db = parts.pop(0).to(ctx.bias_dtype) if needs_bias else None
        return dx, dw, db, None, None, None, None


def _compute(halo: Exchange, out: Tensor, compute: Compute) -> Rows:
    """Write ``out``, this rank's rows of a result: first rows that need no halo, then the rest."""
    plan = halo.rows.plan
    if plan.inner is not None:
        _write(plan.inner, halo.rows, out, compute)
    rows = halo.wait()
    for part in plan.outer:
        _write(part, rows, out, compute)
    return rows


def _run(
    name: str, a: Tensor, w: Tensor, out: Tensor, numbers: tuple[Any, ...], ending: EpilogueArgs
) -> None:
    """Run a pass into given memory."""
    a, w, out = (tensor.movedim(-1, 1) for tensor in (a, w, out))
    found = pass_of(name, a, w, numbers, by_tiles=ends_in_tiles(out.dtype))
    found.compute(a, w, ending, out)


def _write(part: HaloPart, rows: Rows, out: Tensor, compute: Compute) -> None:
    """Write the rows of a part, in place if they are contiguous."""
    place = _rows_of(out, part, rows)
    if not place.numel():
        return
    target = place if place.is_contiguous() else place.new_empty(place.shape)
    compute(part.problem, rows.read(part), target)
    if target is not place:
        place.copy_(target)


def _rows_of(written: Tensor, part: HaloPart, rows: Rows) -> Tensor:
    """Return the rows that a part writes, of all rows that the rank writes."""
    return written.narrow(rows.axis, part.rows.start - rows.plan.rows.start, len(part.rows))


def _wgrad(rows: Rows, dy: Tensor, total: Tensor) -> Tensor:
    """Add this rank's contribution to the gradient of the filter to ``total``, and return it."""
    if not dy.numel():
        return total
    plan = rows.plan
    for part in plan.outer if plan.inner is None else (plan.inner, *plan.outer):
        problem = part.problem
        depthwise = problem.groups > 1 and problem.groups == problem.C
        view = (depthwise_wgrad_view if depthwise else wgrad_view)(problem)
        voxels = _rows_of(dy, part, rows).contiguous()
        total += execute(view, voxels, rows.read(part), out_dtype=total.dtype)
    return total


def _numbers(problem: ConvProblem) -> tuple[Any, ...]:
    """Return a problem's numbers as the passes take them."""
    padding = [side for pair in problem.padding for side in pair]
    return problem.stride, padding, problem.dilation, problem.groups, VIEW
