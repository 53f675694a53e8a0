"""A user's function behind the sums of a convolution, run by torch, and its gradient.

The forward pass fuses the function, and does not save the function's input. The backward pass
computes the sums again, and torch differentiates the function on tensors; or the user's own
backward function computes the gradients from the result alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ArgumentError, ArgumentTypeError
from ..tensors.epilogue_in_torch import apply_steps
from ..view.epilogue import Pointwise
from .guard import is_constant, is_plain, wants_gradient

if TYPE_CHECKING:
    from torch import Tensor

    from .epilogue_args import EpilogueArgs

VALUE = "value"  # the name under which a backward function returns the gradient of the value


def tensors_of(function: Pointwise) -> tuple[Tensor, ...]:
    """Return its tensors by place: per column, per row, like the result."""
    return *function.per_column, *function.per_row, *function.like_d


def with_all(function: Pointwise, tensors: Sequence[Tensor | None]) -> Pointwise:
    """Replace its tensors, in the order of :func:`tensors_of`.

    >>> step = Pointwise(lambda x, c, s: x * c + s, {"c": torch.ones(2)}, {}, {"s": torch.ones(2)})
    >>> [t.item() for t in tensors_of(with_all(step, [torch.tensor(3.0), torch.tensor(4.0)]))]
    [3.0, 4.0]
    """
    first = len(function.columns)
    last = first + len(function.rows)
    return function.with_tensors(tensors[:first], tensors[first:last], tensors[last:])


def as_matrix(tensor: Tensor) -> Tensor:
    """Reshape (N, C, D, H, W) to rows of channels; features, (rows, C), stay as they are.

    >>> as_matrix(torch.zeros(2, 3, 4, 5)).shape, as_matrix(torch.zeros(7, 3)).shape
    (torch.Size([40, 3]), torch.Size([7, 3]))
    """
    return tensor.movedim(1, -1).reshape(-1, tensor.shape[1])


def may_be_bound(
    function: Pointwise, operands: tuple[Tensor, Tensor], ending: EpilogueArgs, elements: int
) -> bool:
    """Return whether a call with a function is a mere launch that autograd records.

    ``elements`` is the number of elements of the result. False for a function of rows, which views
    number in an order of their own, and for a call with gradients whose scale is a number, or needs
    a gradient.
    """
    bias, scale, residual = ending.bias, ending.scale, ending.residual
    columns = [t for t in (bias, scale) if isinstance(t, torch.Tensor)]
    tensors = [*operands, *columns, *tensors_of(function)]
    tensors += [] if residual is None else [residual]
    return (
        is_plain(*tensors)
        and not function.program.counts_rows
        and bool(operands[0].numel() and elements)
        and (operands[0].is_cpu or operands[0].is_cuda)
        and all(t.is_contiguous() for t in (*columns, *function.per_column))
        and (is_constant(scale) or not wants_gradient(*tensors))
    )


def apply_function(function: Pointwise, value: Tensor) -> Tensor:
    """Apply the function to all values, fp32 or fp64, in torch's order, with torch operations.

    A row is the number of a voxel, or of a sparse tensor's row.

    >>> x = torch.tensor([[[1.0, 5.0]], [[2.0, 6.0]]])  # two images of one channel
    >>> apply_function(Pointwise(lambda x, row: x * 10 + row), x).flatten()
    tensor([10., 51., 22., 63.])
    """
    matrix, sources = as_matrix(value), [as_matrix(source) for source in function.like_d]
    rows = None
    if function.program.counts_rows:
        rows = torch.arange(matrix.shape[0], device=value.device)
    made = apply_steps([function], matrix, slice(None), sources, rows)
    first, channels, *modes = value.shape
    return made.reshape(first, *modes, channels).movedim(-1, 1)


def through_function(
    function: Pointwise,
    grad: Tensor,
    value: Tensor | None,
    result: Tensor | None,
    needed: Sequence[bool],
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return the gradient of the value, fp32 or fp64, and those of the function's tensors.

    Args:
        grad, result: of the function's result, as stored.
        value: the function's input, fp32 or fp64; None if it has a backward function, which takes
            the result.
        needed: which of its tensors need a gradient.
    """
    if value is None:
        assert result is not None
        return _by_the_user(function, grad, result, needed)
    records = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases, so that a tensor that is used twice gets a gradient for each use.
        value = value.view_as(value) if records and value.requires_grad else _leaf(value, True)
        tensors = [
            t.view_as(t) if records and t.requires_grad else _leaf(t, wants)
            for t, wants in zip(tensors_of(function), needed, strict=True)
        ]
        made = apply_function(with_all(function, tensors), value)
        wanted = [t for t, wants in zip(tensors, needed, strict=True) if wants]
        made = made if made.requires_grad else made + 0 * value  # if it depends on coordinates only
        of_value, *found = torch.autograd.grad(
            made, [value, *wanted], grad.to(made.dtype), create_graph=records,
            allow_unused=True, materialize_grads=True,
        )  # fmt: skip
    gradients = iter(found)
    return of_value, tuple(next(gradients) if wants else None for wants in needed)


