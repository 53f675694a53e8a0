"""From accumulators to stored results, in torch: epilogue steps, conversion, statistics.

This defines what kernels have to compute; it works on tensors of any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import ArgumentError, ArgumentTypeError
from ..view.epilogue import (
    STEPS,
    Activation,
    Bias,
    Clamp,
    Epilogue,
    EpilogueStep,
    Pointwise,
    Residual,
    Scale,
    counts_rows,
)
from .traced_in_torch import run_program

FP8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
_SATURATED = FP8 | {torch.int8, torch.int32}
_EXACT_IN_FP32 = 1024  # products of two int8, at most 2**14 each, whose sum fits 24 bits

_ACTIVATIONS: dict[str, Any] = {
    "relu": functional.relu,
    "relu6": functional.relu6,
    "leaky_relu": functional.leaky_relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda value: functional.gelu(value, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": functional.hardswish,
}


def accumulator_dtype(dtype: torch.dtype, depth: int) -> torch.dtype:
    """Return the dtype in which torch sums ``depth`` products: a floating one, for fast products.

    Sums of int8 are exact integers: in fp32 while they fit its mantissa, in fp64 beyond.

    >>> accumulator_dtype(torch.int8, 1024), accumulator_dtype(torch.int8, 1025)
    (torch.float32, torch.float64)
    """
    exact = dtype == torch.float64 or (dtype == torch.int8 and depth > _EXACT_IN_FP32)
    return torch.float64 if exact else torch.float32


def activate(value: Tensor, kind: str, slope: float = 0.01) -> Tensor:
    """Apply the function of a name in :class:`~layoutconv.view.epilogue.Activation`.

    >>> activate(torch.tensor([-1.0, 2.0]), "leaky_relu", 0.5)
    tensor([-0.5000,  2.0000])
    """
    result: Tensor = _ACTIVATIONS[kind](value, *((slope,) if kind == "leaky_relu" else ()))
    return result


def apply_steps(
    steps: Sequence[EpilogueStep],
    value: Tensor,
    columns: Any,
    sources: Sequence[Tensor],
    rows: Tensor | None = None,
) -> Tensor:
    """Apply the steps of an epilogue to a tile of accumulators, whose last mode are columns.

    Args:
        value: fp32 or fp64; the steps compute in it.
        columns: the columns of the last mode in per-column tensors, a slice or an integer tensor.
        sources: the tile's part of each tensor like D, in order.
        rows: int64, the row numbers in the view: (rows of the tile,). None if no step needs them.

    Raises :class:`~layoutconv.errors.ArgumentTypeError` for an unknown step: a result without it
    would be wrong.

    >>> apply_steps([Scale(2.0), Clamp(0, 6)], torch.tensor([1.0, 5.0]), slice(None), [])
    tensor([2., 6.])
    """
    left = iter(sources)
    for step in steps:
        if isinstance(step, Scale):
            per_column = isinstance(step.by, torch.Tensor)
            value = value * (step.by[columns].to(value.dtype) if per_column else step.by)
        elif isinstance(step, Bias):
            value = value + step.by[columns].to(value.dtype)
        elif isinstance(step, Residual):
            value = value + step.scale * next(left).to(value.dtype)
        elif isinstance(step, Activation):
            value = activate(value, step.kind, step.slope)
        elif isinstance(step, Clamp):
            value = value.clamp(step.low, step.high)
        elif isinstance(step, Pointwise):
            value = _pointwise(step, value, columns, [next(left) for _ in step.like_d], rows)
        else:
            raise ArgumentTypeError("epilogue", STEPS, type(step).__name__)
    return value


def _pointwise(
    step: Pointwise, value: Tensor, columns: Any, sources: Sequence[Tensor], rows: Tensor | None
) -> Tensor:
    program = step.program
    if rows is None:
        if program.counts_rows:
            expected = "functions that do not use `row`, as this result has no rows"
            raise ArgumentError("epilogue", expected, program.text)
        rows = torch.zeros(1, dtype=torch.int64, device=value.device)
    if isinstance(columns, slice):
        first, end = columns.start or 0, columns.stop or value.shape[-1]
        columns = torch.arange(first, end, columns.step or 1, device=value.device)
    tensors = [tensor[columns] for tensor in step.per_column]
    tensors += [tensor[rows, None] for tensor in step.per_row]
    return run_program(program, value, [*tensors, *sources], step.numbers, (rows[:, None], columns))


def convert(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to nearest even; integers and fp8 also saturate, so that nothing wraps or overflows.

    >>> convert(torch.tensor([2.5, -300.0, torch.nan]), torch.int8)
    tensor([   2, -128,    0], dtype=torch.int8)
    >>> convert(torch.tensor([1000.0, torch.nan]), torch.float8_e4m3fn).float()
    tensor([448.,  nan])
    """
    if dtype not in _SATURATED or value.dtype == dtype:
        return value.to(dtype)
    if value.dtype in FP8:
        value = value.float()  # torch cannot compare fp8
    if dtype in FP8:
        greatest = torch.finfo(dtype).max
        return value.clamp(-greatest, greatest).to(dtype)
    limits = torch.iinfo(dtype)
    if dtype == torch.int32:
        value = value.double()  # fp32 has no 2**31 - 1
    return value.round().clamp(limits.min, limits.max).nan_to_num(0).to(dtype)


