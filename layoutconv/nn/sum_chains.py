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

from .chain_nodes import is_identity, is_in_place, is_relu, is_sum, only_user
from .dense_sum import conv_within, is_open, summed
from .forward_code import Code, UnknownPass, code_of
from .recorded_pass import recorded
from .trained_norm import are_bare

_WRITE_NOTHING = torch.nn.Identity, torch.nn.AdaptiveAvgPool2d, _AvgPoolNd, _MaxPoolNd


class _Chain(NamedTuple):
    """Nodes from a convolution, or a container of one, to a ReLU: a sum and the ReLU come last."""

    nodes: tuple[Node, ...]

    @property
    def add(self) -> Node:
        return self.nodes[-2]

    @property
    def relu(self) -> Node:
        return self.nodes[-1]

    def past(self) -> Any:
        """The node that is added, as the graph is now."""
        first, second = self.add.args
        return second if first is self.nodes[-3] else first


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
            _write(chain)
        return code_of(graph) if chains else None
    except UnknownPass:
        return None


def _chain(module: Any, conv: Node) -> _Chain | None:
    """The chain that begins with a node, if one does."""
    if conv.op != "call_module" or len(conv.args) != 1 or conv.kwargs:
        return None
    if not is_open(conv_within(module.get_submodule(conv.target))):
        return None
    nodes = [conv]
    try:
        while is_identity(module, user := only_user(nodes[-1])):
            nodes.append(user)
        if not is_sum(user) or not is_relu(module, relu := only_user(user)):
            return None
    except UnknownPass:
        return None
    chain = _Chain((*nodes, user, relu))
    past = chain.past()
    if not isinstance(past, Node) or (is_in_place(user) and past is user.args[0]):
        return None
    return chain if _may_move(module, chain) else None


def _may_move(module: Any, chain: _Chain) -> bool:
    """Return whether nothing between a convolution and the ReLU writes, or calls the former."""
    nodes = list(chain.relu.graph.nodes)
    own = conv_within(module.get_submodule(chain.nodes[0].target))
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


def _write(chain: _Chain) -> None:
    """Call :func:`~layoutconv.nn.dense_sum.summed` in place of a chain."""
    (conv, *between), graph = chain.nodes[:-2], chain.relu.graph
    with graph.inserting_before(chain.relu):
        of_conv, *middle = (graph.get_attr(str(node.target)) for node in (conv, *between))
        is_module = chain.relu.op == "call_module"
        last = graph.get_attr(str(chain.relu.target)) if is_module else "relu"
        given = of_conv, conv.args[0], last, chain.past(), middle, is_in_place(chain.add)
        made = graph.call_function(summed, given)
    chain.relu.replace_all_uses_with(made)
    for node in reversed(chain.nodes):
        graph.erase_node(node)
