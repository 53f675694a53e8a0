"""Modules that a forward pass calls or reads inside other modules.

The forward pass of a block determines what follows its convolutions. A network that calls a block's
convolution directly, or reads its weight, gets other results once something is folded into it.
"""

from __future__ import annotations

from inspect import Parameter, signature
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Node

from .forward_code import UnknownPass
from .recorded_pass import Tracer, copy_of, undone
from .sequences import is_sequence

_SAY_NO_VALUES = frozenset({"dtype", "device", "shape", "ndim"})


def reached_modules(module: torch.nn.Module) -> set[int]:
    """Return the ids of inner modules that the forward pass of a module other than their parent
    calls, or whose parameters or buffers any forward pass reads.

    ``torch.fx`` runs each pass in evaluation mode, with the defaults of optional arguments. Nothing
    is seen after a step that it cannot run.

    >>> class Network(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.body = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    ...     def forward(self, x):
    ...         return self.body(x) + self.body[0](x)
    >>> net = Network()
    >>> reached_modules(net) == {id(net.body[0])}
    True
    """
    found: set[int] = set()
    for part in list(module.modules()):
        if part._modules and not is_sequence(part) and not _is_list(part):
            found |= _reached_by(part)
    return found


def _reached_by(part: torch.nn.Module) -> set[int]:
    watcher = _Watcher(part)
    with undone(part):
        try:
            defaults = {
                name: one.default
                for name, one in signature(type(part).forward).parameters.items()
                if one.default is not Parameter.empty
            }
            watcher.trace(copy_of(part, training=False), defaults or None)
        except (Exception, UnknownPass):  # whatever somebody else's code raises
            pass
    return watcher.found | watcher.called() | watcher.read()


def _is_list(module: Any) -> bool:
    """Return whether a module has no forward pass, like a ``torch.nn.ModuleList``."""
    return type(module).forward is torch.nn.Module.forward


class _Watcher(Tracer):
    """A tracer that records calls of a module's parts, and traces into all other modules."""

    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.part, self.found = part, set[int]()
        self.past: dict[Any, list[Node]] = {}  # calls of modules that are not direct children
        self.names = {inner: name for name, inner in part.named_modules() if name}
        self.near, lists = set[Any](), [part]
        while lists:
            for child in lists.pop()._modules.values():
                if child is not None and child not in self.near:
                    self.near.add(child)
                    lists += [child] if _is_list(child) else []

    def call_module(self, m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        if m not in self.names:
            self.found.add(id(m))
            return forward(*args, **kwargs)
        made = self.create_proxy("call_module", self.names[m], args, kwargs)
        if m not in self.near:
            self.past.setdefault(m, []).append(made.node)
        return made

    def called(self) -> set[int]:
        """Return the ids of modules that are called inside others. If all modules of a sequence are
        called one after another, return the sequence's id, as that is equivalent to calling it.
        """
        found = set()
        for inner in self.past:
            above = self.part.get_submodule(self.names[inner].rpartition(".")[0])
            seen = above if is_sequence(above) and self._is_in_turn(above) else inner
            found |= set() if seen in self.near else {id(seen)}
        return found

    def _is_in_turn(self, above: torch.nn.Module) -> bool:
        """Return whether each module of a sequence is called once, on the result of the one before,
        which nothing else reads.
        """
        nodes = [self.past.get(inner, []) for inner in above._modules.values()]
        return all(len(calls) == 1 for calls in nodes) and all(
            after.args == (before,) and not after.kwargs and set(before.users) == {after}
            for (before,), (after,) in pairwise(nodes)
        )

    def read(self) -> set[int]:
        """Return the ids of other modules whose parameters or buffers the pass reads."""
        nodes = self.graph.nodes if hasattr(self, "graph") else ()
        owners = (
            str(node.target).rpartition(".")[0]
            for node in nodes
            if node.op == "get_attr" and not all(map(_says_no_value, node.users))
        )
        return {id(self.part.get_submodule(name)) for name in owners if name}


def _says_no_value(user: Node) -> bool:
    return user.target is getattr and user.args[1] in _SAY_NO_VALUES
