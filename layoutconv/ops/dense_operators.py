"""The passes of a dense convolution as differentiable torch operators, ``torch.ops.layoutconv.*``.

    conv_fprop(x, w, ..., bias, scale, residual, activation, slope, out_dtype) -> y
    conv_dgrad(y, w, spatial, ..., bias, scale, residual, activation, slope, out_dtype) -> x
    conv_wgrad(y, x, taps, ...) -> w
    conv_transpose(y, w, beyond, ...) -> x          as conv_dgrad, for ``torch.jit.trace``
    conv_fprop_statistics(as conv_fprop) -> y, statistics

Tensors have torch's shapes, ``x`` (N, C, D, H, W), ``w`` (K, C/groups, T, R, S), ``y`` (N, K, Z, P,
Q), for 1 to 3 spatial modes; memory in another order than ``channels_last`` is copied, and results
are in that order. So a compiler's graph has no transposed views between operators, which inductor
cannot save for a backward pass if their sizes are symbolic. ``padding`` is (near, far) for every
spatial mode, flat; ``executor`` "view" runs views on a CPU too. The result is
``activation(scale * sum + bias + residual)``, fused into the pass: ``bias`` and ``scale`` have a
number for each channel of the result, ``residual`` has its shape.

``formulas`` gives gradients of any order. ``statistics`` are fp32 (2, K), as ``execute`` returns
them, without a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import register_flop_formula

from . import dense_passes, formulas
from .autocast import register_autocast
from .epilogue_args import SCHEMA, EpilogueArgs
from .formulas import Formula, PassArguments, PassRunner, pass_of, register

if TYPE_CHECKING:
    from torch import Tensor

Ints = Sequence[int]

_NUMBERS = "int[] stride, int[] padding, int[] dilation, int groups=1, str? executor=None"
_SCHEMAS = {
    "conv_fprop": f"(Tensor x, Tensor w, {_NUMBERS}, {SCHEMA}) -> Tensor",
    "conv_fprop_statistics": f"(Tensor x, Tensor w, {_NUMBERS}, {SCHEMA}) -> (Tensor, Tensor)",
    "conv_dgrad": f"(Tensor y, Tensor w, SymInt[] spatial, {_NUMBERS}, {SCHEMA}) -> Tensor",
    "conv_wgrad": f"(Tensor y, Tensor x, SymInt[] taps, {_NUMBERS}) -> Tensor",
}
# torch.jit's tracer keeps lists of constants only: it would freeze sizes that it traces. So a
# traced transposed convolution passes what it adds to (extent - 1) * stride.
_SCHEMAS["conv_transpose"] = (
    _SCHEMAS["conv_dgrad"]
    .replace("conv_dgrad", "conv_transpose")
    .replace("SymInt[] spatial", "int[] beyond")
)
for _name, _schema in _SCHEMAS.items():
    torch.library.define(f"layoutconv::{_name}", _schema, tags=torch.Tag.pt2_compliant_tag)

conv_fprop = torch.ops.layoutconv.conv_fprop.default
conv_fprop_statistics = torch.ops.layoutconv.conv_fprop_statistics.default
conv_dgrad = torch.ops.layoutconv.conv_dgrad.default
conv_wgrad = torch.ops.layoutconv.conv_wgrad.default
conv_transpose = torch.ops.layoutconv.conv_transpose.default

# ``dense_calls`` registers the other operators, as cached calls.
for _device in ("cpu", "cuda"):
    torch.library.impl("layoutconv::conv_fprop_statistics", _device, dense_passes.fprop_statistics)


def _transposed(
    y: Tensor, w: Tensor, beyond: Ints, stride: Ints, *rest: Any, **named: Any
) -> Tensor:
    modes = zip(y.shape[2:], stride, beyond, strict=True)
    spatial = [(extent - 1) * step + more for extent, step, more in modes]
    result: Tensor = conv_dgrad(y, w, spatial, stride, *rest, **named)
    return result


torch.library.impl("layoutconv::conv_transpose", "CompositeImplicitAutograd", _transposed)


# -- fake kernels: results without data -----------------------------------------------------------


def _fake_fprop(
    x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints, *rest: Any, **named: Any
) -> Tensor:
    _, ending = _rest(*rest, **named)
    near, far = padding[::2], padding[1::2]
    modes = zip(x.shape[2:], w.shape[2:], stride, near, far, dilation, strict=True)
    voxels = [(e + n + f - d * (t - 1) - 1) // s + 1 for e, t, s, n, f, d in modes]
    return dense_passes.new_result(x, (x.shape[0], *voxels, w.shape[0]), ending.out_dtype)


torch.library.register_fake("layoutconv::conv_fprop", _fake_fprop)


def _fake_fprop_statistics(x: Tensor, w: Tensor, *args: Any, **options: Any) -> tuple[Any, ...]:
    y = _fake_fprop(x, w, *args, **options)
    return y, x.new_empty((2, w.shape[0]), dtype=torch.float32)


torch.library.register_fake("layoutconv::conv_fprop_statistics", _fake_fprop_statistics)


def _fake_dgrad(y: Tensor, w: Tensor, spatial: Ints, *rest: Any, **named: Any) -> Tensor:
    groups, ending = _rest(*rest[3:], **named)
    return dense_passes.new_result(y, (y.shape[0], *spatial, w.shape[1] * groups), ending.out_dtype)


torch.library.register_fake("layoutconv::conv_dgrad", _fake_dgrad)


def _fake_wgrad(y: Tensor, x: Tensor, taps: Ints, *rest: Any, **named: Any) -> Tensor:
    groups, _ = _rest(*rest[3:], **named)
    return dense_passes.new_result(y, (y.shape[1], *taps, x.shape[1] // groups))


torch.library.register_fake("layoutconv::conv_wgrad", _fake_wgrad)


def _rest(
    groups: int = 1, executor: str | None = None, *ending: Any, **named: Any
) -> tuple[int, EpilogueArgs]:
    """Return the groups and the epilogue of an operator's last arguments."""
    return groups, EpilogueArgs(*ending, **named)


