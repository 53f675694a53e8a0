"""Run reduction views on the tensor's device: torch on the CPU, one or two launches on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from ..algebra.int_tuple import paired_leaves
from ..algebra.layout import Layout
from ..base.caches import put_few, remembered
from ..errors import ArgumentError, ArgumentTypeError, check_choice, shown
from ..planning.loop_nest import Nest, make_nest
from ..planning.view_rules import UnsupportedViewError
from ..tensors.expected_tensors import ExpectedTensor
from ..tensors.spans import flat_memory, span
from ..view.gemm_view import OperandLayout, follow, stages
from ..view.reduction_view import ReductionView
from . import machines
from .user_functions import function_key

Function = Callable[[Any, Any], Any]

OPERATIONS = ("sum", "max", "min", "mean")
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
_FEW = 16  # plans per view: combinations of operations, dtypes and alignments
_CHUNK = 1 << 22  # elements that the CPU reads at once


def reduce(
    view: ReductionView,
    x: Tensor,
    op: str | Function = "sum",
    *,
    initial: float | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute ``target[r] = reduce_s source[r, s]`` for a reduction view.

    Args:
        view: the layouts of source and target, :func:`~layoutconv.reduction_view` or a user's.
        x: the tensor that the source reads. If the source is a chain of maps, with the shape and
            the strides of the last one; else of any shape, with memory for the whole layout.
        op: "sum", "max", "min", "mean", or an associative and commutative function of two values,
            such as ``lambda a, b: a * b``. On a CPU it gets tensors, on a GPU the values of a
            kernel that is being traced: use arithmetic without branches.
        initial: the neutral element of such a function, 1 for a product: ``op(initial, v) == v``.
        out: the tensor that the target writes; other elements stay as they are. By default a new
            tensor with the target's shape and strides, zero where nothing is written.
        out_dtype: of a new result. By default int64 for sums of integers, else that of ``x``.

    Returns the result. Floating-point numbers are reduced in fp32, float64 in fp64, integers in
    int64 (exact within its range), then converted to the dtype of the result. Results are the same
    in every run. A NaN makes the maximum, the minimum and the sum NaN. An element outside the
    bounds of a chain takes no part, but a mean always divides the sum by ``s``, as
    ``torch.nn.functional.avg_pool2d`` does. If no element takes part, a sum is 0, a maximum -inf,
    or the least integer of the dtype of ``x``. Not differentiable by itself.

    Raises :class:`~layoutconv.errors.ArgumentError`, a ``ValueError``, that names the argument; on
    a GPU ``UnsupportedViewError`` for a source with an index buffer.

    >>> x = torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]])
    >>> reduce(ReductionView(Layout((3, 2), (1, 3)), Layout(3)), x, "max")
    tensor([4., 5., 3.])
    >>> reduce(ReductionView(Layout((4, 3), (1, 1)), Layout(4)), x)  # windows of 3
    tensor([ 8., 11.,  6.,  7.])
    >>> reduce(ReductionView(Layout((2, 3), (3, 1)), Layout(2)), x, lambda a, b: a * b, initial=1)
    tensor([10.,  0.])
    """
    if not isinstance(view, ReductionView):
        raise ArgumentTypeError("view", "a ReductionView", type(view).__name__)
    for name, tensor in (("x", x), ("out", x if out is None else out)):
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentTypeError(name, "a torch tensor", type(tensor).__name__)
    what = _operation(op, initial, x.dtype)
    dtype = out.dtype if out is not None else out_dtype
    if dtype is None:
        dtype = torch.int64 if op == "sum" and x.dtype in INTEGERS else x.dtype
    if not isinstance(dtype, torch.dtype):
        raise ArgumentTypeError("out_dtype", "a torch.dtype, or None", shown(dtype))
    if out is not None and out_dtype is not None and out_dtype is not out.dtype:
        raise ArgumentError("out_dtype", f"None or the dtype of out, {out.dtype}", shown(out_dtype))
    if (dtype in FLOATS) != (x.dtype in FLOATS) or dtype not in (*FLOATS, *INTEGERS):
        kind = "floating-point" if x.dtype in FLOATS else "integer"
        raise ArgumentTypeError("out_dtype", f"a {kind} dtype, as x has", str(dtype))
    _check_covers("x", view.source, x)
    if out is None:
        want = ExpectedTensor.of("target", view.target)
        size, stride = want.shape, want.stride
        out = torch.empty_strided(size, stride, dtype=dtype, device=x.device)
        if view.r < out.numel() or not isinstance(view.target, Layout):
            out.zero_()
    elif out.device != x.device:
        raise ArgumentError("out", f"a tensor on {x.device}, where x is", str(out.device))
    _check_covers("out", view.target, out)
    if view.r == 0:
        return out
    if view.s == 0 and op in ("max", "min"):
        raise ArgumentError("view", f"at least one element per result for {op}", f"s = {view.s}")
    if x.is_cuda and view.s and x.numel():
        _reduce_gpu(view, x, what, out)
    else:
        _reduce_cpu(view, x, what, out)
    return out


