"""Batch norms and activations as epilogues of the convolution before them, at run time.

For inference, without a change to any module: a norm in evaluation mode is a function of each
channel, ``(x - mean) / sqrt(variance + eps) * weight + bias``, and kernels read these four tensors
from the norm's own memory at every launch. Nothing is folded beforehand, so nothing can be stale,
whatever writes to parameters: ``load_state_dict``, an optimizer, ``p.data.copy_`` or a kernel; a
CUDA graph that replays a launch sees the writes as well. The dtypes, shapes and devices select the
kernel; the call cache compares them in each call.

Norms or activations with hooks, norms in training mode, calls that want a gradient, and calls that
something watches run as torch has them. :func:`unfused` makes all of them do so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch

from ..base.caches import remembered
from ..base.contexts import setting
from ..base.torch_internals import (
    has_global_hooks,
    is_any_autocast_enabled,
    is_tracing,
    transform_on_top,
)
from ..ops import sparse_calls
from ..ops.autocast import autocast_dtype, without_autocast
from ..ops.guard import PLAIN, is_watched_unseen, wants_gradient
from ..pointwise import rsqrt, sigmoid, tanh, where
from ..view.epilogue import Pointwise
from .modules import weight_and_bias
from .sparse import convolved
from .warm_layers import WARM, LayerCall, WarmLayer, keep_warm

if TYPE_CHECKING:
    from torch import Tensor

    from ..sparse import KernelMap

# ``compat.spconv`` adds its own.
NORMS: set[type] = {torch.nn.BatchNorm1d, torch.nn.SyncBatchNorm}
_FUNCTIONS = {
    "relu": lambda x, _: where(x < 0.0, 0.0, x),
    "relu6": lambda x, _: where(x < 0.0, 0.0, where(x > 6.0, 6.0, x)),
    "leaky_relu": lambda x, slope: where(x < 0.0, x * slope, x),
    "silu": lambda x, _: x * sigmoid(x),
    "sigmoid": lambda x, _: sigmoid(x),
    "tanh": lambda x, _: tanh(x),
}
ACTIVATIONS: dict[type, str] = {
    torch.nn.ReLU: "relu",
    torch.nn.ReLU6: "relu6",
    torch.nn.LeakyReLU: "leaky_relu",
    torch.nn.SiLU: "silu",
    torch.nn.Sigmoid: "sigmoid",
    torch.nn.Tanh: "tanh",
}
_NAMES = "mean", "variance", "weight", "bias"  # of the tensors that kernels read from a norm
_HALVES = frozenset({torch.float16, torch.bfloat16})
_FLOATS = _HALVES | {torch.float32}
_fuses: ContextVar[bool | None] = ContextVar("fuses", default=None)  # None: where it is faster


def unfused() -> AbstractContextManager[None]:
    """Run norms and activations after convolutions one by one, like torch, in this context.

    ``lc.nn.Sequential``, ``lc.nn.Residual`` and spconv's containers fuse them into the
    convolution's launch on a GPU, for inference. Results differ by rounding: a fused launch rounds
    once, at the end.

    >>> import layoutconv as lc
    >>> x = lc.SparseTensor.from_dense(torch.eye(4).view(1, 4, 4, 1))
    >>> net = lc.nn.Sequential(lc.nn.SubmConv2d(1, 8, 3), torch.nn.BatchNorm1d(8)).eval()
    >>> with unfused():
    ...     y = net(x)
    >>> torch.allclose(y.features, net(x).features)
    True
    """
    return setting(_fuses, False)


def fused() -> AbstractContextManager[None]:
    """Fuse norms and activations on a CPU, too, in this context: results round as on a GPU.

    >>> import layoutconv as lc
    >>> x = lc.SparseTensor.from_dense(torch.eye(4).view(1, 4, 4, 1))
    >>> net = lc.nn.Sequential(lc.nn.SubmConv2d(1, 8, 3), torch.nn.BatchNorm1d(8)).eval()
    >>> with torch.inference_mode(), fused():
    ...     y = net(x)
    >>> torch.allclose(y.features, net(x).features, atol=1e-5)
    True
    """
    return setting(_fuses, True)


def may_fuse(x: Any, rows: int = 1) -> bool:
    """Return whether launches of convolutions of features ``x`` may include what follows.

    A sequence of modules asks once: nothing watches calls of torch or of modules, and there are at
    least ``rows`` rows, on a device that runs kernels.
    """
    if torch.compiler.is_dynamo_compiling():  # dynamo cannot trace what is below
        return False
    asked = _fuses.get()
    return bool(
        type(x) in PLAIN
        and (is_launch(x) if asked is None else asked)
        and x.dim() == 2
        and x.shape[0] >= rows
        and not is_watched_unseen()
        and not is_tracing()
        and transform_on_top() is None
        and not has_global_hooks()
    )


def is_launch(x: Tensor) -> bool:
    """Return whether a convolution of ``x`` is a launch; on a CPU torch's norm is faster."""
    return x.is_cuda


