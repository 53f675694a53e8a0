"""Tile of the template: its CTA tile, warps, stages and schedule, and the resources it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from .schedule import WARP, WARPGROUP, KernelSchedule, Load, TileScheduler

REGISTERS = 65536  # per SM
MOST_REGISTERS = 255  # per thread
MBARRIER_BYTES = 8
PARTIAL_BYTES = 4  # of a partial sum that a cluster exchanges
MOST_CLUSTER = 8  # CTAs, on any GPU that has clusters
ROW_BYTES = 16  # of shared memory that an epilogue keeps per row
OTHER_REGISTERS = 104  # per thread: fragments, addresses, masks
OTHER_WITHOUT_FRAGMENTS = 32
COPYING_REGISTERS = 32  # of a thread that copies rows: more than the sums of 8 or 16 columns take
OTHER_BESIDE_TMA = 48  # where no thread computes load addresses
HALO = 32  # rows of A in a stage beyond those of the tile, with halo reuse
LINE_BYTES = 128  # of shared memory: all banks once
WORD = 4  # bytes
NARROW = 8  # columns of an MMA instruction, the narrowest tile
ROWS, ROW_REGISTERS = 4, 4  # rows of A per thread within OTHER_REGISTERS; registers per further row


@dataclass(frozen=True, repr=False)
class TileConfig:
    """Configuration of the tile of D that a CTA computes: sizes, warps, stages and named choices.

    Args:
        mma: the CTA tile (m, n, k): m x n outputs, and k products of each per k-tile.
        warps: warps that multiply a tile, along m and n. For ``wgmma``, four along m are a
            warpgroup.
        stages: shared-memory buffers for k-tiles in flight; with a producer, one is enough for sums
            of one k-tile.
        schedule: which warps load and which multiply.
        load: which warps copy operands, and by which instruction.
        scheduler: which output tiles a CTA computes.
        halo_taps: how many taps of the filter one tile of A serves (halo reuse). Above 1, the tile
            of A has ``HALO`` more rows, and a stage has a tile of B for each tap.
        cluster_k: CTAs of a cluster that split a sum along k (cluster split-K); they reduce it
            through distributed shared memory.
        b_resident: k-tiles of B that stay in shared memory, loaded once for all output tiles of a
            persistent CTA: all of them, or 0. Stages then hold only A.

    Raises ``ValueError``, which names the tile, what was expected and what came.

    >>> TileConfig((128, 128, 32), stages=4)
    TileConfig((128, 128, 32), warps=(2, 2), stages=4)
    >>> TileConfig((128, 128, 32), stages=4).smem_bytes(operand_bytes=2, output_bytes=2)
    65536
    >>> print(TileConfig((128, 64, 64), (4, 1), 3, KernelSchedule.WARP_SPECIALIZED, Load.TMA_WARP))
    128x64x64, 4x1 warps, 3 stages, warp-specialized, TMA by a warp
    """

    mma: tuple[int, int, int]
    warps: tuple[int, int] = (2, 2)
    stages: int = 3
    schedule: KernelSchedule = KernelSchedule.MULTISTAGE
    load: Load = Load.CP_ASYNC
    scheduler: TileScheduler = TileScheduler.SINGLE_TILE
    halo_taps: int = 1
    cluster_k: int = 1
    b_resident: int = 0

    def __post_init__(self) -> None:
        for reason in self._reasons():
            raise ValueError(f"{self!r}: expected {reason}")

    def __repr__(self) -> str:
        changed = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)[3:]
            if getattr(self, field.name) != field.default
        ]
        shape = f"{self.mma}, warps={self.warps}, stages={self.stages}"
        return f"TileConfig({', '.join([shape, *changed])})"

    def __str__(self) -> str:
        warps, shape = "x".join(map(str, self.warps)), "x".join(map(str, self.mma))
        return ", ".join([shape, f"{warps} warps", f"{self.stages} stages", *self.traits()])

    def traits(self, most_halo_taps: int | None = None) -> list[str]:
        """Return the schedule, the load and the rarer options, in words.

        >>> persistent((128, 192, 64), (8, 1), 5).traits()
        ['cooperative', 'TMA by a warp', 'persistent']
        """
        taps = min(self.halo_taps, most_halo_taps or self.halo_taps)
        words = [str(self.schedule)]
        words += [str(self.load)] if self.producer_threads else []
        words += ["persistent"] if self.persistent else []
        words += [f"{taps} halo taps"] if taps > 1 else []
        words += [f"cluster of {self.cluster_k} along k"] if self.cluster_k > 1 else []
        words += ["B resident"] if self.b_resident else []
        return words

    def _reasons(self) -> Iterator[str]:
        """Yield the reasons why no kernel can have this tile: for each broken rule, what was
        expected and what came.

        ``legality.py`` has the rules for a tile together with a view.
        """
        (m, n, _), (warps_m, warps_n) = self.mma, self.warps
        specialized = self.schedule is not KernelSchedule.MULTISTAGE
        if specialized != (self.load is not Load.CP_ASYNC):
            yield "a load by producers where warps are specialized, by all threads elsewhere"
        if specialized and (warps_m % 4 or n > min(self.mma_threads, 256 * warps_n)):
            yield (
                "warpgroups of 4 warps along m, with 256 columns at most, and as many as they have "
                f"threads, which store a row each, got {warps_m} x {warps_n} warps and n = {n}"
            )
        if specialized and (self.schedule is KernelSchedule.COOPERATIVE) != (
            self.mma_threads > WARPGROUP
        ):
            yield (
                "one consumer warpgroup to a tile, or a cooperative schedule of two or more, got "
                f"{warps_m * warps_n} warps"
            )
        if m % (16 * warps_m) or (n % (16 * warps_n) and (n, warps_n) != (NARROW, 1)):
            yield (
                "a multiple of 16 rows and 16 columns for each warp, or 8 columns of all, got "
                f"{m} x {n}"
            )
        if self.cluster_k & (self.cluster_k - 1) or not 1 <= self.cluster_k <= MOST_CLUSTER:
            yield f"a cluster of 1, 2, 4 or 8 CTAs along k, got {self.cluster_k}"
        if self.stages < (1 if specialized else 2):
            yield f"2 stages or more, 1 or more with producers, got {self.stages}"
        tma = self.load is Load.TMA_WARP
        if self.persistent and (not tma or self.cluster_k > 1 or self.stages < 2):
            yield (
                "2 stages or more, TMA by one warp and no cluster for a persistent kernel, got "
                f"{self.stages} stages, {self.load}, clusters of {self.cluster_k}"
            )
        if self.b_resident and not self.persistent:
            yield "a persistent kernel for a B that stays in shared memory"
        if self.pingpong and not self.persistent:
            yield "a persistent kernel for two consumers on alternate tiles (ping-pong)"

    @property
    def m(self) -> int:
        """Rows of D."""
        return self.mma[0]

    @property
    def n(self) -> int:
        """Columns of D."""
        return self.mma[1]

    @property
    def k(self) -> int:
        """Products per output in a k-tile."""
        return self.mma[2]

    @property
    def warp_specialized(self) -> bool:
        """Return whether producer warps load, and consumer warpgroups multiply with ``wgmma``."""
        return self.schedule is not KernelSchedule.MULTISTAGE

    @property
    def pingpong(self) -> bool:
        return self.schedule is KernelSchedule.PINGPONG

    def stores_registers(self, operand_bytes: int) -> bool:
        """Return whether results go from registers to global memory, bypassing shared memory.

        Ping-pong kernels do this, and persistent kernels if their columns are no power of two,
        which the staging layout needs, or for 32-bit data, whose stages leave no room for staging.
        """
        by_columns = self.n & (self.n - 1) > 0
        return self.pingpong or (self.persistent and (by_columns or operand_bytes == WORD))

    @property
    def persistent(self) -> bool:
        return self.scheduler is TileScheduler.STATIC_PERSISTENT

    @property
    def producer_threads(self) -> int:
        """Threads that only load: 0, a warp, half a warpgroup or one."""
        return self.load.producer_threads

    @property
    def mma_threads(self) -> int:
        """Threads that multiply one tile."""
        return WARP * self.warps[0] * self.warps[1]

    @property
    def consumers(self) -> int:
        """Groups of consumer threads, each with its own output tile: two with ping-pong."""
        return 2 if self.pingpong else 1

    @property
    def consumer_threads(self) -> int:
        """Threads that multiply, over all tiles that a CTA has in work."""
        return self.consumers * self.mma_threads

    @property
    def threads(self) -> int:
        """All threads of a CTA.

        >>> TileConfig((128, 128, 32), (2, 2), 4).threads
        128
        """
        return self.consumer_threads + self.producer_threads

    @property
    def a_rows(self) -> int:
        """Rows of A in a stage: those of the tile, and the halo with halo reuse."""
        return self.m + (HALO if self.halo_taps > 1 else 0)

    @property
    def statistics_by_producers(self) -> bool:
        """True if there are enough producer threads to sum columns while the consumers store."""
        return self.producer_threads >= WARPGROUP

    @property
    def ctas_per_sm(self) -> int:
        """CTAs per SM that the register file should hold; the compiler is given this occupancy.

        One register too many once cost the third CTA, and 12% of the time (128x64, H200).

        >>> TileConfig((128, 64, 64)).ctas_per_sm, TileConfig((128, 128, 64)).ctas_per_sm
        (3, 2)

        With fewer registers than they need, kernels spill: 256x32 ones did, at 8 rows per thread.

        >>> TileConfig((256, 32, 32), (4, 1)).ctas_per_sm
        2

        With one TMA warp as producer, two CTAs fit instead of one.

        >>> loads = Load.CP_ASYNC_WARPGROUP, Load.TMA_WARP
        >>> tiles = [TileConfig((128, 128, 64), (8, 1), 3, KernelSchedule.COOPERATIVE, load)
        ...     for load in loads]
        >>> [tile.ctas_per_sm for tile in tiles]
        [1, 2]
        """
        return max(1, REGISTERS // (self.threads * self.registers))

    @property
    def registers(self) -> int:
        """Registers that a thread needs, about; the hardware limit is 255.

        >>> TileConfig((256, 64, 16), (4, 1)).registers, TileConfig((128, 128, 16)).registers
        (248, 232)
        """
        accumulators = self.m * self.n // self.mma_threads
        if self.warp_specialized:
            if self.load is Load.TMA_WARP:
                return accumulators + OTHER_BESIDE_TMA
            return max(accumulators, COPYING_REGISTERS) + OTHER_WITHOUT_FRAGMENTS
        more_rows = max(0, 4 * self.m // self.mma_threads - ROWS)  # 4 threads share a row
        return accumulators + OTHER_REGISTERS + ROW_REGISTERS * more_rows

    def smem_bytes(self, operand_bytes: int, output_bytes: int) -> int:
        """Return the dynamic shared memory in bytes: the mainloop's stages, reused by the epilogue.

        The epilogue of a persistent kernel has its own memory beside the stages, unless it stores
        from registers.

        >>> specialized, by_tma = KernelSchedule.WARP_SPECIALIZED, Load.TMA_WARP
        >>> [TileConfig((128, 64, 64), (4, 1), 2, specialized, by_tma, scheduler).smem_bytes(2, 2)
        ...     for scheduler in TileScheduler]
        [49184, 67616]
        >>> persistent = TileScheduler.STATIC_PERSISTENT
        >>> pingpong = KernelSchedule.PINGPONG
        >>> TileConfig((128, 64, 64), (4, 1), 2, pingpong, by_tma, persistent).smem_bytes(2, 2)
        49200
        """
        mainloop = self.mainloop_bytes(operand_bytes)
        if self.persistent:
            return mainloop + self._bytes_staged(operand_bytes, output_bytes)
        return mainloop + self.bytes_past_stages(operand_bytes, output_bytes)

    def bytes_past_stages(self, operand_bytes: int, output_bytes: int) -> int:
        """Return by how many bytes an epilogue that reuses the stages exceeds them.

        Mbarriers lie behind these bytes: their memory must not be reused before they are
        invalidated.

        >>> tile = TileConfig((192, 128, 64), (12, 1), 4, KernelSchedule.COOPERATIVE, Load.TMA_WARP)
        >>> tile.bytes_past_stages(1, 4), tile.bytes_past_stages(1, 2)
        (19456, 0)
        """
        if self.persistent:
            return 0
        staged = self._bytes_staged(operand_bytes, output_bytes)
        return max(0, staged - self.stages * self.stage_bytes(operand_bytes))

    def _bytes_staged(self, operand_bytes: int, output_bytes: int) -> int:
        if self.stores_registers(operand_bytes):
            return 0
        partial = PARTIAL_BYTES if self.cluster_k > 1 else 0
        return self.epilogue_bytes(max(output_bytes, partial))

    def epilogue_bytes(self, output_bytes: int) -> int:
        """Return the bytes of the epilogue: its tile, and ``ROW_BYTES`` per row."""
        return self.m * (self.n * output_bytes + ROW_BYTES)

    def mainloop_bytes(self, operand_bytes: int) -> int:
        """Return the bytes of the mainloop: stages, a resident B, and mbarriers."""
        resident = self.b_resident * self.b_tile_bytes(operand_bytes)
        stages = self.stages * self.stage_bytes(operand_bytes)
        return stages + resident + MBARRIER_BYTES * self.mbarriers

    @property
    def mbarriers(self) -> int:
        """Mbarriers of a CTA: full and empty for each stage, one of a resident B, one for each
        ping-pong consumer."""
        if not self.warp_specialized:
            return 0
        return 2 * self.stages + (self.b_resident > 0) + (self.consumers if self.pingpong else 0)

    def stage_bytes(self, operand_bytes: int) -> int:
        """Return the bytes of a stage: a k-tile of A and, if B is not resident, of B."""
        b = 0 if self.b_resident else self.b_tile_bytes(operand_bytes)
        return self.a_rows * self.k * operand_bytes + b

    def b_tile_bytes(self, operand_bytes: int) -> int:
        """Return the bytes of a k-tile of B, for all taps that share the rows of A."""
        return self.halo_taps * self.n * self.k * operand_bytes


def registers_given(ctas_per_sm: int, threads: int) -> int:
    """Return the registers per thread that the compiler may use at an occupancy.

    Each of the four partitions of an SM allocates registers to its warps in units of 8 per thread.

    >>> registers_given(3, 128), registers_given(2, 224)
    (168, 128)
    """
    warps = -(-ctas_per_sm * threads // WARP)
    return REGISTERS // 4 // (-(-warps // 4) * WARP) // 8 * 8


def specialized(
    mma: tuple[int, int, int],
    warps: tuple[int, int],
    stages: int,
    load: Load = Load.CP_ASYNC_WARPGROUP,
    *,
    halo_taps: int = 1,
    cluster_k: int = 1,
) -> TileConfig:
    """Return a tile with producers: cooperative if its warps are more than one consumer warpgroup,
    else warp-specialised.

    >>> for m, warps in ((128, (4, 1)), (256, (8, 1))):
    ...     print(specialized((m, 64, 64), warps, 3).schedule)
    warp-specialized
    cooperative
    """
    schedule = _schedule_of(warps)
    return TileConfig(mma, warps, stages, schedule, load, halo_taps=halo_taps, cluster_k=cluster_k)


def persistent(
    mma: tuple[int, int, int],
    warps: tuple[int, int],
    stages: int,
    *,
    pingpong: bool = False,
    halo_taps: int = 1,
    b_resident: int = 0,
) -> TileConfig:
    """Return a tile of a persistent kernel, whose producer is one TMA warp.

    >>> persistent((128, 128, 64), (4, 1), 6, pingpong=True).consumer_threads
    256
    """
    return TileConfig(
        mma,
        warps,
        stages,
        KernelSchedule.PINGPONG if pingpong else _schedule_of(warps),
        Load.TMA_WARP,
        TileScheduler.STATIC_PERSISTENT,
        halo_taps,
        b_resident=b_resident,
    )


def _schedule_of(warps: tuple[int, int]) -> KernelSchedule:
    several = WARP * warps[0] * warps[1] > WARPGROUP
    return KernelSchedule.COOPERATIVE if several else KernelSchedule.WARP_SPECIALIZED


def line_bytes(row_bytes: int) -> int:
    """Return the length of the lines that a shared-memory row of ``row_bytes`` is divided into.

    >>> line_bytes(256), line_bytes(192), line_bytes(16)  # the last: 8 columns of 16 bits
    (128, 64, 16)
    """
    if row_bytes < LINE_BYTES // 2:
        return row_bytes
    return LINE_BYTES if row_bytes % LINE_BYTES == 0 else LINE_BYTES // 2
