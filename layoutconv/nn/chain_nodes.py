"""``torch.fx`` nodes of chains: sums, activations, and the reader of a result."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node
from torch.nn import functional

from .forward_code import UnknownPass
from .fused_norm import is_relu6
from .trained_norm import are_bare

_ADDS = {operator.add, torch.add}
# Activation modules that follow norms and sums, and the functions that compute them.
MODULES: dict[type, str] = {
    torch.nn.ReLU: "relu",
    torch.nn.ReLU6: "relu6",
    torch.nn.SiLU: "silu",
    torch.nn.Hardswish: "hardswish",
}
_FUNCTIONS: dict[Any, str] = {
    torch.relu: "relu",
    torch.relu_: "relu",
    functional.relu: "relu",
    functional.relu_: "relu",
    functional.relu6: "relu6",
    functional.silu: "silu",
    functional.hardswish: "hardswish",
}
NO_LAST = "no activation that fuses follows it, nor a sum"


def only_user(node: Node) -> Node:
    """Return the only node that reads another's result, once.

    Raises :class:`UnknownPass` if several do, or one that no chain can contain.

    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> y = graph.call_function(torch.relu, (x,))
    >>> only_user(x) is y
    True
    """
    users = list(node.users)
    if len(users) != 1 or users[0].all_input_nodes.count(node) != 1:
        raise UnknownPass("its result is used more than once")
    user = users[0]
    if sum(a is node for a in user.args) != 1 or len(user.args) > 2:
        raise UnknownPass(NO_LAST)
    return user


def is_identity(module: Any, node: Node) -> bool:
    """Return whether a node calls a ``torch.nn.Identity`` of the module."""
    return node.op == "call_module" and type(module.get_submodule(node.target)) is torch.nn.Identity


def is_sum(node: Node) -> bool:
    """Return whether a node adds two values, in place or not."""
    if len(node.args) != 2 or node.kwargs:
        return False
    if node.op == "call_function":
        return node.target in _ADDS or node.target is operator.iadd
    return node.op == "call_method" and node.target in ("add", "add_")


def is_in_place(add: Node | None) -> bool:
    """Return whether a sum (None if there is none) is written into its first operand."""
    return add is not None and (add.target is operator.iadd or add.target == "add_")


def name_of_activation(module: Any) -> str | None:
    """Return the name of an activation in :data:`MODULES`; None for another module, and for a
    ``ReLU6`` with other limits.

    >>> name_of_activation(torch.nn.SiLU()), name_of_activation(torch.nn.Hardtanh(0.0, 6.0))
    ('silu', None)
    """
    name = MODULES.get(type(module))
    return None if name == "relu6" and not is_relu6(module) else name


def activation_at(module: Any, node: Node) -> str | None:
    """Return the name of the activation that a node computes, by a function, a method or a child of
    ``module``; None for another node.

    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> activation_at(torch.nn.ReLU(), graph.call_function(torch.nn.functional.silu, (x,)))
    'silu'
    """
    if node.op == "call_module":
        last = module.get_submodule(node.target)
        return name_of_activation(last) if len(node.args) == 1 and are_bare(last) else None
    if node.op == "call_function":
        return _FUNCTIONS.get(node.target)
    is_method = node.op == "call_method" and node.target in ("relu", "relu_")
    return "relu" if is_method else None


def is_relu(module: Any, node: Node) -> bool:
    """Return whether a node is a ReLU."""
    return activation_at(module, node) == "relu"
