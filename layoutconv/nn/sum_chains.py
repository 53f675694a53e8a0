"""Find ``relu(conv(x) + shortcut)`` in the forward pass of a module in evaluation, and write it as
one call.

The convolution moves to where the ReLU is. So nothing but convolutions, pools and identities may
come in between, which write to nothing that they are given.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.nn.modules.pooling import _AvgPoolNd, _MaxPoolNd

from .dense_sum import is_open, summed
from .forward_code import Code, UnknownPass, code_of
from .norm_chains import is_in_place, is_relu, is_sum
from .recorded_pass import recorded
from .residual import working
from .trained_norm import are_bare

_WRITE_NOTHING = torch.nn.Identity, torch.nn.AdaptiveAvgPool2d, _AvgPoolNd, _MaxPoolNd


class _Chain(NamedTuple):
    """Nodes from a convolution to a ReLU, the last; its place in the module, and those of
    identities.
    """

    nodes: tuple[Node, ...]
    place: str
    between: tuple[str, ...]

    @property
    def add(self) -> Node:
        return self.nodes[-2]

    @property
    def relu(self) -> Node:
        return self.nodes[-1]


def rewritten(module: Any) -> Code | None:
    """The forward pass of a module in evaluation, with the sums and ReLUs after convolutions in
    their launches; None where there are none, or nobody can say what the pass does.

    >>> rewritten(torch.nn.Linear(2, 2)) is None
    True
    """
    try:
        graph = recorded(module, training=False)
        found = [chain for node in graph.nodes if (chain := _chain(module, node)) is not None]
        chains = {chain.relu: chain for chain in found}  # of two convolutions the last
        for chain in chains.values():
            _write(module, chain)
        return code_of(graph) if chains else None
    except UnknownPass:
        return None


def _chain(module: Any, conv: Node) -> _Chain | None:
    """The chain that begins with a node, if one does."""
    place = _place_of_conv(module, conv)
    if place is None or len(conv.args) != 1 or conv.kwargs:
        return None
    between, node, nodes = list(place[1]), conv, [conv]
    while (user := _only_user(node)) is not None and _is_identity(module, user):
        between, node, nodes = [*between, str(user.target)], user, [*nodes, user]
    add = _only_user(node)
    relu = None if add is None or not is_sum(add) else _only_user(add)
    if add is None or relu is None or not is_relu(module, relu):
        return None
    first, second = add.args
    past = second if first is node else first
    if not isinstance(past, Node) or past is node or (is_in_place(add) and past is first):
        return None
    chain = _Chain((*nodes, add, relu), place[0], tuple(between))
    return chain if _may_move(module, chain) else None


def _place_of_conv(module: Any, node: Node) -> tuple[str, list[str]] | None:
    """The name of the convolution that a node calls, or a container of it and identities; and the
    names of these.
    """
    if node.op != "call_module":
        return None
    name = str(node.target)
    own, identities = module.get_submodule(name), []
    while type(own).forward is torch.nn.Sequential.forward and are_bare(own):
        parts = working(own)
        if len(parts) != 1:
            return None
        inner = next(key for key, part in own._modules.items() if part is parts[0])
        identities += [f"{name}.{key}" for key in own._modules if key > inner]
        own, name = parts[0], f"{name}.{inner}"
    return (name, identities) if is_open(own) else None


def _only_user(node: Node) -> Node | None:
    users = list(node.users)
    if len(users) != 1 or sum(given is node for given in users[0].args) != 1:
        return None
    return users[0] if users[0].all_input_nodes.count(node) == 1 else None


def _is_identity(module: Any, node: Node) -> bool:
    return node.op == "call_module" and type(module.get_submodule(node.target)) is torch.nn.Identity


def _may_move(module: Any, chain: _Chain) -> bool:
    """Return whether nothing between a convolution and the ReLU writes, or calls the former."""
    nodes = list(chain.relu.graph.nodes)
    own = module.get_submodule(chain.place)
    for node in nodes[nodes.index(chain.nodes[0]) + 1 : nodes.index(chain.relu)]:
        if node in chain.nodes or node.op in ("get_attr", "placeholder"):
            continue
        if node.op != "call_module":
            return False
        for part in module.get_submodule(node.target).modules():
            sequence = type(part).forward is torch.nn.Sequential.forward
            known = sequence or is_open(part) or isinstance(part, _WRITE_NOTHING)
            if part is own or not known or not are_bare(part):
                return False
    return True


def _write(module: Any, chain: _Chain) -> None:
    """Call :func:`~layoutconv.nn.dense_sum.summed` in place of a chain."""
    graph, input = chain.relu.graph, chain.nodes[0].args[0]
    with graph.inserting_before(chain.relu):
        of_conv = graph.get_attr(chain.place)
        between = [graph.get_attr(name) for name in chain.between]
        is_module = chain.relu.op == "call_module"
        last = graph.get_attr(str(chain.relu.target)) if is_module else None
        # An argument may be a result that another chain has been written in place of.
        first, second = chain.add.args
        past = second if first is chain.nodes[-3] else first
        given = of_conv, input, last, past, between, is_in_place(chain.add)
        made = graph.call_function(summed, given)
    chain.relu.replace_all_uses_with(made)
    for node in reversed(chain.nodes):
        graph.erase_node(node)
