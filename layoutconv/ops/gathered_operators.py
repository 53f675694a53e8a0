"""Pooling and depthwise convolution over kernel maps as operators, ``torch.ops.layoutconv.*``.

    sparse_pool(x, index, inverse, mode, divisor, winners) -> y, winners
    sparse_pool_chosen(y, winners, index, inverse) -> x
    sparse_depthwise(x, w, index, inverse, pairs_out, pairs_in, lengths, channels) -> y
    sparse_depthwise_wgrad(y, x, index, inverse, pairs_out, pairs_in, lengths, filters) -> w
    sparse_global_pool(x, order, starts, batch, mode, winners) -> y, winners

All arguments are tensors: ``x`` (inputs, C), ``y`` (outputs, C), a kernel map's ``index`` int32
(outputs, taps) and that of its inverse, int32 (inputs, taps), and the tensors of its
:class:`Pairs`. Tensors that only a gradient needs may be None if none is wanted.

Sums, means and depthwise convolutions are linear: these operators themselves give gradients of any
order. A maximum's gradient goes to the tap that won, which is linear, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..errors import ArgumentError, check_choice
from ..gpu.gathered import OPERATIONS, check_rows, gather, number_type, segments
from .autocast import register_autocast
from .flop_counts import count_products
from .guard import is_plain, refuse_transforms, wants_gradient

if TYPE_CHECKING:
    from torch import Tensor

    Maybe = Tensor | None

_PAIRS = "Tensor? pairs_out, Tensor? pairs_in, Tensor? lengths"
_SCHEMAS = {
    "sparse_pool": "(Tensor x, Tensor index, Tensor? inverse, str mode, int divisor=0, "
    "bool winners=False) -> (Tensor, Tensor)",
    "sparse_pool_chosen": "(Tensor y, Tensor winners, Tensor index, Tensor inverse) -> Tensor",
    "sparse_depthwise": f"(Tensor x, Tensor w, Tensor index, Tensor? inverse, {_PAIRS}, "
    "SymInt channels) -> Tensor",
    "sparse_depthwise_wgrad": "(Tensor y, Tensor x, Tensor index, Tensor? inverse, "
    "Tensor pairs_out, Tensor pairs_in, Tensor lengths, SymInt filters) -> Tensor",
    "sparse_global_pool": "(Tensor x, Tensor? order, Tensor starts, Tensor batch, str mode, "
    "bool winners=False) -> (Tensor, Tensor)",
}
for _name, _schema in _SCHEMAS.items():
    torch.library.define(f"layoutconv::{_name}", _schema, tags=torch.Tag.pt2_compliant_tag)

_ops: Any = torch.ops.layoutconv


class Ways(NamedTuple):
    """The tensors of a kernel map, some of which only gradients read.

    Attributes:
        forward, backward: ``index`` and ``inverse`` as for :func:`sparse_pool`.
        pairs_out, pairs_in, lengths: of the map's :class:`Pairs`; None if no gradient of a filter
            is wanted.
    """

    forward: Tensor
    backward: Maybe = None
    pairs_out: Maybe = None
    pairs_in: Maybe = None
    lengths: Maybe = None

    def back(self) -> Ways:
        """Return the way from outputs to inputs; raise ``ArgumentError`` if it is missing."""
        if self.backward is None:
            raise ArgumentError("inverse", "a tensor, as the gradient is taken through it", None)
        return Ways(self.backward, self.forward, self.pairs_in, self.pairs_out, self.lengths)


# -- computations ---------------------------------------------------------------------------------


def _pool(
    x: Tensor, index: Tensor, inverse: Maybe, mode: str, divisor: int = 0, winners: bool = False
) -> tuple[Tensor, Tensor]:
    _check_mode(mode, winners)
    check_rows("x", x)
    _check_index("index", index, x)
    y, won = gather(x, index, mode, divisor=divisor, winners=winners)
    return y, _no_winners(x) if won is None else won


def _pool_chosen(y: Tensor, winners: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
    check_rows("y", y)
    _check_index("inverse", inverse, y)
    return gather(y, inverse, "sum", chosen=winners)[0]


def _depthwise(x: Tensor, w: Tensor, *rest: Any) -> Tensor:
    index, *_, channels = rest
    _check_filter(x, w, index, channels)
    filters = w.shape[1]
    if channels == filters:
        return gather(x, index, taps=w, channels=filters)[0]
    exact = torch.promote_types(x.dtype, torch.float32)
    y, _ = gather(x, index, taps=w, channels=filters, out_dtype=exact)
    return y.view(len(y), channels, filters // channels).sum(2).to(x.dtype)


def _depthwise_wgrad(y: Tensor, x: Tensor, *rest: Any) -> Tensor:
    *_, pairs_out, pairs_in, lengths, filters = rest
    check_rows("x", x)
    check_rows("y", y)
    for name, tensor in (("pairs_out", pairs_out), ("pairs_in", pairs_in)):
        _check_index(name, tensor, x)
    exact = torch.promote_types(x.dtype, torch.float32)
    sums, _ = gather(x, pairs_in, rows=(y, pairs_out), channels=filters, out_dtype=exact)
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    return segments(sums, starts, out_dtype=x.dtype)[0]


def _global_pool(
    x: Tensor, order: Maybe, starts: Tensor, batch: Tensor, mode: str, winners: bool = False
) -> tuple[Tensor, Tensor]:
    _check_mode(mode, winners)
    check_rows("x", x)
    y, won = segments(x, starts, order, mode, winners=winners)
    return y, _no_winners(x) if won is None else won


def _no_winners(x: Tensor) -> Tensor:
    return x.new_empty((0, x.shape[1]), dtype=torch.int16)


def _check_mode(mode: str, winners: bool) -> None:
    check_choice("mode", mode, OPERATIONS)
    if winners and mode not in ("max", "min"):
        raise ArgumentError("winners", "False unless the mode is max or min", winners)


def _check_index(name: str, index: Tensor, x: Tensor) -> None:
    if index.dtype != torch.int32 or index.dim() != 2 or index.device != x.device:
        expected = f"int32 of two modes on {x.device}, where the features are"
        got = f"{index.dtype} of shape {tuple(index.shape)} on {index.device}"
        raise ArgumentError(name, expected, got)


def _check_filter(x: Tensor, w: Tensor, index: Tensor, channels: int) -> None:
    check_rows("x", x)
    _check_index("index", index, x)
    filters = w.shape[-1]
    if w.dim() != 2 or w.shape[0] != index.shape[1]:
        expected = f"({index.shape[1]}, filters), a row for each tap"
        raise ArgumentError("w", expected, f"shape {tuple(w.shape)}")
    if w.dtype != x.dtype or w.device != x.device:
        expected = f"{x.dtype} on {x.device}, as the features are"
        raise ArgumentError("w", expected, f"{w.dtype} on {w.device}")
    for name, count in (("x", x.shape[1]), ("channels", channels)):
        if count < 1 or filters % count:
            raise ArgumentError(name, f"a number of channels that divides {filters}", count)


for _device in ("cpu", "cuda"):
    torch.library.impl("layoutconv::sparse_pool", _device, _pool)
    torch.library.impl("layoutconv::sparse_pool_chosen", _device, _pool_chosen)
    torch.library.impl("layoutconv::sparse_depthwise", _device, _depthwise)
    torch.library.impl("layoutconv::sparse_depthwise_wgrad", _device, _depthwise_wgrad)
    torch.library.impl("layoutconv::sparse_global_pool", _device, _global_pool)


# -- past the dispatcher, when that is safe --------------------------------------------------------


def sparse_pool(
    x: Tensor, index: Tensor, inverse: Maybe, mode: str, divisor: int = 0, winners: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute ``y[o, c] = op_t x[index[o, t], c]`` over the active taps; return (y, winners).

    Args:
        x: (inputs, C), float16, bfloat16, float32 or float64.
        index: int32 (outputs, taps), -1 for none.
        inverse: int32 (inputs, taps), the output that a tap of an input feeds; None if no gradient
            is wanted.
        mode: "sum", "mean", "max" or "min".
        divisor: of a mean, in place of the number of active taps.
        winners: whether to find the taps that maxima are from, (outputs, C), which their gradient
            needs; else ``winners`` is (0, C).

    An output without active taps is 0. Raises :class:`~layoutconv.errors.ArgumentError`.

    >>> index = torch.tensor([[0, 1], [-1, 2]], dtype=torch.int32)
    >>> sparse_pool(torch.tensor([[1.0], [2.0], [5.0]]), index, None, "mean")[0].tolist()
    [[1.5], [5.0]]
    """
    refuse_transforms(x=x)
    run = _pool if is_plain(x) and not wants_gradient(x) else _ops.sparse_pool
    return run(x, index, inverse, mode, divisor, winners)


