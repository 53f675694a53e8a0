"""Jobs: one part of a cooperative launch run for many clouds at once, each with its own CTAs.

A small map is latency-bound, and leaves most of the GPU idle. So the maps of all levels of a
network are *jobs* of one launch: each job has as many virtual CTAs as its work needs, numbered
behind those of the job before, and the CTAs of the launch stride over them. A part is compiled once
for all of its jobs, which differ in their arguments: these are in a table in shared memory, and a
job finds them by its number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..common.dsl import Constexpr, Int32, Int64, cute, range_constexpr
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import TYPES, select
from .cooperative import WARP, Arrays, EachRow, LaunchThread, StagePart, arrays_in, bytes_of_arrays
from .per_rank import Places, types_of

ENDS = 2  # integers of a job behind its part's: its first virtual CTA, and one past its last
Positions = tuple[int, ...]


class Turn(NamedTuple):
    """A part of a stage, with several jobs.

    Attributes:
        part: the work of each job.
        jobs: for each the positions of its addresses and of its integers among those of the launch:
            the part's without the ``fixed`` ones, and then ``ENDS``.
        fixed: for each job the part's last integers, which are constants.
    """

    part: Any
    jobs: tuple[tuple[Positions, Positions], ...]
    fixed: tuple[Positions, ...]

    @property
    def places(self) -> Places:
        """The part once per job, with the positions of its addresses and integers."""
        return tuple((self.part, *job) for job in self.jobs)

    @property
    def key(self) -> tuple[Any, ...]:
        return self.part.key, self.jobs, self.fixed


def stages_of(stages: tuple[tuple[Turn, ...], ...]) -> tuple[Jobs, ...]:
    """Return stages of jobs. The last one, whose part waits itself, has one turn; the first writes
    the arguments of all."""
    places = tuple(place for turns in stages for turn in turns for place in turn.places)
    count = 1 + max(place for *_, integers in places for place in integers)
    given = Given(types_of(places), count)
    last = len(stages) - 1
    return tuple(Jobs(turns, given, not n, n == last) for n, turns in enumerate(stages))


class Given(NamedTuple):
    """The arguments of a launch that are in its table: the types at addresses, and how many
    integers there are."""

    types: tuple[tuple[str, int], ...]
    integers: int

    @property
    def table(self) -> Arrays:
        return [(Int64, (len(self.types) + self.integers,))]


class Jobs(StagePart):
    """A stage of several turns.

    Turns follow each other without a grid sync; a turn starts with the CTA behind the last one of
    the turn before. The stage that ``tells`` writes the table first. If the stage ``waits``, its
    parts do.
    """

    def __init__(self, turns: tuple[Turn, ...], given: Given, tells: bool, waits: bool) -> None:
        super().__init__(turns[0].part.rank)
        self.turns, self.given, self.tells, self.waits = turns, given, tells, waits

    @property
    def key(self) -> tuple[Any, ...]:
        turns = tuple(turn.key for turn in self.turns)
        return type(self).__name__, turns, tuple(self.given), self.tells, self.waits

    @property
    def place(self) -> tuple[Any, Positions, Positions]:
        """This part, with the positions of its addresses and integers, as a stage lists it."""
        return self, tuple(range(len(self.tensors()))), tuple(range(self.integers()))

    @property
    def parts(self) -> Places:
        """Each part once per job, with the positions of its addresses and integers."""
        return tuple(place for turn in self.turns for place in turn.places)

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return self.given.types if self.tells else ()

    def integers(self) -> int:
        return self.given.integers if self.tells else 0

    def shared(self, threads: int) -> Arrays:
        needs = [turn.part.shared(threads) for turn in self.turns]
        return [*self.given.table, *max(needs, key=bytes_of_arrays)]

    def work(self, worker: LaunchThread, pointers: Any, integers: Any, room: Any) -> None:
        (table,) = arrays_in(room, self.given.table)
        if self.tells:
            self.tell(worker, table, pointers, integers)
        room = room + bytes_of_arrays(self.given.table) // 4
        before = Int32(0)
        for number, turn in enumerate(self.turns):
            self.turn(worker, number, before, table, room)
            before = before + self.integer(table, turn.jobs[-1][1][-1])

    @cute.jit
    def tell(self, worker: Constexpr, table: Any, pointers: AnyList, integers: AnyTuple) -> None:
        """Write all addresses and integers into shared memory; each warp writes a share."""
        numbers = [*(Int64(p.toint()) for p in pointers), *map(Int64, integers)]
        warps = worker.threads // WARP
        for warp in range_constexpr(warps):
            if worker.tid == warp * WARP:
                self.write(table, numbers, warp, warps)
        cute.arch.sync_threads()

    def write(self, table: Any, numbers: list[Any], first: int, every: int) -> None:
        for i in range(first, len(numbers), every):
            table[i] = numbers[i]

    def integer(self, table: Any, place: Any) -> Any:
        """Return an integer of the launch, as an Int32."""
        return Int32(table[len(self.given.types) + place])

    @cute.jit
    def turn(
        self, worker: Constexpr, number: Constexpr, before: Any, table: Any, room: Any
    ) -> None:
        """Do the CTA's share of a turn, which ``before`` virtual CTAs precede in the stage."""
        jobs = self.turns[number].jobs
        total = self.integer(table, jobs[-1][1][-1])
        first = (worker.cta + worker.ctas - before % worker.ctas) % worker.ctas
        for v in range(first, total, worker.ctas):
            ends = [self.integer(table, integers[-ENDS]) for _, integers in jobs]
            self.job(worker, number, v, [v >= start for start in ends], table, room)
            cute.arch.sync_threads()

    def job(self, worker: Any, number: int, v: Any, begun: Any, table: Any, room: Any) -> None:
        """Run virtual CTA ``v``, of the last job that has ``begun``."""
        part, jobs, fixed = self.turns[number]
        chosen = _Chosen(begun)
        addresses = [chosen.among(places) for places in zip(*(a for a, _ in jobs), strict=True)]
        numbers = [chosen.among(places) for places in zip(*(i for _, i in jobs), strict=True)]
        pointers = [
            cute.make_ptr(TYPES[dtype], table[place], cute.AddressSpace.gmem, assumed_align=aligned)
            for place, (dtype, aligned) in zip(addresses, part.tensors(), strict=True)
        ]
        integers = [table[len(self.given.types) + place] for place in numbers[:-ENDS]]
        integers += [chosen.among(values) for values in zip(*fixed, strict=True)]
        first, end = (self.integer(table, place) for place in numbers[-ENDS:])
        own = LaunchThread(worker.tid, worker.threads, v - first, end - first)
        if self.waits:
            own.waiting = worker.waiting
        part.work(own, pointers, tuple(integers), room)


