"""Rows that belong together: runs of equal keys, their reductions, and sums in a fixed order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch

from ...errors import check_choice

if TYPE_CHECKING:
    from torch import Tensor

Reduce = Literal["mean", "sum", "max", "min", "first"]


class Runs(NamedTuple):
    """Rows in the order of their keys, those with one key in the order that they had.

    All are int64: ``order`` (rows,), the rows in the order of their keys; ``counts`` (keys,), how
    many rows have each key; ``first`` (keys,), the place in ``order`` of its first row; ``place``
    (rows,), the number of the key of ``order[i]``.
    """

    order: Tensor
    counts: Tensor
    first: Tensor
    place: Tensor


def runs_of(keys: Tensor) -> Runs:
    """Which rows have the same key, int64 (rows,)."""
    keys, order = torch.sort(keys, stable=True)
    _, place, counts = torch.unique_consecutive(keys, return_inverse=True, return_counts=True)
    return Runs(order, counts, counts.cumsum(0) - counts, place)


def check_reduce(reduce: str) -> Reduce:
    """One of :data:`Reduce`; "avg", as torch calls the pooling, is the mean.

    Raises ``ArgumentError`` for what is none of them.
    """
    names = *get_args(Reduce), "avg"
    check_choice("reduce", reduce, names, "mean, sum, max, min or first")
    return "mean" if reduce == "avg" else reduce  # type: ignore[return-value]


def reduce_runs(rows: Tensor, runs: Runs, reduce: Reduce) -> Tensor:
    """The reduction, (keys, C), of the rows (rows, C) of each key; with gradients of any order.

    Of rows that share the largest or smallest number, each gets its share of the gradient.
    """
    if reduce == "first" or not len(runs.order):
        return rows[runs.order[runs.first]]
    # One thread adds up one run, in order: unlike index_add_, the same bits every time, on a GPU
    # too.
    sorted_rows, count = rows[runs.order].double(), len(runs.counts)
    if reduce in ("max", "min"):
        found: Tensor = _functions().extreme.apply(sorted_rows, runs.place, runs.counts, reduce)
        return found.to(rows.dtype)
    sums = add_rows(sorted_rows, runs.place, count, runs.counts)
    return (sums if reduce == "sum" else sums / runs.counts[:, None]).to(rows.dtype)


def spread(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """(count, C): each row (rows, C) at its place, no two at one; zeros elsewhere."""
    return rows.new_zeros(count, rows.shape[1]).index_copy(0, places, rows)


def take(rows: Tensor, index: Tensor, lengths: Tensor | None = None) -> Tensor:
    """``rows`` (rows, C) at ``index`` (count,): zeros where it is -1.

    Its gradient adds up in the order of ``index``, so that it has the same bits every time; it has
    gradients of any order. An index that rises and has no -1 may come with its ``lengths``, int64
    (rows,), how often it has each row: then nothing waits for a GPU.

    >>> import torch
    >>> take(torch.tensor([[1.0], [2.0]]), torch.tensor([1, -1, 0])).T
    tensor([[2., 0., 1.]])
    """
    return _functions().take.apply(rows, index, lengths)


def add_rows(rows: Tensor, index: Tensor, count: int, lengths: Tensor | None = None) -> Tensor:
    """(count, C): the sums of the rows (rows, C) that have the same ``index`` (rows,), -1 none.

    The transpose of :func:`take`, whose ``lengths``, int64 (count,), it may be given, too.

    >>> import torch
    >>> add_rows(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1, -1, 1]), 3).T
    tensor([[0., 5., 0.]])
    >>> add_rows(torch.ones(3, 1), torch.tensor([0, 2, 2]), 3, torch.tensor([1, 0, 2])).T
    tensor([[1., 0., 2.]])
    """
    return _functions().add_rows.apply(rows, index, count, lengths)


class _Functions(NamedTuple):
    """Autograd functions: of :func:`take`, of :func:`add_rows`, and of each key's extreme rows."""

    take: Any
    add_rows: Any
    extreme: Any


