"""Dense convolutions on a CPU in graphs of ``torch.compile``: torch's own operations.

An operator of this package is opaque to a compiler. On a CPU it calls torch's convolution anyway,
so graphs contain that and the epilogue's operations instead, and inductor fuses them. Exported
programs keep the operators, as they are to serve GPUs, packs and ONNX, too.

Like the operator, a graph multiplies 16-bit types in fp32, and rounds once. bfloat16 stays as it is
if oneDNN does both for it, and nothing else rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.torch_internals import sums_bfloat16
from ..cpu.torch_convolution import (
    CONTIGUOUS,
    filter_in_planes,
    in_planes,
    is_right_of_any_extents,
    last_first,
)
from ..ops.autocast import LOWERED
from ..ops.dense_passes import is_torchs_pass
from ..ops.epilogue_args import EpilogueArgs
from ..ops.guard import wants_gradient
from ..tensors.epilogue_in_torch import accumulator_dtype
from ..view.epilogue import Pointwise

_SUMS_BFLOAT16 = sums_bfloat16()
_STORED = None, torch.float16, torch.bfloat16, torch.float32, torch.float64
is_dynamo_compiling = torch.compiler.is_dynamo_compiling
# A torch version without ``is_exporting`` keeps operators in every graph.
is_exporting = getattr(torch.compiler, "is_exporting", is_dynamo_compiling)


class _Modes(NamedTuple):
    """The arguments of torch's convolution.

    Attributes:
        spatial: extents of the input, or of the result of a transposed convolution.
        before, behind: padding that is added to the input first.
        more: output padding of a transposed convolution; None for a convolution.
    """

    taps: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    spatial: Sequence[int]
    before: Sequence[int]
    behind: Sequence[int]
    more: Sequence[int] | None


def sums_in_graph(
    name: str, a: Tensor, b: Tensor, numbers: tuple[Any, ...], ending: EpilogueArgs
) -> tuple[Tensor, EpilogueArgs] | None:
    """Compute the pass "fprop" or "dgrad" as torch's convolution; also return the rest of the
    epilogue.

    Arguments are those of the operators. Returns None outside of ``torch.compile``, and if torch
    does not compute this pass, or computes it wrongly.
    """
    if not is_dynamo_compiling() or is_exporting() or not (_has_cells(a) and _has_cells(b)):
        return None
    if not is_torchs_pass(a, b, numbers) or not _may_record(a, b, ending.bias):
        return None
    bias, scale, residual, activation, slope, out_dtype = ending
    if isinstance(activation, Pointwise) or out_dtype not in _STORED:
        return None
    modes = (_fprop if name == "fprop" else _dgrad)(a, b, numbers)
    if modes is None:
        return None
    low = torch.is_autocast_enabled("cpu") and a.dtype in LOWERED and b.dtype in LOWERED
    kind = torch.get_autocast_dtype("cpu") if low else a.dtype
    multiplied = accumulator_dtype(kind, 1)
    if kind == torch.bfloat16 and _is_right_of_bfloat16(modes) and _rounds_once(ending):
        multiplied = kind
    own, rest = None, bias
    if scale is None and bias is not None and bias.dtype == multiplied:
        own, rest = bias, None
    a, b = a.to(kind).to(multiplied), b.to(kind).to(multiplied)
    left = EpilogueArgs(rest, scale, residual, activation, slope, out_dtype or kind)
    return _convolved(a, b, own, modes), left


def _has_cells(tensor: Tensor) -> bool:
    """Return whether a compiler may test the number of elements, and it is not zero.

    It may not test the number of rows of ``nonzero``, for one.
    """
    from torch.fx.experimental import symbolic_shapes  # takes 0.5 s, which a compiler has spent

    ask = getattr(symbolic_shapes, "guard_or_false", None)  # missing in some versions of torch
    return ask is not None and bool(ask(tensor.numel() > 0))


def _may_record(a: Tensor, b: Tensor, bias: Tensor | None) -> bool:
    """Return whether no gradient is wanted, or no size of it is a symbol.

    Inductor (torch 2.13) compiles ``convolution_backward`` again for each spatial size.
    """
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return not wants_gradient(a, b, bias) or all(has_static_value(n) for n in a.shape[1:])


def _fprop(x: Tensor, w: Tensor, numbers: tuple[Any, ...]) -> _Modes | None:
    """Return the arguments of a forward pass; None if torch computes it wrongly."""
    stride, padding, dilation, groups, _ = numbers
    taps, near, far = w.shape[2:], padding[::2], padding[1::2]
    both = [min(sides) for sides in zip(near, far, strict=True)]
    apart = _apart(taps, dilation)
    if not is_right_of_any_extents(x.shape[1], taps, stride, both, apart, groups):
        return None
    if len(taps) > 1 and stride[-2] > 1:
        beyond = x.shape[-1] + near[-1] + far[-1] - dilation[-1] * (taps[-1] - 1) - 1
        if beyond < stride[-1]:  # a line has one window
            return None
    before = [n - b for n, b in zip(near, both, strict=True)]
    behind = [f - b for f, b in zip(far, both, strict=True)]
    return _Modes(taps, stride, both, apart, groups, x.shape[2:], before, behind, None)


def _dgrad(y: Tensor, w: Tensor, numbers: tuple[Any, ...]) -> _Modes | None:
    """Return the arguments of a transposed convolution; None if torch computes it wrongly."""
    spatial, stride, padding, dilation, groups, _ = numbers
    taps, near = w.shape[2:], padding[::2]
    apart, none = _apart(taps, dilation), [0 for _ in taps]
    if near != padding[1::2]:
        return None
    if not is_right_of_any_extents(w.shape[1] * groups, taps, stride, near, apart, groups):
        return None
    if len(taps) > 1 and stride[-2] > 1 and y.shape[-1] == 1:
        return None
    each = zip(spatial, y.shape[2:], stride, near, apart, taps, strict=True)
    more = [e - ((z - 1) * s - 2 * p + d * (t - 1) + 1) for e, z, s, p, d, t in each]
    return _Modes(taps, stride, near, apart, groups, spatial, none, none, more)


def _apart(taps: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Return the dilations, with 1 for a mode of one tap."""
    return [1 if tap == 1 else d for tap, d in zip(taps, dilation, strict=True)]