def sum_partials(workspace: Tensor, out: Tensor) -> None:
    """Compute ``out[r] = sum_s workspace[s, r]``: the reduction of split-K slices.

    ``workspace`` is (S, R), contiguous, float32 or float64; ``out`` has R elements, contiguous, of
    any floating-point dtype, on the same device. Checks nothing; slices are added in a fixed order.

    >>> out = torch.empty(3, dtype=torch.float16)
    >>> sum_partials(torch.tensor([[1.0, 2, 3], [10, 20, 30]]), out)
    >>> out
    tensor([11., 22., 33.], dtype=torch.float16)
    """
    pieces, results = workspace.shape
    if not results:
        return
    if not pieces or not workspace.is_cuda:
        out.copy_(workspace.sum(0).view(out.shape))
        return
    of = workspace.get_device(), (workspace.data_ptr() & 15, out.data_ptr() & 15)
    plan = _partials(pieces, results, workspace.dtype, out.dtype, *of)
    plan(workspace.view(-1), out.view(-1))


def adder(workspace: Tensor, out: Tensor, pieces: int) -> Callable[[Tensor, Tensor], None]:
    """Return a function that does ``sum_partials`` on flat tensors like these on the current GPU.

    It needs at least one piece and one result. Workspaces must start at a multiple of 16 bytes, as
    newly allocated memory does.
    """
    of = workspace.get_device(), (0, out.data_ptr() & 15)
    return _partials(pieces, out.numel(), workspace.dtype, out.dtype, *of).launch


@dataclass(frozen=True)
class _Operation:
    """An operation on an accumulator; ``function`` is None for one of ``OPERATIONS``."""

    name: str
    function: Function | None
    accumulator: torch.dtype
    neutral: float


def _operation(op: str | Function, initial: float | None, dtype: torch.dtype) -> _Operation:
    if dtype not in (*FLOATS, *INTEGERS):
        raise ArgumentTypeError("x", "a tensor of floating-point numbers or integers", str(dtype))
    accumulator = torch.int64 if dtype in INTEGERS else torch.float32
    if dtype == torch.float64:
        accumulator = torch.float64
    if callable(op):
        if initial is None:
            raise ArgumentError(
                "initial", "the neutral element of `op`, as it is a function", initial
            )
        if isinstance(initial, bool) or not isinstance(initial, Real):
            raise ArgumentTypeError("initial", "a number", repr(initial))
        return _Operation("function", op, accumulator, initial)
    expected = f"one of {', '.join(OPERATIONS)}, or a function"
    check_choice("op", op, (*OPERATIONS, "avg"), expected)
    if op == "avg":  # as torch calls the pooling
        op = "mean"
    if initial is not None:
        raise ArgumentError("initial", f"None for {op}", initial)
    if op == "mean" and dtype in INTEGERS:
        raise ArgumentTypeError("x", "floating-point numbers for a mean", str(dtype))
    least, greatest = -torch.inf, torch.inf
    if dtype in INTEGERS:
        least, greatest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    neutral = {"max": least, "min": greatest}.get(op, 0)
    return _Operation(op, None, accumulator, neutral)


