"""Residual blocks of other projects, run with norms, sums and activations as epilogues.

A block is a user's module whose ``forward`` computes on ``features`` between convolutions, as in
OpenPCDet, mmdetection3d and Pointcept. :func:`plan_of` calls that function once with stand-ins
(:mod:`.block_trace`) and turns the trace into a :class:`BlockPlan`: calls in order, in which a
convolution takes up the norm, the sum and the activation after it. A plan holds names, not modules,
so that every call looks the modules up; it also compares the answers that the function was given,
such as ``self.downsample is None``.

The alternative is lazy features: a subclass of ``torch.Tensor`` that defers torch's own norms.
Measured, ``__torch_function__`` has as much overhead for a norm, an activation or a sum as torch's
own operation, so that the host gains nothing, and C++ extensions would get a tensor without memory.
A plan costs a block a few comparisons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ....base.caches import BoundedCache, footprint
from ....nn.fused_norm import ACTIVATIONS, NORMS, norm_and_activation, runs_only_forward
from ....nn.trained_norm import trained
from .block_trace import CLASS, MODULE, OWN, Guard, Trace, TracedOperation, traced

if TYPE_CHECKING:
    from torch import Tensor

    from .core import SparseConvTensor

_FEW = 8  # plans per class, one for each variant of its instances
_plans: BoundedCache[type, tuple[BlockPlan, ...]] = BoundedCache(
    "plans of blocks", entries=256, nbytes=2 << 20
)


class BlockStep(NamedTuple):
    """A call of a plan, and the operations fused into it: names of modules, and places of values.

    ``of`` are the places of the operands: a sparse value and features, features alone, or both
    terms of a sum; ``made`` are the places of the results.
    """

    operation: str
    name: str
    of: tuple[int, ...]
    made: tuple[int, ...]
    norm: str | None = None
    past: int | None = None
    first: bool = False  # which term of the sum is added
    last: str | None = None


class BlockPlan(NamedTuple):
    """The steps of a block's ``forward``, and the guards under which they hold."""

    guards: tuple[Guard, ...]
    steps: tuple[BlockStep, ...]
    result: tuple[int, int]

    def fits(self, block: Any) -> bool:
        """Return whether the function would do the same for this block."""
        own, kind = block.__dict__, type(block)
        modules = own["_modules"]
        for where, name, value, of in self.guards:
            if where == MODULE:
                if modules.get(name) is None or name in own:
                    return False
            elif where == OWN:
                found = own[name] if name in own else modules.get(name, self)
                if found is not value and (type(found) is not type(value) or found != value):
                    return False
            elif where == CLASS:
                if getattr(kind, name, None) is not value or name in own:
                    return False
            elif of.__globals__.get(name) is not value:
                return False
        return True

    def run(self, block: Any, x: SparseConvTensor) -> SparseConvTensor:
        """Run the steps; return the result of the block's ``forward``."""
        modules = block.__dict__["_modules"]
        sparse: dict[int, SparseConvTensor] = {0: x}
        values: dict[int, Tensor] = {0: x._features}
        for step in self.steps:
            of = step.of
            if step.operation == "add":
                values[step.made[0]] = values[of[0]] + values[of[1]]
            elif step.operation == "features":
                values[step.made[0]] = modules[step.name](values[of[0]])
            else:
                given, features = sparse[of[0]], values[of[1]]
                if given._features is not features:
                    given = given.replace_feature(features)
                made = _called(step, modules, given, values)
                sparse[step.made[0]], values[step.made[1]] = made, made._features
        found, features = sparse[self.result[0]], values[self.result[1]]
        return found if found._features is features else found.replace_feature(features)


def run_fused(
    module: Any, x: SparseConvTensor, modules: list[Any], at: int
) -> tuple[SparseConvTensor, int]:
    """Return ``module(x)``, and how many of the ``modules`` from ``at`` on are fused into it.

    ``module`` takes sparse tensors; :func:`~layoutconv.nn.fused_norm.may_fuse` holds for the
    features of ``x``.
    """
    if module._convolves:
        norm, last, count = norm_and_activation(modules, at)
        made = module.with_following(x, norm, last) if count else None
        if made is not None:
            return made, count
        if norm is not None and norm.training:
            y = module(x)
            features = trained(y.features, norm, last)
            return (y, 0) if features is None else (y.replace_feature(features), count)
    elif runs_only_forward(module):
        plan = plan_of(module)
        if plan is not None:
            return plan.run(module, x), 0
    return module(x), 0


