"""Operands of hand-written views: the layout that describes one, and where its elements lie.

``addresses`` computes places by sums over digits, from the same numbers that ``layout`` makes the
library's layout of; neither asks the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from layoutconv import ComposedLayout, CustomStride, E, IndexedGather, Layout
from layoutconv.view.gemm_view import OperandLayout
from layoutconv.view.operands import runtime

Leaf = tuple[int, int, int]  # an extent, the coordinate that it moves, and how far


@dataclass(frozen=True)
class Operand:
    """A map from logical modes to memory, through a coordinate, and perhaps an index buffer.

    Args:
        modes: of each logical mode its leaves, the first one fastest.
        offset: where the coordinate starts.
        memory, strides: extents of the coordinate, and steps in memory, in elements; a coordinate
            outside reads zero, and is not written.
        index: entries of an index buffer, which names the first mode of memory for the first
            coordinate; 0 for none.
        absent: the share of entries that are -1.
    """

    modes: tuple[tuple[Leaf, ...], ...]
    offset: tuple[int, ...]
    memory: tuple[int, ...]
    strides: tuple[int, ...]
    index: int = 0
    absent: float = 0.0

    def extent(self, mode: int) -> int:
        return prod(leaf[0] for leaf in self.modes[mode])

    def layout(self, name: str, letters: bool, index: Tensor | None) -> OperandLayout:
        """The library's layout; with ``letters``, what rows move is an argument of kernels."""
        moved = {leaf[1] for leaf in self.modes[0]} if letters else set()
        shape = tuple(
            _named(e, f"{name}{i}") if i in moved else e for i, e in enumerate(self.memory)
        )
        strides = tuple(
            _named(d, f"{name}s{i}") if i in moved and d > 1 else d
            for i, d in enumerate(self.strides)
        )
        extents, steps = [], []
        for number, leaves in enumerate(self.modes):
            sizes = tuple(
                _named(leaf[0], f"{name}m{at}") if letters and number == 0 else leaf[0]
                for at, leaf in enumerate(leaves)
            )
            moves = tuple(step * E(at) for _, at, step in leaves)
            extents.append(sizes if len(sizes) > 1 else sizes[0])
            steps.append(moves if len(moves) > 1 else moves[0])
        first = Layout(tuple(extents), tuple(steps))
        memory: OperandLayout = Layout(shape, strides)
        if index is not None:
            entries = _named(self.index, f"{name}i") if letters else self.index
            through = (CustomStride(IndexedGather(index), E(0)), *map(E, range(1, len(shape))))
            memory = ComposedLayout(memory, 0, Layout((entries, *shape[1:]), through))
        return ComposedLayout(memory, self.offset, first)

    def addresses(self, index: Tensor | None, *modes: int) -> tuple[Tensor, Tensor]:
        """The place of each element, over the numbers of some logical modes, and whether it has
        one; the others are 0."""
        device = torch.device("cpu") if index is None else index.device
        coordinate: list[Any] = list(self.offset)
        for axis, number in enumerate(modes):
            rest = torch.arange(self.extent(number), device=device)
            rest = rest.view([-1 if i == axis else 1 for i in range(len(modes))])
            for extent, at, step in self.modes[number]:
                coordinate[at] = coordinate[at] + rest % extent * step
                rest = rest.div(extent, rounding_mode="floor")
        shape = [self.extent(number) for number in modes]
        place = torch.zeros(shape, dtype=torch.int64, device=device)
        there = torch.ones(shape, dtype=torch.bool, device=device)
        for at, (extent, stride) in enumerate(zip(self.memory, self.strides, strict=True)):
            value = torch.as_tensor(coordinate[at], device=device).expand(shape)
            if at == 0 and index is not None:
                there = there & (value >= 0) & (value < self.index)
                value = index.long()[value.clamp(0, max(self.index - 1, 0))]
            there = there & (value >= 0) & (value < extent)
            place = place + value * stride
        return torch.where(there, place, 0), there

    @property
    def span(self) -> int:
        """Elements from the first to the last."""
        if 0 in self.memory:
            return 0
        return 1 + sum((e - 1) * d for e, d in zip(self.memory, self.strides, strict=True))


def _named(value: int, name: str) -> Any:
    return runtime(value, name)