def _check_covers(name: str, layout: OperandLayout, tensor: Tensor) -> None:
    """Check that a tensor is the memory a chain ends in, or is large enough for a plain layout."""
    if not isinstance(layout, Layout):
        want = ExpectedTensor.of(name, layout)
        if (tuple(tensor.shape), tensor.stride()) != (want.shape, want.stride):
            expected = f"shape {want.shape} and strides {want.stride} as {want.text} has"
            got = f"shape {tuple(tensor.shape)} and strides {tensor.stride()}"
            if tensor.numel() or tuple(tensor.shape) != want.shape:
                raise ArgumentError(name, expected, got)
        return
    leaves = paired_leaves(layout.shape, layout.stride)
    if not all(isinstance(d, int) for _, d in leaves):
        raise ArgumentError("view", f"integer strides in the memory of {name}", str(layout))
    if any(extent == 0 for extent, _ in leaves):
        return
    ends = [(int(extent) - 1) * int(d) for extent, d in leaves]
    low, high = sum(min(e, 0) for e in ends), sum(max(e, 0) for e in ends)
    if low < 0 or high >= span(tensor):
        raise ArgumentError(
            name, f"memory of {layout}, offsets {low} to {high}", f"{span(tensor)} elements"
        )


def _nest(view: ReductionView) -> Nest:
    return make_nest([("source", view.source, 1), ("target", view.target, None)])


# -- on the CPU -----------------------------------------------------------------------------------