def sparse_depthwise(x: Tensor, w: Tensor, over: Ways, channels: int) -> Tensor:
    """Compute ``y[o, d] = sum_t x[index[o, t], k // m] * w[t, k]`` over the filters k of channel d.

    Args:
        x: (inputs, C); ``w``: (taps, K) of the same dtype; ``m = K / C`` filters per channel.
        over: the tensors of a kernel map.
        channels: D, of the result (outputs, D), which divides K. With D = K each filter has a
            channel of the result; with D = C the filters of K channels are added up to C, as in the
            gradient of ``x``.

    Raises :class:`~layoutconv.errors.ArgumentError`.

    >>> over = Ways(torch.tensor([[0, 1]], dtype=torch.int32))
    >>> x, w = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    >>> sparse_depthwise(x, w, over, 2).tolist()
    [[7.0, 70.0]]
    """
    refuse_transforms(x=x, w=w)
    run = _depthwise if is_plain(x, w) and not wants_gradient(x, w) else _ops.sparse_depthwise
    return run(x, w, *over, channels)


def sparse_depthwise_wgrad(y: Tensor, x: Tensor, over: Ways, filters: int) -> Tensor:
    """Compute ``w[t, k] = sum y[o, k // n] * x[i, k // m]`` over the pairs (o, i) of tap t.

    Returns (taps, K). ``y`` is (outputs, D) and ``x`` (inputs, C); of the ``filters`` K, n = K / D
    share a channel of ``y`` and m = K / C one of ``x``. The rest is as for ``sparse_depthwise``.

    >>> x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([[10.0]])
    >>> index = torch.tensor([[0, 1]], dtype=torch.int32)
    >>> out, inp = torch.tensor([[0], [0]]).int(), torch.tensor([[0], [1]]).int()
    >>> over = Ways(index, None, out, inp, torch.tensor([1, 1]))
    >>> sparse_depthwise_wgrad(y, x, over, 1).tolist()
    [[10.0], [20.0]]
    """
    refuse_transforms(y=y, x=x)
    plain = is_plain(y, x) and not wants_gradient(y, x)
    run = _depthwise_wgrad if plain else _ops.sparse_depthwise_wgrad
    return run(y, x, *over, filters)


