"""Warps that fetch together: their registers, their divergent paths, and their execution.

A team is one warp, if warps run ahead independently, or the whole CTA, for speed; nothing else
differs. Lanes that took different branches are separate *paths* (program counter -> lanes). The
path that is furthest behind runs first; paths that meet merge again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .bulk_stores import BulkStores
from .copies import PendingCopies
from .faults import Divergent, Fault, InFlight, Unfenced, UnsetRegister
from .masks import every, some
from .ptx import Guard, Instruction, Register
from .scratch import Scratch

if TYPE_CHECKING:
    from .cta import CTA

Lanes = NDArray[np.bool_]
WARP = 32

# Returned by a control instruction instead of the next program counter of its lanes.
LEFT = -1  # they exited, or wait at a barrier


@dataclass
class Step:
    """An instruction ready to run.

    ``run`` acts on the team's active lanes; a control instruction returns where they go next (a
    program counter, LEFT, or None for the next instruction). ``members`` gives the lanes that must
    run it together, None if lanes are independent. Steps from here up to ``straight`` run without
    checks, and up to ``together`` if all lanes are active: none has a guard or is a branch.
    """

    instruction: Instruction
    run: Callable[[Team], int | None]
    control: bool = False
    members: Callable[[Team], Lanes] | None = None
    straight: int = 0
    together: int = 0


class Team:
    """``warps`` warps of a CTA, from warp number ``first`` on."""

    def __init__(self, cta: CTA, first: int, warps: int, registers: list[Register]) -> None:
        self.cta = cta
        self.warps = warps
        lanes = WARP * warps
        self.shape = (lanes,)
        self.threads = WARP * first + np.arange(lanes)
        self.warp_of = cta.first_warp + first + np.arange(lanes) // WARP
        self.numbers = np.arange(lanes)
        # Numbers of the team's threads in the grid.
        i, j, k = cta.index
        x, y, _ = cta.launch.grid
        self.grid_threads = ((k * y + j) * x + i) * cta.threads + self.threads
        # Lanes that are threads, and threads that have not exited.
        self.started: Lanes = self.threads < cta.threads
        self.alive: Lanes = self.started.copy()
        self.count_alive()
        self.paths: dict[int, Lanes] = {0: self.alive.copy()}
        # Paths at a warp-collective instruction that wait for the rest of their warps.
        self.parked: dict[int, Lanes] = {}
        self.pc = 0
        self.active: Lanes = self.alive.copy()
        self.full = every(self.active)
        self._registers = registers
        self._values: list[NDArray | None] = [None] * len(registers)
        # Per register: the lanes that never wrote it; None when every lane has.
        self._missing: list[Lanes | None] = [np.ones(lanes, np.bool_)] * len(registers)
        # Per register that wgmmas in flight use: its role, and the number of these wgmmas per warp.
        self._flying: dict[int, tuple[str, list[int]]] = {}
        # Per warp of the team, the values of all registers at its last wgmma.fence.
        self._fenced: list[list[NDArray | None] | None] = [None] * warps
        self.copies = PendingCopies(self)
        self.stores = BulkStores(self)
        self.local = Scratch("local", cta.launch.local_base, lanes * cta.launch.local_size)
        # Instructions issued per program counter, counted in warps, by all teams of the launch.
        self.issued = cta.launch.issued
        self.straight = cta.launch.straight

    def alive_warps(self) -> list[int]:
        """Return the warps with threads that have not exited."""
        return np.unique(self.warp_of[self.alive]).tolist()

    def count_alive(self) -> None:
        """Count the warps with threads that have not exited, for every barrier."""
        self.warps_alive = int(self.alive.reshape(-1, WARP).any(axis=1).sum())

    # ---- registers

    def get(self, index: int) -> NDArray:
        """Return the bits of a register in every lane; only those of active lanes are valid."""
        value = self._values[index]
        missing = self._missing[index]
        if missing is not None and (value is None or some(missing & self.active)):
            self._refuse_flying(index)
            name = self._registers[index].name
            lane = int((missing & self.active).argmax())
            raise UnsetRegister(f"register {name} is read before it is written", lane)
        assert value is not None
        return value

    def get_or_noise(self, index: int) -> NDArray:
        """``get``, with noise in lanes that never wrote the register."""
        missing = self._missing[index]
        if missing is None:
            return self.get(index)
        value, bits = self._values[index], np.dtype(f"u{max(1, self._registers[index].bits // 8)}")
        noise = np.full(self.numbers.shape, (0x9E3779B97F4A7C15 * (index + 1)) % 2**63 | 1, "u8")
        noise = noise.astype(bits)
        return noise if value is None else np.where(missing, noise, value)

    def set(self, index: int, value: NDArray) -> None:
        """Write a register in the active lanes; the array must not be changed afterwards."""
        if value.shape != self.shape:
            value = np.repeat(value, self.numbers.size)
        if self._flying:
            self._refuse_flying(index)
        if self.full:
            self._values[index] = value
            self._missing[index] = None
            return
        old = self._values[index]
        if old is not None:  # in less than a third of np.where's time
            mixed = old.copy()
            np.copyto(mixed, value, where=self.active)
            value = mixed
        self._values[index] = value
        missing = self._missing[index]
        if missing is not None:
            missing = missing & ~self.active
            self._missing[index] = missing if some(missing) else None

    # ---- registers of wgmma: untouchable until it was waited for

    def fence_registers(self) -> None:
        """wgmma.fence of the active warps: later wgmmas may use their registers as they are now."""
        for warp in np.unique(self.chosen // WARP).tolist():
            self._fenced[warp] = self._values.copy()

    def lend(self, index: int, use: str, warp: int, read: bool) -> NDArray | None:
        """Return a warp's lanes of a register to a wgmma, which uses it until :meth:`take_back`."""
        lanes = slice(WARP * warp, WARP * warp + WARP)
        name, fenced = self._registers[index].name, self._fenced[warp]
        if fenced is None:
            raise Unfenced("there was no wgmma.fence before this", lanes.start)
        other, count = self._flying.get(index) or ("", [0] * self.warps)
        if count[warp]:
            if other != use:
                raise InFlight(f"register {name} is in use by an unlike wgmma", lanes.start)
        else:
            missing = self._missing[index]
            missing = np.zeros_like(self.alive) if missing is None else missing.copy()
            if read and some(missing[lanes]):
                raise UnsetRegister(f"register {name} is read before it is written", lanes.start)
            missing[lanes] = True
            self._missing[index] = missing
        value, old = self._values[index], fenced[index]
        if read and value is not old:
            assert value is not None
            if old is None or some(old[lanes] != value[lanes]):
                raise Unfenced(
                    f"register {name} was changed after the last wgmma.fence", lanes.start
                )
        count[warp] += 1
        self._flying[index] = use, count
        return None if value is None else value[lanes]

    def give(self, index: int, warp: int, value: NDArray) -> None:
        """Write the result of a warp's wgmma to a register that was lent to it."""
        old, fenced = self._values[index], self._fenced[warp]
        assert fenced is not None
        new = np.zeros(self.numbers.size, value.dtype) if old is None else old.copy()
        new[WARP * warp : WARP * warp + WARP] = value
        self._values[index] = fenced[index] = new

    def take_back(self, index: int, warp: int) -> None:
        """Return a register to a warp that has waited for the wgmma."""
        lanes = slice(WARP * warp, WARP * warp + WARP)
        _, count = self._flying[index]
        count[warp] -= 1
        if not any(count):
            del self._flying[index]
        if not count[warp]:
            missing = self._missing[index]
            assert missing is not None
            missing = missing.copy()
            missing[lanes] = False
            self._missing[index] = missing if some(missing) else None

    def _refuse_flying(self, index: int) -> None:
        if index in self._flying:
            lanes = np.repeat(np.array(self._flying[index][1], np.bool_), WARP) & self.active
            if some(lanes):
                name = self._registers[index].name
                raise InFlight(
                    f"register {name} is in use by a wgmma that was not waited for",
                    int(lanes.argmax()),
                )

    def mask_bits(self, lanes: Lanes) -> NDArray[np.uint32]:
        """Return, per lane, the 32-bit mask of those lanes in its warp."""
        bits = (lanes.reshape(-1, WARP).astype(np.uint32) << np.arange(WARP, dtype=np.uint32)).sum(
            axis=1, dtype=np.uint32
        )
        return bits.repeat(WARP)

    def warps_in(self, lanes: Lanes) -> NDArray[np.intp]:
        """Return the warps of these lanes, in order; for a team of one, without a search."""
        if self.warps == 1:
            return self.warp_of[: some(lanes)]
        return np.unique(self.warp_of[lanes])

    @property
    def chosen(self) -> NDArray[np.intp]:
        """Return the numbers of the active lanes."""
        return self.numbers if self.full else self.numbers[self.active]

    def pick(self, value: NDArray) -> NDArray:
        """Return a value, of shape (lanes,) or (1,), in the active lanes only."""
        if value.shape != self.shape:
            value = np.repeat(value, self.numbers.size)
        return value if self.full else value[self.active]

    def spread(self, chosen: NDArray, dtype: np.dtype) -> NDArray:
        """Return values of the active lanes, in lane order, as an array over all lanes."""
        if self.full:
            return np.ascontiguousarray(chosen)
        out = np.zeros(self.numbers.shape, dtype)
        out[self.active] = chosen
        return out

    # ---- paths

    def push(self, pc: int, lanes: Lanes) -> None:
        """Let lanes go on at ``pc``, together with the lanes that are already there."""
        for others in (self.paths, self.parked):
            if pc in others:
                lanes = lanes | others.pop(pc)
        self.paths[pc] = lanes

    def sleep(self, asleep: Lanes, on: str) -> int | None:
        """Let lanes run this instruction again when the event ``on`` may have happened; the other
        active lanes go on. Return the result of the control instruction.
        """
        if not some(asleep):
            return None
        self.cta.cluster.sleep(self, self.pc, asleep, on)
        if some(self.active & ~asleep):
            self.push(self.pc + 1, self.active & ~asleep)
        return LEFT

    def retire(self, lanes: Lanes) -> None:
        """Let lanes exit; paths that waited for them to converge look again."""
        self.alive = self.alive & ~lanes
        self.count_alive()
        for pc in list(self.parked):
            self.push(pc, self.parked.pop(pc))

    def advance(self, budget: int) -> int:
        """Run until no path can advance or ``budget`` steps are spent; return the steps spent."""
        spent = 0
        while self.paths and spent < budget:
            pc = min(self.paths)
            spent += self._follow(pc, self.paths.pop(pc), budget - spent)
        return spent

    def _next_meeting(self, pc: int) -> int:
        """Return the first program counter after ``pc`` at which other lanes are."""
        if not self.paths and not self.parked:
            return len(self.cta.program)
        here = [p for p in (*self.paths, *self.parked) if p > pc]
        return min(here, default=len(self.cta.program))

    def _follow(self, pc: int, lanes: Lanes, budget: int) -> int:
        """Run one path until it meets another, splits, ends, parks or has spent its budget."""
        program, issued = self.cta.program, self.issued
        stop = self._next_meeting(pc)
        full = every(lanes)
        warps = self.warps if full else int(lanes.reshape(-1, WARP).any(axis=1).sum())
        self.active, self.full = lanes, full
        spent = 0
        step = None
        try:
            while pc < stop and spent < budget:
                step = program[pc]
                end = step.together if full else step.straight
                if end > pc:
                    end = min(end, stop, pc + budget - spent)
                    self.straight[pc] += warps
                    self.straight[end] -= warps
                    for step in program[pc:end]:
                        step.run(self)
                    spent += end - pc
                    pc = end
                    continue
                guard = step.instruction.guard
                if guard is not None:
                    taken = self._taken(guard, lanes)
                    if not some(taken):
                        issued[pc] += warps
                        spent += 1
                        pc += 1
                        continue
                    self.active = taken
                    self.full = full and every(taken)
                if step.members is not None and not self.full:
                    ready = lanes & ~self._park(step, pc, lanes)
                    if not some(ready):
                        return spent
                    if not every(ready == lanes):
                        return spent + self._follow(pc, ready, budget - spent)
                issued[pc] += warps
                spent += 1
                if step.control:
                    self.pc = pc
                    target = step.run(self)
                    if target is not None:
                        staying = lanes & ~self.active
                        alone = target not in self.paths and target not in self.parked
                        if target == LEFT or target >= stop or some(staying) or not alone:
                            if target != LEFT:
                                self.push(target, self.active)
                            if some(staying):
                                self.push(pc + 1, staying)
                            return spent
                        pc = target
                        stop = self._next_meeting(pc)
                        continue
                else:
                    step.run(self)
                pc += 1
                if guard is not None:
                    self.active, self.full = lanes, full
        except Fault as fault:
            assert step is not None
            raise self.located(fault, step) from None
        if pc < len(program):
            self.push(pc, lanes)
        else:
            self.retire(lanes)
        return spent

    def _taken(self, guard: Guard, lanes: Lanes) -> Lanes:
        predicate = self.get(guard.register.index)
        return lanes & ~predicate if guard.negated else lanes & predicate

    def _park(self, step: Step, pc: int, lanes: Lanes) -> Lanes:
        """Set aside, and return, the lanes of ``pc`` whose warps miss members of a collective."""
        assert step.members is not None
        absent = step.members(self) & ~self.active
        off = absent & lanes
        if some(off):
            raise Divergent(
                "a warp-collective instruction is predicated off in some lanes", int(off.argmax())
            )
        parked = lanes & absent.reshape(-1, WARP).any(axis=1).repeat(WARP)
        if some(parked):
            self.parked[pc] = parked
        return parked

    def located(self, fault: Fault, step: Step) -> Fault:
        """Return the fault with kernel, instruction, CTA and thread filled in."""
        fault.kernel = self.cta.kernel.name
        fault.instruction = step.instruction.text
        fault.line = step.instruction.line
        fault.cta = self.cta.index
        lane = fault.lane if fault.lane is not None else int(self.active.argmax())
        fault.thread = int(self.threads[lane])
        return fault