def plan_of(block: Any) -> BlockPlan | None:
    """Return the plan of a block; None if the module is no such block.

    >>> import torch
    >>> from .conv import SubMConv3d
    >>> from .modules import SparseModule
    >>> class Block(SparseModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.conv, self.norm = SubMConv3d(4, 4, 3), torch.nn.BatchNorm1d(4)
    ...         self.relu = torch.nn.ReLU()
    ...     def forward(self, x):
    ...         y = self.conv(x)
    ...         y = y.replace_feature(self.norm(y.features))
    ...         y = y.replace_feature(y.features + x.features)
    ...         return y.replace_feature(self.relu(y.features))
    >>> [(step.name, step.norm, step.past, step.last) for step in plan_of(Block()).steps]
    [('conv', 'norm', 0, 'relu')]
    """
    kind = type(block)
    plans = _plans.young.get(kind)
    if plans is None:
        plans = _plans.renewed(kind)
    for plan in plans or ():
        if plan.fits(block):
            return plan
    if plans is not None and (not plans or len(plans) >= _FEW):
        return None
    trace = traced(block)
    found = None if trace is None else _planned(trace, block)
    plans = () if found is None else (*(plans or ()), found)
    _plans.put(kind, plans, footprint(plans), max(1, len(plans)))
    return found


def _called(
    step: BlockStep, modules: dict[str, Any], x: SparseConvTensor, values: dict[int, Tensor]
) -> SparseConvTensor:
    """Run a step on a sparse tensor, in one launch or module after module; return the result."""
    module = modules[step.name]
    past = None if step.past is None else values[step.past]
    norm = None if step.norm is None else modules[step.norm]
    last = None if step.last is None else modules[step.last]
    if norm is past is last is None:
        return module(x)  # type: ignore[no-any-return]
    known = (norm is None or type(norm) in NORMS) and (last is None or type(last) in ACTIVATIONS)
    training = norm is not None and norm.training
    if known and getattr(module, "_convolves", False):
        made = module.with_following(x, norm, last, past)
        if made is not None:
            return made  # type: ignore[no-any-return]
    made = module(x)
    features = made.features
    together = trained(features, norm, last, past) if known and training else None
    if together is not None:
        return made.replace_feature(together)  # type: ignore[no-any-return]
    if norm is not None:
        features = norm(features)
    if past is not None:
        features = past + features if step.first else features + past
    return made.replace_feature(features if last is None else last(features))  # type: ignore[no-any-return]


# -- from what a function did to steps ------------------------------------------------------------


def _planned(trace: Trace, block: Any) -> BlockPlan | None:
    """Return the plan of a trace; None if nothing can be fused into a convolution."""
    steps: dict[int, BlockStep] = {}  # by the index of the operation that they replace
    taken: set[int] = set()
    for at, operation in enumerate(trace.operations):
        if at in taken:
            continue
        module = block._modules.get(operation.name)
        if operation.kind == "sparse" and getattr(module, "_convolves", False):
            chain = _chain(trace, block, at)
            taken.update(chain)
            steps[chain[-1]] = _joined(trace, block, chain)
        else:
            steps[at] = BlockStep(*operation)
    if all(step.norm is step.past is step.last is None for step in steps.values()):
        return None
    ordered = tuple(steps[at] for at in sorted(steps))
    return BlockPlan(tuple(trace.guards), ordered, trace.result)


def _chain(trace: Trace, block: Any, start: int) -> list[int]:
    """Return the operations to fuse into a convolution, in order, starting with itself."""
    chain, stages = [start], ["norm", "add", "last"]
    while stages:
        value = trace.operations[chain[-1]].made[-1]
        users = trace.users(value)
        if len(users) != 1 or users[0] >= len(trace.operations):
            break
        operation = trace.operations[users[0]]
        stage = _stage(operation, value, block)
        if stage not in stages or not _may_wait(trace, chain, users[0]):
            break
        del stages[: stages.index(stage) + 1]
        chain.append(users[0])
    return chain


def _stage(operation: TracedOperation, value: int, block: Any) -> str | None:
    """Return the role of an operation for the convolution before it."""
    if operation.kind == "add":
        return "add" if operation.of[0] != operation.of[1] else None
    if operation.kind == "features":
        kind = type(block._modules[operation.name])
        return "norm" if kind in NORMS else "last" if kind in ACTIVATIONS else None
    return None


def _may_wait(trace: Trace, chain: list[int], until: int) -> bool:
    """Return whether a convolution may run at the place of a later operation instead.

    Modules in between may write to their inputs: they must read only the block's input, and the
    convolution must not read it.
    """
    start = trace.operations[chain[0]]
    for at in range(chain[0] + 1, until):
        operation = trace.operations[at]
        if at not in chain and (operation.kind != "sparse" or operation.of != (0, 0)):
            return False
        if at not in chain and start.of[1] == 0:
            return False
    return True


def _joined(trace: Trace, block: Any, chain: list[int]) -> BlockStep:
    first, *others = (trace.operations[at] for at in chain)
    end = trace.operations[chain[-1]].made[-1]
    step = BlockStep(first.kind, first.name, first.of, (first.made[0], end))
    value = first.made[1]
    for operation in others:
        stage = _stage(operation, value, block)
        if stage == "add":
            a, b = operation.of
            step = step._replace(past=b if a == value else a, first=a != value)
        elif stage == "norm":
            step = step._replace(norm=operation.name)
        else:
            step = step._replace(last=operation.name)
        value = operation.made[-1]
    return step
