"""How the template is cut into pieces: CTA tile, warps and pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass

REGISTERS = 65536  # of a multiprocessor
MOST_REGISTERS = 255  # of a thread
BARRIER_BYTES = 8
SUM_BYTES = 4
MOST_PARTS = 8  # CTAs of a cluster, on any GPU that has clusters
ROW_BYTES = 16  # of shared memory, for what an epilogue keeps of a row
OTHER_REGISTERS = 104  # of a thread: fragments, addresses, masks
OTHER_WITHOUT_FRAGMENTS = 32
OTHER_BESIDE_MAPS = 48  # where no thread computes addresses of what is copied
HALO = 32
WARP = 32
LINE_BYTES = 128  # of shared memory: all banks once
HALF_WARPGROUP = 64
WARPGROUP = 128  # threads that multiply together on Hopper, 64 rows at a time
ROWS, ROW_REGISTERS = 4, 4  # of A that a thread copies within that; what each further row takes


@dataclass(frozen=True)
class Tile:
    """A CTA computes ``m x n`` outputs, ``k`` products at a time, with ``warps_m x warps_n`` warps.

    ``stages`` buffers of shared memory hold the k-tiles in flight; one is enough for sums of one.
    Beside the warps that multiply, ``producers`` threads only copy, if there are any: then warps
    multiply in groups of four, each 64 rows at a time, by Hopper's instructions. A warpgroup
    copies, or half of one, which leaves registers for another CTA; or one warp where all comes by
    tensor maps. A tile of A then serves ``taps`` taps, for which it has ``HALO`` rows more.
    ``parts`` CTAs of a cluster share a sum, and each other's memory. Of a cluster of ``sharing``
    CTAs, one below the other, each copies a share of B's tiles to all. Where CTAs are ``lasting``,
    each computes several tiles, one after the other, and one warp copies for the next already. Of B
    they may be ``holding`` all k-tiles, as many as this, which are copied once; stages are of A
    alone then. And two ``teams`` may take tiles in turn, a warpgroup each: one stores, from
    registers, while the other multiplies.

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
    producers: int = 0
    taps: int = 1
    parts: int = 1
    sharing: int = 1
    lasting: bool = False
    holding: int = 0
    teams: int = 1

    def __post_init__(self) -> None:
        if self.producers and (self.warps_m % 4 or self.n > min(self.threads, 256 * self.warps_n)):
            raise ValueError(
                f"tile {self}: warpgroups are 4 warps along m, and have 256 columns at most, and "
                "as many as they have threads, which store a row each"
            )
        if self.m % (16 * self.warps_m) or self.n % (16 * self.warps_n):
            raise ValueError(f"tile {self}: each warp needs a multiple of 16 rows and 16 columns")
        if self.parts & (self.parts - 1) or not 1 <= self.parts <= MOST_PARTS:
            raise ValueError(f"tile {self}: a cluster shares sums in 1, 2, 4 or 8 parts")
        if self.sharing not in (1, 2) or (self.sharing > 1 and not self.producers):
            raise ValueError(f"tile {self}: tiles of B are shared by 2 CTAs, of warpgroups")
        if self.sharing > 1 and self.parts > 1:
            raise ValueError(f"tile {self}: a cluster shares tiles of B, or sums")
        if self.producers not in (0, WARP, HALF_WARPGROUP, WARPGROUP):
            raise ValueError(f"tile {self}: a warp copies, or a warpgroup, or half of one")
        if self.stages < (1 if self.producers else 2):
            raise ValueError(f"tile {self}: a pipeline needs at least 2 stages, or producers")
        alone = self.producers == WARP and self.parts == self.sharing == 1
        if self.lasting and (not alone or self.stages < 2):
            raise ValueError(
                f"tile {self}: CTAs that compute several have one warp that copies, 2 stages or "
                "more, and share nothing"
            )
        if self.holding and not self.lasting:
            raise ValueError(f"tile {self}: CTAs that hold what there is of B compute several")
        in_turn = self.teams == 2 and self.lasting and self.threads == WARPGROUP
        if self.teams != 1 and not in_turn:
            raise ValueError(f"tile {self}: two warpgroups take tiles in turn, of CTAs that last")

    @property
    def threads(self) -> int:
        """Those that multiply a tile."""
        return 32 * self.warps_m * self.warps_n

    @property
    def workers(self) -> int:
        """Those that multiply, of all teams."""
        return self.teams * self.threads

    @property
    def copied_rows(self) -> int:
        """Rows of a stage's tile of A."""
        return self.m + (HALO if self.taps > 1 else 0)

    @property
    def sums_beside(self) -> bool:
        """Whether those who copied are enough to sum columns, while the others store them."""
        return self.producers >= WARPGROUP

    @property
    def launched(self) -> int:
        """All threads of a CTA."""
        return self.workers + self.producers

    @property
    def resident(self) -> int:
        """How many CTAs a multiprocessor's registers should hold: the compiler is told so.

        One register too many has cost a third CTA, and with it 12% (128x64, H200).

        >>> Tile(128, 64, 64, 2, 2).resident, Tile(128, 128, 64, 2, 2).resident
        (3, 2)

        With fewer than they need, kernels spill: all of 256x32 that copy 8 rows a thread did.

        >>> Tile(256, 32, 32, 4, 1).resident
        2

        Where one warp copies, there is room for two that would have been one.

        >>> [Tile(128, 128, 64, 8, 1, 3, producers).resident for producers in (128, 32)]
        [1, 2]
        """
        return max(1, REGISTERS // (self.launched * self.registers))

    @property
    def registers(self) -> int:
        """How many registers a thread needs, about; it can have 255.

        >>> Tile(256, 64, 16, 4, 1).registers, Tile(128, 128, 16, 2, 2).registers
        (248, 232)
        """
        accumulators = self.m * self.n // self.threads
        if self.producers:
            by_maps = self.producers == WARP
            return accumulators + (OTHER_BESIDE_MAPS if by_maps else OTHER_WITHOUT_FRAGMENTS)
        more_rows = max(0, 4 * self.m // self.threads - ROWS)  # 4 threads share a row
        return accumulators + OTHER_REGISTERS + ROW_REGISTERS * more_rows

    def shared_bytes(self, operand_bytes: int, output_bytes: int) -> int:
        """Dynamic shared memory in bytes: the main loop's stages, reused by the epilogue's tile;
        where CTAs last, that is beside them; teams have none.

        >>> [Tile(128, 64, 64, 4, 1, 2, 32, lasting=i).shared_bytes(2, 2) for i in (False, True)]
        [49184, 67616]
        >>> Tile(128, 64, 64, 4, 1, 2, 32, lasting=True, teams=2).shared_bytes(2, 2)
        49200
        """
        mainloop = self.mainloop_bytes(operand_bytes)
        if self.parts > 1:  # parts of sums
            output_bytes = max(output_bytes, SUM_BYTES)
        epilogue = self.epilogue_bytes(output_bytes) if self.teams == 1 else 0
        if self.lasting:
            return mainloop + epilogue
        return mainloop + max(0, epilogue - self.stages * self.stage_bytes(operand_bytes))

    def epilogue_bytes(self, output_bytes: int) -> int:
        """Of these, what the epilogue takes: its tile, and what it keeps of rows."""
        return self.m * (self.n * output_bytes + ROW_BYTES)

    def mainloop_bytes(self, operand_bytes: int) -> int:
        """Of these, what the main loop takes: the stages, and barriers."""
        held = self.holding * self.bytes_of_b(operand_bytes)
        return self.stages * self.stage_bytes(operand_bytes) + held + BARRIER_BYTES * self.barriers

    @property
    def barriers(self) -> int:
        """Of stages, which are full or empty; of B, where it is held; of teams."""
        teams = self.teams if self.teams > 1 else 0
        return 2 * self.stages + (self.holding > 0) + teams if self.producers else 0

    def stage_bytes(self, operand_bytes: int) -> int:
        """The k-tiles of a stage."""
        of_b = 0 if self.holding else self.bytes_of_b(operand_bytes)
        return self.copied_rows * self.k * operand_bytes + of_b

    def bytes_of_b(self, operand_bytes: int) -> int:
        """A k-tile of B, of every tap."""
        return self.taps * self.n * self.k * operand_bytes


def line_bytes(row_bytes: int) -> int:
    """The length of the lines that rows of so many bytes of shared memory are cut into."""
    return LINE_BYTES if row_bytes % LINE_BYTES == 0 else LINE_BYTES // 2
