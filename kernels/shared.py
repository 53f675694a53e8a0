"""Swizzled shared memory of one operand, and the arithmetic of its addresses."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute

VECTOR_BYTES = 16


class SharedTile:
    """(rows, k, stages) with k contiguous: a row is 64 or 128 bytes, so 8 rows cover all banks.

    The swizzle permutes the 16-byte vectors of a row by an XOR with the row's number, and a step
    along k is an XOR as well, where the start has zeros in those bits. A thread's address is hence
    ``(start ^ step) + stage``, with ``start`` swizzled once, and 8 rows further is a constant.
    """

    def __init__(self, smem: Any, dtype: Any, rows: int, k: int, stages: int) -> None:
        self.dtype = dtype
        self.row_bytes = k * dtype.width // 8
        self.stage_bytes = rows * self.row_bytes
        self.vectors = self.row_bytes // VECTOR_BYTES
        layout = cute.make_ordered_layout((rows, k, stages), order=(1, 0, 2))
        swizzle = cute.make_swizzle(self.vectors.bit_length() - 1, 4, 3)  # of byte addresses
        self.tensor = smem.allocate_tensor(dtype, layout, byte_alignment=1024, swizzle=swizzle)

    def start(self, partition: Any) -> Any:
        """The swizzled address in bytes of the first vector of a thread's partition."""
        logical = partition.iterator.toint()
        return logical ^ ((logical >> 3) & (VECTOR_BYTES * (self.vectors - 1)))

    def pointer(self, start: Any, step: int, stage: Any) -> Any:
        """``step`` bytes along k from a start, in a stage."""
        address = (start ^ step) + stage * self.stage_bytes
        smem = cute.AddressSpace.smem
        return cute.make_ptr(self.dtype, address, smem, assumed_align=VECTOR_BYTES)