def _leaf(tensor: Tensor, wants: bool) -> Tensor:
    return tensor.detach().requires_grad_(wants)


def _by_the_user(
    function: Pointwise, grad: Tensor, result: Tensor, needed: Sequence[bool]
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    assert function.backward is not None
    exact = torch.promote_types(grad.dtype, torch.float32)
    named = {name: tensor.to(exact) for name, tensor in function.columns.items()}
    named |= {name: tensor.to(exact)[:, None] for name, tensor in function.rows.items()}
    named |= {name: as_matrix(tensor).to(exact) for name, tensor in function.sources.items()}
    of_result = as_matrix(grad).to(exact), as_matrix(result).to(exact)
    found = function.backward(*of_result, **named, **function.values)
    if not isinstance(found, Mapping):
        kinds = f"a function that returns a dict of gradients, that of the value as {VALUE!r}"
        raise ArgumentTypeError("backward", kinds, type(found).__name__)
    names = [*function.columns, *function.rows, *function.sources]
    unknown = [name for name in found if name not in (VALUE, *names)]
    if unknown:
        expected = f"gradients of {', '.join((VALUE, *names))}"
        raise ArgumentError("backward", expected, f"one of {unknown[0]!r}")
    of_value = _summed(VALUE, found, of_result[0].shape)
    like = [*named.values()]
    shapes = zip(names, tensors_of(function), like, needed, strict=True)
    others = (
        _back(_summed(name, found, matrix.shape), tensor) if wants else None
        for name, tensor, matrix, wants in shapes
    )
    return _back(of_value, grad), tuple(others)


def _summed(name: str, found: Mapping[str, Any], shape: torch.Size) -> Tensor:
    """Return the gradient of this name, summed to a shape."""
    gradient = found.get(name)
    if not isinstance(gradient, torch.Tensor):
        expected = f"a gradient of {name!r}, a tensor of shape {tuple(shape)}"
        raise ArgumentTypeError("backward", expected, type(gradient).__name__)
    try:
        common = torch.broadcast_shapes(gradient.shape, shape)  # type: ignore[no-untyped-call]
        return gradient.expand(common).sum_to_size(shape)
    except RuntimeError:
        expected = f"a gradient of {name!r} that is summed to shape {tuple(shape)}"
        raise ArgumentError("backward", expected, f"shape {tuple(gradient.shape)}") from None


def _back(matrix: Tensor, like: Tensor) -> Tensor:
    """Reshape rows of channels to a tensor in torch's order; vectors stay as they are."""
    if like.dim() < 2:
        return matrix.reshape(like.shape)
    first, channels, *modes = like.shape
    return matrix.reshape(first, *modes, channels).movedim(-1, 1)
