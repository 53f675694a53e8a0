"""Run programs of traced functions in torch: the definition of what kernels compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..view.traced import PointwiseProgram

_OPERATIONS: dict[str, Any] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "floordiv": lambda x, by: torch.div(x, by, rounding_mode="floor"),
    "mod": torch.remainder,
    "neg": torch.neg,
    "abs": torch.abs,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "not": torch.logical_not,
    "where": torch.where,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "floor": torch.floor,
    "same": lambda x: x,
}


def run_program(
    program: PointwiseProgram,
    value: Tensor,
    tensors: Sequence[Tensor],
    numbers: Sequence[float],
    coordinates: tuple[Tensor, Tensor],
) -> Tensor:
    """Run a program on a tile of values, whose last mode are columns.

    Args:
        value: fp32 or fp64; the program computes in it.
        tensors: the tile's part of the tensors per column, per row and like D, in the program's
            order; they broadcast over ``value``.
        numbers: the program's.
        coordinates: rows and columns of the tile as integers, which broadcast over ``value``.

    >>> from layoutconv.view.traced import trace, where
    >>> program = trace(lambda x, low: where(x < low, low, x), columns={"low": "float32"})
    >>> nowhere = torch.zeros(1, dtype=torch.int64)
    >>> run_program(program, torch.tensor([1.0, 2.0]), [torch.ones(2) * 1.5], (), (nowhere,) * 2)
    tensor([1.5000, 2.0000])
    """
    names = [f"c{i}" for i in range(len(program.columns))]
    names += [f"r{i}" for i in range(len(program.rows))]
    names += [f"s{i}" for i in range(len(program.sources))]
    given: dict[str, Any] = {
        name: tensor.to(value.dtype) for name, tensor in zip(names, tensors, strict=True)
    }
    given.update(x=value, row=coordinates[0], column=coordinates[1])

    def constant(number: float) -> Tensor:
        kind = torch.int64 if isinstance(number, int) else value.dtype
        return torch.tensor(number, dtype=kind, device=value.device)

    def operand(name: str) -> Tensor:
        if name in given:
            return given[name]  # type: ignore[no-any-return]
        if name.startswith("n"):
            return constant(float(numbers[int(name[1:])]))
        return constant(int(name) if name.lstrip("-").isdigit() else float(name))

    operations = {**_OPERATIONS, "float": lambda x: x.to(value.dtype)}
    return program.run(operand, operations).expand_as(value)  # type: ignore[no-any-return]
