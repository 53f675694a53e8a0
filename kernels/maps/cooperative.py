"""Cooperative launch: stages of one kernel whose CTAs all run at once, with a grid sync between.

A kernel of a point cloud takes 2 to 10 us, of which 2 us are launch latency; a grid sync takes
about 1 us. So kernels that need each other's results are *stages* of one cooperative launch, which
a GPU starts only if all of its CTAs are resident. There is one CTA per SM: it has all registers,
and its stages reuse the same shared memory. A launch for many clouds at once has several, which
hide each other's latency.

A grid sync counts CTAs in a word of memory that belongs to the launch, and that an earlier kernel
of the stream has set. So launches on several streams, or replays of a CUDA graph, never share a
word, and a launch has nothing to reset.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from layoutconv.base.caches import remembered

from ..common.dsl import Constexpr, Int32, Int64, cute, cutlass
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import select
from .per_rank import PerRank, Places, types_of

WARP = 32
SHARED_BYTES = 99 * 1024  # of a CTA, on every GPU that kernels are built for
ALL_SHARED = 100  # percent of an SM's largest shared memory
WORD = 4  # Int32 that the word of a grid sync takes: it is filled with the memory around it
BEFORE = -1  # its value before the launch

Arrays = list[tuple[Any, tuple[int, ...]]]  # in shared memory: their types and shapes


class StagePart(PerRank):
    """The work of a stage of a cooperative launch, or a part of that work.

    A part that is alone in its stage may set ``waits`` and call ``wait`` itself, where it needs the
    results of the stage before: what it does until then overlaps with that stage.
    """

    waits = False

    def shared(self, threads: int) -> Arrays:
        """The arrays that a CTA of that many threads needs in shared memory: types and shapes."""
        return []

    def work(
        self, worker: LaunchThread, pointers: list[Any], integers: tuple[Any, ...], room: Any
    ) -> None:
        """Do the CTA's share. Its shared memory, ``room``, may be reused after a barrier."""
        raise NotImplementedError