class _Chosen:
    """Choice among constants by a job's number: what grows alike from job to job is chosen once."""

    def __init__(self, begun: list[Any]) -> None:
        self.begun = begun
        self.found: dict[Positions, Any] = {}

    def among(self, values: Positions) -> Any:
        steps = tuple(value - values[0] for value in values)
        if not any(steps):
            return Int32(values[0])
        if steps not in self.found:
            step = Int32(0)
            for begun, further in zip(self.begun, steps, strict=True):
                step = select(begun, Int32(further), step)
            self.found[steps] = step
        return self.found[steps] + values[0]


class OneOf(EachRow):
    """Parts that take the same arguments, of which each job has one: the last integer says which.

    The integer before it is where the job's table of taps begins, in Int32, at the address
    ``table``.
    """

    def __init__(self, parts: tuple[Any, ...], table: int) -> None:
        super().__init__(parts[0].rank)
        self.parts, self.table = parts, table

    @property
    def key(self) -> tuple[Any, ...]:
        return type(self).__name__, tuple(part.key for part in self.parts), self.table

    def tensors(self) -> tuple[tuple[str, int], ...]:
        found: tuple[tuple[str, int], ...] = self.parts[0].tensors()
        return found

    def integers(self) -> int:
        of_each: int = self.parts[0].integers()
        return of_each + 2

    def shared(self, threads: int) -> Arrays:
        return max((part.shared(threads) for part in self.parts), key=bytes_of_arrays)

    @cute.jit
    def rows(
        self, worker: Constexpr, first: Any, end: Any, pointers: AnyList, integers: AnyTuple,
        room: Any,
    ) -> None:  # fmt: skip
        *own, start, which = integers
        given = self.at_table(pointers, start)
        for number in range_constexpr(len(self.parts)):
            if which == number:
                self.parts[number].rows(worker, first, end, given, tuple(own), room)

    def at_table(self, pointers: Any, start: Any) -> list[Any]:
        """Return the pointers, with the table's moved to where the job's begins."""
        given = list(pointers)
        given[self.table] = given[self.table] + cute.assume(start, divby=4)
        return given
