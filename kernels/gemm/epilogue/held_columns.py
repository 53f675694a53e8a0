"""Per-column values of an epilogue, such as a bias, loaded into registers ahead of the mainloop.

Loads after the mainloop would leave the tensor cores idle for a few hundred cycles per output tile.
Consumers load the values before their first wait, if registers are left beside the accumulators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass.cute as cute

from layoutconv.planning.tile import TileConfig

BESIDE = 16  # registers left for the rest of the epilogue; with fewer, kernels spilled


class HeldColumns:
    """Registers for a thread's per-column values of ``tensors`` tensors, as type ``kind``.

    ``steps``: the thread's distinct columns, by their distance from its first. ``layout`` maps an
    accumulator to that distance, whatever its row. ``fits``: whether ``registers`` per thread
    suffice.
    """

    def __init__(
        self, tile: TileConfig, thread: Any, pointer: Any, kind: Any, tensors: int, registers: int
    ) -> None:
        shape = tile.m, tile.n
        columns = cute.make_layout(shape, stride=(0, 1))  # column numbers: all rows are alike
        self.layout = thread.partition_C(cute.make_tensor(pointer, columns)).layout
        steps = dict.fromkeys(self.layout(i) for i in range(cute.size(self.layout)))
        self.steps = {step: place for place, step in enumerate(steps)}
        self.first = thread.partition_C(cute.make_identity_tensor(shape))[0][1]
        self.tensors = tensors
        accumulators = cute.size(self.layout)
        self.fits = accumulators + len(steps) * tensors + BESIDE <= registers
        if self.fits:
            self.values = cute.make_rmem_tensor((len(steps), tensors), kind)

    def fetch(self, n0: Any, at: Callable[[int, Any], Any]) -> None:
        """Load ``at(number of a tensor, column)`` for a tile whose columns begin at ``n0``."""
        for step, place in self.steps.items():
            for number in range(self.tensors):
                self.values[place, number] = at(number, n0 + self.first + step)

    def read(self, number: int, step: int) -> Any:
        return self.values[self.steps[step], number]
