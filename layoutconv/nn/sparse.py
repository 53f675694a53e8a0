"""Sparse convolutions as functions of sparse tensors.

A weight is (K, *taps, C / groups), the order of memory: its modes between the channels are the
filter's, (T, R, S) in 3-D, so a function needs no kernel size. Each function finds or makes its
kernel map, which tensors on the same coordinates share; ``kernel_map`` gives it one instead, and
then nothing is looked up: that is what ``torch.compile`` and CUDA graphs want.

Each has what may follow the sums fused into it: ``activation(scale * sum + bias + residual)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..base.torch_internals import is_any_autocast_enabled
from ..conv.problem import Padding
from ..errors import ArgumentError, ArgumentTypeError
from ..ops import sparse_calls
from ..ops import sparse_operators as executor
from ..ops.epilogue_args import EpilogueArgs
from ..ops.formulas import has_gradient
from ..ops.guard import is_constant, is_plain, wants_gradient
from ..sparse import KernelMap, SparseTensor, strided_map, submanifold_map, transposed_map
from ..tensors.epilogue_in_torch import activate, convert
from ..view.epilogue import is_number
from .arguments import check_activation, check_out_dtype
from .fuse import after, before_torch, fused_or_not
from .given_maps import check_cells, check_map
from .repeated import through
from .sparse_pool import sparse_depthwise

if TYPE_CHECKING:
    from torch import Tensor

    from ..sparse import Coordinates

Ints = int | Sequence[int]

_EXACT = torch.float64
_LOWERED = frozenset({torch.float16, torch.bfloat16, torch.float32})
_DTYPES = _LOWERED | {_EXACT}

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
    activation: str | None = None,
    slope: float = 0.01,
    scale: Tensor | float | None = None,
    residual: SparseTensor | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> SparseTensor:
    """Submanifold convolution: its outputs are its inputs' cells, row for row (Graham and van der
    Maaten, *Submanifold Sparse Convolutional Networks*, 2017).

    Args:
        input: features (rows, C) of float16, bfloat16, float32 or float64.
        weight: ``(K, *taps, C / groups)`` of the dtype of the features. An even filter reaches one
            cell further down than up.
        bias: (K,).
        dilation: an int >= 1, or one per spatial mode.
        groups: how many groups of channels convolve by themselves; it divides C and K.
        offsets: a cell ``(dz, dy, dx)`` for each tap, any set of them: ``weight`` is then (K, taps,
            C / groups).
        kernel_map: the map to use, in place of that of ``dilation`` or ``offsets``, which are then
            left at their defaults.
        activation: "relu", "leaky_relu" (with ``slope`` below zero), "gelu", "gelu_tanh", "silu",
            "sigmoid", "tanh" or "hardswish".
        scale: (K,) or a number, what the sums are multiplied by first.
        residual: (rows, K), or a tensor of these cells, added before the activation.
        out_dtype: the dtype of the result, by default that of the features.

    Returns a tensor of K channels on the coordinates of ``input``. Differentiable any number of
    times, in features, weight, bias and residual; lowered under autocast; sums in fp32 (fp64 for
    float64), the same bits every time.

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
    return _convolution(
        input, weight, kernel_map, groups, bias, scale, residual, activation, slope, out_dtype
    )


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
    activation: str | None = None,
    slope: float = 0.01,
    scale: Tensor | float | None = None,
    residual: SparseTensor | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> SparseTensor:
    """Convolution whose outputs are all cells that some input reaches.

    Args:
        stride, padding, dilation: of a dense convolution, whose grid the outputs have.
        outputs: the cells to compute, in place of all.
        capacity: how many rows the result has, whatever the number of cells: see
            :func:`~layoutconv.sparse.strided_map`.
        input, weight, bias, groups, offsets, kernel_map: as of :func:`subm_conv`; the map is in
            place of all those, too.
        activation, slope, scale, residual, out_dtype: as of that, too.

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
    return _convolution(
        input, weight, kernel_map, groups, bias, scale, residual, activation, slope, out_dtype
    )


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
    activation: str | None = None,
    slope: float = 0.01,
    scale: Tensor | float | None = None,
    residual: SparseTensor | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> SparseTensor:
    """Transposed convolution: generative, unless ``outputs`` names the cells to compute.

    Args:
        stride, padding, output_padding, dilation: of ``torch.nn.functional.conv_transpose3d``,
            whose grid the outputs have.
        weight: ``(K, *taps, C / groups)``; K channels come out.
        input, bias, groups, offsets, outputs, capacity, kernel_map: as of :func:`sparse_conv`.
        activation, slope, scale, residual, out_dtype: as of that, too.

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
    return _convolution(
        input, weight, kernel_map, groups, bias, scale, residual, activation, slope, out_dtype
    )


