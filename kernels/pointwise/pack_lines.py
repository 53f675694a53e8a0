"""Lines of memory copied position by position, with zeros outside the line.

The kernel of ``LinePacking``, for few channels that are read in longer vectors afterwards. A thread
writes a vector; it reads the elements one by one, next to those of its neighbours.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, range_constexpr
from cutlass.cute.runtime import make_fake_tensor

from layoutconv.planning.machine import starts_early

from ..common.compiled import compiled
from ..common.pdl import let_dependents_start, wait_for_others
from ..common.plain_types import AnyTuple
from ..common.walk import TYPES

THREADS = 256  # of a CTA
BYTES = 16  # of a vector
ELEMENTS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}  # by their size: bits are copied


def build(itemsize: int, vector: int, arch: str, dump: str | None = None) -> Any:
    """Compile the kernel: return a TVM-FFI function ``f(source, target, numbers)``.

    ``source`` and ``target`` are vectors of elements, neither empty, and ``target`` starts at a
    multiple of 16 bytes. ``numbers`` are those of a ``LinePacking``. With a folder ``dump``, the
    function has ``__ptx__`` (str) and ``__cubin__`` (bytes).
    """
    dtype = TYPES[ELEMENTS[itemsize]]
    return compiled(
        PackLines(dtype, vector, starts_early(arch)),
        make_fake_tensor(dtype, (cute.sym_int64(),), (1,)),
        make_fake_tensor(dtype, (cute.sym_int64(),), (1,), assumed_align=BYTES),
        tuple(Int64(0) for _ in range(6)),
        arch=arch,
        dump=dump,
    )


class PackLines:
    """The kernel for an element size, which writes vectors."""

    def __init__(self, dtype: Any, vector: int, early: bool) -> None:
        self.dtype, self.vector, self.early = dtype, vector, early

    @cute.jit
    def __call__(self, source: Any, target: Any, numbers: AnyTuple, stream: Any) -> None:
        length, positions, step, start, used, width = numbers
        across = Int32(width // self.vector)
        divisors = (
            cute.fast_divmod_create_divisor_v2(across),
            cute.fast_divmod_create_divisor_v2(Int32(positions)),
        )
        vectors = Int32(target.shape[0] // self.vector)
        of_line = Int32(length), Int32(step), Int32(start), Int32(used)
        self.kernel(source.iterator, target.iterator, of_line, divisors, vectors).launch(
            grid=[(vectors + THREADS - 1) // THREADS, 1, 1],
            block=[THREADS, 1, 1],
            stream=stream,
            use_pdl=self.early,
        )

    @cute.kernel
    def kernel(
        self, source: Any, target: Any, of_line: AnyTuple, divisors: AnyTuple, vectors: Any
    ) -> None:
        """Write a vector of the target per thread."""
        let_dependents_start(self.early)
        wait_for_others(self.early)
        length, step, start, used = of_line
        across, positions = divisors
        tid, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        number = block * THREADS + tid
        op, bits = cute.nvgpu.CopyUniversalOp(), self.dtype.width
        atom = cute.make_copy_atom(op, self.dtype, num_bits_per_copy=bits)
        if number < vectors:
            position, part = divmod(number, across)
            line, position = divmod(position, positions)
            within = part * self.vector
            place = start + position * step + within
            first = source + (Int64(line) * Int64(length) + Int64(place))
            element = cute.make_layout(((1, 1),))
            values = cute.make_rmem_tensor(self.vector, self.dtype)
            values.fill(0)
            there = cute.make_rmem_tensor(self.vector, Boolean)
            for i in range_constexpr(self.vector):
                here = place + i
                there[i] = (here | (length - 1 - here) | (used - 1 - within - i)) >= 0
            for i in range_constexpr(self.vector):  # predicated, at constant offsets
                one = cute.make_tensor(values.iterator + i, element)
                pred = cute.make_tensor(there.iterator + i, cute.make_layout(1))
                cute.copy_atom_call(atom, cute.make_tensor(first + i, element), one, pred=pred)
            to = target + cute.assume(Int64(number) * self.vector, divby=self.vector)
            cute.autovec_copy(values, cute.make_tensor(to, cute.make_layout(self.vector)))