def runs_only_forward(module: Any) -> bool:
    """Return whether calling a module runs only its class's ``forward``.

    >>> norm = torch.nn.BatchNorm1d(4)
    >>> handle = norm.register_forward_hook(print)
    >>> runs_only_forward(norm), handle.remove(), runs_only_forward(norm)
    (False, None, True)
    """
    own = module.__dict__
    return not (own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own)


def is_relu6(module: Any) -> bool:
    """Return whether a ``torch.nn.ReLU6`` still has its original limits.

    >>> module = torch.nn.ReLU6()
    >>> module.max_val = 3.0
    >>> is_relu6(torch.nn.ReLU6()), is_relu6(module)
    (True, False)
    """
    return bool(module.min_val == 0.0 and module.max_val == 6.0)


def norm_and_activation(modules: Sequence[Any], start: int) -> tuple[Any, Any, int]:
    """Return the norm and the activation from ``start`` on, each None if missing, and their number.

    >>> norm_and_activation([torch.nn.BatchNorm1d(4), torch.nn.Identity(), torch.nn.ReLU()], 0)[1:]
    (None, 1)
    """
    norm = last = None
    end, count = start, len(modules)
    if end < count and type(modules[end]) in NORMS:
        norm, end = modules[end], end + 1
    if end < count and type(modules[end]) in ACTIVATIONS:
        last, end = modules[end], end + 1
    return norm, last, end - start


class _AfterSums(Pointwise):
    """The function after sums, whose tensors change from call to call: its key leaves out their
    dtypes, which the call cache compares.
    """

    # Attributes of instances: a warm call does not compute them again.
    key = per_column = per_row = like_d = ()  # type: ignore[assignment]

    def with_tensors(
        self, columns: Iterable[Any], rows: Iterable[Any], sources: Iterable[Any]
    ) -> _AfterSums:
        columns, sources = tuple(columns), tuple(sources)
        made = object.__new__(_AfterSums)
        own = made.__dict__
        own.update(self.__dict__)
        own["columns"], own["per_column"] = dict(zip(_NAMES, columns, strict=False)), columns
        own["sources"], own["like_d"] = dict(zip(("past",), sources, strict=False)), sources
        return made


@remembered(256)
def _after(affine: bool, added: bool, activation: str | None, eps: float, slope: float) -> Any:
    """Return the function of a norm, a tensor ``added`` after it, and an activation."""

    def function(x: Any, mean: Any, variance: Any, eps: Any, slope: Any, **given: Any) -> Any:
        factor = rsqrt(variance + eps)
        if affine:
            factor = factor * given["weight"]
        y = (x - mean) * factor
        y = y + given["bias"] if affine else y
        y = y + given["past"] if added else y
        return y if activation is None else _FUNCTIONS[activation](y, slope)

    like = torch.empty(1)
    columns = dict.fromkeys(_NAMES if affine else _NAMES[:2], like)
    sources = {"past": like} if added else {}
    made = _AfterSums(function, columns, sources=sources, values={"eps": eps, "slope": slope})
    made.__dict__["key"] = "after a norm", affine, added, activation, eps, slope
    return made


