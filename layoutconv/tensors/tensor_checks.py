"""Checks of tensors: what a GEMM view expects of them is compared at every call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..algebra.int_tuple import product
from ..errors import ArgumentError, ArgumentTypeError, check_choice, shown
from ..view.epilogue import Epilogue, EpilogueStep, Pointwise
from ..view.gemm_view import GemmView
from .expected_tensors import Expected, ExpectedTensor, expected

# The dtypes of operands, and D's default for each.
OUTPUTS = {
    torch.float16: torch.float16,
    torch.bfloat16: torch.bfloat16,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.int8: torch.int32,
    torch.float8_e4m3fn: torch.float16,
    torch.float8_e5m2: torch.float16,
}
DTYPES = frozenset(OUTPUTS)
_ALWAYS = (DTYPES | {torch.int32}) - {torch.float64, torch.int32}  # any sum may be stored in these
_OWN = {torch.float64: {torch.float64}, torch.int8: {torch.int32}}
_NARROW = {torch.int8, torch.float8_e4m3fn, torch.float8_e5m2}  # also allowed for tensors like D
PAIRS = frozenset((a, d) for a in OUTPUTS for d in _ALWAYS | _OWN.get(a, set()))
_KINDS = "float16, bfloat16, float32, float64, int8, float8_e4m3fn or float8_e5m2"
PRECISIONS = (None, "tf32", "fp32")


def as_stored(view: GemmView, a: Tensor) -> Tensor:
    """View a contiguous first operand in the shape of the view's memory, with stride folding."""
    return a.view(expected(view).a.shape)


def check_tensors(
    view: GemmView,
    a: Tensor,
    b: Tensor,
    out: Tensor | None,
    out_dtype: torch.dtype | None = None,
) -> Expected:
    """Compare shapes, strides, dtypes and devices with what the view expects.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument.
    """
    if not isinstance(view, GemmView):
        raise ArgumentTypeError("view", "a GemmView", type(view).__name__)
    want: Expected = view.kept.get("expected") or expected(view)
    try:
        device, dtype = a.device, a.dtype
        kind = out_dtype if out is None else out.dtype
        if (
            a.shape == want.a.shape
            and a.stride() == want.a.stride
            and b.shape == want.b.shape
            and b.stride() == want.b.stride
            and b.dtype is dtype
            and b.device == device
            and (dtype in DTYPES if kind is None else (dtype, kind) in PAIRS)
            and (want.device is None or want.device == device)
            and (
                out is None
                or (
                    out.shape == want.d.shape
                    and out.stride() == want.d.stride
                    and (out_dtype is None or out_dtype is kind)
                    and out.device == device
                )
            )
        ):
            if out is not None:
                _check_apart(want, a, b, out)
            return want
    except (AttributeError, TypeError):
        pass  # not a tensor, or a dtype without a hash: explained below
    _explain(want, a, b, out, out_dtype)
    if out is not None:
        _check_apart(want, a, b, out)
    return want


def _check_apart(want: Expected, a: Tensor, b: Tensor, out: Tensor) -> None:
    """Raise if ``out`` overlaps an operand: writes would change what is still to be read.

    Tensors with the same start overlap, and contiguous ones whose spans intersect. Strided ones may
    interleave, and with index buffers the entries decide what is read: neither is checked.
    """
    if want.indices:
        return
    start, at_a, at_b = out.data_ptr(), a.data_ptr(), b.data_ptr()
    end = start + out.nbytes
    if (at_a >= end or at_a + a.nbytes <= start) and (at_b >= end or at_b + b.nbytes <= start):
        return
    for name, operand, at in (("a", a, at_a), ("b", b, at_b)):
        spans = operand.is_contiguous() and out.is_contiguous()
        spans = spans and at < end and start < at + operand.nbytes
        if out.numel() and operand.numel() and (at == start or spans):
            raise ArgumentError(
                "out", f"memory that does not overlap `{name}`", f"memory of `{name}`"
            )


