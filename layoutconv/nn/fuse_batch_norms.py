"""Fuse batch norms of a dense network with the sums and activations after them, in training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from typing import Any, Literal, TypeVar, overload

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ..base.caches import remembered
from ..errors import ArgumentTypeError
from . import act_norm
from .chain_nodes import NO_LAST, name_of_activation
from .forward_code import UnknownPass
from .fused_batch_norm import NORMS, WITH_PARTS, is_container, is_norm, sequence
from .made_class import subclass
from .norm_chains import rewritten, tail
from .rewritten_class import (
    methods_of,
    restore_class,
    restoring_methods,
    rewritten_class,
    why_not_changed,
)
from .sequences import SEQUENCES
from .trained_norm import are_bare

_ROWS = torch.nn.BatchNorm1d
SEQUENCES.add(sequence)

Module = TypeVar("Module", bound=torch.nn.Module)


@dataclass(frozen=True)
class FusionReport:
    """The batch norms of a model that were fused with what follows them, and those that were not.

    Attributes:
        fused: names of norms, as ``named_modules`` has them.
        left: the others, each with the reason.

    >>> print(FusionReport(("stem.1",), {"head.0": "no activation that fuses follows it"}))
    1 of 2 batch norms fused
    left `head.0`: no activation that fuses follows it
    """

    fused: tuple[str, ...]
    left: dict[str, str]

    def __str__(self) -> str:
        count = len(self.fused)
        head = f"{count} of {count + len(self.left)} batch norms fused"
        return "\n".join([head, *(f"left `{name}`: {why}" for name, why in self.left.items())])


@overload
def fuse_batch_norms(
    module: Module, *, inplace: bool = True, return_report: Literal[False] = False
) -> Module: ...


@overload
def fuse_batch_norms(
    module: Module, *, inplace: bool = True, return_report: Literal[True]
) -> tuple[Module, FusionReport]: ...


def fuse_batch_norms(module: Module, *, inplace: bool = True, return_report: bool = False) -> Any:
    """Let kernels compute ``activation(norm(x))``, ``norm(x) + shortcut`` and ``relu(norm(x) +
    shortcut)`` of a model in training, in one pass each way; returns the model.

    Activations are ReLU, ReLU6, SiLU and Hardswish; after a sum, kernels compute a ReLU, and torch
    the others. Without a ReLU, the gradient of a shortcut is that of the sum, and takes no pass.

    Batch norms are found in each ``torch.nn.Sequential``, and in the forward pass of each module
    that calls them, which ``torch.fx`` records. A module with such norms gets a subclass of its
    class. Its forward pass in training stays as it was, but one call replaces each norm and what
    follows it. Kernels also run modules that are a norm and an activation by themselves, like
    timm's ``BatchNormAct2d``; one with an identity as activation counts as a norm.

    Everything else stays: modules, their names, parameters, buffers, hooks, and the forward pass in
    evaluation, with other arguments than tensors, under ``torch.compile`` and while it is traced.
    Kernels compute images of float16, bfloat16 or float32 in ``channels_last`` memory on a GPU, and
    round once; for others torch's norm, sum and activation run one after another.

    A module that is replaced later, or gets hooks, runs unfused. Setting an attribute of a fused
    module restores its class, as its behaviour may depend on it: fuse it again. :func:`revert`
    restores all classes. For inference :func:`fold_batch_norms` removes the norms, fused ones too.

    Args:
        inplace: fuse ``module`` itself; else a deep copy, with parameters of its own.
        return_report: return a pair of the model and a :class:`FusionReport`.

    Left as they are: norms of other subclasses, or over ranks; norms that neither such an
    activation nor a sum follows, at once or after an ``Identity`` (a stochastic depth is none);
    modules that ``torch.fx`` cannot record, like those whose path depends on values, with optional
    arguments, or that change modes of autograd; modules that read attributes of their parts;
    ``BatchNorm1d`` in a ``Sequential``, which may get sparse tensors. A later change inside a list
    or an object that an attribute holds is not noticed: fuse such a module again.

    Raises :class:`~layoutconv.errors.ArgumentTypeError` if ``module`` is no module.

    >>> class Block(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.conv, self.norm = torch.nn.Conv2d(4, 4, 1), torch.nn.BatchNorm2d(4)
    ...     def forward(self, x):
    ...         return torch.relu(self.norm(self.conv(x)) + x)
    >>> net = torch.nn.Sequential(Block(), torch.nn.Conv2d(4, 4, 1), torch.nn.BatchNorm2d(4))
    >>> net, report = fuse_batch_norms(net, return_report=True)
    >>> print(report)
    1 of 2 batch norms fused
    left `2`: no activation that fuses follows it, nor a sum
    >>> isinstance(net[0], Block), net(torch.ones(2, 4, 3, 3)).shape
    (True, torch.Size([2, 4, 3, 3]))
    """
    if not isinstance(module, torch.nn.Module):
        raise ArgumentTypeError("module", "a torch.nn.Module", type(module).__name__)
    module = module if inplace else deepcopy(module)
    fused: set[int] = set()
    left: dict[int, str] = {}
    parts = list(module.modules())
    for part in parts:
        restore_class(part)
    alone = _taken_for_norms(parts)
    for part in parts:
        for norm, reason in _fuse(part):
            if reason is None:
                fused.add(id(norm))
            else:
                left.setdefault(id(norm), reason)
    for part in alone:
        if id(part) not in fused:
            restore_class(part)
    if not return_report:
        return module
    norms = {name: m for name, m in module.named_modules() if isinstance(m, _BatchNorm)}
    names = tuple(name for name, norm in norms.items() if id(norm) in fused)
    reasons = {
        name: (None if norm in alone else _why_not(norm)) or left.get(id(norm), NO_LAST)
        for name, norm in norms.items()
        if id(norm) not in fused
    }
    return module, FusionReport(names, reasons)


def _taken_for_norms(parts: Iterable[Any]) -> list[Any]:
    """Let chains treat norms with an identity as activation like torch's; returns these norms."""
    alone = [part for part in parts if act_norm.is_alone(part) and not why_not_changed(part)]
    for part in alone:
        kind: Any = type(part)
        part.__class__ = _with_parts(kind)
    return alone


def _why_not(norm: Any) -> str | None:
    """Return the reason not to fuse a norm, whatever follows it."""
    kind = type(norm)
    if kind not in NORMS:
        return f"{kind.__name__} is no BatchNorm1d to 3d of torch"
    if getattr(norm, "activation", None) is not None:
        return f"`{norm.activation}` is part of it"
    return None if are_bare(norm) else "it has hooks, or a forward pass of its own"


def _fuse(part: Any) -> Iterator[tuple[Any, str | None]]:
    """Fuse the norms that a module calls; yield each, with the reason if it is left."""
    if is_container(part):
        yield from _fuse_sequence(part)
        return
    kind: Any = type(part)
    if kind not in NORMS and act_norm.has_activation(part):
        reason = why_not_changed(part)
        if reason is None:
            part.__class__ = _with_parts(kind)
        yield part, reason
        return
    called = [m for m in _called(part) if is_norm(tail(m))]
    if not called:
        return
    reason = why_not_changed(part)
    if reason is None:
        try:
            code, fused, left = rewritten(part)
        except UnknownPass as unknown:
            reason = str(unknown)
    if reason is not None:
        yield from ((tail(norm), f"{type(part).__name__}: {reason}") for norm in called)
        return
    if code is not None:
        part.__class__ = rewritten_class(kind, code, True)
    yield from ((part.get_submodule(name), None) for name in fused)
    yield from ((part.get_submodule(name), why) for name, why in left.items())


def _called(part: Any) -> Iterator[Any]:
    """Yield the modules that a forward pass probably calls: children, and children of lists."""
    for child in part.children():
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):
            yield from _called(child)
        else:
            yield child