def normalised(
    conv: Any, x: Tensor, found: KernelMap, norm: Any, last: Any = None, past: Tensor | None = None
) -> Tensor | None:
    """Compute features (rows, K) after a convolution and what follows it, as one launch.

    The result is ``last(norm(conv(x)) + past)``; ``norm``, ``past`` and ``last``, an activation,
    may each be None. Returns None, and has done nothing, if it cannot be one launch: the caller
    then runs module after module. ``x`` has passed :func:`may_fuse`; only the weight, the bias and
    the groups of ``conv`` are read.
    """
    weight, bias = weight_and_bias(conv)
    activation, slope = None, 0.01
    if last is not None:
        activation = ACTIVATIONS[type(last)]
        if not runs_only_forward(last) or (activation == "relu6" and not is_relu6(last)):
            return None
        if activation == "leaky_relu":
            slope = float(last.negative_slope)
    if norm is None:
        tensors = x, weight, bias, past
        if not _may_follow(tensors, found, conv.groups) or wants_gradient(*tensors):
            return None
        ending = bias, None, past, activation, slope, None
        return convolved(x, weight, found, conv.groups, ending)
    columns = _columns(norm)
    if columns is None:
        return None
    given = (x, weight, *columns) if bias is None else (x, weight, bias, *columns)
    for layer in conv.__dict__.get(WARM, ()):
        if layer.norm is norm and layer.last is last and layer.added is (past is not None):
            y = layer.run(given, past, slope, conv.groups, found)
            if y is not None:
                return y
    kind = _after(len(columns) == 4, past is not None, activation, float(norm.eps), slope)
    operands, sources = (x, weight), () if past is None else (past,)
    call = sparse_calls.find_followed(
        found, conv.groups, kind.key, operands, bias, columns, sources
    )
    if call is not None and call.followed is not None:  # this call passed the checks below before
        if call.kind.only_launches:
            keep_warm(conv, WarmLayer(LayerCall(call.kind, (norm, last), given, past), slope))
        return call.followed(x, weight, given[2:], sources)
    function = kind.with_tensors(columns, (), sources)
    if call is not None:
        return call.run_function(function, x, weight, bias, None, None, found)
    tensors = x, weight, bias, past
    if not _may_follow(tensors, found, conv.groups, columns) or wants_gradient(*tensors, *columns):
        return None
    low = autocast_dtype(x, weight)
    if low is not None and x.dtype is not low:
        return normalised(conv, x.to(low), found, norm, last, past)
    if low is not None:
        lowered = weight.to(low)
        with without_autocast(x.device.type):
            call = sparse_calls.find_followed(
                found, conv.groups, kind.key, (x, lowered), bias, columns, sources
            )
        if call is not None and call.followed is not None and call.kind.only_launches:
            keep_warm(conv, WarmLayer(LayerCall(call.kind, (norm, last), given, past), slope, low))
            return call.followed(x, lowered, given[2:], sources)
    return convolved(x, weight, found, conv.groups, (bias, None, None, function, slope, None))


def _columns(norm: Any) -> tuple[Tensor, ...] | None:
    """Return the tensors that a kernel reads from a norm; None for a norm that torch has to run."""
    own = norm.__dict__
    if own["training"] or own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
        return None
    held, learnt = own["_buffers"], own["_parameters"]
    if "weight" not in learnt or "bias" not in learnt:  # held otherwise: of a replica, or sharded
        return None
    mean, variance = held.get("running_mean"), held.get("running_var")
    weight, bias = learnt["weight"], learnt["bias"]
    if mean is None or variance is None or (weight is None) is not (bias is None):
        return None
    return (mean, variance) if weight is None else (mean, variance, weight, bias)


def _may_follow(
    tensors: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    found: KernelMap,
    groups: int,
    columns: Sequence[Tensor] = (),
) -> bool:
    """Return whether kernels compute what torch would.

    ``tensors`` are x, weight, bias and the added tensor; ``columns`` are the norm's.
    """
    x, weight, _, past = tensors
    K, dtype = weight.shape[0], _result(x, weight)
    if type(x) not in PLAIN or dtype is None or (groups > 1 and groups == x.shape[1]):
        return False
    if past is not None:  # otherwise torch's sum has another dtype or shape
        same = past.dtype is dtype and past.shape == (len(found.outputs), K)
        if type(past) not in PLAIN or not same or past.device != x.device:
            return False
    for column in columns:
        if type(column) not in PLAIN or column.shape != (K,) or column.device != x.device:
            return False
        if column.dtype is not columns[0].dtype or not column.is_contiguous():
            return False
    wide = torch.float32 if dtype in _HALVES else dtype
    return not columns or columns[0].dtype in (dtype, wide)


def _result(x: Tensor, weight: Tensor) -> torch.dtype | None:
    """Return the dtype of a convolution's result, if kernels have it; else None."""
    dtype = x.dtype
    if is_any_autocast_enabled() and torch.is_autocast_enabled(x.device.type):
        lowered = {dtype, weight.dtype} <= _FLOATS
        return torch.get_autocast_dtype(x.device.type) if lowered else None
    return dtype if dtype in _FLOATS and weight.dtype is dtype else None
