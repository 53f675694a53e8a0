"""How the template is cut into pieces: CTA tile, warps and pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass

REGISTERS = 65536  # of a multiprocessor
MOST_REGISTERS = 255  # of a thread
ROW_BYTES = 16  # of shared memory, for what an epilogue keeps of a row
OTHER_REGISTERS = 104  # of a thread: fragments, addresses, masks
ROWS, ROW_REGISTERS = 4, 4  # of A that a thread copies within that; what each further row takes


@dataclass(frozen=True)
class Tile:
    """A CTA computes ``m x n`` outputs, ``k`` products at a time, with ``warps_m x warps_n`` warps.

    ``stages`` buffers of shared memory hold the k-tiles in flight.

    >>> Tile(128, 128, 32, 2, 2, 4).threads
    128
    >>> Tile(128, 128, 32, 2, 2, 4).shared_bytes(operand_bytes=2, output_bytes=2)
    65536
    """

    m: int
    n: int
    k: int
    warps_m: int = 2
    warps_n: int = 2
    stages: int = 3

    def __post_init__(self) -> None:
        if self.m % (16 * self.warps_m) or self.n % (16 * self.warps_n):
            raise ValueError(f"tile {self}: each warp needs a multiple of 16 rows and 16 columns")
        if self.stages < 2:
            raise ValueError(f"tile {self}: a pipeline needs at least 2 stages")

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def resident(self) -> int:
        """How many CTAs a multiprocessor's registers should hold: the compiler is told so.

        One register too many has cost a third CTA, and with it 12% (128x64, H200).

        >>> Tile(128, 64, 64, 2, 2).resident, Tile(128, 128, 64, 2, 2).resident
        (3, 2)

        With fewer than they need, kernels spill: all of 256x32 that copy 8 rows a thread did.

        >>> Tile(256, 32, 32, 4, 1).resident
        2
        """
        return max(1, REGISTERS // (self.threads * self.registers))

    @property
    def registers(self) -> int:
        """How many registers a thread needs, about; it can have 255.

        >>> Tile(256, 64, 16, 4, 1).registers, Tile(128, 128, 16, 2, 2).registers
        (248, 232)
        """
        accumulators = self.m * self.n // self.threads
        more_rows = max(0, 4 * self.m // self.threads - ROWS)  # 4 threads share a row
        return accumulators + OTHER_REGISTERS + ROW_REGISTERS * more_rows

    def shared_bytes(self, operand_bytes: int, output_bytes: int) -> int:
        """Dynamic shared memory in bytes: the main loop's stages, reused by the epilogue's tile."""
        mainloop = self.stages * (self.m + self.n) * self.k * operand_bytes
        return max(mainloop, self.m * (self.n * output_bytes + ROW_BYTES))
