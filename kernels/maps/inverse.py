"""The inverse map of a kernel map: one call launches two kernels, a fill with -1 and a scatter."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from layoutconv.base.memory import maker
from layoutconv.base.torch_internals import in_shape

from ..common.dsl import Int32, Int64, cute, range_constexpr
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import at, put, select
from . import per_rank
from .block_table import Fill
from .per_rank import Chain, PerRank

FLIGHT = 4  # entries of a thread that are read at once
VECTOR = 4  # Int32 that are filled at once


def reversed_index(index: Tensor, rows: int, order: Tensor | None = None) -> Tensor:
    """Return int32 (rows, taps), of strides (1, rows): the output whose entry a row is, or -1.

    Args:
        index: int32 (outputs, taps), on a GPU; entries are below ``rows`` and unique per tap.
        order: int32 (outputs,): ``index[i]`` is of row ``order[i]``; by default of row ``i``.
    """
    count, taps = index.shape
    vectors = -(-rows * taps // VECTOR)
    found = maker(index.device)((VECTOR * vectors,), (1,), index.dtype)
    if count and vectors:
        own = index if order is None else order.contiguous()
        addresses = index.data_ptr(), own.data_ptr(), found.data_ptr()
        integers = count, taps, *index.stride(), rows, int(order is not None), vectors + 1, 0
        per_rank.launch(REVERSED, (index, own, found), addresses, integers)
    else:
        found.fill_(-1)
    return in_shape(found, (rows, taps), (1, rows or 1))


class Scatter(PerRank):
    """Scatter row numbers to where their entries point; a thread has ``FLIGHT`` entries of a tap.

    The integers are rows, taps, the strides of both, the number of rows to which entries point, and
    whether there is an order.
    """

    per_cta = per_rank.THREADS * FLIGHT

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4), ("int32", 4), ("int32", 16)

    def integers(self) -> int:
        return 6

    def start(self, pointers: Any, integers: Any, stream: Any) -> None:
        rows, taps, *_ = integers
        of_tap = (rows + self.per_cta - 1) // self.per_cta
        self.kernel(pointers, integers).launch(
            grid=[Int32(taps * of_tap), 1, 1], block=[self.threads, 1, 1], stream=stream
        )

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        index, order, found = pointers
        rows, _, row_stride, tap_stride, fed, ordered = integers
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        of_tap = (Int32(rows) - 1) // self.per_cta + 1
        tap = Int32(cta) // of_tap
        first = Int64(Int32(cta) - tap * of_tap) * self.per_cta + tid
        column = index + Int64(tap) * tap_stride
        entries = []
        for u in range_constexpr(FLIGHT):
            row = first + u * self.threads
            there = row < rows
            entry = at(column, select(there, row, Int64(0)) * row_stride)
            entries.append(select(there, entry, Int32(-1)))
        for u in range_constexpr(FLIGHT):
            row = first + u * self.threads
            entry = Int64(entries[u])
            if (entry >= 0) & (entry < fed):
                own = Int32(row)
                if ordered != 0:
                    own = at(order, row)
                put(found, Int64(tap) * fed + entry, own)


REVERSED = Chain((
    (Fill(1), (2, 2, 2), (6, 7)),
    (Scatter(0), (0, 1, 2), (0, 1, 2, 3, 4, 5)),
))  # fmt: skip
