"""A captured network for clouds up to a number of rows at every level."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..gpu.dry_run import dry
from ..sparse.coords.row_plan import FixedRows
from ..sparse.maps import ahead
from .graph_arguments import ArgumentMemory, CallArguments
from .graph_recorder import HostReads, NoCollectives, Recorder
from .graph_results import Results, Returned, difference
from .nested import put_together, taken_apart

ALIGNMENT = 128  # rows: a multiple of the largest tiles


class Eager(NamedTuple):
    """An eager call, and what its capture needs.

    ``structure`` and ``leaves`` are its flattened result; ``spoilt`` says what prevents a capture;
    ``effects`` are its effects beside the result.
    """

    result: Any
    structure: Any
    leaves: list[Any]
    spoilt: str = ""
    effects: Any = None


class RunOutcome(NamedTuple):
    """The outcome of a run with fixed rows, in memory that the next run overwrites.

    ``verdict`` holds the numbers of :meth:`FixedRows.verdict`.
    """

    structure: Any
    returned: Returned
    verdict: Tensor
    effects: Any = None


class Bucket:
    """A captured network with fixed rows.

    Args:
        net: the network.
        memory: holds the arguments.
        keys: identify the maps of the levels.
        capacities: rows of every level.

    Attributes:
        hits: the number of calls that it served.
        difference: of its first result from the eager one, relative to the largest number; 0 means
            equal bits.
    """

    _asks_first = False  # whether to compare the network's state before a replay writes to it
    _poison: float = torch.nan  # fills the padding in the run that is compared

    def __init__(
        self, net: Any, memory: ArgumentMemory, keys: Sequence[Hashable], capacities: Sequence[int]
    ) -> None:
        self._memory, self._keys = memory, keys
        self.groups, self.levels = memory.capacities, tuple(capacities)
        self._net, self._state = net, State(net)
        self._asked: list[ahead.Asked] = []  # the maps of a run, for later runs
        self._side: ahead.Side | None = None
        self.hits, self.difference, self.nbytes = 0, 0.0, memory.nbytes
        self.returns: int | str | None = None  # the argument that the network returns

    def is_current(self) -> bool:
        """Return whether the network is as it was captured."""
        return self._state.holds()

    def record(
        self,
        recorder: Recorder,
        call: CallArguments,
        rows: Sequence[int],
        eager: Eager,
        device: torch.device,
    ) -> None:
        """Run the network with fixed rows, compare it with the ``eager`` call, and record it.

        ``rows`` are those of groups and levels. Raises what prevents a capture.
        """
        with self._left_by(eager, device):
            self._refuse()
            self._memory.load(call, rows)
            self._prepare_warm_up()
            # HostReads and NoCollectives watch the calls, so layers are not fused: their kernels,
            # which no replay launches, are not worth compiling.
            with HostReads(device.type), NoCollectives(), dry(others=False):
                self._run(device, self._poison)
            self._prepare_warm_up()
            outcome = self._run(device, self._poison)
            if outcome.structure != eager.structure:
                raise RuntimeError("the result is nested in another way with fixed rows")
            put_together(eager.structure, iter(eager.leaves))  # raises here, not at each replay
            every = *self.groups, *self.levels
            self._results = Results(call, eager.leaves, outcome.returned, rows, every)
            self._checked(outcome, call, rows, eager)
            del outcome
            self._side = ahead.side_of(device)
            self._begin(call, rows)
            recording = recorder.record(lambda: self._run(device))
            self._replay, self.nbytes = recording.replay, self._memory.nbytes + recording.nbytes
            self._begin(call, rows)
            self.difference = self._checked(self._replay(), call, rows, eager)

    def _left_by(self, eager: Eager, device: torch.device) -> AbstractContextManager[None]:
        """Restore, at the end, the state that the eager call left in the network."""
        return nullcontext()

    def _refuse(self) -> None:
        """Raise for a network that cannot be captured."""
        if self._state.training:
            raise RuntimeError("a part of it is in training mode")
        if self._state.is_hooked():
            raise RuntimeError("a part of it has hooks, which a replay would not call")

    def _prepare_warm_up(self) -> None:
        """Prepare a run that is compared with the eager call."""

    def _begin(self, call: CallArguments, rows: Sequence[int]) -> None:
        """Prepare a run like all later ones."""

    def _checked(
        self, outcome: RunOutcome, call: CallArguments, rows: Sequence[int], eager: Eager
    ) -> float:
        """Return the difference of a result from the eager one."""
        found = self._results.copied(outcome.returned)
        self._check_rows(outcome, rows)
        pairs = zip(eager.leaves, found(rows, call), strict=True)
        return max([difference(*pair) for pair in pairs], default=0.0)

    def _check_rows(self, outcome: RunOutcome, rows: Sequence[int]) -> None:
        found = self._rows(outcome.verdict, rows[: len(self.groups)])
        if isinstance(found, str):
            raise RuntimeError(found)
        if found != list(rows):
            raise RuntimeError("levels have other rows than in the eager call")

    def run(self, call: CallArguments, rows: Sequence[int]) -> Answer:
        """Return the result of a call that fits, or the reason for none."""
        if self._asks_first and not self._state.holds():
            return Answer(None, CHANGED)
        self._memory.load(call, rows)
        outcome = self._replay()
        # While the GPU works:
        found = self._results.copied(outcome.returned)
        if not self._asks_first and not self._state.holds():
            return Answer(None, CHANGED)
        commit = self._prepared(outcome)
        every = self._rows(outcome.verdict, rows)
        if isinstance(every, str):
            self._undo(outcome)
            return Answer(None, every)
        commit()
        self.hits += 1
        return Answer(put_together(outcome.structure, iter(found(every, call))))

    def _prepared(self, outcome: RunOutcome) -> Callable[[], None]:
        """Return a function that makes a replayed call take effect."""
        return _nothing

    def _undo(self, outcome: RunOutcome) -> None:
        """Undo the effects of a refused replay."""

    def _rows(self, verdict: Tensor, rows: Sequence[int]) -> list[int] | str:
        """Return rows of groups and levels, after a sync; or what is wrong with the call."""
        numbers = verdict.tolist()
        count = len(self.levels)
        levels, clouds = numbers[:count], numbers[count:]
        for start, most in zip(range(0, len(clouds), 3), self._clouds, strict=True):
            repeated, outside, absent = clouds[start : start + 3]
            expected = most - rows[self.groups.index(most)]
            if repeated or outside or absent != expected:
                return "cells are repeated, or outside the grid"
        if any(total > most for total, most in zip(levels, self.levels, strict=True)):
            return OVERFLOW
        return [*rows, *levels]

    def _run(self, device: torch.device, poison: float | None = None) -> RunOutcome:
        """Run what is captured, in this memory."""
        maps = None if self._side is None else ahead.Ahead(self._asked, self._side)
        plan = FixedRows(self._keys, self.levels, self.groups, poison, maps)
        lowered = _uncached_autocast(device.type)
        with torch.inference_mode(False), lowered, plan.in_effect(), ahead.joined(maps):
            (args, kwargs), clouds = self._memory.arguments(plan.start)
            result, effects = self._call(args, kwargs, plan)
            plan.join()  # before levels and tables are read
            structure, leaves = taken_apart(result)
            returned, verdict = Returned(leaves, clouds), plan.verdict()
        if len(plan.levels) != len(self.levels):
            raise RuntimeError("with fixed rows, fewer kernel maps are made than before")
        self._clouds = [len(cells) for cells in plan.clouds()]
        if maps is None:
            self._asked = ahead.asked_of(plan.given, plan.made)
        return RunOutcome(structure, returned, verdict, effects)

    def _call(self, args: Any, kwargs: Any, plan: FixedRows) -> tuple[Any, Any]:
        """Return the result of a call, and its effects beside that."""
        with torch.no_grad():
            return self._net(*args, **kwargs), None


CHANGED = "parameters, modules or modes are others than those captured"
OVERFLOW = "a level has more rows than its capacity"


def has_room(groups: Sequence[int], rows: Sequence[int], waste: float) -> bool:
    """Return whether clouds of so many rows fit into a bucket without too much padding.

    >>> has_room([1280], [1000], 2.5), has_room([1280], [1300], 2.5), has_room([1280], [100], 2.5)
    (True, False, False)
    """
    pairs = zip(rows, groups, strict=True)
    return all(count <= most <= count * waste + 2 * ALIGNMENT for count, most in pairs)


def _nothing() -> None:
    """Do nothing."""


class Answer(NamedTuple):
    """A result, or the reason for none."""

    result: Any
    refused: str = ""


def _uncached_autocast(device: str) -> AbstractContextManager[Any]:
    """Keep autocast as it is, without its cache: a graph lowers the current weights."""
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    dtype = torch.get_autocast_dtype(device)
    return torch.autocast(device, dtype=dtype, cache_enabled=False)


class State:
    """The state that a capture depends on: modules, modes, addresses of parameters and buffers.

    It keeps their memory alive, so that no other tensor can get the same address. Every call checks
    it, for hundreds of modules, so almost all steps run in C.
    """

    def __init__(self, net: torch.nn.Module) -> None:
        self._modules = list(net.modules())
        dicts: list[dict[str, Any]] = [
            found for module in self._modules
            for found in (module._modules, module._parameters, module._buffers)
        ]  # fmt: skip
        self._dicts = dicts
        self._hooks = [
            hooks for module in self._modules
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ]  # fmt: skip
        every = list(chain.from_iterable(map(dict.values, dicts)))
        self._tensors = [one for one in every if isinstance(one, Tensor)]
        self._held = [tensor.untyped_storage() for tensor in self._tensors]
        self._known = self._now()
        self.training = any(self._known[0])

    def holds(self) -> bool:
        """Return whether the state is unchanged."""
        return self._now() == self._known and not self.is_hooked()

    def is_hooked(self) -> bool:
        """Return whether a module has forward hooks."""
        return any(self._hooks)

    def _now(self) -> tuple[list[bool], list[int], list[int]]:
        return (
            list(map(_training, self._modules)),
            list(map(id, chain.from_iterable(map(dict.values, self._dicts)))),
            list(map(Tensor.data_ptr, self._tensors)),
        )


_training = attrgetter("training")
