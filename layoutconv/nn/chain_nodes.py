"""Nodes of ``torch.fx`` that chains are made of: a sum, a ReLU, and who reads a result."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from .forward_code import UnknownPass
from .trained_norm import are_bare

_ADDS = {operator.add, torch.add}
_RELUS = {torch.relu, torch.relu_, torch.nn.functional.relu, torch.nn.functional.relu_}


def only_user(node: Node) -> Node:
    """The node that takes the result of another, once.

    Raises :class:`UnknownPass` where there are several, or none that a chain has.

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
        raise UnknownPass("no ReLU follows it, nor a sum and a ReLU")
    return user


def is_identity(module: Any, node: Node) -> bool:
    """Return whether a node calls a ``torch.nn.Identity`` of a module."""
    return node.op == "call_module" and type(module.get_submodule(node.target)) is torch.nn.Identity


def is_sum(node: Node) -> bool:
    """Return whether a node adds two values, in place or not."""
    if len(node.args) != 2 or node.kwargs:
        return False
    if node.op == "call_function":
        return node.target in _ADDS or node.target is operator.iadd
    return node.op == "call_method" and node.target in ("add", "add_")


def is_in_place(add: Node | None) -> bool:
    """Return whether a sum, if there is one, is written into its first value."""
    return add is not None and (add.target is operator.iadd or add.target == "add_")


def is_relu(module: Any, node: Node) -> bool:
    """Return whether a node is a ReLU: a function, a method, or a call of a module's child."""
    if node.op == "call_module":
        last = module.get_submodule(node.target)
        return type(last) is torch.nn.ReLU and len(node.args) == 1 and are_bare(last)
    if node.op == "call_function":
        return node.target in _RELUS
    return node.op == "call_method" and node.target in ("relu", "relu_")
