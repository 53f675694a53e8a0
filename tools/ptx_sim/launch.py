"""Run a kernel over a grid, one cluster of CTAs after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product

import numpy as np

from . import instructions  # noqa: F401  registers what every instruction does
from .arguments import Argument, pack
from .cluster import Cluster
from .cta import Launch
from .layout import LOCAL_BASE, SHARED_BASE, place
from .memory import Memory
from .operation import Symbols, assemble
from .parse import ParseError
from .ptx import TYPE_BITS, Instruction, Kernel
from .team import Step


@dataclass
class Stats:
    """Instructions executed by a launch, by opcode, counted once per warp that issued them."""

    opcodes: Counter[str] = field(default_factory=Counter)

    def count(self, prefix: str) -> int:
        """Count instructions whose opcode starts with ``prefix``."""
        return sum(n for opcode, n in self.opcodes.items() if opcode.startswith(prefix))


def run(
    kernel: Kernel,
    memory: Memory,
    params: Sequence[Argument],
    grid: tuple[int, ...] = (1,),
    *,
    block: tuple[int, ...] | None = None,
    shared_bytes: int = 0,
    cluster: tuple[int, ...] | None = None,
    seed: int = 0,
    late: bool = True,
    independent: bool = True,
    races: bool = True,
    ctas: Iterable[tuple[int, int, int]] | None = None,
    limit: int = 20_000_000,
) -> Stats:
    """Launch a kernel and wait for it.

    ``params`` are its arguments in ``.param`` order (see :func:`arguments.pack`); ``grid`` is in
    CTAs, ``block`` in threads (default: the kernel's ``.reqntid``), x first; ``shared_bytes`` is
    the dynamic shared memory. ``cluster`` is in CTAs, whose number along each axis it divides
    (default: the kernel's ``.reqnctapercluster``, or one).
    ``ctas`` selects CTAs of the grid, with all CTAs of their clusters.

    ``independent``: every warp runs ahead on its own, in an order drawn from ``seed``; otherwise
    all warps of a CTA fetch together, which is faster. ``late``: cp.async lands only when it is
    waited for; otherwise at once. ``races``: two warps that access the same shared memory, one of
    them writing, without a barrier in between are a fault. ``limit`` bounds the steps of a CTA.

    Raises a Fault if the kernel breaks a rule, and UnsupportedInstruction before anything runs.
    """
    grid_shape, block_shape = _three("grid", grid), _block(kernel, block)
    cluster_shape = _three("cluster", cluster or kernel.cluster or (1,))
    if kernel.cluster not in (None, cluster_shape):
        raise ValueError(f"cluster {cluster_shape} is not the kernel's {kernel.cluster}")
    if any(g % c for g, c in zip(grid_shape, cluster_shape, strict=True)):
        raise ValueError(f"clusters of {cluster_shape} do not divide the grid {grid_shape}")
    placement = place(kernel, memory, shared_bytes)
    launch = Launch(
        kernel=kernel,
        program=_assembled(kernel, placement.addresses),
        memory=memory,
        arguments=pack(kernel, params),
        grid=grid_shape,
        block=block_shape,
        cluster=cluster_shape,
        shared_base=SHARED_BASE,
        shared_size=placement.shared_size,
        dynamic_size=placement.dynamic_size,
        local_base=LOCAL_BASE,
        local_size=placement.local_size,
        shared_granule=shared_granule(kernel.instructions),
        bulk_stores=any("bulk" in i.opcode and "group" in i.opcode for i in kernel.instructions),
        late=late,
        races=races,
        independent=independent,
        limit=limit,
        issued=[0] * len(kernel.instructions),
        straight=[0] * (len(kernel.instructions) + 1),
    )
    done: set[tuple[int, int, int]] = set()
    x, y, z = grid_shape
    # Floating-point exceptions are the kernel's own business.
    with np.errstate(all="ignore"):
        for index in ctas or ((i, j, k) for k, j, i in product(range(z), range(y), range(x))):
            if index in done:
                continue
            cluster = Cluster(launch, index, seed)
            cluster.run()
            done.update(cta.index for cta in cluster.ctas)
    stats = Stats()
    straight = accumulate(launch.straight[:-1])
    for step, *issued in zip(launch.program, launch.issued, straight, strict=True):
        if sum(issued):
            stats.opcodes[step.instruction.opcode] += sum(issued)
    return stats


def _assembled(kernel: Kernel, addresses: dict[str, int]) -> list[Step]:
    """Return the program for these addresses of its names; the kernel keeps the last one."""
    if kernel.assembled is None or kernel.assembled[0] != addresses:
        symbols = Symbols(kernel.labels, addresses)
        kernel.assembled = addresses, assemble(kernel.instructions, symbols)
    return kernel.assembled[1]


def shared_granule(program: Sequence[Instruction]) -> int:
    """Return the width in bytes of a program's narrowest access to shared memory."""
    widths = [16]
    for instruction in program:
        opcode = instruction.opcode
        if opcode.startswith("cp.async.c") and len(instruction.operands) > 2:
            size = instruction.operands[2]
            widths.append(getattr(size, "value", 1))
        elif opcode.startswith("mbarrier."):
            widths.append(8)
        elif opcode.startswith(("ld.", "st.", "atom.", "red.")):
            words = opcode.split(".")
            if {"global", "param", "param::entry", "local", "const"} & set(words):
                continue
            element = next((TYPE_BITS[w] for w in reversed(words) if w in TYPE_BITS), 8)
            count = next((int(w[1:]) for w in words if w in ("v2", "v4", "v8")), 1)
            widths.append(element * count // 8)
    return min(widths)


def _three(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    if not 1 <= len(shape) <= 3 or min(shape) < 1:
        raise ValueError(f"{name} must be one to three positive extents, got {shape}")
    x, y, z = (*shape, 1, 1)[:3]
    return x, y, z


def _block(kernel: Kernel, block: tuple[int, ...] | None) -> tuple[int, int, int]:
    if block is None:
        if kernel.threads is None:
            raise ParseError(f"{kernel.name} has no .reqntid; give the block")
        return kernel.threads
    shape = _three("block", block)
    if kernel.threads is not None and shape != kernel.threads:
        raise ValueError(f"block {shape} is not the kernel's .reqntid {kernel.threads}")
    return shape
