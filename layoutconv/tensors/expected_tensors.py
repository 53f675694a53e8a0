"""The tensors that a GEMM view expects, derived from its layouts once."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..algebra.int_tuple import flatten, paired_leaves
from ..algebra.layout import Layout
from ..algebra.stride import ArithmeticTuple, CustomStride, IndexedGather, ScaledBasis
from ..errors import ArgumentError, ArgumentTypeError
from ..view.gemm_view import GemmView, OperandLayout, Stage, gathers, stages


@dataclass(frozen=True)
class ExpectedTensor:
    """The tensor that an operand expects: shape, strides, and their letters in the view."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    memory: Layout = field(compare=False)  # for its letters, those of one view of a kind

    @classmethod
    def of(cls, name: str, layout: OperandLayout) -> ExpectedTensor:
        memory = stages(layout)[-1].layout
        shape, stride = flatten(memory.shape), flatten(memory.stride)
        if not all(isinstance(d, int) for d in stride):
            raise ArgumentError("view", f"integer strides in the memory of {name}", str(memory))
        return cls(name, tuple(map(int, shape)), tuple(map(int, stride)), memory)

    @property
    def text(self) -> str:
        """The letters of shape and strides."""
        return str(self.memory)


@dataclass(frozen=True)
class Index:
    """A gather of a view, and the entries of its index buffer that coordinates can reach.

    ``reached`` is None for all entries, (shape, strides) for a lattice, else positions, int64.
    """

    name: str
    gather: IndexedGather
    reached: tuple[tuple[int, ...], tuple[int, ...]] | Tensor | None
    rows: int
    written: bool

    @property
    def buffer(self) -> Tensor:
        """The index buffer."""
        found: Tensor = self.gather.index
        return found

    @property
    def entries(self) -> Tensor:
        """Return the current entries that coordinates can reach, each once."""
        if self.reached is None:
            return self.buffer
        if isinstance(self.reached, tuple):
            return self.buffer.as_strided(*self.reached)
        return self.buffer[self.reached]


@dataclass(frozen=True)
class Expected:
    """Everything that a call is compared with, and that its output is made from."""

    a: ExpectedTensor
    b: ExpectedTensor
    d: ExpectedTensor
    indices: tuple[Index, ...]
    device: torch.device | None  # of the index buffers
    writes_all: bool


def expected(view: GemmView) -> Expected:
    """Return what a view expects of its tensors; derived at the first call, kept with the view."""
    kept: Expected | None = view.kept.get("expected")
    if kept is None:
        kept = view.kept["expected"] = _derive(view)
    return kept


def _derive(view: GemmView) -> Expected:
    for layout in (view.a, view.b, view.d):
        for stage in stages(layout):
            if any(isinstance(d, ArithmeticTuple) for _, d in _modes(stage.layout)):
                raise ArgumentError(
                    "view", "modes that each move one mode of the coordinate", str(stage.layout)
                )
    indices = tuple(
        index
        for name, layout in (("view.a", view.a), ("view.b", view.b), ("view.d", view.d))
        for index in _indices(name, layout)
    )
    devices = {index.buffer.device for index in indices}
    if len(devices) > 1:
        raise ArgumentError("view", "all its indices on one device", sorted(map(str, devices)))
    return Expected(
        a=ExpectedTensor.of("a", view.a),
        b=ExpectedTensor.of("b", view.b),
        d=ExpectedTensor.of("d", view.d),
        indices=indices,
        device=devices.pop() if devices else None,
        writes_all=_writes_all(view.d),
    )


def _writes_all(layout: OperandLayout) -> bool:
    """Return whether all memory is written: each map reaches all of the next one's domain."""
    chain = stages(layout)
    if any(any(s.offset) if isinstance(s.offset, tuple) else s.offset for s in chain):
        return False
    pairs = itertools.pairwise(chain)
    return all(not gathers(stage) and _is_onto(stage.layout, after) for stage, after in pairs)


def _is_onto(layout: Layout, after: Stage) -> bool:
    """Return whether a map reaches every coordinate of the next one's shape exactly once.

    Then the extents that move a mode are its digits: each step is the product of those below.
    """
    digits: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for extent, step in _modes(layout):
        if not isinstance(step, ScaledBasis):
            return False
        if extent != 1:
            digits.setdefault(step.path, []).append((int(step.value), int(extent)))
    for mode, extent in enumerate(flatten(after.layout.shape)):
        reach = 1
        for step, count in sorted(digits.pop((mode,), [])):
            if step != reach:
                return False
            reach *= count
        if reach != extent:
            return False
    return not digits


def _indices(name: str, layout: OperandLayout) -> list[Index]:
    """Return the index buffers of an operand: each ``IndexedGather`` makes a coordinate."""
    chain = stages(layout)
    found = []
    for at, stage in enumerate(chain):
        for mode, (extent, stride) in enumerate(_modes(stage.layout)):
            if not isinstance(stride, CustomStride) or not isinstance(stride.func, IndexedGather):
                continue
            buffer = stride.func.index
            if not isinstance(buffer, torch.Tensor) or buffer.dtype != torch.int32:
                got = str(getattr(buffer, "dtype", type(buffer).__name__))
                raise ArgumentTypeError(name, "an index that is a torch tensor of int32", got)
            if buffer.dim() != 1 or len(buffer) != extent or not buffer.is_contiguous():
                expected_shape = f"a contiguous index of {int(extent)} entries"
                raise ArgumentError(name, expected_shape, f"shape {tuple(buffer.shape)}")
            if not isinstance(stride.stride, ScaledBasis) or at + 1 == len(chain):
                raise ArgumentError(
                    name, "an index whose rows the next map bounds", str(stage.layout)
                )
            rows = chain[at + 1].layout.shape[stride.stride.path[0]]
            reached = _reached(chain[at - 1], mode, buffer) if at else None
            found.append(Index(name, stride.func, reached, int(rows), name == "view.d"))
    return found


def _modes(layout: Layout) -> list[tuple[Any, Any]]:
    return paired_leaves(layout.shape, layout.stride)


def _reached(
    before: Stage, mode: int, buffer: Tensor
) -> tuple[tuple[int, ...], tuple[int, ...]] | Tensor | None:
    """Return the entries that the map before an index reaches: kernel maps may have gaps."""
    steps = []
    for extent, step in _modes(before.layout):
        if isinstance(step, ScaledBasis) and step.path == (mode,) and isinstance(step.value, int):
            steps.append((int(step.value), int(extent)))
    offset = before.offset[mode] if isinstance(before.offset, tuple) else before.offset
    if not steps and not int(offset):
        return None
    # If each step is at least the span of those below it, no entry is reached twice.
    steps.sort(reverse=True)
    below = [*(step * extent for step, extent in steps[1:]), 1][: len(steps)]
    lattice = all(step >= least for (step, _), least in zip(steps, below, strict=True))
    last = sum(step * (extent - 1) for step, extent in steps)
    if lattice and not int(offset) and last < len(buffer):
        stride, shape = zip(*steps, strict=True)  # in memory order
        return shape, stride
    places = torch.zeros(1, dtype=torch.int64, device=buffer.device) + int(offset)
    for step, extent in steps:
        digits = torch.arange(extent, device=buffer.device) * step
        places = torch.unique(places[:, None] + digits)
    return places[(places >= 0) & (places < len(buffer))]
