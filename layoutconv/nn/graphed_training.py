"""Training steps as CUDA graphs: forward, loss and backward, clouds of any size, one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentTypeError
from ..sparse.coords.row_plan import RowCount
from .counted_rows import WithoutDropout
from .graph_arguments import ArgumentMemory, CallArguments, filler, versions
from .graph_bucket import Bucket, Eager
from .graph_calls import GraphedCalls, check_options
from .graph_recorder import NoCollectives, wrapper_of_ranks
from .nested import put_together, taken_apart
from .step_bucket import HOOKED, StepBucket, Trained, TrainingState, TrainingStep
from .training_state import BEYOND, Gradients, Moment, why_by_backward


class GraphedStep(GraphedCalls):
    """A training step that runs as CUDA graphs: :func:`graphed_step` makes it.

    Attributes:
        module: the network.
    """

    def __init__(self, step: TrainingStep, factor: float, buckets: int, nbytes: int | None) -> None:
        self.module, self._step = step.net, step
        self._begin(factor, buckets, nbytes)

    def __call__(self, input: Any, *targets: Any, **options: Any) -> Any:
        return self._responded((input, *targets), options)

    def reset(self) -> None:
        """Drop all graphs, and reset the counts of calls."""
        super().reset()
        self._gradients = Gradients()

    # -- the calls ---------------------------------------------------------------------------------

    def _plainly(self, args: Any, kwargs: Any) -> Any:
        return self._step.backward(args, kwargs)

    def _refuses(self, call: CallArguments) -> str:
        refused = super()._refuses(call)
        if not refused and call.wants_gradient():
            return "an argument wants a gradient"
        if not refused and (torch.is_inference_mode_enabled() or torch.is_anomaly_enabled()):
            return "it is in inference mode, or anomalies are looked for"
        return refused

    def _observed(self, call: CallArguments, args: Any, kwargs: Any) -> Eager:
        unfit = _unfit(self.module)
        if unfit:
            return Eager(self._plainly(args, kwargs), None, [], unfit)
        device = call.device
        assert device is not None
        before, written = Moment(self.module, device), self._versions(call)
        parameters = self._step.parameters()
        result, scaled = self._step.forward(*call.rebuilt())
        why = why_by_backward(scaled, parameters) if scaled.requires_grad else BEYOND
        if why:
            return Eager(self._step.accumulated(result, scaled), None, [], why)
        found = self._step.differentiated(result, scaled)
        self._gradients.keep_only(parameters)
        self._gradients.add([parameters[number] for number in found.used], found.gradients)
        structure, leaves = taken_apart(found.result)
        after = Moment(self.module, device)
        if any(gradient.layout is not torch.strided for gradient in found.gradients):
            why = "a gradient is sparse"
        elif written != self._versions(call):
            why = "it writes to its arguments or its parameters"
        elif list(map(id, before.buffers)) != list(map(id, after.buffers)):
            why = "it puts other buffers in the place of its own"
        random, compared = before.is_random(), (leaves, found, after.values)
        if random and not why:
            before.restore()
            try:
                compared = self._without_dropout(call, after)
            except RuntimeError as error:
                why = str(error)
        return Eager(found.result, structure, leaves, why, Trained(before, random, compared))

    def _without_dropout(self, call: CallArguments, after: Moment) -> Any:
        """Run the step again without dropout: fixed rows would draw other random numbers."""
        try:
            with RowCount().in_effect(), WithoutDropout(), NoCollectives():
                found = self._step.run(*call.rebuilt())
            _, leaves = taken_apart(found.result)
            return leaves, found, [buffer.clone() for buffer in after.buffers]
        finally:
            after.restore()

    def _versions(self, call: CallArguments) -> list[int]:
        return versions(*call.tensors(), *self.module.parameters())

    def _new_bucket(
        self, call: CallArguments, capacities: Sequence[int], count: RowCount, groups: int
    ) -> Bucket:
        memory = ArgumentMemory(call, self._places[call.form], capacities[:groups], _filling(call))
        return StepBucket(self._step, self._gradients, memory, count.keys, capacities[groups:])

    def __repr__(self) -> str:
        return f"GraphedStep({self.module!r}, {self._step.loss!r})"


def graphed_step(
    net: torch.nn.Module,
    loss: Callable[..., Any],
    *,
    scaler: Any = None,
    factor: float = 1.25,
    buckets: int = 16,
    nbytes: int | None = None,
) -> GraphedStep:
    """Make a step that runs forward, loss and backward as CUDA graphs, on new clouds in each call.

    ``step = graphed_step(net, loss)`` makes ``value = step(input, *targets)`` equivalent to::

        value = loss(net(input), *targets)
        value.backward()

    Gradients are added to the ``.grad`` of parameters, as ``backward`` does; after
    ``optimizer.zero_grad()`` they are the step's own. So optimizers, clipping, accumulation over
    several steps and reductions over GPUs work outside, unchanged. Buffers, such as running
    statistics, are those of an eager step.

    Args:
        net: any module of sparse tensors, of :mod:`layoutconv.nn` or of spconv's names, or a dense
            one. It is called with ``input``; with several arguments, if that is a tuple.
        loss: a function of what ``net`` returns and of ``targets``. It returns a tensor of one
            number, or a tuple that begins with it; the step returns the same, detached.
        scaler: a ``torch.amp.GradScaler``, which scales the number before ``backward``; unscale,
            step and update with it as usual.
        factor, buckets, nbytes: as of :func:`graphed`.

    Rows without a cell get no gradient and pass none on. Batch norms and torch's losses over the
    rows of a cloud, ``cross_entropy``, ``nll_loss``, ``mse_loss``, ``l1_loss``, ``smooth_l1_loss``,
    ``huber_loss`` and ``binary_cross_entropy`` with and without logits, leave them out; reduce
    other losses by :func:`reduce_cells`.

    The first step of a kind is eager. Its result, gradients and buffers are compared with a step of
    fixed rows that holds large numbers where there is no cell. A step stays eager if it differs,
    reads values on the host, cannot be captured, uses checkpoints with ``use_reentrant=True``, or
    has gradients for anything but the network's parameters, such as a loss's own; ``step.report()``
    says why. Rounding differs where other numbers of rows have other tiles, and in batch norms,
    whose sums are not torch's.

    Dropout draws new numbers at each replay, from the generator of the GPU. Call the step within
    ``torch.autocast`` for mixed precision. ``.grad`` is the same memory in every step: clone it to
    keep it. On a CPU every call is eager.

    In a ``with`` statement, graphs and their memory live until its end, and ``.grad`` stays. The
    end also restores the modes, and which parameters want gradients, of the beginning. It may be
    entered again, also while it is entered: the outermost end counts.

    Raises :class:`~layoutconv.errors.ArgumentError`.

    >>> import layoutconv as lc
    >>> net = lc.nn.Sequential(lc.nn.SubmConv2d(1, 8, 3), torch.nn.BatchNorm1d(8))
    >>> step = graphed_step(net, lambda y, labels: torch.nn.functional.cross_entropy(
    ...     y.features, labels))
    >>> optimizer = torch.optim.SGD(net.parameters(), 0.1)
    >>> x = lc.SparseTensor.from_dense(torch.eye(4).view(1, 4, 4, 1))
    >>> values = []
    >>> with step:
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         values.append(step(x, torch.tensor([0, 1, 2, 3])))
    ...         optimizer.step()
    ...     print(step.report())
    0 calls replayed a graph, 0 warmed one up
    3 calls were eager: there are no CUDA graphs on a cpu
    >>> bool(values[2] < values[0]), values[0].requires_grad
    (True, False)
    """
    check_options(net, factor, buckets, nbytes)
    if not callable(loss):
        raise ArgumentTypeError("loss", "a function", type(loss).__name__)
    if scaler is not None and not callable(getattr(scaler, "scale", None)):
        raise ArgumentTypeError("scaler", "a torch.amp.GradScaler", type(scaler).__name__)
    return GraphedStep(TrainingStep(net, loss, scaler), factor, buckets, nbytes)


def _unfit(net: torch.nn.Module) -> str:
    """Return why a step of a network may not run twice; "" if it may."""
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    wrapper = wrapper_of_ranks(net)
    if wrapper:
        return f"it is a {wrapper}: give its module, and reduce gradients after"
    for module in net.modules():
        of_ranks = isinstance(module, torch.nn.SyncBatchNorm) or hasattr(module, "of_rows")
        if of_ranks and module.training and grouped:
            return "ranks wait for each other in a SyncBatchNorm, and not all of them warm up"
    return HOOKED if TrainingState(net).is_hooked() else ""


def _filling(call: CallArguments) -> Callable[[int, Tensor], float]:
    """Return the padding of arguments. The network's plain tensors may hold cells, so their padding
    is -1, which is no cell; targets are padded with 0, a valid class for any lookup.
    """
    structure: Any = call.structure
    positional, counted = structure[1][0], count()
    put_together(positional[1][0], counted)
    plain = [isinstance(leaf, Tensor) for leaf in call.leaves[: next(counted)]]

    def fill(leaf: int, memory: Tensor) -> float:
        return filler(memory) if leaf < len(plain) and plain[leaf] else 0

    return fill