def _explain(
    want: Expected, a: Tensor, b: Tensor, out: Tensor | None, out_dtype: torch.dtype | None
) -> None:
    """Compare slowly: strides of modes of extent 1 do not matter, anything else raises."""
    given = [("a", want.a, a), ("b", want.b, b)]
    for name, stored, tensor in [*given, ("out", want.d, out)] if out is not None else given:
        _check_stored(name, stored, tensor)
        if stored is not want.d:
            _check_operand_dtype(name, tensor.dtype)
            if tensor.dtype != a.dtype:
                raise ArgumentTypeError(name, f"{a.dtype}, the dtype of `a`", str(tensor.dtype))
        if tensor.device != a.device:
            raise ArgumentError(name, f"device {a.device}, that of `a`", str(tensor.device))
    for name, kind in (("out_dtype", out_dtype), ("out", None if out is None else out.dtype)):
        known = isinstance(kind, torch.dtype) and (a.dtype, kind) in PAIRS
        if kind is not None and not known:
            allowed = sorted(str(d) for d in _ALWAYS | _OWN.get(a.dtype, set()))
            kinds = f"{', '.join(allowed[:-1])} or {allowed[-1]} for `a` in {a.dtype}"
            got = str(kind) if isinstance(kind, torch.dtype) else shown(kind)
            raise ArgumentTypeError(name, kinds, got)
    if out is not None and out_dtype is not None and out.dtype != out_dtype:
        raise ArgumentTypeError("out", f"{out_dtype}, as `out_dtype` says", str(out.dtype))
    for index in want.indices:
        if index.buffer.device != a.device:
            raise ArgumentError(
                index.name, f"an index on {a.device}, where `a` is", str(index.buffer.device)
            )


def _check_stored(name: str, stored: ExpectedTensor, tensor: Any, said: str = "") -> None:
    """Refuse anything but a tensor of the shape and strides that a view stores."""
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentTypeError(name, f"a torch tensor{said}", type(tensor).__name__)
    letters = f"of {stored.text}{said}"
    if tensor.shape != stored.shape:
        raise ArgumentError(name, f"shape {stored.shape} {letters}", f"shape {tuple(tensor.shape)}")
    same = all(
        d == e
        for s, d, e in zip(stored.shape, tensor.stride(), stored.stride, strict=True)
        if s > 1
    )
    if not same and tensor.numel():
        raise ArgumentError(
            name, f"strides {stored.stride} {letters}", f"strides {tensor.stride()}"
        )


def _check_operand_dtype(name: str, dtype: torch.dtype) -> None:
    if dtype in DTYPES:
        return
    text = str(dtype)
    if "int4" in text:
        text += (
            ": layoutconv.pack_int4 packs numbers of 4 bits into int8, two in each, which execute"
            " takes with dtype='int4'"
        )
    elif dtype.is_complex:
        text += (
            ": the convolutions layoutconv.conv1d to conv_transpose3d take it, as views of its"
            " real and imaginary parts"
        )
    raise ArgumentTypeError(name, _KINDS, text)


def check_packed(dtype: Any, a: Any) -> None:
    """Raises :class:`~layoutconv.errors.ArgumentError` unless ``a`` may hold data of ``dtype``."""
    check_choice("dtype", dtype, ("int4",), "None or 'int4'")
    if isinstance(a, torch.Tensor) and a.dtype != torch.int8:
        raise ArgumentTypeError(
            "a", "torch.int8, pairs of int4 as pack_int4 makes them", str(a.dtype)
        )


def check_precision(precision: str | None) -> None:
    """Raises :class:`~layoutconv.errors.ArgumentError` for an unknown precision."""
    if precision is not None:
        check_choice("precision", precision, ("tf32", "fp32"), "None, 'tf32' or 'fp32'")