# -- FlopCounterMode: two per product, padding included, as for torch's own -----------------------

_PRODUCTS = (conv_fprop, conv_fprop_statistics), (conv_dgrad,), (conv_wgrad,)
_of_fprop, _of_dgrad, _of_wgrad = (
    register_flop_formula([operator.overloadpacket for operator in some]) for some in _PRODUCTS
)


@_of_fprop
def _fprop_flops(x: Ints, w: Ints, *_: Any, out_shape: Any, **__: Any) -> int:
    y: Ints = out_shape if isinstance(out_shape[0], int) else out_shape[0]  # with statistics, both
    return 2 * prod(y) * prod(w[1:])


@_of_dgrad
def _dgrad_flops(y: Ints, w: Ints, *_: Any, **__: Any) -> int:
    return 2 * prod(y) * prod(w[1:])


@_of_wgrad
def _wgrad_flops(y: Ints, x: Ints, *_: Any, out_shape: Ints, **__: Any) -> int:
    return 2 * prod(y) * prod(out_shape[1:])


# -- gradients: formulas over the same problem -----------------------------------------------------

OPERATORS = PassRunner(
    pass_of(conv_fprop, dense_passes.fprop, "fprop"),
    pass_of(conv_dgrad, dense_passes.dgrad, "dgrad"),
    pass_of(conv_wgrad, dense_passes.wgrad, "wgrad"),
)


def over(spatial: Ints, taps: Ints, numbers: tuple[Any, ...]) -> PassArguments:
    """Return the arguments of a problem's passes, from the activation's extents and the taps."""
    return PassArguments(numbers, (tuple(spatial), *numbers), (tuple(taps), *numbers))


def of_fprop(x: Tensor, w: Tensor, *numbers: Any) -> tuple[Formula, PassArguments]:
    """Return the gradient formula of ``conv_fprop``, and the arguments of its passes."""
    return formulas.fprop_gradients, over(x.shape[2:], w.shape[2:], numbers)


def of_dgrad(y: Tensor, w: Tensor, spatial: Ints, *numbers: Any) -> tuple[Formula, PassArguments]:
    """Do the same for ``conv_dgrad``."""
    return formulas.dgrad_gradients, over(spatial, w.shape[2:], numbers)


def of_wgrad(y: Tensor, x: Tensor, taps: Ints, *numbers: Any) -> tuple[Formula, PassArguments]:
    """Do the same for ``conv_wgrad``."""
    return formulas.wgrad_gradients, over(x.shape[2:], taps, numbers)


register("conv_fprop", OPERATORS, of_fprop, ends=True)
register("conv_fprop_statistics", OPERATORS, of_fprop, ends=True)
register("conv_dgrad", OPERATORS, of_dgrad, ends=True)
register("conv_wgrad", OPERATORS, of_wgrad, ends=False)
register_autocast(conv_fprop, conv_fprop_statistics, conv_dgrad, conv_wgrad)
