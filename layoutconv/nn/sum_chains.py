"""Find ``conv(x) + shortcut`` and ``relu(conv(x) + shortcut)`` in the forward pass of a module in
evaluation, and rewrite each as one call.

The convolution moves to the place of the sum or the ReLU; modules before it in a container stay in
place. So only convolutions, pools and identities may come in between: they write to no argument.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.nn.modules.pooling import _AvgPoolNd, _MaxPoolNd

from .chain_nodes import is_identity, is_in_place, is_relu, is_sum, only_user
from .dense_sum import is_open, split, summed, up_to_conv
from .forward_code import Code, UnknownPass, code_of
from .recorded_pass import recorded
from .trained_norm import are_bare

_WRITE_NOTHING = torch.nn.Identity, torch.nn.AdaptiveAvgPool2d, _AvgPoolNd, _MaxPoolNd


class _SumChain(NamedTuple):
    """A convolution, or a container that ends in one, and identities after it; a sum, and a ReLU or
    None.
    """

    convolved: tuple[Node, ...]
    add: Node
    relu: Node | None = None

    @property
    def last(self) -> Node:
        return self.relu or self.add

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*self.convolved, self.add, *([] if self.relu is None else [self.relu]))

    def past(self) -> Any:
        """Return the node that is added, in the current graph."""
        first, second = self.add.args
        return second if first is self.convolved[-1] else first


def rewritten(module: Any) -> Code | None:
    """Rewrite the forward pass of a module in evaluation: sums after convolutions, and ReLUs after
    these, join their launches. None if there are none, or the pass cannot be analysed.

    >>> rewritten(torch.nn.Linear(2, 2)) is None
    True
    """
    try:
        graph = recorded(module, training=False)
        found = [chain for node in graph.nodes if (chain := _chain(module, node)) is not None]
        chains = {chain.add: chain for chain in found}  # keeps the last of two convolutions
        for chain in chains.values():
            _write(module, chain)
        return code_of(graph) if chains else None
    except UnknownPass:
        return None


def _chain(module: Any, conv: Node) -> _SumChain | None:
    """Return the chain that begins with a node; None if none does."""
    if conv.op != "call_module" or len(conv.args) != 1 or conv.kwargs:
        return None
    if not is_open(split(module.get_submodule(conv.target))[1]):
        return None
    nodes = [conv]
    try:
        while is_identity(module, user := only_user(nodes[-1])):
            nodes.append(user)
    except UnknownPass:
        return None
    if not is_sum(user):
        return None
    chain = _SumChain(tuple(nodes), user)
    past = chain.past()
    if not isinstance(past, Node) or (is_in_place(user) and past is user.args[0]):
        return None
    chains = _SumChain(chain.convolved, user, _relu_after(module, user)), chain
    return next((chain for chain in chains if _may_move(module, chain)), None)


def _relu_after(module: Any, add: Node) -> Node | None:
    """Return the ReLU that is a sum's only reader; None if there is none."""
    try:
        user = only_user(add)
    except UnknownPass:
        return None
    return user if is_relu(module, user) else None


def _may_move(module: Any, chain: _SumChain) -> bool:
    """Return whether nothing between a convolution and the last node may write, or calls it."""
    nodes, conv = list(chain.add.graph.nodes), chain.convolved[0]
    own = split(module.get_submodule(conv.target))[1]
    for node in nodes[nodes.index(conv) + 1 : nodes.index(chain.last)]:
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


def _write(module: Any, chain: _SumChain) -> None:
    """Replace a chain by a call of :func:`~layoutconv.nn.dense_sum.summed`."""
    (conv, *between), graph, relu = chain.convolved, chain.add.graph, chain.relu
    input = conv.args[0]
    with graph.inserting_before(conv):
        of_conv = graph.get_attr(str(conv.target))
        if not is_open(module.get_submodule(conv.target)):  # modules before it stay in place
            pair = graph.call_function(up_to_conv, (of_conv, input))
            of_conv, input = (graph.call_function(operator.getitem, (pair, i)) for i in range(2))
    with graph.inserting_before(chain.last):
        middle = [graph.get_attr(str(node.target)) for node in between]
        last: Any = None if relu is None else "relu"
        if relu is not None and relu.op == "call_module":
            last = graph.get_attr(str(relu.target))
        past = chain.past()
        first = past is chain.add.args[0]
        given = of_conv, input, last, past, middle, is_in_place(chain.add), first
        made = graph.call_function(summed, given)
    chain.last.replace_all_uses_with(made)
    for node in reversed(chain.nodes):
        graph.erase_node(node)