def columns_of(view: GemmView) -> int:
    """Return the length of a per-column tensor.

    It has one entry for each ``n``, in every group if the view has groups, or as many as the view's
    ``columns`` name. If a view has only its third mode, like a depthwise convolution's, it has one
    for each coordinate of that mode's first mode.
    """
    if view.columns is not None:
        return int(view.columns.cosize())
    if view.m == view.n == 1 and len(view.a.shape) == 3:
        problems = view.a.shape[2]
        if isinstance(problems, tuple):
            return int(product(problems[0]))
    return view.n * view.l


def check_epilogue(view: GemmView, epilogue: Epilogue, a: Tensor) -> None:
    """Compare the tensors of an epilogue with D and its columns.

    Raises :class:`~layoutconv.errors.ArgumentError` that names ``epilogue``, and the step or the
    tensor of a user's function.
    """
    stored, device = expected(view).d, a.device
    kinds = {torch.float16, torch.bfloat16, torch.float32}
    if a.dtype == torch.float64:
        kinds.add(torch.float64)
    for step in epilogue.steps:
        names = iter(_names(step))
        for place, count, tensors in (
            ("column", columns_of(view), step.per_column),
            ("row", view.m, step.per_row),
        ):
            for tensor, name in zip(tensors, names, strict=False):
                _check_epilogue_tensor(name, tensor, kinds, device)
                if tensor.shape != (count,) or not tensor.is_contiguous():
                    wanted = f"{count} contiguous numbers, one per {place}, for {name}"
                    got = f"shape {tuple(tensor.shape)}, strides {tensor.stride()}"
                    raise ArgumentError("epilogue", wanted, got)
        for source, name in zip(step.like_d, names, strict=True):
            _check_stored("epilogue", stored, source, f", for {name}")
            _check_epilogue_tensor(name, source, kinds | _NARROW, device)


def _names(step: EpilogueStep) -> list[str]:
    """Return names of a step's tensors for messages: per column, per row, like D."""
    if isinstance(step, Pointwise):
        return [f"`{name}`" for name in (*step.columns, *step.rows, *step.sources)]
    return [type(step).__name__] * len((*step.per_column, *step.per_row, *step.like_d))


def _check_epilogue_tensor(
    name: str, tensor: Any, kinds: set[torch.dtype], device: torch.device
) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentTypeError("epilogue", f"torch tensors, for {name}", type(tensor).__name__)
    if tensor.dtype not in kinds:
        wanted = f"tensors of {', '.join(sorted(map(str, kinds)))}, for {name}"
        raise ArgumentTypeError("epilogue", wanted, str(tensor.dtype))
    if tensor.device != device:
        wanted = f"tensors on {device}, where `a` is, for {name}"
        raise ArgumentError("epilogue", wanted, str(tensor.device))


def check_indices(view: GemmView) -> None:
    """Compare every entry of the index buffers with the number of rows; on a GPU this is a sync.

    Raises :class:`~layoutconv.errors.ArgumentError` for an entry outside ``[-1, rows)``, or two
    entries that write to the same row.
    """
    for index in expected(view).indices:
        entries = index.entries
        if not entries.numel():
            continue
        low, high = (int(e) for e in torch.aminmax(entries))
        if low < -1 or high >= index.rows:
            bad = low if low < -1 else high
            raise ArgumentError(index.name, f"entries in [-1, {index.rows})", bad)
        if index.written:
            times = torch.bincount(entries.reshape(-1) + 1, minlength=2)[1:]
            if int(times.max()) > 1:
                row = int(times.argmax())
                got = f"row {row} in {int(times[row])} entries"
                raise ArgumentError(index.name, "distinct rows, as each is written", got)


def allocate(view: GemmView, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Allocate the output of a view, filled with zeros if it may leave elements unwritten."""
    want = expected(view)
    kind = OUTPUTS[like.dtype] if dtype is None else dtype
    out = torch.empty_strided(want.d.shape, want.d.stride, dtype=kind, device=like.device)
    return out if want.writes_all else out.zero_()
