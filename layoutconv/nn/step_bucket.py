"""A captured training step for clouds up to a number of rows at every level."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..sparse import SparseTensor
from ..sparse.coords.no_tensor import NoTensor
from ..sparse.coords.row_plan import FixedRows
from .counted_rows import CountedRows, WithoutDropout, gradients_of_cells
from .graph_arguments import ArgumentMemory, CallArguments, at_cells
from .graph_bucket import Bucket, Eager, RunOutcome, State
from .graph_results import close, difference, overflown
from .nested import with_leaves
from .training_state import Gradients, Moment, copy_all

FEW = "a level has fewer than two rows"
HOOKED = "a part of it has hooks, which a replay would not call"


class TrainingPass(NamedTuple):
    """A forward and a backward pass: the detached result of the loss, the numbers of the parameters
    that got gradients, and these gradients.
    """

    result: Any
    used: tuple[int, ...]
    gradients: list[Tensor]


class Trained(NamedTuple):
    """The effects of an eager step: its gradients, buffers after it, and the state before it.

    ``compared`` are the results, gradients and buffers to compare a run with fixed rows with: those
    of the step, or of a step without dropout if it drew random numbers.
    """

    before: Moment
    random: bool
    compared: tuple[list[Any], TrainingPass, list[Tensor]]


class TrainingStep:
    """A network, its loss and its optional gradient scaler: runs one pass at a time."""

    def __init__(self, net: torch.nn.Module, loss: Callable[..., Any], scaler: Any) -> None:
        self.net, self.loss, self.scaler = net, loss, scaler

    def parameters(self) -> list[Tensor]:
        """Return the parameters that want gradients."""
        return [p for p in self.net.parameters() if p.requires_grad]

    def forward(
        self, args: Any, kwargs: Any, between: Callable[[Any], Any] | None = None
    ) -> tuple[Any, Tensor]:
        """Return the result of the loss, and the number that ``backward`` starts from."""
        inputs, *targets = args
        with torch.enable_grad():
            found = self.net(*inputs) if type(inputs) is tuple else self.net(inputs)
            found = found if between is None else between(found)
            result = self.loss(found, *targets, **kwargs)
            first = result[0] if isinstance(result, tuple | list) and result else result
            if not isinstance(first, Tensor) or first.numel() != 1:
                expected = "a function that returns a tensor of one number, or a tuple that does"
                raise ArgumentError("loss", f"{expected} at first", _described(first))
            return result, first if self.scaler is None else self.scaler.scale(first)

    def backward(self, args: Any, kwargs: Any) -> Any:
        """Run the whole step as without graphs, by torch's own ``backward``."""
        return self.accumulated(*self.forward(args, kwargs))

    def accumulated(self, result: Any, scaled: Tensor) -> Any:
        """Return the result after torch's own ``backward`` from a number."""
        with _lowers_nothing(scaled):
            scaled.backward()  # type: ignore[no-untyped-call]
        return detached(result)

    def run(
        self, args: Any, kwargs: Any, between: Callable[[Any], Any] | None = None
    ) -> TrainingPass:
        """Run the step, and return its gradients apart from ``.grad``."""
        return self.differentiated(*self.forward(args, kwargs, between))

    def differentiated(self, result: Any, scaled: Tensor) -> TrainingPass:
        """Return the gradients of a number with respect to the network's parameters."""
        with _lowers_nothing(scaled):
            found = torch.autograd.grad(scaled, self.parameters(), allow_unused=True)
        used = tuple(number for number, one in enumerate(found) if one is not None)
        return TrainingPass(detached(result), used, [one for one in found if one is not None])


