"""Which tile runs a problem: a small family, and a model of how each fills a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from .tile import Tile


@dataclass(frozen=True)
class Machine:
    """What of a GPU decides between tiles: multiprocessors, and shared memory in bytes."""

    arch: str
    multiprocessors: int
    shared_per_block: int
    shared_per_multiprocessor: int


# Limits of the compute capability; multiprocessors of A100, RTX 3090, RTX 4090 and H200. A GPU that
# is present is asked for its own.
MACHINES = {
    "sm_80": Machine("sm_80", 108, 163 << 10, 164 << 10),
    "sm_86": Machine("sm_86", 82, 99 << 10, 100 << 10),
    "sm_89": Machine("sm_89", 128, 99 << 10, 100 << 10),
    "sm_90a": Machine("sm_90a", 132, 227 << 10, 228 << 10),
}
REGISTERS = 65536  # of a multiprocessor
RESERVED = 1024  # bytes of shared memory that each CTA costs on top of its own

# (m, n, warps_m, warps_n): share of the best tile's rate on a full GPU, measured on an H200 with
# fp16 C = K = 32, 64, 256 and tf32 C = 64, K = 128; docs/performance.md has the runs.
FAMILY = {
    (128, 32, 4, 1): 0.46,
    (256, 32, 4, 1): 0.48,
    (64, 64, 2, 2): 0.60,
    (128, 64, 2, 2): 0.74,
    (96, 128, 2, 2): 0.87,
    (128, 128, 2, 2): 0.95,
    (256, 128, 4, 2): 0.99,
    (128, 256, 2, 4): 1.00,
}


def choose_tile(
    m: int, n: int, channels: int, operand_bytes: int, output_bytes: int, machine: Machine
) -> Tile:
    """The tile of the family that is expected to finish an (m, n) problem first.

    ``channels`` is the length of the contiguous mode of k. The size only picks from the family:
    what is compiled for a problem serves every size that picks the same tile.

    >>> choose_tile(10**6, 128, 64, 2, 2, MACHINES["sm_90a"])
    Tile(m=256, n=128, k=64, warps_m=4, warps_n=2, stages=3)
    >>> choose_tile(500, 128, 48, 2, 2, MACHINES["sm_90a"])
    Tile(m=64, n=64, k=32, warps_m=2, warps_n=2, stages=3)
    """
    line = 128 // operand_bytes
    k = line if channels % line == 0 else line // 2
    tiles = [Tile(*shape, stages=3) for shape in ((a, b, k, c, d) for a, b, c, d in FAMILY)]
    fitting = [
        tile
        for tile in tiles
        if tile.shared_bytes(operand_bytes, output_bytes) <= machine.shared_per_block
    ]
    return min(fitting, key=lambda t: _time(t, m, n, operand_bytes, output_bytes, machine))


def _time(
    tile: Tile, m: int, n: int, operand_bytes: int, output_bytes: int, machine: Machine
) -> float:
    """Expected time, up to a factor: whole waves of CTAs, each as long as its tiles are large."""
    shared = tile.shared_bytes(operand_bytes, output_bytes) + RESERVED
    registers = tile.threads * (tile.m * tile.n // tile.threads + 126)
    resident = max(1, min(machine.shared_per_multiprocessor // shared, REGISTERS // registers))
    ctas = -(-m // tile.m) * -(-n // tile.n)
    per_multiprocessor = -(-ctas // machine.multiprocessors)
    full, rest = divmod(per_multiprocessor, resident)
    rate = FAMILY[tile.m, tile.n, tile.warps_m, tile.warps_n]
    return tile.m * tile.n * (full * resident + rest) / rate
