"""Jobs: one part of a cooperative launch run for many clouds at once, each with its own CTAs.

A small map is latency-bound, and leaves most of the GPU idle. So the maps of all levels of a
network are *jobs* of one launch: each job has as many virtual CTAs as its work needs, numbered
behind those of the job before, and the CTAs of the launch stride over them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..common.dsl import Constexpr, Int32, Int64, cute, range_constexpr
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import TYPES, select
from .cooperative import WARP, Arrays, StagePart, Worker, arrays_in, size_of
from .per_rank import Places

ENDS = 2  # integers of a job behind its part's: its first virtual CTA, and one past its last


class Turn(NamedTuple):
    """A part of a stage, with several jobs.

    Attributes:
        part: the work of each job.
        jobs: for each the positions of its addresses and of its integers among those of the launch:
            the part's without the ``fixed`` ones, and then ``ENDS``.
        fixed: integers of the part that are constants, as (position, value).
    """

    part: Any
    jobs: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    fixed: tuple[tuple[int, int], ...] = ()


class Jobs(StagePart):
    """A stage of several turns; a table in shared memory has the arguments of all jobs.

    Turns follow each other without a grid sync; a turn starts with the CTA behind the last one of
    the turn before. If the stage ``waits``, its parts do.
    """

    def __init__(self, turns: tuple[Turn, ...], waits: bool = False) -> None:
        super().__init__(turns[0].part.rank)
        self.turns, self.waits = turns, waits

    @property
    def key(self) -> tuple[Any, ...]:
        parts = tuple((turn.part.key, len(turn.jobs), turn.fixed) for turn in self.turns)
        return type(self).__name__, parts, self.waits

    @property
    def place(self) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
        """This part, with the positions of all its addresses and integers, as a stage lists it."""
        jobs = [job for turn in self.turns for job in turn.jobs]
        addresses, integers = ([place for job in jobs for place in job[i]] for i in range(2))
        return self, tuple(addresses), tuple(integers)

    @property
    def parts(self) -> Places:
        """Each part once per job, with the positions of its addresses and integers."""
        return tuple((turn.part, *job) for turn in self.turns for job in turn.jobs)

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return tuple(kind for part, *_ in self.parts for kind in part.tensors())

    def integers(self) -> int:
        return sum(len(integers) for _, _, integers in self.parts)

    def shared(self, threads: int) -> Arrays:
        needs = [turn.part.shared(threads) for turn in self.turns]
        return [*self._table, *max(needs, key=size_of)]

    @property
    def _table(self) -> Arrays:
        return [(Int64, (sum(len(a) + len(i) for _, a, i in self.parts),))]

    def work(self, worker: Worker, pointers: Any, integers: Any, room: Any) -> None:
        (table,) = arrays_in(room, self._table)
        self.tell(worker, table, pointers, integers)
        room = room + size_of(self._table) // 4
        before, line = Int32(0), 0
        for number, turn in enumerate(self.turns):
            width = sum(map(len, turn.jobs[0]))
            self.turn(worker, number, line, before, table, room)
            line += width * len(turn.jobs)
            before = before + Int32(table[line - 1])

    @cute.jit
    def tell(self, worker: Constexpr, table: Any, pointers: AnyList, integers: AnyTuple) -> None:
        """Write addresses and integers of all jobs into shared memory; each warp writes a share."""
        numbers = self.numbers(pointers, integers)
        warps = worker.threads // WARP
        for warp in range_constexpr(warps):
            if worker.tid == warp * WARP:
                self.write(table, numbers, warp, warps)
        cute.arch.sync_threads()

    def write(self, table: Any, numbers: list[Any], first: int, every: int) -> None:
        for i in range(first, len(numbers), every):
            table[i] = numbers[i]

    def numbers(self, pointers: list[Any], integers: tuple[Any, ...]) -> list[Any]:
        """Return the entries of the table: for each job its addresses, then its integers."""
        found, a, i = [], 0, 0
        for _, addresses, numbers in self.parts:
            found += [Int64(p.toint()) for p in pointers[a : a + len(addresses)]]
            found += [Int64(n) for n in integers[i : i + len(numbers)]]
            a, i = a + len(addresses), i + len(numbers)
        return found

    @cute.jit
    def turn(
        self, worker: Constexpr, number: Constexpr, line: Constexpr, before: Any, table: Any,
        room: Any,
    ) -> None:  # fmt: skip
        """Do the CTA's share of a turn, which ``before`` virtual CTAs precede in the stage."""
        jobs = self.turns[number].jobs
        width = len(jobs[0][0]) + len(jobs[0][1])
        total = Int32(table[line + width * len(jobs) - 1])
        first = (worker.cta + worker.ctas - before % worker.ctas) % worker.ctas
        for v in range(first, total, worker.ctas):
            row = Int32(line)
            for j in range_constexpr(1, len(jobs)):
                start = Int32(table[line + j * width + width - ENDS])
                row = select(v >= start, Int32(line + j * width), row)
            self.job(worker, number, v, row, table, room)
            cute.arch.sync_threads()

    def job(self, worker: Any, number: int, v: Any, row: Any, table: Any, room: Any) -> None:
        """Run virtual CTA ``v`` of the job whose entries of the table begin at ``row``."""
        part, jobs, fixed = self.turns[number]
        count, width = len(jobs[0][0]), sum(map(len, jobs[0]))
        pointers = [
            cute.make_ptr(
                TYPES[dtype], table[row + i], cute.AddressSpace.gmem, assumed_align=aligned
            )
            for i, (dtype, aligned) in enumerate(part.tensors())
        ]
        integers = [table[row + i] for i in range(count, width - ENDS)]
        for place, value in fixed:
            integers.insert(place, value)
        first, end = (Int32(table[row + width - ENDS + i]) for i in range(ENDS))
        own = Worker(worker.tid, worker.threads, v - first, end - first)
        if self.waits:
            own.waiting = worker.waiting
        part.work(own, pointers, tuple(integers), room)