class TrainingState(State):
    """The state of a network in training: also gradient hooks, and ``requires_grad``."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__(net)
        for module in self._modules:
            self._hooks += module._backward_hooks, module._backward_pre_hooks
        self._parameters = [t for t in self._tensors if isinstance(t, torch.nn.Parameter)]
        self._wanted = list(map(_wants, self._parameters))

    def holds(self) -> bool:
        """Return whether the state is unchanged."""
        return super().holds() and list(map(_wants, self._parameters)) == self._wanted

    def is_hooked(self) -> bool:
        """Return whether a module has hooks, or a parameter has hooks of gradients."""
        return super().is_hooked() or any(map(any, map(_of_parameter, self._parameters)))


_wants = attrgetter("requires_grad")
_of_parameter = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")


class StepBucket(Bucket):
    """A captured training step with fixed rows.

    Its effects are the previous values of the buffers, then the gradients.

    Args:
        step: the step to record.
        gradients: receives the gradients of each accepted replay.
        memory, keys, capacities: as of :class:`Bucket`.
    """

    _asks_first = True
    _poison = 32.0  # finite: rows without a gradient multiply it by zero

    def __init__(
        self,
        step: TrainingStep,
        gradients: Gradients,
        memory: ArgumentMemory,
        keys: Sequence[Hashable],
        capacities: Sequence[int],
    ) -> None:
        super().__init__(step.net, memory, keys, capacities)
        self._state = TrainingState(step.net)
        self._step, self._gradients = step, gradients
        self._parameters, self._buffers = step.parameters(), list(step.net.buffers())

    @contextmanager
    def _left_by(self, eager: Eager, device: torch.device) -> Iterator[None]:
        """Also restore the buffers and random numbers that the eager step left."""
        after = Moment(self._step.net, device)
        self._trained: Trained = eager.effects
        self._warming_up = True
        try:
            yield
        finally:
            after.restore()
            del self._trained

    def _refuse(self) -> None:
        if self._state.is_hooked():
            raise RuntimeError(HOOKED)

    def _prepare_warm_up(self) -> None:
        self._memory.pad(self._poison)
        self._trained.before.restore()

    def _begin(self, call: CallArguments, rows: Sequence[int]) -> None:
        self._warming_up = False
        self._memory.pad()
        self._trained.before.restore()

    def _call(self, args: Any, kwargs: Any, plan: FixedRows) -> tuple[Any, Any]:
        saved = list(map(torch.empty_like, self._buffers))
        copy_all(saved, self._buffers)
        random = self._warming_up and self._trained.random
        dropout = WithoutDropout() if random else nullcontext()
        with CountedRows(plan.there), dropout:
            found = self._step.run(args, kwargs, lambda result: _guarded(result, plan))
        self._used = found.used
        return found.result, (*saved, *found.gradients)

    def _checked(
        self, outcome: RunOutcome, call: CallArguments, rows: Sequence[int], eager: Eager
    ) -> float:
        leaves, expected, buffers = self._trained.compared
        if not self._warming_up and self._trained.random:
            leaves = []  # of other random numbers: the warm-up compared what it could
        found = self._results.copied(outcome.returned)
        self._check_rows(outcome, rows)
        if self._used != expected.used:
            raise RuntimeError("other parameters get gradients with fixed rows")
        if not leaves:
            return 0.0
        gaps = [difference(*pair) for pair in zip(leaves, found(rows, call), strict=True)]
        gradients = outcome.effects[len(self._buffers) :]
        gaps += (
            close(list(map(overflown, expected.gradients, gradients)), gradients, "a gradient"),
            close(buffers, self._buffers, "a buffer"),
        )
        return max(gaps)

    def _rows(self, verdict: Tensor, rows: Sequence[int]) -> list[int] | str:
        found = super()._rows(verdict, rows)
        return FEW if not isinstance(found, str) and min(found, default=2) < 2 else found

    def _prepared(self, outcome: RunOutcome) -> Callable[[], None]:
        used = [self._parameters[number] for number in self._used]
        return self._gradients.addition(used, outcome.effects[len(self._buffers) :])

    def _undo(self, outcome: RunOutcome) -> None:
        with torch.no_grad():
            copy_all(self._buffers, list(outcome.effects[: len(self._buffers)]))


def detached(result: Any) -> Any:
    """Return a result with detached tensors."""
    return with_leaves(result, partial(_on_features, methodcaller("detach")))


def _guarded(result: Any, plan: FixedRows) -> Any:
    """Return a network's result that takes no gradient from rows without a cell."""
    plan.join()  # for the backward pass

    def guard(features: Tensor) -> Tensor:
        there = plan.there(features.shape[0]) if features.dim() else None
        return gradients_of_cells(features, there)

    return with_leaves(result, partial(_on_features, guard))


def _on_features(function: Callable[[Tensor], Tensor], leaf: Any) -> Any:
    """Apply a function to the features of a tensor or sparse tensor; return other leaves as is."""
    if isinstance(leaf, Tensor):
        return function(leaf)
    if isinstance(leaf, SparseTensor):
        return leaf.replace(function(leaf.features))
    if isinstance(leaf, NoTensor):
        return at_cells(leaf, function(leaf.features), leaf.coordinates)
    return leaf


def _lowers_nothing(tensor: Tensor) -> AbstractContextManager[Any]:
    """Switch autocast off after the loss, as torch recommends."""
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def _described(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