def column_statistics(stored: Tensor) -> Tensor:
    """Return the sum and the sum of squares of every column, the last mode: fp32 (2, columns).

    >>> column_statistics(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[ 4.,  6.],
            [10., 20.]])
    """
    return _sums(stored.reshape(-1, stored.shape[-1]).double()).float()


def _sums(values: Tensor) -> Tensor:
    return torch.stack((values.sum(0), values.square().sum(0)))


class Finish:
    """The conversion of accumulators to D; tiles come in any order.

    Args:
        epilogue: the steps; None for a conversion only.
        operand, out: the dtypes of the operands, and of D.
        statistics: fp64 (2, columns), to which sums and sums of squares are added, or None.
    """

    def __init__(
        self,
        epilogue: Epilogue | None,
        operand: torch.dtype,
        out: torch.dtype,
        statistics: Tensor | None = None,
    ) -> None:
        self.steps = epilogue.steps if epilogue is not None else ()
        self.sources = epilogue.sources if epilogue is not None else ()
        self.out, self.statistics = out, statistics
        self.counts_rows = epilogue is not None and counts_rows(epilogue.structure)
        self.integers = operand == torch.int8
        self.kind = torch.float64 if operand == torch.float64 else torch.float32

    @property
    def nothing(self) -> bool:
        """Return whether sums in D's dtype are stored as they are."""
        return not self.steps and self.statistics is None and not self.integers

    def __call__(
        self,
        acc: Tensor,
        columns: Any,
        sources: Sequence[Tensor] = (),
        written: Any = True,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the tile as it is stored.

        Args:
            acc: (rows, columns of the tile).
            columns: its columns in D, a slice or an integer tensor.
            sources: the sources of the residuals, like ``acc``.
            written: True, or which vectors of columns of each row are written: (rows, vectors).
            rows: the row numbers in the view, (rows,), if the steps need them.
        """
        if self.integers and acc.dtype == torch.float64:
            acc = acc.to(torch.int64).to(torch.int32)  # beyond 32 bits they wrap, like a GPU's
        if self.steps or self.out != torch.int32:
            acc = acc.to(self.kind)
        value = convert(apply_steps(self.steps, acc, columns, sources, rows), self.out)
        if self.statistics is not None:
            self._add(value.double(), columns, written)
        return value

    def _add(self, value: Tensor, columns: Any, written: Any) -> None:
        if written is not True:
            there = written.repeat_interleave(value.shape[1] // written.shape[1], 1)
            value = torch.where(there, value, 0)
        sums = _sums(value)
        if isinstance(columns, slice):
            self.statistics[:, columns] += sums  # type: ignore[index]
        else:
            self.statistics.index_add_(1, columns, sums)  # type: ignore[union-attr]
