"""MMA fragments: loads from shared memory to registers, by ldmatrix or word by word."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32, TFloat32
from cutlass.cute.nvgpu import warp

from layoutconv.planning.tile import NARROW

from .smem_tile import VECTOR_BYTES, SharedTile


class Fragments:
    """A thread's fragments of one operand, and their loads from a stage.

    ``tensor`` holds all fragments, (values, tiles along m or n, k-blocks), as elements of ``unit``.
    ``shared.read`` selects the load: "matrices" is ldmatrix, transposed unless k is contiguous;
    anything else loads element by element. ``rows``: only so many rows of the tile; 0 for all.
    """

    def __init__(
        self,
        shared: SharedTile,
        mma: Any,
        unit: Any,
        tid: Any,
        *,
        is_a: bool,
        along: int,
        rows: int = 0,
    ) -> None:
        self.shared, self.unit = shared, unit
        smem = shared.tensor(along, unit, rows)
        thread = mma.get_slice(tid)
        partition = thread.partition_A(smem) if is_a else thread.partition_B(smem)
        make = mma.make_fragment_A if is_a else mma.make_fragment_B
        self.tensor = make(partition)
        # The DSL holds no tf32 values: move them as fp32.
        self.word = Float32 if unit is TFloat32 else unit
        self.words = cute.recast_tensor(self.tensor, self.word)
        self.one = cute.make_layout(1)
        self.copy = None
        if shared.read == "matrices":
            # A k-block of B is two 8 x 8 matrices for 8 columns, four for 16.
            rows = shared.rows if along == 1 else shared.columns
            matrices = 2 if rows == NARROW and not is_a else 4
            atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(along == 0, matrices), unit)
            self.copy = (cute.make_tiled_copy_A if is_a else cute.make_tiled_copy_B)(atom, mma)
            thread = self.copy.get_slice(tid)
            partition, self.to = thread.partition_S(smem), thread.retile(self.tensor)
        self.layout = partition.layout
        shape, stride = self.layout.shape[0], self.layout.stride[0]
        self.values = cute.make_layout((shape,), stride=(stride,))
        self.first = partition.iterator.toint()
        self.start = shared.start(self.first)

    def load(self, k_block: int, stage: Any, *, at: int | None = None, below: int = 0) -> Any:
        """Load the fragments of a k-block from a stage, and return them.

        ``at``: the k-block whose registers receive them, if another. ``below``: start so many rows
        of the shared tile further down.
        """
        to = k_block if at is None else at
        start = self.start
        if below:
            start = self.shared.start(self.first + self.shared.displacement(below, 0))
        values, tiles = (range(cute.size(self.layout, mode=[mode])) for mode in (0, 1))
        for tile in tiles:
            if self.copy is not None:
                pointer = self._pointer(start, (0, tile, k_block), stage, VECTOR_BYTES)
                source = cute.make_tensor(pointer, self.values)
                cute.copy_atom_call(self.copy, source, self.to[None, tile, to])
                continue
            for value in values:
                crd = value, tile, k_block
                pointer = self._pointer(start, crd, stage, self.unit.width // 8)
                word = cute.make_tensor(cute.recast_ptr(pointer, dtype=self.word), self.one)
                self.words[value, tile, to] = word[0]
        return self.tensor[None, None, to]

    def _pointer(self, start: Any, crd: tuple[int, int, int], stage: Any, align: int) -> Any:
        displacement = cute.crd2idx(crd, self.layout) * self.unit.width // 8
        address = self.shared.at(start, displacement, stage)
        return cute.make_ptr(self.unit, address, cute.AddressSpace.smem, assumed_align=align)
