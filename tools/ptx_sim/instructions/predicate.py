"""Comparison (PTX ISA 9.7.6)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..operation import Operation, Run, instruction, numpy_dtype
from ..ptx import Sink
from ..team import Team
from .floating import Packed, flush

_COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
# The names of the unsigned comparisons, for unsigned types, where they mean the same.
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_FLOAT_ONLY = [f"{name}u" for name in _COMPARE] + ["num", "nan"]


def compare(name: str, a: NDArray, b: NDArray) -> NDArray[np.bool_]:
    """Return a comparison by its PTX name; names that end in u also hold if an operand is NaN."""
    name = _UNSIGNED.get(name, name)
    if name in _COMPARE and (name != "ne" or a.dtype.kind != "f"):
        return _COMPARE[name](a, b)
    unordered = np.isnan(a) | np.isnan(b)
    if name == "ne":
        return np.not_equal(a, b) & ~unordered
    if name in ("nan", "num"):
        return unordered if name == "nan" else ~unordered
    return _COMPARE[{"equ": "eq", "neu": "ne"}.get(name, name[:-1])](a, b) | unordered


@instruction("setp", "set")
def set_predicate(op: Operation) -> Run:
    combine = None
    kind = op.modifiers[-1]
    names = [*_COMPARE, *(_FLOAT_ONLY if "f" in kind else _UNSIGNED if kind[0] == "u" else ())]
    comparison = op.one_of(*names)
    combine = op.one_of(*_COMBINE, default="")
    ftz = op.flag("ftz")
    name = op.type()
    if name.endswith("x2"):
        raise op.unsupported("comparison of packed types is not implemented")
    third = op.read(3, np.bool_) if combine else None
    if "f" in name:
        floats = Packed(op, name)
        read_a, read_b = floats.read(1), floats.read(2)
    else:
        read_a, read_b = op.read(1, numpy_dtype(name)), op.read(2, numpy_dtype(name))

    def test(t: Team) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        a, b = read_a(t), read_b(t)
        if ftz:
            a, b = flush(a), flush(b)
        held = compare(comparison, a, b)
        if third is None:
            return held, ~held
        other = third(t)
        return _COMBINE[combine](held, other), _COMBINE[combine](~held, other)

    if op.stem == "set":
        return _set_value(op, test)
    first, second = op.pair(0)
    write, write_other = op.writer(first, np.dtype(np.bool_)), op.writer(second, np.dtype(np.bool_))
    if isinstance(second, Sink) and third is None and not ftz:
        plain = _COMPARE[_UNSIGNED.get(comparison, comparison)] if "f" not in name else None
        if plain is not None:
            return lambda t: write(t, plain(read_a(t), read_b(t)))
        return lambda t: write(t, compare(comparison, read_a(t), read_b(t)))

    def run(t: Team) -> None:
        held, opposite = test(t)
        write(t, held)
        write_other(t, opposite)

    return run


def _set_value(op: Operation, test) -> Run:  # type: ignore[no-untyped-def]
    name = op.type()
    if name not in ("u32", "s32", "f32"):
        raise op.unsupported(f"set of type {name} is not implemented")
    dtype = numpy_dtype(name)
    yes = dtype.type(1.0) if name == "f32" else np.array([0xFFFFFFFF], np.uint32).view(dtype)
    write = op.write(0, dtype)
    return lambda t: write(t, np.where(test(t)[0], yes, dtype.type(0)))