def sparse_global_pool(
    x: Tensor, order: Maybe, starts: Tensor, batch: Tensor, mode: str, winners: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute ``y[n, c] = op_r x[r, c]`` over the rows of each image n of a batch: (y, winners).

    Args:
        x: (rows, C).
        order: int32 (rows,), the rows sorted by their image; None if they are sorted.
        starts: int64 (N + 1,): the rows of image n are ``order[starts[n] : starts[n + 1]]``.
        batch: int32 (rows,), the image of a row, -1 for none.
        mode, winners: as for :func:`sparse_pool`; winners are rows, int32 (N, C).

    The result of an image without rows is 0.

    >>> x, batch = torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([0, 0, 1])
    >>> sparse_global_pool(x, None, torch.tensor([0, 2, 3]), batch, "max")[0].tolist()
    [[2.0], [5.0]]
    """
    refuse_transforms(x=x)
    run = _global_pool if is_plain(x) and not wants_gradient(x) else _ops.sparse_global_pool
    return run(x, order, starts, batch, mode, winners)


# -- fake kernels: results without data ------------------------------------------------------------


def _fake_winners(x: Tensor, rows: Any, dtype: torch.dtype, winners: bool) -> Tensor:
    return x.new_empty((rows, x.shape[1]), dtype=dtype) if winners else _no_winners(x)


def _fake_pool(
    x: Tensor, index: Tensor, inverse: Maybe, mode: str, divisor: int = 0, winners: bool = False
) -> tuple[Tensor, Tensor]:
    rows, taps = index.shape
    return x.new_empty((rows, x.shape[1])), _fake_winners(x, rows, number_type(taps), winners)


torch.library.register_fake("layoutconv::sparse_pool", _fake_pool)


def _fake_pool_chosen(y: Tensor, winners: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
    return y.new_empty((inverse.shape[0], y.shape[1]))


torch.library.register_fake("layoutconv::sparse_pool_chosen", _fake_pool_chosen)


def _fake_depthwise(x: Tensor, w: Tensor, *rest: Any) -> Tensor:
    index, *_, channels = rest
    return x.new_empty((index.shape[0], channels))


torch.library.register_fake("layoutconv::sparse_depthwise", _fake_depthwise)


def _fake_depthwise_wgrad(y: Tensor, x: Tensor, *rest: Any) -> Tensor:
    *_, lengths, filters = rest
    return x.new_empty((lengths.shape[0], filters))


torch.library.register_fake("layoutconv::sparse_depthwise_wgrad", _fake_depthwise_wgrad)

# A pair of rows multiplies the K numbers of one tap.
count_products(_ops.sparse_depthwise.default, lambda args, _: args[1].shape[-1])
count_products(_ops.sparse_depthwise_wgrad.default, lambda _, found: found.shape[-1])


def _fake_global_pool(
    x: Tensor, order: Maybe, starts: Tensor, batch: Tensor, mode: str, winners: bool = False
) -> tuple[Tensor, Tensor]:
    rows = starts.shape[0] - 1
    return x.new_empty((rows, x.shape[1])), _fake_winners(x, rows, torch.int32, winners)


torch.library.register_fake("layoutconv::sparse_global_pool", _fake_global_pool)


# -- gradients ------------------------------------------------------------------------------------
# What only gradients read is missed when they are taken, not before: a graph that was made without
# gradients runs where they are recorded, as a served network whose parameters want them.


def _needed(name: str, *tensors: Maybe) -> None:
    if any(tensor is None for tensor in tensors):
        raise ArgumentError(name, "a tensor, as the gradient is taken through it", None)


def _needed_winners(ctx: Any) -> None:
    if ctx.mode in ("max", "min") and not ctx.with_winners:
        raise ArgumentError("winners", "True, as the gradient goes to them", False)


def _keep_pool(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, index, inverse, mode, divisor, with_winners = (*inputs, 0, False)[:6]
    winners = output[1]
    ctx.mark_non_differentiable(winners)
    ctx.mode, ctx.divisor, ctx.with_winners = mode, divisor, with_winners
    ctx.save_for_backward(index, inverse, winners)


def _pool_backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    index, inverse, winners = ctx.saved_tensors
    _needed("inverse", inverse)
    _needed_winners(ctx)
    if ctx.mode in ("max", "min"):
        found = _ops.sparse_pool_chosen(grad, winners, index, inverse)
    elif ctx.mode == "mean":
        count = ctx.divisor or (index >= 0).sum(1, keepdim=True).clamp(min=1)
        shares = _shares(grad, count)
        found = sparse_pool(shares, inverse, index, "sum")[0].to(grad.dtype)
    else:
        found = sparse_pool(grad, inverse, index, "sum")[0]
    return (found, *[None] * 5)


def _keep_pool_chosen(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, winners, index, _ = inputs
    ctx.save_for_backward(winners, index)


def _pool_chosen_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """Gather for each element of ``y`` the gradient of the row of its winner."""
    winners, index = ctx.saved_tensors
    if not len(grad):
        return grad.new_zeros(winners.shape), None, None, None
    rows = index.gather(1, winners.clamp(min=0).long()).clamp(min=0)
    found = grad.gather(0, rows.long())
    return torch.where(winners < 0, 0, found), None, None, None


def _keep_depthwise(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:-1])


def _depthwise_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, w, *tensors = ctx.saved_tensors
    dx, dw, over = None, None, Ways(*tensors)
    if ctx.needs_input_grad[0]:
        dx = sparse_depthwise(grad, w, over.back(), x.shape[1])
    if ctx.needs_input_grad[1]:
        _needed("pairs", over.pairs_out, over.pairs_in, over.lengths)
        dw = sparse_depthwise_wgrad(grad, x, over, w.shape[1])
    return dx, dw, *[None] * 6


def _keep_depthwise_wgrad(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:-1])


def _depthwise_wgrad_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    y, x, *tensors = ctx.saved_tensors
    dy, dx, over = None, None, Ways(*tensors)
    if ctx.needs_input_grad[0]:
        dy = sparse_depthwise(x, grad, over, y.shape[1])
    if ctx.needs_input_grad[1]:
        dx = sparse_depthwise(y, grad, over.back(), x.shape[1])
    return dy, dx, *[None] * 6


def _keep_global_pool(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, _, starts, batch, mode, with_winners = (*inputs, False)[:6]
    winners = output[1]
    ctx.mark_non_differentiable(winners)
    ctx.mode, ctx.rows, ctx.with_winners = mode, x.shape[0], with_winners
    ctx.save_for_backward(starts, batch, winners)


def _global_pool_backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    starts, batch, winners = ctx.saved_tensors
    _needed_winners(ctx)
    if ctx.mode in ("max", "min"):
        # An extra row takes elements without a winner; a row wins a channel of at most one image.
        place = torch.where(winners < 0, ctx.rows, winners).long()
        found = grad.new_zeros((ctx.rows + 1, grad.shape[1])).scatter(0, place, grad)[:-1]
    else:
        kind = grad.dtype
        if ctx.mode == "mean":
            grad = _shares(grad, starts.diff().clamp(min=1)[:, None])
        # Rows without a batch element get 0.
        found = _to_rows(grad, batch).to(kind)
    return (found, *[None] * 5)


def _shares(grad: Tensor, count: Any) -> Tensor:
    """Divide a gradient of means by their numbers of rows, in fp32 or fp64: 16 bits overflow.

    >>> _shares(torch.ones(1, dtype=torch.float16), torch.tensor(100_000))
    tensor([1.0000e-05])
    """
    shares: Tensor = grad.to(torch.promote_types(grad.dtype, torch.float32)) / count
    return shares


def _to_rows(grad: Tensor, batch: Tensor) -> Tensor:
    """Gather row ``batch[r]`` of ``grad`` for each r; 0 for a batch of -1."""
    if not len(grad):
        return grad.new_zeros((len(batch), grad.shape[1]))
    found = grad.index_select(0, batch.clamp(min=0))
    return torch.where(batch[:, None] < 0, 0, found)


for _name, _backward, _setup in (
    ("sparse_pool", _pool_backward, _keep_pool),
    ("sparse_pool_chosen", _pool_chosen_backward, _keep_pool_chosen),
    ("sparse_depthwise", _depthwise_backward, _keep_depthwise),
    ("sparse_depthwise_wgrad", _depthwise_wgrad_backward, _keep_depthwise_wgrad),
    ("sparse_global_pool", _global_pool_backward, _keep_global_pool),
):
    torch.library.register_autograd(f"layoutconv::{_name}", _backward, setup_context=_setup)


register_autocast(_ops.sparse_depthwise.default, _ops.sparse_depthwise_wgrad.default)