@torch.no_grad()
def _reduce_cpu(view: ReductionView, x: Tensor, what: _Operation, out: Tensor) -> None:
    """Reduce with one torch call if strides express the view, else in chunks."""
    memory, target = flat_memory(x), flat_memory(out)
    nest = _strided(view) if what.function is None and len(memory) and view.s else None
    if nest is not None:
        reads, writes = nest.forms
        loops, steps = nest.outer + nest.inner, reads.outer + reads.inner
        source = memory.as_strided(loops, steps, reads.offset)
        to = target.as_strided(nest.outer, writes.outer, writes.offset)
        to.copy_(_called(what, source, tuple(range(len(nest.outer), source.dim()))))
        return
    width = max(1, min(view.s, _CHUNK))
    for rows in torch.split(torch.arange(view.r, device=x.device), max(1, _CHUNK // width)):
        acc = torch.full((len(rows),), what.neutral, dtype=what.accumulator, device=x.device)
        for columns in torch.split(torch.arange(view.s, device=x.device), width) if view.s else ():
            acc = _combine(what, acc, _values(view, memory, rows, columns, what))
        if what.name == "mean":
            acc = acc / view.s
        offset, valid = _located(view.target, rows, (len(rows),))
        if valid is not None:
            offset, acc = offset[valid], acc[valid]
        target[offset] = acc.to(target.dtype)


def _strided(view: ReductionView) -> Nest | None:
    """Return the loops of a view if torch's strides can express them, else None."""
    try:
        nest = _nest(view)
    except UnsupportedViewError:
        return None
    steps = [step for form in nest.forms for step in (*form.outer, *form.inner)]
    return None if min(steps, default=0) < 0 or len(nest.forms) > 2 else nest


def _called(what: _Operation, source: Tensor, modes: tuple[int, ...]) -> Tensor:
    """Reduce some modes with torch."""
    if what.name in ("max", "min"):
        return (source.amax if what.name == "max" else source.amin)(modes) if modes else source
    total = source.sum(modes, dtype=what.accumulator) if modes else source
    return total / prod(source.shape[i] for i in modes) if what.name == "mean" else total


def _values(
    view: ReductionView, memory: Tensor, rows: Tensor, columns: Tensor, what: _Operation
) -> Tensor:
    """Return elements of the source as a matrix (rows, columns), neutral where there is none."""
    shape = len(rows), len(columns)
    offset, valid = _located(view.source, (rows[:, None], columns[None]), shape)
    if valid is None:
        return memory[offset].to(what.accumulator)
    values = torch.full(shape, what.neutral, dtype=what.accumulator, device=memory.device)
    values[valid] = memory[offset[valid]].to(what.accumulator)
    return values


def _located(layout: OperandLayout, crd: Any, shape: tuple[int, ...]) -> tuple[Tensor, Any]:
    """Return offsets, and a mask of the valid ones; None if all are."""
    offset, valid = (0, True) if layout.shape == () else follow(stages(layout), crd, True)
    device = crd[0].device if isinstance(crd, tuple) else crd.device
    offset = torch.as_tensor(offset, device=device).expand(shape)
    return offset, None if valid is True else torch.as_tensor(valid, device=device).expand(shape)


def _combine(what: _Operation, acc: Tensor, values: Tensor) -> Tensor:
    """Return ``acc`` combined with the columns of ``values``."""
    if what.name == "max":
        return torch.maximum(acc, values.amax(1))
    if what.name == "min":
        return torch.minimum(acc, values.amin(1))
    if what.function is None:
        return acc + values.sum(1)
    while values.shape[1] > 1:
        half = values.shape[1] // 2
        first, second, rest = torch.split(values, [half, half, values.shape[1] - 2 * half], 1)
        values = torch.cat((what.function(first, second).to(acc.dtype), rest), 1)
    combined: Tensor = what.function(acc, values[:, 0]).to(acc.dtype)
    return combined


# -- on a GPU -------------------------------------------------------------------------------------


class _ReductionLaunches:
    """The launches of a reduction on a device; called with flat memory of source and target."""

    def __init__(
        self, nest: Nest, what: _Operation, name: Any, types: tuple[torch.dtype, torch.dtype],
        device: int, aligned: tuple[int, int],
    ) -> None:  # fmt: skip
        from ..kernels.compile.store import as_argument
        from ..kernels.pointwise.loaders import load_reduction
        from ..planning.reduction_schedule import schedule

        machine = machines.machine_of(device)
        dtype, accumulator, out_dtype = (
            str(t).removeprefix("torch.") for t in (types[0], what.accumulator, types[1])
        )
        self.device, self.accumulator = device, what.accumulator
        self.launches = []
        found = schedule(nest, dtype, accumulator, out_dtype, aligned, machine.sm_count)
        for launch in found:
            last = not launch.workspace
            operation: Any = what.function or ("sum" if not last and name == "mean" else name)
            key = operation if isinstance(operation, str) else name
            kernel = load_reduction(launch.shape, operation, key, what.neutral, machine.arch)
            self.launches.append((kernel, as_argument(launch.integers), launch.workspace))

    def __call__(self, source: Tensor, target: Tensor) -> None:
        if torch.cuda.current_device() != self.device:
            with torch.cuda.device(self.device):
                self.launch(source, target)
            return
        self.launch(source, target)

    def launch(self, source: Tensor, target: Tensor) -> None:
        """Launch on the current device."""
        for kernel, integers, workspace in self.launches:
            to = target
            if workspace:
                to = torch.empty(workspace, dtype=self.accumulator, device=source.device)
            kernel(source, to, integers)
            source = to


def _reduce_gpu(view: ReductionView, x: Tensor, what: _Operation, out: Tensor) -> None:
    name = what.name if what.function is None else function_key("op", what.function)
    at = x.data_ptr() & 15, out.data_ptr() & 15
    key = name, what.neutral, x.dtype, out.dtype, x.get_device(), at
    plans: dict[Any, _ReductionLaunches] = view.kept.setdefault("plans", {})
    plan = plans.get(key)
    if plan is None:
        nest = _nest(view)
        types = x.dtype, out.dtype
        aligned = _alignment(at[0]), _alignment(at[1])
        plan = _ReductionLaunches(nest, what, name, types, x.get_device(), aligned)
        put_few(plans, key, plan, _FEW)
    plan(flat_memory(x), flat_memory(out))


@remembered(512)
def _partials(
    pieces: int, results: int, dtype: torch.dtype, out: torch.dtype, device: int,
    at: tuple[int, int],
) -> _ReductionLaunches:  # fmt: skip
    """Return the plan of ``sum_partials``; sizes are arguments of its kernels."""
    source, target = Layout((results, pieces), (1, results)), Layout(results)
    nest = make_nest([("workspace", source, 1), ("out", target, None)])
    aligned = _alignment(at[0]), _alignment(at[1])
    return _ReductionLaunches(
        nest, _operation("sum", None, dtype), "sum", (dtype, out), device, aligned
    )


def _alignment(address: int) -> int:
    """Return the alignment of an address, 16 bytes at most, from its last four bits."""
    return address & -address or 16
