"""From shared memory to registers: what a thread multiplies, by ldmatrix or word by word."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32, TFloat32
from cutlass.cute.nvgpu import warp

from .shared import VECTOR_BYTES, SharedTile


class Fragments:
    """A thread's fragments of one operand, and how they are loaded from a stage.

    ``tensor`` is all of them, (values, tiles along m or n, k-blocks), in ``unit``s of registers.
    ``read`` of the shared tile says how they are loaded: "matrices" by ldmatrix, transposed where k
    does not run along memory; else one by one.
    """

    def __init__(
        self, shared: SharedTile, mma: Any, unit: Any, tid: Any, *, is_a: bool, along: int
    ) -> None:
        self.shared, self.unit = shared, unit
        smem = shared.tensor(along, unit)
        thread = mma.get_slice(tid)
        partition = thread.partition_A(smem) if is_a else thread.partition_B(smem)
        make = mma.make_fragment_A if is_a else mma.make_fragment_B
        self.tensor = make(partition)
        # tf32 cannot be held as a value.
        self.word = Float32 if unit is TFloat32 else unit
        self.words = cute.recast_tensor(self.tensor, self.word)
        self.one = cute.make_layout(1)
        self.copy = None
        if shared.read == "matrices":
            atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(along == 0, 4), unit)
            self.copy = (cute.make_tiled_copy_A if is_a else cute.make_tiled_copy_B)(atom, mma)
            thread = self.copy.get_slice(tid)
            partition, self.to = thread.partition_S(smem), thread.retile(self.tensor)
        self.layout = partition.layout
        shape, stride = self.layout.shape[0], self.layout.stride[0]
        self.values = cute.make_layout((shape,), stride=(stride,))
        self.start = shared.start(partition.iterator.toint())

    def load(self, k_block: int, stage: Any) -> None:
        """Load the fragments of a k-block from a stage."""
        values, tiles = (range(cute.size(self.layout, mode=[mode])) for mode in (0, 1))
        for tile in tiles:
            if self.copy is not None:
                pointer = self._pointer((0, tile, k_block), stage, VECTOR_BYTES)
                source = cute.make_tensor(pointer, self.values)
                cute.copy(self.copy, source, self.to[None, tile, k_block])
                continue
            for value in values:
                pointer = self._pointer((value, tile, k_block), stage, self.unit.width // 8)
                word = cute.make_tensor(cute.recast_ptr(pointer, dtype=self.word), self.one)
                self.words[value, tile, k_block] = word[0]

    def _pointer(self, crd: tuple[int, int, int], stage: Any, align: int) -> Any:
        displacement = cute.crd2idx(crd, self.layout) * self.unit.width // 8
        address = self.shared.at(self.start, displacement, stage)
        return cute.make_ptr(self.unit, address, cute.AddressSpace.smem, assumed_align=align)
