"""A sparse convolution in training with the norm, sum and ReLU after it, as one function that
autograd records, with one guard over all tensors of a call.

The kernels are those of the convolution and of the norm, one after the other, so results and
gradients have the same bits. The host saves a second function to record and to run backward, two
calls of modules, and checks that an earlier call of the same modules has passed. As in
:mod:`.warm_layers`, no tensor that a kernel reads is kept.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from ..base.torch_internals import (
    comes_to,
    functions_that_look,
    in_shape,
    is_batched,
    keeps_graph,
    transform_on_top,
)
from ..gpu import column_sums, row_norm
from ..gpu.row_norm import Norm, NormKernels, NormPlan
from ..ops import sparse_calls
from ..ops.autocast import autocast_dtype
from ..ops.call_cache import sparse
from ..ops.formulas import channel_sums
from ..ops.guard import PLAIN
from ..ops.recorded import asked_for, lowered_again
from ..planning.norm_schedule import schedule
from .modules import weight_and_bias
from .row_norm import gradients_of_rows, on_kernels
from .trained_norm import are_bare, told_of
from .warm_layers import KeptLayer, LayerCall, keep_warm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ..ops.sparse_calls import SparseCall
    from ..sparse import KernelMap

is_grad_enabled = torch.is_grad_enabled
get_autocast_dtype = torch.get_autocast_dtype
_new: Any = tuple.__new__  # bypasses a NamedTuple's own, which is a Python call
# The numbers of a norm that kernels need, and those that decide how torch computes it.
_told: Any = attrgetter("eps", "momentum", "affine", "track_running_stats", "training")
TRAINED = "_layoutconv_trained"  # the attribute of a module that holds its layers in training


def trained_layer(
    conv: Any, x: Tensor, found: KernelMap, norm: Any, last: Any, past: Tensor | None
) -> Tensor | None:
    """Compute features ``last(norm(conv(x)) + past)`` in training; ``last`` and ``past`` may be
    None.

    Returns None, and has done nothing, unless kernels are known to compute it: the caller then runs
    module after module, with the same bits. ``x`` has passed
    :func:`~layoutconv.nn.fused_norm.may_fuse`, ``conv`` has no activation, and ``norm`` is in
    training mode.
    """
    if not are_bare(conv, norm, last):
        return None
    weight, bias = weight_and_bias(conv)
    tensors = _tensors_of(x, weight, bias, norm)
    if tensors is None:
        return None
    for layer in conv.__dict__.get(TRAINED, ()):
        if layer.norm is norm and layer.last is last and layer.added is (past is not None):
            y: Tensor | None = layer.run(tensors, past, conv.groups, found)
            if y is not None:
                return y
    told = told_of(found.outputs.cells.shape[0], norm, last, past)
    if told is None or told.there is not None or "process_group" in norm.__dict__:
        return None  # there may be several ranks from the next call on
    if not (weight.requires_grad and is_grad_enabled()):
        return None
    low = autocast_dtype(x, weight)
    if low is not None and x.dtype is not low:  # like in a network's first layer
        return trained_layer(conv, x.to(low), found, norm, last, past)
    call = sparse_calls.find(found, (conv.groups, None, conv.slope), None, x, weight, bias)
    if call is None or not _may_join(call, x, past):
        return None
    like = torch.empty((call.out_rows, call.kind.K), dtype=x.dtype, device=x.device)
    if not on_kernels(like, told):
        return None
    kernels, _ = row_norm.planned(like, told)
    layer = TrainedLayer(LayerCall(call.kind, (norm, last), tensors, past), kernels)
    keep_warm(conv, layer, TRAINED)
    return layer.run(tensors, past, conv.groups, found)


def _may_join(call: SparseCall, x: Tensor, past: Tensor | None) -> bool:
    """Return whether a call and the norm after it may be recorded as one function."""
    kind = call.kind
    return (
        call.wanted
        and kind.out_dtype is x.dtype
        and x.shape[0] == call.in_rows
        and (past is None or past.shape[0] == call.out_rows)
    )


class TrainedLayer(KeptLayer):
    """Calls in training, which autograd records as one function.

    ``kernels`` are those of the norm.
    """

    def __init__(self, call: LayerCall, kernels: NormKernels) -> None:
        super().__init__(call)
        self.kernels, self.back = kernels, kernels.back()
        self.vector, self.told = kernels.shape.vector, _told(self.norm)

    def run(
        self, tensors: tuple[Tensor, ...], past: Tensor | None, groups: int, found: KernelMap
    ) -> Tensor | None:
        """Compute a call; None if it is of another kind."""
        kind = self.kind
        lowers, x = kind.lowers, tensors[0]
        if (
            self.era is not sparse.era
            or len(tensors) != self.count
            or _told(self.norm) != self.told
            or groups != kind.groups
            or functions_that_look()
            or not is_grad_enabled()
            or (lowers is not None and lowers is not get_autocast_dtype(self.device))
        ):
            return None
        for tensor in tensors:
            if tensor.is_nested:  # torch's guard would crash the process
                return None
        if not self.alike(*tensors):
            return None
        if past is not None and (past.is_nested or not self.past_alike(past)):  # type: ignore[misc]
            return None
        call = sparse_calls.call_over(kind, found)
        if call is None or call.out_rows < 2 or x.shape[0] != call.in_rows:
            return None
        if past is not None and past.shape[0] != call.out_rows:
            return None
        x, weight, *bias, scale, shift, mean, variance, counted = tensors
        moved = mean, variance, counted
        made: tuple[Tensor, Tensor] = _record(
            x, weight, call, found, bias[0] if bias else None, scale, shift, past, (self, moved)
        )
        return made[0]


def _tensors_of(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: Any
) -> tuple[Tensor, ...] | None:
    """Return the tensors that a layer reads and writes; None if the norm lacks one."""
    held, learnt = norm._buffers, norm._parameters
    scale, shift = learnt.get("weight"), learnt.get("bias")
    mean, variance = held.get("running_mean"), held.get("running_var")
    counted = held.get("num_batches_tracked")
    if scale is None or shift is None or mean is None or variance is None or counted is None:
        return None
    if bias is None:
        return x, weight, scale, shift, mean, variance, counted
    return x, weight, bias, scale, shift, mean, variance, counted


class _Joined(torch.autograd.Function):
    """The convolution and the norm by kernels: returns the result, and the norm's input, which only
    second derivatives use.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        call: SparseCall,
        found: KernelMap,
        bias: Tensor | None,
        scale: Tensor,
        shift: Tensor,
        past: Tensor | None,
        of: tuple[TrainedLayer, tuple[Tensor, Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        (layer, (mean, variance, counted)), lowers = of, call.lowers
        b = weight
        if lowers is not None:
            b, ctx.given = weight.to(lowers), (weight, weight._version)
        y = call.forward(x, b) if bias is None else call.forward(x, b, bias)
        kernels, (eps, momentum, *_) = layer.kernels, layer.told
        cut = schedule(call.out_rows, call.kind.K, layer.vector)
        last = None if layer.last is None else "relu"
        norm = scale, shift, (mean, variance), momentum, eps, None, past, last, counted, None
        out, kept = row_norm.normalised(y, _new(Norm, norm), _new(NormPlan, (kernels, cut)))
        ctx.save_for_backward(
            x, b if ctx.needs_input_grad[0] else None, y, scale, shift, kept, out if last else None
        )
        ctx.call, ctx.found, ctx.layer, ctx.cut = call, found, layer, cut
        ctx.bias = None if bias is None else bias.dtype
        ctx.set_materialize_grads(False)
        return out, y

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, of_y: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        x, b, y, scale, shift, kept, out = ctx.saved_tensors
        call, found, layer = ctx.call, ctx.found, ctx.layer
        if not keeps_graph():  # a loss that is kept must not keep the map of its cloud
            ctx.call = ctx.found = None
        again = is_grad_enabled()
        dy = dscale = dshift = dpast = None
        given: Any = of_y if grad is None else grad
        # Inlined row_norm.is_read, without a Python call; the convolution checks for itself.
        by_torch = (
            again
            or type(given) not in PLAIN
            or is_batched(given)
            or given.is_neg()
            or transform_on_top() is not None
        )
        if grad is not None and by_torch:
            eps = layer.told[0]
            dy, dscale, dshift, dpast = gradients_of_rows((y, scale, shift), None, eps, out, grad)
        elif grad is not None:
            last = None if out is None else "relu"
            norm = scale, shift, None, 0.0, layer.told[0], None, None, last, None, None
            plan = _new(NormPlan, (layer.back, ctx.cut))
            dy, dpast, both = row_norm.gradients(y, _new(Norm, norm), out, kept, grad, plan)
            dpast = grad if dpast is None else dpast
            C = call.kind.K
            dscale, dshift = in_shape(both, (C,), (1,)), in_shape(both, (C,), (1,), C)
            if scale.dtype is not both.dtype:
                dscale, dshift = dscale.to(scale.dtype), dshift.to(scale.dtype)
        if of_y is not None:
            dy = of_y if dy is None else dy + of_y
        if dy is None:
            return (None,) * 9
        needed = asked_for(ctx, call) if call.asks else ctx.needs_input_grad
        if needed[0] and not (needed[1] or needed[_BIAS]):
            needed = _of_the_rest(ctx, needed)
        dx = dw = dbias = None
        if needed[_BIAS]:
            # Like channel_sums, without the checks that the forward pass has passed.
            summed = dy.is_cuda and not by_torch and column_sums.takes(dy, ctx.bias)
            dbias = column_sums.column_sums(dy, ctx.bias) if summed else channel_sums(dy, ctx.bias)
        if needed[0] or needed[1]:
            if again and b is not None and call.lowers is not None:
                b = lowered_again(ctx, call)
            # The engine casts gradients to the dtypes of inputs, which autocast may have lowered.
            dx, dw = call.gradients(found, needed, dy, x, b)
        return dx, dw, None, None, dbias, dscale, dshift, dpast if layer.added else None, None


_BIAS = 4  # its place among the inputs
# Skips the questions of ``apply`` about transforms: nothing watches this call.
_record: Any = super(torch.autograd.Function, _Joined).apply


def _of_the_rest(ctx: Any, needed: Sequence[bool]) -> Sequence[bool]:
    """Return which of the convolution's gradients are needed, if only its features' may be.

    It is not needed if only the norm's gradients, or the shortcut's, are asked for.
    """
    try:
        return comes_to(ctx.next_functions[0][0]), *needed[1:]
    except RuntimeError:
        return needed