def sparse_inverse_conv(
    input: SparseTensor,
    weight: Tensor,
    bias: Tensor | None = None,
    groups: int = 1,
    *,
    kernel_map: KernelMap | None = None,
    activation: str | None = None,
    slope: float = 0.01,
    scale: Tensor | float | None = None,
    residual: SparseTensor | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> SparseTensor:
    """The way back from a strided convolution: to the cells that this had as inputs.

    Args:
        kernel_map: the map of the convolution that is gone back through; by default the one that
            ``input``'s coordinates came from.
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
        expected = "the map to go back through: these coordinates came from no convolution"
        raise ArgumentError("kernel_map", expected, None)
    if input.coordinates is not found.outputs:
        check_cells("input", input, found.outputs, "outputs")
    return _convolution(
        input, weight, found.inverse, groups, bias, scale, residual, activation, slope, out_dtype
    )


def _convolution(
    input: SparseTensor,
    weight: Tensor,
    found: KernelMap,
    groups: int,
    bias: Tensor | None,
    scale: Tensor | float | None,
    residual: SparseTensor | Tensor | None,
    activation: str | None,
    slope: float,
    out_dtype: torch.dtype | None,
) -> SparseTensor:
    x, outputs = input.features, found.outputs
    if input.coordinates is not found.inputs:
        check_cells("input", input, found.inputs, "inputs")
    if isinstance(residual, SparseTensor):
        if residual.coordinates.cells is not outputs.cells:
            expected = "a tensor on the coordinates of the result, or features"
            raise ArgumentError("residual", expected, residual.coordinates)
        residual = residual.features
    given = groups, activation, slope
    call = sparse_calls.find(found, given, out_dtype, x, weight, bias, scale, residual)
    if call is not None:
        return _on(input, outputs, call.run(x, weight, bias, scale, residual, found))
    ending = EpilogueArgs(bias, scale, residual, activation, slope, out_dtype)
    if found.ways.extended is not None:
        return _on(input, outputs, _over_repeated(x, weight, found, groups, ending))
    others = found, groups, ending
    low = None if torch.compiler.is_compiling() else _lowered(x, weight)
    if low is None:
        return _on(input, outputs, _checked(x, weight, *others))
    # As torch.autocast(kind, enabled=False) does it, in a fifth of the time.
    kind = x.device.type
    torch.set_autocast_enabled(kind, False)
    try:
        return _on(input, outputs, _features(x.to(low), weight.to(low), *others))
    finally:
        torch.set_autocast_enabled(kind, True)


def _over_repeated(
    x: Tensor, weight: Tensor, found: KernelMap, groups: int, ending: EpilogueArgs
) -> Tensor:
    """The features (rows, K) of a convolution where some cells are there more than once."""
    check_features(x)
    check_activation(ending.activation, ending.slope, x)
    check_out_dtype(ending.out_dtype, x)
    _check_over(found, x, weight, groups, ending)
    bare = EpilogueArgs(out_dtype=before_torch(x.dtype, ending.out_dtype))

    def sums(extended: Tensor, over: KernelMap) -> Tensor:
        rows = SparseTensor(extended, over.inputs)
        return _convolution(rows, weight, over, groups, *bare).features

    return after(through(found, x, sums), ending)


def _features(
    x: Tensor, weight: Tensor, found: KernelMap, groups: int, ending: EpilogueArgs
) -> Tensor:
    """The features (rows, K) of a convolution, where something may be known of it."""
    bias, scale, residual, *last, out_dtype = ending
    call = sparse_calls.find(found, (groups, *last), out_dtype, x, weight, bias, scale, residual)
    if call is not None:
        return call.run(x, weight, bias, scale, residual, found)
    return _checked(x, weight, found, groups, ending)


def _checked(
    x: Tensor, weight: Tensor, found: KernelMap, groups: int, asked: EpilogueArgs
) -> Tensor:
    """The features (rows, K) of a convolution, with every check."""
    bias, scale, residual, activation, slope, out_dtype = asked
    check_features(x)
    check_activation(activation, slope, x)
    check_out_dtype(out_dtype, x)
    depthwise = groups == x.shape[1] > 1  # nothing is summed over channels, and torch does the rest
    if (
        activation is not None
        and not depthwise
        and not torch.compiler.is_compiling()
        and not has_gradient(activation, slope)
    ):
        there = [t for t in (x, weight, bias, scale, residual) if t is not None]
        if is_constant(scale) and wants_gradient(*there) and is_plain(*there):
            # Sums as one function that autograd records, and the activation as torch's.
            middle = before_torch(x.dtype, out_dtype)
            linear = EpilogueArgs(bias, scale, residual, None, slope, middle)
            sums = _features(x, weight, found, groups, linear)
            y = activate(sums, activation, slope)
            return convert(y, out_dtype or sums.dtype)
    _check_over(found, x, weight, groups, asked)
    column: Any = scale
    if scale is not None and not isinstance(scale, torch.Tensor):
        exact = torch.promote_types(x.dtype, torch.float32)
        column = torch.full((weight.shape[0],), float(scale), dtype=exact, device=x.device)
    ending = asked.of(bias, column, residual)
    if depthwise:
        return after(sparse_depthwise(x, weight, found), ending)
    gradients = wants_gradient(x, weight, bias, column, residual)
    maps = executor.tables(found, (x.shape[1], weight.shape[0]), gradients=gradients)
    numbers = *maps, len(found.outputs), groups, False, found.mirrored
    operator = executor.sparse_conv if gradients else executor.conv_of_tensors
    y = fused_or_not(operator, x, weight, numbers, ending)
    sparse_calls.remember(found, groups, (x, weight), asked, y)
    return y


def _lowered(x: Tensor, weight: Tensor) -> torch.dtype | None:
    """The dtype that autocast wants both in; None where it is off, or wants nothing of them."""
    if not is_any_autocast_enabled() or not isinstance(weight, torch.Tensor):
        return None
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or not {x.dtype, weight.dtype} <= _LOWERED:
        return None
    return torch.get_autocast_dtype(kind)


def _on(input: SparseTensor, coordinates: Coordinates, features: Tensor) -> SparseTensor:
    """A tensor of features that are known to fit: what a constructor asks takes microseconds.

    On the cells of ``input`` it is of its kind: what is computed of voxels goes back to points.
    """
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
    rank = 1 if offsets is not None else input.coordinates.rank
    if weight.dim() != rank + 2:
        expected = f"(K, {'taps' if offsets is not None else f'{rank} modes of taps'}, C / groups)"
        raise ArgumentError("weight", expected, f"shape {tuple(weight.shape)}")
    return tuple(weight.shape[1:-1])


def _check_input(input: SparseTensor) -> None:
    if not isinstance(input, SparseTensor):
        raise ArgumentTypeError("input", "a SparseTensor", type(input).__name__)


def _check_over(
    found: KernelMap, x: Tensor, weight: Tensor, groups: int, ending: EpilogueArgs
) -> None:
    """Raise unless tensors fit a kernel map."""
    check_operands(x, weight, found.taps, len(found.outputs), groups, ending)
    if found.outputs.cells.device != x.device:
        expected = f"{x.device}, where the input is"
        raise ArgumentError("kernel_map", expected, str(found.outputs.cells.device))


def check_operands(
    x: Tensor,
    weight: Tensor,
    taps: tuple[int, ...],
    rows: int,
    groups: int,
    ending: EpilogueArgs,
) -> None:
    """Raise unless tensors fit a convolution of so many taps to so many rows."""
    if not isinstance(weight, torch.Tensor):
        raise ArgumentTypeError("weight", "a torch tensor", type(weight).__name__)
    if weight.dim() != len(taps) + 2:
        expected = f"(K, {len(taps)} modes of taps, C / groups)"
        raise ArgumentError("weight", expected, f"shape {tuple(weight.shape)}")
    if not isinstance(groups, int) or isinstance(groups, bool) or groups < 1 or (
        x.shape[1] % groups or weight.shape[0] % groups
    ):  # fmt: skip
        expected = f"an int >= 1 that divides C = {x.shape[1]} and K = {weight.shape[0]}"
        raise ArgumentError("groups", expected, groups)
    shape: tuple[int, ...] = weight.shape[0], *taps, x.shape[1] // groups
    if tuple(weight.shape) != shape:
        expected = f"shape {shape}, (K, *taps, C / groups)"
        raise ArgumentError("weight", expected, f"shape {tuple(weight.shape)}")
    _check_weight_dtype(x, weight)
    K = weight.shape[0]
    shapes: dict[str, tuple[int, ...]] = {"bias": (K,), "scale": (K,), "residual": (rows, K)}
    for (name, shape), tensor in zip(shapes.items(), ending[:3], strict=True):
        if tensor is None or (name == "scale" and is_number(tensor)):
            continue
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentTypeError(name, "a torch tensor", type(tensor).__name__)
        if tuple(tensor.shape) != shape:
            raise ArgumentError(name, f"shape {shape}", f"shape {tuple(tensor.shape)}")
        if tensor.device != x.device:
            raise ArgumentError(name, f"{x.device}, where the input is", str(tensor.device))
        if tensor.dtype not in _DTYPES or (tensor.dtype == _EXACT and x.dtype != _EXACT):
            kinds = f"float16, bfloat16 or float32 where the input is {x.dtype}"
            raise ArgumentTypeError(name, kinds, str(tensor.dtype))
    if weight.device != x.device:
        raise ArgumentError("weight", f"{x.device}, where the input is", str(weight.device))


def check_features(x: Tensor) -> None:
    """Raise unless features are of a type that is convolved."""
    if x.dtype not in _DTYPES:
        kinds = "features of float16, bfloat16, float32 or float64"
        raise ArgumentTypeError("input", kinds, str(x.dtype))


def _check_weight_dtype(x: Tensor, weight: Tensor) -> None:
    lowered = torch.is_autocast_enabled(x.device.type) and x.dtype != _EXACT
    if weight.dtype != x.dtype and not (lowered and weight.dtype in _LOWERED):
        raise ArgumentTypeError("weight", f"{x.dtype}, as the features", str(weight.dtype))
