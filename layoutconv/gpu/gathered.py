"""Gather and reduce rows, on the device of the tensors.

    gather(a, index, ...)       out[r, c] = op_j a[index[r, j], c] * b[...]
    segments(a, starts, ...)    out[s, c] = op_i a[order[i], c], starts[s] <= i < starts[s + 1]

On a CPU torch does it, in chunks of rows; on a GPU one kernel, ``kernels/gather_reduce``. Sums are
in fp32, for float64 in fp64, and their order is the same in every run. This file bypasses the
dispatcher and has no gradients: ``gathered_ops`` has the operators.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..base.caches import remembered
from ..errors import ArgumentError, ArgumentTypeError
from . import machines

# ``taps``, ``rows``, ``chosen`` and ``divisor``, as ``gather`` takes them.
OfSum = tuple[Tensor | None, tuple[Tensor, Tensor] | None, Tensor | None, int]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OPERATIONS = ("sum", "mean", "max", "min")
THREADS = 256  # per CTA, and vectors of a row per CTA, at most
PART = 64  # rows of a segment that one thread reduces
_BLOCK = 1 << 18  # elements that the CPU reduces at once: they stay in its caches


@torch.no_grad()
def gather(
    a: Tensor,
    index: Tensor,
    op: str = "sum",
    *,
    taps: Tensor | None = None,
    rows: tuple[Tensor, Tensor] | None = None,
    chosen: Tensor | None = None,
    divisor: int = 0,
    winners: bool = False,
    channels: int | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``out[r, c] = op_j a[index[r, j], c] * b[...]`` over the taps j with an index of 0 or more.

    Args:
        a: (A, C), float16, bfloat16, float32 or float64.
        index: int32 (rows, taps), -1 for an absent tap.
        op: "sum", "mean", "max" or "min".
        taps: B of a sum, (taps, channels): ``taps[j, c]``. At most one of ``taps``, ``rows`` and
            ``chosen`` is given.
        rows: B of a sum as (b, index_b): ``b[index_b[r, j], c]``; taps absent there count as
            absent, too.
        chosen: int16 or int32 (A, C): a sum takes ``a[index[r, j], c]`` only if j is
            ``chosen[index[r, j], c]``.
        divisor: of a mean, instead of the number of present taps.
        winners: whether to return the tap that a maximum or minimum comes from, int16 (int32 for
            2^15 taps and more), -1 for none. Ties go to the first tap; NaN wins.
        channels: of the result, C by default. If larger than the channels of A, or of ``b``, each
            of these serves several neighbours: ``a[..., c // (channels // C)]``.
        out_dtype: of the result, that of ``a`` by default.

    Returns (out, winners or None). A result without present taps is 0, even for a maximum. The host
    checks nothing.

    >>> a = torch.tensor([[1.0, 4.0], [3.0, 2.0]])
    >>> index = torch.tensor([[0, 1], [-1, 0], [-1, -1]], dtype=torch.int32)
    >>> gather(a, index, "mean")[0].tolist()
    [[2.0, 3.0], [1.0, 4.0], [0.0, 0.0]]
    >>> gather(a, index, "max", winners=True)[1].tolist()
    [[1, 0], [1, 1], [-1, -1]]
    """
    count = channels or a.shape[1]
    shape = index.shape[0], count
    # Without rows, taps, channels or input rows, the result is empty or zero.
    nothing = not (shape[0] and count and index.shape[1] and len(a))
    make = torch.zeros if nothing else torch.empty
    out = make(shape, dtype=out_dtype or a.dtype, device=a.device)
    won = None
    if winners:
        won = torch.full(shape, -1, dtype=number_type(index.shape[1]), device=a.device)
    if nothing or (rows is not None and not len(rows[0])):
        return (out if nothing else out.zero_()), won
    if a.is_cuda:
        _launch(op, a, index, out, won, (taps, rows, chosen, divisor))
    else:
        _gather_on_cpu(op, a, index, out, won, (taps, rows, chosen, divisor))
    return out, won


