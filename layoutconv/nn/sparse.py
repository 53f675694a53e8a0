"""Sparse convolutions as functions of sparse tensors.

A weight is (K, *taps, C / groups), in this memory order: the modes between the channels are the
filter's, (T, R, S) in 3-D, so functions need no kernel size. Each function finds or makes its
kernel map, which tensors on the same coordinates share. Given a ``kernel_map``, it looks nothing
up, which suits ``torch.compile`` and CUDA graphs.

Each function fuses an epilogue: ``activation(scale * sum + bias + residual)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..base.torch_internals import is_tracing
from ..conv.problem import Ints, Padding
from ..errors import ArgumentError, ArgumentTypeError
from ..ops import sparse_calls
from ..ops import sparse_operators as executor
from ..ops.autocast import autocast_dtype, without_autocast
from ..ops.epilogue_args import EpilogueArgs, tensors_in
from ..ops.formulas import has_gradient, wide_sums
from ..ops.guard import guards_of_torch_hold, is_constant, is_plain, wants_gradient
from ..sparse import KernelMap, SparseTensor, strided_map, submanifold_map, transposed_map
from ..sparse.coords.cell_errors import traced
from ..sparse.coords.row_plan import poisoned
from ..tensors.epilogue_in_torch import activate, convert
from ..view.epilogue import Pointwise
from .arguments import (
    check_activation,
    check_function,
    check_function_places,
    check_out_dtype,
)
from .fuse import after, before_torch, fused_or_not
from .given_maps import check_cells_of_map, check_map
from .own_function import contiguous_columns
from .repeated import through
from .sparse_checks import NARROW, check_features, check_narrow, check_operands
from .sparse_depthwise import sparse_depthwise

if TYPE_CHECKING:
    from torch import Tensor

    from ..sparse import Coordinates


_EXACT = torch.float64

__all__ = ["sparse_conv", "sparse_conv_transpose", "sparse_inverse_conv", "subm_conv"]


def subm_conv(
    input: SparseTensor,
    weight: Tensor,
    bias: Tensor | None = None,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    offsets: Sequence[Sequence[int]] | None = None,
    kernel_map: KernelMap | None = None,
    activation: str | Pointwise | None = None,
    slope: float = 0.01,
    scale: Tensor | float | None = None,
    residual: SparseTensor | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> SparseTensor:
    """Submanifold convolution: the output cells are the input cells, row for row (Graham and van
    der Maaten, *Submanifold Sparse Convolutional Networks*, 2017).

    Args:
        input: features (rows, C) of float16, bfloat16, float32 or float64; without gradients also
            of int8, float8_e4m3fn or float8_e5m2.
        weight: ``(K, *taps, C / groups)`` of the dtype of the features. An even filter reaches one
            cell further down than up.
        bias: (K,).
        dilation: an int >= 1, or one per spatial mode.
        groups: the number of groups of channels that convolve separately; it divides C and K.
        offsets: a cell ``(dz, dy, dx)`` for each tap, in any set: ``weight`` is then (K, taps, C /
            groups).
        kernel_map: the map to use, instead of that of ``dilation`` or ``offsets``, which must then
            have their defaults.
        activation: "relu", "leaky_relu" (with ``slope`` below zero), "gelu", "gelu_tanh", "silu",
            "sigmoid", "tanh", "hardswish" or "relu6"; or a :class:`~layoutconv.Pointwise`, a
            function of your own: columns are channels, (K,), sources are (rows, K), and a row is
            one of the result.
        scale: (K,) or a number, multiplies the sums first.
        residual: (rows, K), or a tensor on these cells, added before the activation; of 8 bits if
            the input is.
        out_dtype: the dtype of the result, by default that of the features, int32 for int8 and
            float16 for fp8; converted with saturation.

    Returns a tensor of K channels on the coordinates of ``input``. Differentiable any number of
    times, in features, weight, bias and residual; lowered under autocast; sums in fp32 (fp64 for
    float64, exact int32 for int8), the same bits every time. An absent tap adds nothing.

    Raises :class:`~layoutconv.errors.ArgumentError`, a ``ValueError``, that names the argument.

    >>> cells = torch.tensor([[0, 1, 1], [0, 1, 2], [0, 3, 0]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[1.0], [10.0], [100.0]]), cells, (4, 4), batch_size=1)
    >>> subm_conv(x, torch.ones(1, 3, 3, 1)).features.T
    tensor([[ 11.,  11., 100.]])
    """
    _check_input(input)
    if kernel_map is None:
        taps = _taps(input, weight, offsets)
        kernel_map = submanifold_map(input.coordinates, taps, dilation, offsets)
    else:
        check_map(kernel_map, dilation=(dilation, 1), offsets=(offsets, None))
    ending = bias, scale, residual, activation, slope, out_dtype
    return _convolution(input, weight, kernel_map, groups, ending)


def sparse_conv(
    input: SparseTensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    offsets: Sequence[Sequence[int]] | None = None,
    outputs: Coordinates | None = None,
    capacity: int | None = None,
    kernel_map: KernelMap | None = None,
    activation: str | Pointwise | None = None,
    slope: float = 0.01,
    scale: Tensor | float | None = None,
    residual: SparseTensor | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> SparseTensor:
    """Convolution whose outputs are all cells that an input reaches.

    Args:
        stride, padding, dilation: those of a dense convolution, which define the grid of the
            outputs.
        outputs: the cells to compute, instead of all.
        capacity: the number of rows of the result, whatever the number of cells: see
            :func:`~layoutconv.sparse.strided_map`.
        input, weight, bias, groups, offsets, kernel_map: as of :func:`subm_conv`; a map also
            replaces the arguments above.
        activation, slope, scale, residual, out_dtype: as of :func:`subm_conv`, too.

    Returns a tensor of K channels, rows in lexicographic order of ``(batch, z, y, x)``.

    >>> x = SparseTensor.from_dense(torch.eye(4).view(1, 4, 4, 1))
    >>> y = sparse_conv(x, torch.ones(1, 2, 2, 1), stride=2)
    >>> y.coords.tolist(), y.features.tolist()
    ([[0, 0, 0], [0, 1, 1]], [[2.0], [2.0]])
    """
    _check_input(input)
    if kernel_map is None:
        kernel_map = strided_map(
            input.coordinates, _taps(input, weight, offsets), stride, padding, dilation,
            offsets=offsets, outputs=outputs, capacity=capacity,
        )  # fmt: skip
    else:
        check_map(
            kernel_map, stride=(stride, 1), padding=(padding, 0), dilation=(dilation, 1),
            offsets=(offsets, None), outputs=(outputs, None), capacity=(capacity, None),
        )  # fmt: skip
    ending = bias, scale, residual, activation, slope, out_dtype
    return _convolution(input, weight, kernel_map, groups, ending)


def sparse_conv_transpose(
    input: SparseTensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    *,
    offsets: Sequence[Sequence[int]] | None = None,
    outputs: Coordinates | None = None,
    capacity: int | None = None,
    kernel_map: KernelMap | None = None,
    activation: str | Pointwise | None = None,
    slope: float = 0.01,
    scale: Tensor | float | None = None,
    residual: SparseTensor | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> SparseTensor:
    """Transposed convolution: generative, unless ``outputs`` names the cells to compute.

    Args:
        stride, padding, output_padding, dilation: those of
            ``torch.nn.functional.conv_transpose3d``, which define the grid of the outputs.
        weight: ``(K, *taps, C / groups)``, for K output channels.
        input, bias, groups, offsets, outputs, capacity, kernel_map: as of :func:`sparse_conv`.
        activation, slope, scale, residual, out_dtype: as of :func:`sparse_conv`, too.

    >>> x = SparseTensor.from_dense(torch.tensor([[[0.0], [3.0]]]))
    >>> y = sparse_conv_transpose(x, torch.tensor([[[1.0], [10.0]]]), stride=2)
    >>> y.coords.tolist(), y.features.tolist()
    ([[0, 2], [0, 3]], [[3.0], [30.0]])
    """
    _check_input(input)
    if kernel_map is None:
        kernel_map = transposed_map(
            input.coordinates, _taps(input, weight, offsets), stride, padding, output_padding,
            dilation, offsets=offsets, outputs=outputs, capacity=capacity,
        )  # fmt: skip
    else:
        check_map(
            kernel_map, stride=(stride, 1), padding=(padding, 0),
            output_padding=(output_padding, 0), dilation=(dilation, 1), offsets=(offsets, None),
            outputs=(outputs, None), capacity=(capacity, None),
        )  # fmt: skip
    ending = bias, scale, residual, activation, slope, out_dtype
    return _convolution(input, weight, kernel_map, groups, ending)


def sparse_inverse_conv(
    input: SparseTensor,
    weight: Tensor,
    bias: Tensor | None = None,
    groups: int = 1,
    *,
    kernel_map: KernelMap | None = None,
    activation: str | Pointwise | None = None,
    slope: float = 0.01,
    scale: Tensor | float | None = None,
    residual: SparseTensor | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> SparseTensor:
    """Convolution from the outputs of a strided convolution back to the cells of its inputs.

    Args:
        kernel_map: the map of the convolution to invert; by default the one that made ``input``'s
            coordinates.
        input, weight, bias, groups, activation, slope, scale, residual, out_dtype: as of
            :func:`subm_conv`; the filter has the taps of the map.

    >>> x = SparseTensor.from_dense(torch.eye(4).view(1, 4, 4, 1))
    >>> y = sparse_conv(x, torch.ones(1, 2, 2, 1), stride=2)
    >>> z = sparse_inverse_conv(y, torch.ones(1, 2, 2, 1))
    >>> z.coordinates is x.coordinates, z.features.tolist()
    (True, [[2.0], [2.0], [2.0], [2.0]])
    """
    _check_input(input)
    found = input.coordinates.origin if kernel_map is None else check_map(kernel_map)
    if found is None:
        expected = "the kernel map to invert, as no convolution made these coordinates"
        raise ArgumentError("kernel_map", expected, None)
    if input.coordinates is not found.outputs:
        check_cells_of_map("input", input, found.outputs, "outputs")
    ending = bias, scale, residual, activation, slope, out_dtype
    return _convolution(input, weight, found.inverse, groups, ending)


def _convolution(
    input: SparseTensor, weight: Tensor, found: KernelMap, groups: int, ending: tuple
) -> SparseTensor:
    """Convolve; ``ending`` has the fields of :class:`EpilogueArgs`, with any residual."""
    x, outputs, residual = input.features, found.outputs, ending[2]
    if input.coordinates is not found.inputs:
        check_cells_of_map("input", input, found.inputs, "inputs")
    if isinstance(residual, SparseTensor):
        if residual.coordinates.cells is not outputs.cells:
            expected = "features, or a tensor on the coordinates of the result"
            raise ArgumentError("residual", expected, residual.coordinates)
        bias, scale, _, activation, slope, out_dtype = ending
        ending = bias, scale, residual.features, activation, slope, out_dtype
    return placed(input, outputs, convolved(x, weight, found, groups, ending))


def convolved(x: Tensor, weight: Tensor, found: KernelMap, groups: int, ending: Any) -> Tensor:
    """Convolve features of a map's inputs; returns features (rows, K).

    ``ending`` has the fields of :class:`EpilogueArgs`, but may be any tuple. This is the fast path
    of warm calls: a known call finds what runs it.
    """
    bias, scale, residual, last, slope, out_dtype = ending
    if isinstance(last, Pointwise):
        ending = EpilogueArgs(*ending)
        call = sparse_calls.find_function(found, groups, (x, weight), ending)
        if call is not None:
            return call.run_function(last, x, weight, bias, scale, residual, found)
    else:
        given = groups, last, slope
        call = sparse_calls.find(found, given, out_dtype, x, weight, bias, scale, residual)
        lowers = None if call is None else call.lowers
        if call is not None and (
            lowers is None or lowers is torch.get_autocast_dtype(x.device.type)
        ):
            return call.run(x, weight, bias, scale, residual, found)
        ending = EpilogueArgs(*ending)
    if found.ways.extended is not None:
        return _over_repeated(x, weight, found, groups, ending)
    low = None if torch.compiler.is_compiling() else autocast_dtype(x, weight)
    if low is None:
        return _checked(x, weight, found, groups, ending)
    if x.dtype is not low:
        return convolved(x.to(low), weight, found, groups, ending)
    return _below_autocast(x, weight, found, groups, ending)


def _below_autocast(
    x: Tensor, weight: Tensor, found: KernelMap, groups: int, ending: EpilogueArgs
) -> Tensor:
    """Convolve features that autocast has lowered, and lower the filter.

    The call's findings are kept for later calls under autocast, which lower the filter in the one
    function that autograd records. The first call is recorded in the same way, so that the gradient
    of its filter is rounded no more often.
    """
    _check_numbers(x, ending)  # before they are compared
    bias, scale, residual, last, slope, out_dtype = ending
    given, tensors = (groups, last, slope), (x, weight, bias, scale, residual)
    known, records = None, torch.is_grad_enabled()
    with without_autocast(x.device.type):
        again = _is_recorded_later(x, weight, found, groups, ending)
        with torch.set_grad_enabled(records and not again):
            lowered = weight.to(x.dtype)
            y = convolved(x, lowered, found, groups, ending)
            if not isinstance(last, Pointwise):
                known = sparse_calls.signature_of(found, given, out_dtype, x, lowered, *tensors[2:])
    if known is not None:
        sparse_calls.keep_lowering(known, found, given, out_dtype, *tensors)
    if again:
        del y  # its memory serves the second run
        call = sparse_calls.find(found, given, out_dtype, *tensors)
        if call is not None:
            return call.run(*tensors, found)
        with without_autocast(x.device.type):
            return convolved(x, weight.to(x.dtype), found, groups, ending)
    return y


def _is_recorded_later(
    x: Tensor, weight: Tensor, found: KernelMap, groups: int, ending: EpilogueArgs
) -> bool:
    """Return whether autograd records a call that will be kept, and recorded in its kept form."""
    bias, scale, residual, last, _, _ = ending
    there = [t for t in (bias, scale, residual) if isinstance(t, torch.Tensor)]
    columns = [t for t in there if t is not residual]  # the residual has a guard of its own
    return (
        wants_gradient(x, weight, *there)
        and not isinstance(last, Pointwise)
        and not _is_depthwise(x, groups)
        and len(found.outputs) > 1
        and weight.numel() > 0
        and guards_of_torch_hold(x, weight, *columns)
        and sparse_calls.remembers(found, groups, (x, weight), ending)
    )


def _over_repeated(
    x: Tensor, weight: Tensor, found: KernelMap, groups: int, ending: EpilogueArgs
) -> Tensor:
    """Convolve features where some cells occur more than once; returns features (rows, K)."""
    _check_numbers(x, ending)
    _check_over(found, x, weight, groups, ending)
    bare = EpilogueArgs(out_dtype=before_torch(x.dtype, ending.out_dtype))
    if isinstance(ending.activation, Pointwise):
        named = ending.activation, ending.slope, ending.out_dtype or x.dtype
        ending = EpilogueArgs(*tensors_in(ending), *named)
        bare = EpilogueArgs(*wide_sums(x.dtype))

    def sums(extended: Tensor, over: KernelMap) -> Tensor:
        return convolved(extended, weight, over, groups, bare)

    return after(through(found, x, sums), ending)


def _checked(
    x: Tensor, weight: Tensor, found: KernelMap, groups: int, asked: EpilogueArgs
) -> Tensor:
    """Convolve features, with every check; returns features (rows, K)."""
    bias, scale, residual, activation, slope, out_dtype = asked
    _check_numbers(x, asked)
    depthwise = _is_depthwise(x, groups)
    if (
        activation is not None
        and not isinstance(activation, Pointwise)
        and not depthwise
        and not torch.compiler.is_compiling()
        and not has_gradient(activation, slope)
    ):
        there = [t for t in (x, weight, bias, scale, residual) if t is not None]
        if is_constant(scale) and wants_gradient(*there) and is_plain(*there):
            # One function that autograd records gives the sums; torch applies the activation.
            middle = before_torch(x.dtype, out_dtype)
            linear = EpilogueArgs(bias, scale, residual, None, slope, middle)
            sums = convolved(x, weight, found, groups, linear)
            y = activate(sums, activation, slope)
            return convert(y, out_dtype or sums.dtype)
    _check_over(found, x, weight, groups, asked)
    if isinstance(activation, Pointwise) and not depthwise and not torch.compiler.is_compiling():
        asked = contiguous_columns(asked)
        call = sparse_calls.bound(found, groups, (x, weight), asked)
        if call is not None:
            function: Any = asked.activation
            return call.run_function(function, x, weight, bias, scale, residual, found)
    column: Any = scale
    if scale is not None and not isinstance(scale, torch.Tensor):
        exact = _EXACT if x.dtype == _EXACT else torch.float32
        column = torch.full((weight.shape[0],), float(scale), dtype=exact, device=x.device)
    ending = asked.of(bias, column, residual)
    if depthwise:
        return after(sparse_depthwise(x, weight, found), ending)
    gradients = wants_gradient(x, weight, bias, column, residual)
    channels = x.shape[1], weight.shape[0]
    maps = executor.tables(found, channels, gradients=gradients, dtype=x.dtype)
    numbers = *maps, found.outputs.rows, groups, False, found.mirrored
    operator = executor.sparse_conv if gradients else executor.conv_of_tensors
    y = fused_or_not(operator, x, weight, numbers, ending)
    if not isinstance(activation, Pointwise):
        sparse_calls.remember(found, groups, (x, weight), asked, y)
    return y


def _is_depthwise(x: Tensor, groups: int) -> bool:
    """Return whether nothing is summed over channels: torch runs the epilogue, no call is kept."""
    return isinstance(groups, int) and bool(groups == x.shape[1] > 1)


def placed(input: SparseTensor, coordinates: Coordinates, features: Tensor) -> SparseTensor:
    """Make a tensor of features that are known to fit; the constructor's checks take microseconds.

    On the cells of ``input`` it has the kind of ``input``, so that voxels can go back to points.
    """
    features = poisoned(features, coordinates) if coordinates.padded else features
    if coordinates is input.coordinates and type(input) is not SparseTensor:
        return input.replace(features)
    if torch.compiler.is_compiling():
        return SparseTensor(features, coordinates)
    made = object.__new__(SparseTensor)
    made.__dict__.update(features=features, coordinates=coordinates)
    return made


def _taps(input: SparseTensor, weight: Tensor, offsets: Any) -> tuple[int, ...]:
    if not isinstance(weight, torch.Tensor):
        raise ArgumentTypeError("weight", "a torch tensor", type(weight).__name__)
    if not torch.compiler.is_compiling() and is_tracing():
        raise traced("weight")
    rank = 1 if offsets is not None else input.coordinates.rank
    if weight.dim() != rank + 2:
        expected = f"(K, {'taps' if offsets is not None else f'{rank} modes of taps'}, C / groups)"
        raise ArgumentError("weight", expected, f"shape {tuple(weight.shape)}")
    return tuple(weight.shape[1:-1])


def _check_input(input: SparseTensor) -> None:
    if not isinstance(input, SparseTensor):
        raise ArgumentTypeError("input", "a SparseTensor", type(input).__name__)


def _check_numbers(x: Tensor, ending: EpilogueArgs) -> None:
    """Raise unless features, and the epilogue's options other than tensors, are supported."""
    check_features(x, NARROW)
    if not isinstance(ending.activation, Pointwise):
        check_activation(ending.activation, ending.slope, x)
    check_out_dtype(ending.out_dtype, x)


def _check_over(
    found: KernelMap, x: Tensor, weight: Tensor, groups: int, ending: EpilogueArgs
) -> None:
    """Raise unless tensors fit a kernel map."""
    rows, function = found.outputs.rows, ending.activation
    check_operands(x, weight, found.taps, rows, groups, ending)
    if x.dtype in NARROW:
        check_narrow(x, weight, groups, ending, repeated=found.ways.extended is not None)
    if isinstance(function, Pointwise):
        check_function(function, x, weight.shape[0])
        check_function_places(function, rows, (rows, weight.shape[0]))
    if found.outputs.cells.device != x.device:
        expected = f"{x.device}, where the input is"
        raise ArgumentError("kernel_map", expected, str(found.outputs.cells.device))