_made: _Functions | None = None


def _functions() -> _Functions:
    """Make the autograd functions at the first call: torch is not loaded before."""
    global _made
    if _made is None:
        _made = _Functions(*_linear(), _extreme())
    return _made


def _linear() -> tuple[Any, Any]:
    # Both are linear, and their index is no batch of vmap's: attributes keep it, which inference
    # tensors may be.
    class Take(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(rows: Tensor, index: Tensor, lengths: Tensor | None) -> Tensor:
            if lengths is not None:
                return rows.index_select(0, index)
            if not len(rows):
                return rows.new_zeros(len(index), rows.shape[1])
            taken = rows[index.clamp(min=0)]
            return taken.masked_fill_((index < 0)[:, None], 0)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            rows, ctx.index, ctx.lengths = inputs
            ctx.count = len(rows)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
            return add_rows(grad, ctx.index, ctx.count, ctx.lengths), None, None

        @staticmethod
        def jvp(ctx: Any, change: Tensor, *_: Any) -> Tensor:
            return take(change, ctx.index, ctx.lengths)

    class AddRows(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(rows: Tensor, index: Tensor, count: int, lengths: Tensor | None) -> Tensor:
            return _add_rows(rows, index, count, lengths)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            _, ctx.index, ctx.count, ctx.lengths = inputs

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
            return take(grad, ctx.index, ctx.lengths), None, None, None

        @staticmethod
        def jvp(ctx: Any, change: Tensor, *_: Any) -> Tensor:
            return add_rows(change, ctx.index, ctx.count, ctx.lengths)

    return Take, AddRows


def _extreme() -> Any:
    # torch's own has no second derivative, and shares no gradient below zero (2.13, on a CPU).
    class Extreme(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(rows: Tensor, place: Tensor, counts: Tensor, reduce: str) -> Tensor:
            return torch.segment_reduce(rows, reduce, lengths=counts, axis=0)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            rows, ctx.place, ctx.counts, _ = inputs
            ctx.save_for_backward(rows, output)
            ctx.save_for_forward(rows, output)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
            has, number = _holders(ctx)
            shares = take(grad / number, ctx.place, ctx.counts)
            return shares.where(has, 0), None, None, None

        @staticmethod
        def jvp(ctx: Any, change: Tensor, *_: Any) -> Tensor:
            has, number = _holders(ctx)
            return add_rows(change.where(has, 0), ctx.place, len(ctx.counts), ctx.counts) / number

    return Extreme


def _holders(ctx: Any) -> tuple[Tensor, Tensor]:
    """Return which rows hold the extreme of their key, per column, and how many of a key do."""
    rows, found = (tensor.detach() for tensor in ctx.saved_tensors)
    has = (rows == take(found, ctx.place, ctx.counts)) | rows.isnan()
    return has, add_rows(has.to(rows.dtype), ctx.place, len(ctx.counts), ctx.counts)


def _add_rows(rows: Tensor, index: Tensor, count: int, lengths: Tensor | None) -> Tensor:
    if rows.is_complex():
        parts = _add_rows(torch.view_as_real(rows).flatten(1), index, count, lengths)
        return torch.view_as_complex(parts.view(count, -1, 2))
    if not count or not rows.numel():
        return rows.new_zeros(count, rows.shape[1])
    if lengths is None:
        there = (index >= 0).nonzero()[:, 0]
        keys, order = torch.sort(index[there], stable=True)
        numbers = torch.arange(count + 1, device=keys.device, dtype=keys.dtype)
        lengths = torch.searchsorted(keys, numbers).diff()
        rows = rows[there[order]]
    if not len(rows):
        return rows.new_zeros(count, rows.shape[1])
    sums = torch.segment_reduce(rows.double(), "sum", lengths=lengths, axis=0, unsafe=True)
    return sums.to(rows.dtype)
