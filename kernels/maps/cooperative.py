"""Several kernels in one launch: CTAs that are all there at once, and wait for each other between.

A kernel of a cloud takes 2 to 10 us, of which 2 pass before its first instruction and after its
last; a barrier of all CTAs takes about 1. So those that need each other's results are *phases* of
one cooperative launch, which a GPU starts only if every CTA of it has a place. There is one to a
multiprocessor: it has all of its registers, and its shared memory is what phases take turns with.

CTAs count themselves at a barrier in a word of the launch's own memory, which a kernel before it,
on the same stream, has set: so launches on several streams, or a CUDA graph that is replayed any
number of times, never share one, and nothing has to be left as it was found.
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
SHARED_BYTES = 99 * 1024  # of a CTA: what every GPU that kernels are built for has
WORD = 4  # the Int32 of a barrier's word, which is filled with what is around it
BEFORE = -1  # what it is set to

Arrays = list[tuple[Any, tuple[int, ...]]]  # in shared memory: their types and shapes


class Part(PerRank):
    """The work that the CTAs of a launch do in one of its phases, or a part of it.

    The only one of a phase may say that it ``waits`` itself for the phase before, by ``wait``: only
    then does it need what that did.
    """

    waits = False

    def shared(self, threads: int) -> Arrays:
        """The arrays that a CTA of that many threads needs in shared memory: types and shapes."""
        return []

    def work(self, crew: Crew, pointers: list[Any], integers: tuple[Any, ...], room: Any) -> None:
        """The work of a CTA. Nobody may use ``room``, its shared memory, after that without waiting
        for its other threads."""
        raise NotImplementedError


class Crew:
    """Who works: thread ``tid`` of ``threads``, a constant, in the CTA ``cta`` of ``ctas``.

    ``waiting()`` ends when all have arrived at the barrier in front of the phase.
    """

    waiting: Callable[[], None]

    def __init__(self, tid: Any, threads: int, cta: Any, ctas: Any) -> None:
        self.tid, self.threads, self.cta, self.ctas = tid, threads, cta, ctas

    def share(self, rows: Any) -> tuple[Any, Any]:
        """The rows of a CTA, from the first to past the last: whole warps, side by side."""
        share = ((Int32(rows - 1) // self.ctas) // WARP + 1) * WARP
        first = Int64(self.cta) * share
        return first, least(first + share, rows)


class EachRow(Part):
    """A thread does a row; also on its own, as a kernel that is launched for itself.

    Its first integer is how many rows there are.
    """

    def work(self, crew: Crew, pointers: list[Any], integers: tuple[Any, ...], room: Any) -> None:
        first, end = crew.share(integers[0])
        self.rows(crew, first, end, pointers, integers, room)

    @cute.jit
    def rows(
        self, crew: Constexpr, first: Any, end: Any, pointers: AnyList, integers: AnyTuple,
        room: Any,
    ) -> None:  # fmt: skip
        """Return those rows, from the first to past the last."""
        arrays = arrays_in(room, self.shared(crew.threads))
        for row in range(first + crew.tid, end, crew.threads):
            self.row(row, crew.tid, pointers, integers, arrays)

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        arrays = arrays_in(shared_room(self.shared(self.threads)), self.shared(self.threads))
        row = Int64(cta) * self.per_cta + tid
        if row < integers[0]:
            self.row(row, tid, pointers, integers, arrays)

    def row(self, row: Any, tid: Any, pointers: Any, integers: Any, arrays: Any) -> None:
        """Return what a thread does."""
        raise NotImplementedError


class Together(PerRank):
    """Parts in phases, which one launch goes through.

    Args:
        phases: of each its parts, with the numbers of their addresses, and of their integers,
            among the launch's.
        threads: of a CTA.
        word: the number of the last address, where the barrier's word is, which is ``BEFORE``. It
            may be a part's too: for what is behind the word.

    Behind the integers of the parts comes the number of CTAs.
    """

    def __init__(self, phases: tuple[Places, ...], threads: int, word: int) -> None:
        super().__init__(phases[0][0][0].rank)
        self.phases, self.threads, self.word = phases, threads, word

    @property
    def key(self) -> tuple[Any, ...]:
        parts = tuple(
            tuple((part.key, *places) for part, *places in phase) for phase in self.phases
        )
        return type(self).__name__, parts, self.threads, self.word

    @property
    def parts(self) -> Places:
        return tuple(place for phase in self.phases for place in phase)

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return (*types_of(self.parts)[: self.word], ("int32", 16))

    def integers(self) -> int:
        return 2 + max(place for _, _, places in self.parts for place in places)

    def start(self, pointers: Any, integers: Any, stream: Any) -> None:
        self.kernel(pointers, integers).launch(
            grid=[Int32(integers[-1]), 1, 1],
            block=[self.threads, 1, 1],
            min_blocks_per_mp=1,
            cooperative=True,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        self.work(Crew(tid, self.threads, cta, ctas), pointers, integers)

    def work(self, crew: Crew, pointers: Any, integers: Any) -> None:
        needs = [part.shared(self.threads) for part, *_ in self.parts]
        room = shared_room(max(needs, key=size_of))
        for number, phase in enumerate(self.phases):
            if number:
                word = pointers[self.word]
                arrive(word, crew)
                crew.waiting = partial(wait_for_all, word, number, crew)
                if not phase[0][0].waits:
                    wait(crew)
            for turn, (part, addresses, of_integers) in enumerate(phase):
                if turn:
                    cute.arch.sync_threads()
                own = tuple(integers[place] for place in of_integers)
                part.work(crew, [pointers[place] for place in addresses], own, room)


@cute.jit
def arrive(word: Any, crew: Constexpr) -> None:
    """At a barrier of all CTAs: what they wrote before, all see who have waited.

    The fence of one thread publishes what all of a CTA wrote, as they were waited for.
    """
    cute.arch.sync_threads()
    if crew.tid == 0:
        cute.arch.fence_acq_rel_gpu()
        add(word, Int32(1))


@cute.jit
def wait_for_all(word: Any, number: Constexpr, crew: Constexpr) -> None:
    """Until all CTAs have arrived at barrier ``number``, from 1 on.

    To acquire drops what this multiprocessor's cache has kept, for all of its threads.
    """
    if crew.tid == 0:
        there = Int32(BEFORE)
        while there < number * crew.ctas + BEFORE:
            there = cute.arch.load(word, Int32, sem="acquire", scope="gpu")
    cute.arch.sync_threads()


def add(pointer: Any, number: Any) -> None:
    """To an Int32 in memory; nobody waits for what it was."""
    cute.arch.red(pointer, number, op="add", dtype="s32", sem="relaxed", scope="gpu")


def wait(crew: Crew) -> None:
    """For the phase before: a function, since loops carry whose methods they call."""
    crew.waiting()


def size_of(arrays: Arrays) -> int:
    """The bytes of shared memory that arrays take."""
    return sum(-(-_elements(shape) * dtype.width // 8 // 16) * 16 for dtype, shape in arrays)


def arrays_in(room: Any, arrays: Arrays) -> list[Any]:
    """Arrays in shared memory, one behind the other, modes with the first the fastest."""
    found, bytes_before = [], 0
    for dtype, shape in arrays:
        pointer = cute.recast_ptr(room + bytes_before // 4, dtype=dtype)
        found.append(cute.make_tensor(pointer, cute.make_layout(shape)))
        bytes_before += size_of([(dtype, shape)])
    return found


def shared_room(arrays: Arrays) -> Any:
    """Shared memory for arrays, if there are any."""
    size = size_of(arrays)
    assert size <= SHARED_BYTES
    if not size:
        return None
    memory = cutlass.memory.SmemAllocator()
    return memory.allocate_tensor(Int32, cute.make_layout(size // 4), byte_alignment=16).iterator


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
ROWS_BESIDE = 512  # rows of a CTA: as many as one has in the map of a lidar sweep


@contextmanager
def beside_others() -> Iterator[None]:
    """Launch, in this thread, as few CTAs as rows need: other kernels have the other SMs."""
    before, _of_thread.beside = _of_thread.beside, True
    try:
        yield
    finally:
        _of_thread.beside = before


def crew_for(rows: int, device: int) -> int:
    """Return how many CTAs a launch for so many rows has."""
    every = multiprocessors(device)
    if not _of_thread.beside:
        return every
    return min(every, max(every // 8, -(-rows // ROWS_BESIDE)))


@remembered(64)
def multiprocessors(device: int) -> int:
    """Count the SMs of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count
