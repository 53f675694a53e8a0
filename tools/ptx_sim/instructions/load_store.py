"""Loads and stores (PTX ISA 9.7.9.8 to 9.7.9.12)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..access import SPACES, load, space_of, store
from ..operation import Operation, Read, Run, Write, instruction, numpy_dtype
from ..ptx import Address, Name
from ..team import Team
from .move import stack

# Hints about caches and the order among threads: neither changes a value here.
_HINTS = {
    *("weak", "relaxed", "acquire", "release", "volatile", "mmio"),
    *("cta", "cluster", "gpu", "sys"),
    *("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"),
    *("L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"),
    *("L1::no_allocate", "L2::evict_normal", "L2::evict_first", "L2::evict_last"),
    *("L2::64B", "L2::128B", "L2::256B"),
}


def drop_hints(op: Operation) -> bool:
    """Consume cache and ordering hints; return whether a cache policy operand follows."""
    op.modifiers[:] = [m for m in op.modifiers if m not in _HINTS]
    return op.flag("L2::cache_hint")


def _shape(op: Operation) -> tuple[str, np.dtype, int]:
    """State space, element type and vector length of a load or store, of 16 bytes at most."""
    drop_hints(op)
    space = space_of(op.one_of(*SPACES, default=""))
    count = int(op.one_of("v2", "v4", "v8", default="v1")[1:])
    name = op.type()
    dtype = numpy_dtype(name)
    if "x2" in name or name == "pred":
        raise op.unsupported(f"type {name} is not implemented here")
    if dtype.itemsize * count > 16:
        raise op.unsupported("loads and stores of more than 16 bytes are not implemented")
    return space, dtype, count


def _items(op: Operation, position: int, count: int) -> list[Any]:
    """The registers of a vector operand."""
    items = op.items(position)
    if len(items) != count:
        raise op.unsupported(f"{count} registers expected")
    return items


@instruction("ld", "ldu")
def load_value(op: Operation) -> Run:
    space, dtype, count = _shape(op)
    width = dtype.itemsize * count
    writes = [op.writer(item, dtype) for item in _items(op, 0, count)]
    operand = op.operand(1)
    uniform = space == "param" and isinstance(operand, Address) and isinstance(operand.base, Name)
    address = op.address(1)
    if uniform:
        return _load_parameter(address, dtype, writes)

    def run(t: Team) -> None:
        words = load(t, space, t.pick(address(t)), width, t.chosen)
        if count == 1:
            writes[0](t, t.spread(words.view(dtype), dtype))
            return
        columns = words.view(dtype).reshape(-1, count)
        for i, write in enumerate(writes):
            write(t, t.spread(np.ascontiguousarray(columns[:, i]), dtype))

    return run


def _load_parameter(address: Read, dtype: np.dtype, writes: list[Write]) -> Run:
    """Load one place of the arguments, which is read once per launch."""
    one_lane = np.zeros(1, np.intp)
    kept: tuple[bytes | None, list[NDArray]] = None, []

    def run(t: Team) -> None:
        nonlocal kept
        arguments = t.cta.launch.arguments
        if kept[0] is not arguments:
            words = load(t, "param", address(t), dtype.itemsize * len(writes), one_lane)
            kept = arguments, [*words.view(dtype).reshape(-1, 1)]
        for write, value in zip(writes, kept[1], strict=True):
            write(t, value)

    return run


@instruction("st")
def store_value(op: Operation) -> Run:
    space, dtype, count = _shape(op)
    width = dtype.itemsize * count
    address = op.address(0)
    reads = [op.reader(item, dtype) for item in _items(op, 1, count)]
    word = np.dtype("V16") if width == 16 else np.dtype(f"u{width}")

    def run(t: Team) -> None:
        if count == 1:
            words = t.pick(reads[0](t)).view(word)
        else:
            rows = stack([read(t) for read in reads], t)
            words = (rows if t.full else rows[t.active]).view(word).reshape(-1)
        store(t, space, t.pick(address(t)), words, t.chosen)

    return run
