"""Atomic operations (PTX ISA 9.7.13.5 and 9.7.13.6)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .. import formats
from ..access import SPACES, load, space_of, store
from ..memory import word_dtype
from ..operation import Operation, Run, instruction, numpy_dtype
from ..ptx import TYPE_BITS
from ..team import Team
from .load_store import drop_hints
from .move import stack
from .warp import REDUCTIONS

_Update = Callable[[NDArray, NDArray], NDArray]


def _increment(old: NDArray, limit: NDArray) -> NDArray:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _decrement(old: NDArray, limit: NDArray) -> NDArray:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


def _compare_and_swap(old: NDArray, operands: NDArray) -> NDArray:
    return np.where(old == operands[:, :1], operands[:, 1:], old)


_UPDATES: dict[str, _Update] = {
    **REDUCTIONS,
    "inc": _increment,
    "dec": _decrement,
    "cas": _compare_and_swap,
    "exch": lambda old, new: new,
}


def _update_of(op: Operation, kind: str, name: str) -> tuple[_Update, np.dtype]:
    """Return the update, from the old value and the operand to the new value, and its dtype."""
    element = name.removesuffix("x2")
    if element in ("f16", "bf16"):
        if kind != "add":
            raise op.unsupported(f"atomic {kind} of {name} is not implemented")

        def add_narrow(old: NDArray, value: NDArray) -> NDArray:
            parts = [formats.decode(x.view(np.uint16), element) for x in (old, value)]
            total = formats.encode(parts[0] + parts[1], element).astype(np.uint16)
            return total.view(old.dtype)

        return add_narrow, np.dtype(f"u{TYPE_BITS[name] // 8}")
    dtype = numpy_dtype(name)
    if dtype.kind == "f" and kind not in ("add", "exch"):
        raise op.unsupported(f"atomic {kind} of {name} is not implemented")
    return _UPDATES[kind], dtype


@instruction("atom", "red")
def atomic(op: Operation) -> Run:
    returns = op.stem == "atom"
    # acq_rel and scopes order accesses, which here are in one total order anyway.
    drop_hints(op)
    op.flag("acq_rel")
    op.flag("noftz")
    space = space_of(op.one_of(*SPACES, default=""))
    count = int(op.one_of("v2", "v4", "v8", default="v1")[1:])
    name = op.type()
    kind = op.one_of(*_UPDATES)
    first = 1 if returns else 0
    address = op.address(first)
    update, dtype = _update_of(op, kind, name)
    reads = [op.reader(item, dtype) for item in op.items(first + 1)]
    if len(reads) != count:
        raise op.unsupported(f"{count} operands expected")
    if kind == "cas":
        reads.append(op.read(first + 2, dtype))
    writes = [op.writer(item, dtype) for item in op.items(0)] if returns else []
    word = word_dtype(dtype.itemsize * count)

    def run(t: Team) -> None:
        addresses, lanes = t.pick(address(t)), t.chosen
        operands = stack([read(t) for read in reads], t)[t.active]
        before = np.zeros((lanes.size, count), dtype)
        # Lanes that meet at one address take turns, the lowest first.
        waiting = np.arange(lanes.size)
        while waiting.size:
            _, turn = np.unique(addresses[waiting], return_index=True)
            now = waiting[turn]
            old = load(t, space, addresses[now], word.itemsize, lanes[now])
            values = old.view(dtype).reshape(-1, count)
            new = update(values, operands[now])
            new = np.ascontiguousarray(new.astype(dtype, copy=False))
            words = new.view(word).reshape(-1)
            store(t, space, addresses[now], words, lanes[now], atomic=True)
            before[now] = values
            waiting = np.delete(waiting, turn)
        for i, write in enumerate(writes):
            write(t, t.spread(np.ascontiguousarray(before[:, i]), dtype))

    return run
