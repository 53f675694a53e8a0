"""MMA fragments: loads from shared memory to registers, by ldmatrix or as words and pairs."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32, TFloat32
from cutlass.cute.nvgpu import warp

from layoutconv.planning.tile import NARROW

from ..common.walk import read
from .smem_tile import VECTOR_BYTES, SharedTile

Place = tuple[int, int]  # a value of a fragment, and its tile along m or n


class Fragments:
    """A thread's fragments of one operand, and their loads from a stage.

    ``tensor`` holds all fragments, (values, tiles along m or n, k-blocks), as elements of ``unit``.
    ``shared.read`` selects the load: "matrices" is ldmatrix, transposed unless k is contiguous;
    anything else loads elements, as vectors where the MMA gives a lane neighbours. ``rows``: only
    so many rows of the tile; 0 for all.
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
        self.copy = None
        self.matrix = VECTOR_BYTES * 8 // unit.width  # elements of a row that ldmatrix reads
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
        if self.copy is None:
            for displacement, places in self._vectors(k_block):
                pointer = self._pointer(start, displacement, stage, self.word, len(places))
                vector = read(pointer, self.word, len(places))
                for word, (value, tile) in enumerate(places):
                    self.words[value, tile, to] = vector[word]
            return self.tensor[None, None, to]
        for tile in range(cute.size(self.layout, mode=[1])):
            displacement = self._displacement(0, tile, k_block)
            pointer = self._pointer(start, displacement, stage, self.unit, self.matrix)
            source = cute.make_tensor(pointer, self.values)
            cute.copy_atom_call(self.copy, source, self.to[None, tile, to])
        return self.tensor[None, None, to]

    def _vectors(self, k_block: int) -> list[tuple[int, list[Place]]]:
        """Return the vectors of a k-block: where each lies, in bytes, and the places it fills."""
        values, tiles = (range(cute.size(self.layout, mode=[mode])) for mode in (0, 1))
        size, found = self.unit.width // 8, list[tuple[int, list[Place]]]()
        for displacement, place in sorted(
            (self._displacement(value, tile, k_block), (value, tile))
            for value in values
            for tile in tiles
        ):
            first, places = found[-1] if found else (0, [])
            if places and displacement == first + size * len(places):
                places.append(place)
            else:
                found.append((displacement, [place]))
        return found

    def _displacement(self, value: int, tile: int, k_block: int) -> int:
        elements = int(cute.crd2idx((value, tile, k_block), self.layout))
        return elements * int(self.unit.width) // 8

    def _pointer(self, start: Any, displacement: int, stage: Any, kind: Any, count: int) -> Any:
        """Return a pointer to a vector of ``count`` elements of a ``kind``."""
        address = self.shared.at(start, displacement, stage)
        align = count * kind.width // 8
        return cute.make_ptr(kind, address, cute.AddressSpace.smem, assumed_align=align)