def _fuse_sequence(part: Any) -> Iterator[tuple[Any, str | None]]:
    """Fuse the norms in a container that an activation follows."""
    kind: Any = type(part)
    reason, modules, found = why_not_changed(part), list(part._modules.values()), False
    for norm, last in pairwise(modules):
        if not is_norm(norm) or name_of_activation(last) is None:
            continue
        why = reason or (
            None if are_bare(norm, last) else "it has hooks, or the activation after it"
        )
        if isinstance(norm, _ROWS):
            why = "rows of a sparse tensor may come: write lc.nn.BatchNorm1d(activation=...)"
        found = found or why is None
        yield norm, why
    if found:
        part.__class__ = _in_sequence(kind)


@remembered(1024)
def _in_sequence(kind: Any) -> Any:
    """Make a subclass of a ``torch.nn.Sequential`` with the forward pass that fuses."""
    return subclass(kind, (kind,), _new_sequence, {"forward": sequence, **methods_of(kind)})


@remembered(1024)
def _with_parts(kind: Any) -> Any:
    """Make a subclass of a batch norm with an activation of its own.

    Kernels compute the activation; if it is an identity, chains treat the norm like torch's.
    """

    @wraps(kind.forward)
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        found = act_norm.fused(self, args, named)
        return kind.forward(self, *args, **named) if found is None else found

    own = {"forward": forward, WITH_PARTS: True}
    methods = {**own, **restoring_methods(kind, act_norm.READ), **methods_of(kind)}
    return subclass(kind, (kind,), _new_norm, methods)


def _new_sequence(kind: type, *arguments: Any) -> Any:
    """Create a fused container, without its state."""
    made = _in_sequence(kind)
    return made.__new__(made, *arguments)


def _new_norm(kind: type, *arguments: Any) -> Any:
    """Create a fused norm with an activation, without its state."""
    made = _with_parts(kind)
    return made.__new__(made, *arguments)