def _is_right_of_bfloat16(modes: _Modes) -> bool:
    """Return whether oneDNN multiplies bfloat16, and computes all passes right.

    Each tap has to meet a cell that is no padding, whatever the windows: otherwise oneDNN leaves
    the filter's gradient unwritten, with three modes wherever the filter spans both sides of the
    padding. Found by guards around 6,000 problems, with torch 2.13 and AVX-512. With AMX it sums
    wrongly for a filter (1, 3, 2) with strides of 4 and a dilation of 2: so none may be dilated.
    """
    if not _SUMS_BFLOAT16 or max(modes.dilation) > 1:
        return False
    counted = modes.padding if len(modes.taps) < 3 else [0, 0, 0]
    each = zip(modes.taps, modes.stride, counted, modes.spatial, strict=True)
    return all(step <= extent and tap + step <= extent + p + 1 for tap, step, p, extent in each)


def _rounds_once(ending: EpilogueArgs) -> bool:
    """Return whether rounding the sums to bfloat16 is the only rounding.

    ReLU commutes with it. A bias that torch adds has the dtype of the operands.
    """
    bias, scale, residual, activation, _, out_dtype = ending
    if bias is not None and bias.dtype != torch.bfloat16:
        return False
    if scale is not None or residual is not None or activation not in (None, "relu"):
        return False
    return out_dtype in (None, torch.bfloat16)


def _convolved(a: Tensor, w: Tensor, bias: Tensor | None, modes: _Modes) -> Tensor:
    rank, more = len(modes.taps), modes.more
    if any(modes.before) or any(modes.behind):
        a = torch.nn.functional.pad(a, last_first(modes.before, modes.behind))
    one, none = [1] * (2 - rank), [0] * (2 - rank)  # lines are planes of one row
    y = torch.convolution(
        in_planes(a), filter_in_planes(w), bias, [*one, *modes.stride], [*none, *modes.padding],
        [*one, *modes.dilation], more is not None, [*none, *(more or [0] * rank)], modes.groups,
    )  # fmt: skip
    y = y.contiguous(memory_format=CONTIGUOUS[y.dim()])
    return y.squeeze(2) if rank == 1 else y