@torch.no_grad()
def segments(
    a: Tensor,
    starts: Tensor,
    order: Tensor | None = None,
    op: str = "sum",
    *,
    winners: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``out[s, c] = op_i a[order[i], c]`` over ``starts[s] <= i < starts[s + 1]``.

    Args:
        a: (A, C), float16, bfloat16, float32 or float64.
        starts: int64 (S + 1,).
        order: int32 (A,); without it, ``order[i] = i``.
        op: "sum", "mean", "max" or "min".
        winners: whether to return the row of ``a`` that a maximum or minimum comes from, int32, -1
            for none; ties go to the first.
        out_dtype: of the result, that of ``a`` by default.

    Returns (out (S, C), winners or None); empty segments give 0. The host checks nothing and does
    not wait for a GPU.

    >>> a = torch.tensor([[1.0], [5.0], [3.0]])
    >>> segments(a, torch.tensor([0, 2, 2, 3]))[0].tolist()
    [[6.0], [0.0], [3.0]]
    """
    S, C = len(starts) - 1, a.shape[1]
    nothing = not (S and C and len(a))
    make = torch.zeros if nothing else torch.empty
    out = make((S, C), dtype=out_dtype or a.dtype, device=a.device)
    won = torch.full((S, C), -1, dtype=torch.int32, device=a.device) if winners else None
    if not nothing:
        run = _segments_on_gpu if a.is_cuda else _segments_on_cpu
        run(a, starts, order, op, out, won)
    return out, won


def number_type(taps: int) -> torch.dtype:
    """Return the dtype that stores tap numbers, for ``taps`` taps."""
    return torch.int16 if taps < 2**15 else torch.int32


def check_rows(name: str, tensor: Tensor) -> None:
    """Raise :class:`~layoutconv.errors.ArgumentError` unless a tensor is a supported matrix."""
    if tensor.dtype not in DTYPES:
        kinds = "a tensor of float16, bfloat16, float32 or float64"
        raise ArgumentTypeError(name, kinds, str(tensor.dtype))
    if tensor.dim() != 2:
        raise ArgumentError(name, "(rows, channels)", f"shape {tuple(tensor.shape)}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ArgumentError(name, "a tensor on a CPU or a GPU", str(tensor.device))


# -- on the CPU -----------------------------------------------------------------------------------


def _exact(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _gather_on_cpu(
    op: str, a: Tensor, index: Tensor, out: Tensor, won: Tensor | None, of_sum: OfSum
) -> None:
    """Gather tap by tap: absent taps read a neutral row that is appended to A."""
    taps, rows, chosen, divisor = of_sum
    neutral = {"max": -torch.inf, "min": torch.inf}.get(op, 0.0)
    channels = out.shape[1]
    source = _extended(a, neutral, channels)
    factors = None if taps is None else taps.to(source.dtype)
    others = None if rows is None else _extended(rows[0], 0.0, channels)
    # Zero times infinity is NaN: with infinite factors, absent taps have to be masked.
    masked = factors is not None and not factors.isfinite().all()
    step = max(1, _BLOCK // channels)
    for first in range(0, len(out), step):
        here = slice(first, first + step)
        columns = index[here].T  # a tap's rows are contiguous
        columns_b = None if rows is None else rows[1][here].T
        there = columns >= 0
        if columns_b is not None:
            there &= columns_b >= 0
        acc = source.new_full((columns.shape[1], channels), neutral)
        number = None if won is None else won[here]
        for j, taken in enumerate(there.sum(1).tolist()):
            if not taken:
                continue
            # If few rows have the tap, take only these: 0.16 of a street's 27 taps are present.
            few = there[j].nonzero()[:, 0] if 2 * taken < len(acc) else None
            place = _taken(columns[j], there[j], few, len(a))
            values = source.index_select(0, place)
            if factors is not None:
                values *= factors[j]
                if masked and few is None:
                    values.masked_fill_(~there[j, :, None], 0)
            elif others is not None and columns_b is not None:
                place_b = _taken(columns_b[j], there[j], few, len(others) - 1)
                values *= others.index_select(0, place_b)
            elif chosen is not None:
                numbers = chosen.index_select(0, place.clamp(max=len(a) - 1))
                values.masked_fill_(numbers != j, 0)
            _combine(op, acc, values, j, few, there[j, :, None], number)
        count = there.sum(0)[:, None]
        if op == "mean":
            acc /= divisor or count.clamp(min=1)
        elif op != "sum":
            acc.masked_fill_(count == 0, 0)
        out[here] = acc


def _taken(column: Tensor, there: Tensor, few: Tensor | None, missing: int) -> Tensor:
    """Return the rows that a tap reads, for the rows ``few`` or for all."""
    return column.where(there, missing) if few is None else column[few]


def _extended(rows: Tensor, last: float, channels: int) -> Tensor:
    """Return rows in the accumulator's dtype, channels repeated as they are read, plus one row."""
    found = rows.new_full((len(rows) + 1, rows.shape[1]), last, dtype=_exact(rows.dtype))
    found[:-1] = rows
    return found.repeat_interleave(channels // rows.shape[1], 1)


def _combine(
    op: str,
    acc: Tensor,
    values: Tensor,
    j: int,
    few: Tensor | None,
    there: Tensor,
    number: Tensor | None,
) -> None:
    """Combine one more tap into ``acc``, for the rows ``few`` or for all."""
    own = acc if few is None else acc.index_select(0, few)
    if op in ("sum", "mean"):
        own += values
    elif number is None:
        (torch.maximum if op == "max" else torch.minimum)(own, values, out=own)
    else:
        winners = number if few is None else number.index_select(0, few)
        better = values > own if op == "max" else values < own
        better |= (values.isnan() & ~own.isnan()) | (winners < 0)
        if few is None:
            better &= there
        winners.masked_fill_(better, j)
        torch.where(better, values, own, out=own)
        if few is not None:
            number.index_copy_(0, few, winners)
    if few is not None:
        acc.index_copy_(0, few, own)


def _segments_on_cpu(
    a: Tensor, starts: Tensor, order: Tensor | None, op: str, out: Tensor, won: Tensor | None
) -> None:
    bounds = starts.tolist()
    for s, (first, last) in enumerate(pairwise(bounds)):
        if first == last:
            out[s] = 0
            continue
        rows = a[first:last] if order is None else a.index_select(0, order[first:last])
        if op in ("sum", "mean"):
            total = rows.sum(0, dtype=_exact(a.dtype))
            out[s] = total if op == "sum" else total / (last - first)
        elif won is None:
            out[s] = rows.amax(0) if op == "max" else rows.amin(0)
        else:
            out[s], place = rows.max(0) if op == "max" else rows.min(0)
            place += first
            won[s] = place if order is None else order[place]


# -- on a GPU -------------------------------------------------------------------------------------


def _segments_on_gpu(
    a: Tensor,
    starts: Tensor,
    order: Tensor | None,
    op: str,
    out: Tensor,
    won: Tensor | None,
    part: int = PART,
) -> None:
    """Reduce segments in parts, and the parts again, until one per segment is left.

    A thread reduces a part; parts have ``part`` rows if all segments are equally long.
    """
    S, C = out.shape
    operation, exact, rows = "sum" if op == "mean" else op, _exact(a.dtype), len(a)
    counts = starts.diff().clamp_(min=1)[:, None] if op == "mean" else None
    total = out if counts is None else torch.empty_like(out, dtype=exact)
    found: Tensor | None = None
    bounds = starts.as_strided((S, 2), (1, 1))
    while rows > S * part:
        parts = -(-rows // (S * part))
        # A maximum keeps the dtype of its rows; sums are stored in the accumulator's.
        dtype = exact if operation == "sum" else a.dtype
        partial = torch.empty((S * parts, C), dtype=dtype, device=a.device)
        number = None if won is None else torch.empty_like(partial, dtype=torch.int32)
        _launch(operation, a, order, partial, number, bounds=bounds, parts=parts)
        found = number if found is None or number is None else _composed(found, number)
        bounds = _bounds_of_parts(bounds, parts, every=operation == "sum")
        a, order, rows = partial, None, S * parts
    _launch(operation, a, order, total, won, bounds=bounds)
    if won is not None and found is not None:
        won.copy_(_composed(found, won))
    if counts is not None:
        out.copy_(total.div_(counts))


def _bounds_of_parts(bounds: Tensor, parts: int, *, every: bool) -> Tensor:
    """Return the bounds of the segments' parts: ``every`` one, or without trailing empty ones."""
    S = len(bounds)
    first = torch.arange(0, S * parts + 1, parts, device=bounds.device)
    if every:
        return first.as_strided((S, 2), (1, 1))
    lengths = bounds[:, 1] - bounds[:, 0]
    share = ((lengths + parts - 1) // parts).clamp_(min=1)
    return torch.stack([first[:-1], first[:-1] + (lengths + share - 1) // share], 1)


def _composed(first: Tensor, second: Tensor) -> Tensor:
    """Return the winners of ``second`` in terms of the rows of ``first``; -1 stays."""
    found = first.gather(0, second.clamp(min=0).long())
    return torch.where(second < 0, second, found)


def _launch(
    op: str,
    a: Tensor,
    index: Tensor | None,
    out: Tensor,
    won: Tensor | None,
    of_sum: OfSum = (None, None, None, 0),
    *,
    bounds: Tensor | None = None,
    parts: int = 1,
) -> None:
    """Launch once, on torch's current stream of the tensors' device."""
    device, channels = a.get_device(), out.shape[1]
    if torch.cuda.current_device() != device:
        with torch.cuda.device(device):
            return _launch(op, a, index, out, won, of_sum, bounds=bounds, parts=parts)
    taps, rows, chosen, divisor = of_sum
    b, index_b = (taps, None) if rows is None else rows
    factor = "" if b is None else "taps" if rows is None else "rows"
    mean = "" if op != "mean" else "constant" if divisor else "there"
    source = "table" if bounds is None else "runs" if index is None else "list"
    a, repeat = _in_rows(a), channels // a.shape[1]
    repeat_b = 1
    if b is not None:
        b, repeat_b = _in_rows(b), channels // b.shape[1]
    if chosen is not None:
        chosen = _in_rows(chosen)
    vector = channels_per_thread(channels, (a, repeat), (b, repeat_b), (chosen, 1))
    dtypes = (
        a.dtype, out.dtype, None if won is None else won.dtype,
        None if chosen is None else chosen.dtype,
    )  # fmt: skip
    kernel = _kernel(
        dtypes, "sum" if mean else op, source, factor, mean, vector,
        (repeat > 1, repeat_b > 1), device,
    )  # fmt: skip
    integers = min(channels // vector, THREADS), parts, divisor or 1, repeat, repeat_b
    kernel(a, index, bounds, b, index_b, chosen, out, won, integers)
    return None


def channels_per_thread(channels: int, *operands: tuple[Tensor | None, int]) -> int:
    """Return the channels per thread: 16 bytes of the first operand, or fewer to suit all operands.

    An operand is a tensor or None, with the number of result channels that read one of its own.

    >>> [channels_per_thread(count, (torch.empty(9, count), 1)) for count in (64, 66)]
    [4, 2]
    """
    first = operands[0][0]
    vector = 1 if first is None else 16 // first.itemsize
    while vector > 1:
        fits = channels % vector == 0
        for tensor, repeat in operands:
            if tensor is None or not fits:
                continue
            aligned = tensor.data_ptr() % min(16, vector * tensor.itemsize) == 0
            whole = tensor.stride(0) % vector == 0 and aligned
            fits = whole if repeat == 1 else repeat % vector == 0
        if fits:
            break
        vector //= 2
    return vector


def _in_rows(tensor: Tensor) -> Tensor:
    """Return the tensor with contiguous channels."""
    if tensor.stride(1) == 1:
        return tensor
    if tensor.shape[1] == 1:
        return tensor.as_strided(tensor.shape, (tensor.stride(0), 1))
    return tensor.contiguous()


@remembered(256)
def _kernel(
    dtypes: tuple[torch.dtype | None, ...],
    op: str,
    source: str,
    factor: str,
    mean: str,
    vector: int,
    shared: tuple[bool, bool],
    device: int,
) -> Any:
    """Return the kernel for the dtypes of A, the result, the winners and the chosen taps."""
    from ..kernels.pointwise.gather_pool import GatherShape, load_gather

    name, out_name, won, numbers = (
        "" if kind is None else str(kind).removeprefix("torch.") for kind in dtypes
    )
    shape = GatherShape(name, out_name, op, source, factor, mean, won, numbers, vector, shared)
    return load_gather(shape, machines.machine_of(device).arch)