class LaunchThread:
    """A thread of a cooperative launch: ``tid`` of ``threads``, a constant, in ``cta`` of ``ctas``.

    ``waiting()`` waits for the grid sync in front of the stage.
    """

    waiting: Callable[[], None]

    def __init__(self, tid: Any, threads: int, cta: Any, ctas: Any) -> None:
        self.tid, self.threads, self.cta, self.ctas = tid, threads, cta, ctas

    def share(self, rows: Any) -> tuple[Any, Any]:
        """Return the first and the end of the CTA's rows: contiguous, in multiples of a warp."""
        share = ((Int32(rows - 1) // self.ctas) // WARP + 1) * WARP
        first = Int64(self.cta) * share
        return first, least(first + share, rows)


class EachRow(StagePart):
    """A thread per row: a part of a cooperative launch, or a kernel of its own.

    The first integer is the number of rows.
    """

    def work(
        self, worker: LaunchThread, pointers: list[Any], integers: tuple[Any, ...], room: Any
    ) -> None:
        first, end = worker.share(integers[0])
        self.rows(worker, first, end, pointers, integers, room)

    @cute.jit
    def rows(
        self, worker: Constexpr, first: Any, end: Any, pointers: AnyList, integers: AnyTuple,
        room: Any,
    ) -> None:  # fmt: skip
        """Do rows ``first`` to ``end``, exclusive."""
        arrays = arrays_in(room, self.shared(worker.threads))
        end = Int64(once(end))
        for row in range(first + worker.tid, end, worker.threads):
            self.row(row, worker.tid, pointers, integers, arrays)

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        row, tid = self.row_of_thread()
        arrays = arrays_in(shared_room(self.shared(self.threads)), self.shared(self.threads))
        if row < integers[0]:
            self.row(row, tid, pointers, integers, arrays)

    def row(self, row: Any, tid: Any, pointers: Any, integers: Any, arrays: Any) -> None:
        """Do one row."""
        raise NotImplementedError


class CooperativeKernel(PerRank):
    """A cooperative launch of several stages, with a grid sync between consecutive ones.

    Args:
        stages: the parts of each, with the positions of their addresses and of their integers
            among those of the launch.
        threads: of a CTA.
        word: the position of the last address, which is that of the grid sync's word, set to
            ``BEFORE``. A part may take that address, too, for the memory behind the word.
        per_sm: CTAs per SM, which share its registers.

    The last integer of a launch, behind those of the parts, is the number of CTAs.
    """

    def __init__(
        self, stages: tuple[Places, ...], threads: int, word: int, per_sm: int = 1
    ) -> None:
        super().__init__(stages[0][0][0].rank)
        self.stages, self.threads, self.word, self.per_sm = stages, threads, word, per_sm

    @property
    def key(self) -> tuple[Any, ...]:
        parts = tuple(
            tuple((part.key, *places) for part, *places in stage) for stage in self.stages
        )
        return type(self).__name__, parts, self.threads, self.word, self.per_sm

    @property
    def parts(self) -> Places:
        return tuple(place for stage in self.stages for place in stage)

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return (*types_of(self.parts)[: self.word], ("int32", 16))

    def integers(self) -> int:
        return 2 + max(place for _, _, places in self.parts for place in places)

    def shared(self) -> Arrays:
        """Return the shared-memory arrays of the part that needs most."""
        return max((part.shared(self.threads) for part, *_ in self.parts), key=bytes_of_arrays)

    def start(self, pointers: Any, integers: Any, stream: Any) -> None:
        self.kernel(pointers, integers).launch(
            grid=[Int32(integers[-1]), 1, 1],
            block=[self.threads, 1, 1],
            min_blocks_per_mp=self.per_sm,
            preferred_smem_carveout=None if self.per_sm == 1 else ALL_SHARED,
            cooperative=True,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        self.work(LaunchThread(tid, self.threads, cta, ctas), pointers, integers)

    def work(self, worker: LaunchThread, pointers: Any, integers: Any) -> None:
        room = shared_room(self.shared())
        for number, stage in enumerate(self.stages):
            if number:
                word = pointers[self.word]
                arrive(word, worker)
                worker.waiting = partial(wait_for_all, word, number, worker)
                if not stage[0][0].waits:
                    wait(worker)
            for turn, (part, addresses, of_integers) in enumerate(stage):
                if turn:
                    cute.arch.sync_threads()
                own = tuple(integers[place] for place in of_integers)
                part.work(worker, [pointers[place] for place in addresses], own, room)


@cute.jit
def arrive(word: Any, worker: Constexpr) -> None:
    """Arrive at the grid sync: CTAs that have waited see what this one wrote before.

    One thread's fence publishes the writes of the whole CTA, which the barrier before it orders.
    """
    cute.arch.sync_threads()
    if worker.tid == 0:
        cute.arch.fence_acq_rel_gpu()
        add(word, Int32(1))


@cute.jit
def wait_for_all(word: Any, number: Constexpr, worker: Constexpr) -> None:
    """Wait until all CTAs have arrived at grid sync ``number``, counted from 1.

    The acquire invalidates stale lines of the SM's L1 cache, for all threads of the CTA.
    """
    if worker.tid == 0:
        there = Int32(BEFORE)
        while there < number * worker.ctas + BEFORE:
            there = cute.arch.load(word, Int32, sem="acquire", scope="gpu")
    cute.arch.sync_threads()


def add(pointer: Any, number: Any) -> None:
    """Add to an Int32 in global memory, without a result (``red``)."""
    cute.arch.red(pointer, number, op="add", dtype="s32", sem="relaxed", scope="gpu")


def wait(worker: LaunchThread) -> None:
    """Wait for the stage before. A function, because the DSL carries objects whose methods a loop
    calls."""
    worker.waiting()


def bytes_of_arrays(arrays: Arrays) -> int:
    """Return the bytes of shared memory that arrays take."""
    return sum(-(-_elements(shape) * dtype.width // 8 // 16) * 16 for dtype, shape in arrays)


def arrays_in(room: Any, arrays: Arrays) -> list[Any]:
    """Return arrays in shared memory, one behind the other, each with its first mode fastest."""
    found, bytes_before = [], 0
    for dtype, shape in arrays:
        pointer = cute.recast_ptr(room + bytes_before // 4, dtype=dtype)
        found.append(cute.make_tensor(pointer, cute.make_layout(shape)))
        bytes_before += bytes_of_arrays([(dtype, shape)])
    return found


def shared_room(arrays: Arrays) -> Any:
    """Allocate shared memory for arrays; None for no arrays."""
    size = bytes_of_arrays(arrays)
    assert size <= SHARED_BYTES
    if not size:
        return None
    memory = cutlass.memory.SmemAllocator()
    return memory.allocate_tensor(Int32, cute.make_layout(size // 4), byte_alignment=16).iterator


def once(number: Any) -> Any:
    """Return an Int32 that a warp shares, computed once: the compiler would compute the bound of a
    loop again in every turn, to have its registers for others."""
    return cute.arch.make_warp_uniform(Int32(number))


def least(a: Any, b: Any) -> Any:
    return select(a < b, a, b)


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


class _OfThread(threading.local):
    beside = False


_of_thread = _OfThread()
ROWS_BESIDE = 512  # rows per CTA: as many as a CTA has in the map of a lidar sweep


@contextmanager
def beside_others() -> Iterator[None]:
    """Launch, in this thread, only the CTAs that rows need: other kernels use the other SMs."""
    before, _of_thread.beside = _of_thread.beside, True
    try:
        yield
    finally:
        _of_thread.beside = before


def ctas_for(rows: int, device: int) -> int:
    """Return the number of CTAs of a launch for so many rows."""
    every = sm_count(device)
    if not _of_thread.beside:
        return every
    return min(every, max(every // 8, -(-rows // ROWS_BESIDE)))


@remembered(64)
def sm_count(device: int) -> int:
    """Count the SMs of a GPU; 1 for CPU memory, whose launches are only recorded."""
    if device < 0:
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
