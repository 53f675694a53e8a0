"""Find ``activation(norm(x) + shortcut)``, or a part of it, in the forward pass of a module, and
rewrite it as one call.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from .chain_nodes import NO_LAST, activation_at, is_identity, is_in_place, is_sum, only_user
from .forward_code import Code, UnknownPass, code_of
from .fused_batch_norm import is_container, is_norm, normed, up_to_norm
from .recorded_pass import recorded
from .trained_norm import are_bare

_FRESH = _ConvNd, _BatchNorm, torch.nn.Linear  # each result has memory of its own


def tail(module: Any) -> Any:
    """Return the last module of a container, nested ones included; another module itself.

    >>> tail(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sequential(torch.nn.Tanh())))
    Tanh()
    """
    while is_container(module) and are_bare(module):
        module = list(module._modules.values())[-1]
    return module


def rewritten(module: Any) -> tuple[Code | None, list[str], dict[str, str]]:
    """Rewrite the forward pass of a module in training with its norms fused.

    Returns the code (None if no norm can be fused), the names of these norms, and the other norms
    that the pass calls, each with the reason.

    Raises :class:`UnknownPass` if the pass cannot be analysed.
    """
    graph = recorded(module)
    chains: list[tuple[str, _NormChain]] = []
    left: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "call_module" and is_norm(tail(module.get_submodule(node.target))):
            name = name_of(module, node.target)
            try:
                chain = _chain(module, node)
                if chain.add is not None and any(chain.add is other.add for _, other in chains):
                    raise UnknownPass("the sum is that of another norm, which is added")
                chains.append((name, chain))
            except UnknownPass as reason:
                left.setdefault(name, str(reason))
    for _, chain in chains:
        _fuse(module, chain)
    code = code_of(graph) if chains else None
    return code, [name for name, _ in chains], left


def name_of(module: Any, target: str) -> str:
    """Return the name, within a module, of the last module of a container."""
    last = tail(module.get_submodule(target))
    inner = next(n for n, m in module.get_submodule(target).named_modules() if m is last)
    return f"{target}.{inner}" if inner else target


class _NormChain(NamedTuple):
    """Nodes from a norm to an activation, or to the sum if ``activation`` is None."""

    norm: Node
    between: Node | None
    add: Node | None
    last: Node
    activation: str | None

    def past(self) -> Any:
        """Return the node that is added, in the current graph."""
        if self.add is None:
            return None
        first, second = self.add.args
        return second if first is (self.between or self.norm) else first


def _chain(module: Any, norm: Node) -> _NormChain:
    """Return the nodes from a norm to the activation after it, or to the sum if that does not fuse.

    Raises :class:`UnknownPass` if there is neither, or another node in between.
    """
    own = tail(module.get_submodule(norm.target))
    if not are_bare(own):
        raise UnknownPass("it has hooks, or a forward pass of its own")
    if len(norm.args) != 1 or norm.kwargs:
        raise UnknownPass("it is called with more than an input")
    between, node = None, only_user(norm)
    if is_identity(module, node):
        between, node = node, only_user(node)
    add = node if is_sum(node) else None
    chains = [_NormChain(norm, between, add, *end) for end in _ends(module, node)]
    if not chains:
        raise UnknownPass(NO_LAST)
    past = chains[0].past()
    if add is not None and not isinstance(past, Node):
        raise UnknownPass("what is added to it is not a tensor")
    if is_in_place(add) and past is add.args[0]:  # type: ignore[union-attr]
        raise UnknownPass("it is added to a tensor in place")
    reasons = [_why_it_may_not_move(module, chain, own) for chain in chains]
    if None not in reasons:
        raise UnknownPass(str(reasons[0]))
    return chains[reasons.index(None)]


def _ends(module: Any, node: Node) -> list[tuple[Node, str | None]]:
    """Return the nodes that a chain may end with, later ones first, and their activations: the
    activation at ``node``; or the sum at ``node``, and the activation after it.
    """
    if not is_sum(node):
        activation = activation_at(module, node)
        return [] if activation is None else [(node, activation)]
    try:
        user = only_user(node)
    except UnknownPass:
        return [(node, None)]
    activation = activation_at(module, user)
    return [(node, None)] if activation is None else [(user, activation), (node, None)]


def _why_it_may_not_move(module: Any, chain: _NormChain, own: Any) -> str | None:
    """Return the reason not to compute a norm and a sum where the chain ends; None if there is
    none. No node in between may change what they read, or call the norm.
    """
    end = "sum" if chain.last is chain.add else "activation"
    roots, past = _roots(module, chain.norm.graph), chain.past()
    read = roots[chain.norm] | {own}
    nodes = list(chain.norm.graph.nodes)
    parts = {chain.norm, chain.between, chain.add}
    for node in nodes[nodes.index(chain.norm) + 1 : nodes.index(chain.last)]:
        if node is chain.add:
            read = read | roots[past]
        if node in parts or node.op in ("get_attr", "placeholder"):
            continue
        if read & set().union(*(roots[given] for given in node.all_input_nodes)):
            return f"what it reads may be changed before the {end}"
        if node.op == "call_module" and any(
            part is own for part in module.get_submodule(node.target).modules()
        ):
            return f"it is called again before the {end}"
    return None


def _roots(module: Any, graph: Graph) -> dict[Node, set[Any]]:
    """Return names of the memory that each node's result may alias, or, for a norm, that it reads;
    a module stands for its parameters and buffers.
    """
    found: dict[Node, set[Any]] = {}
    for node in graph.nodes:
        given: set[Any] = set().union(*(found[one] for one in node.all_input_nodes))
        if node.op == "placeholder":
            found[node] = {"inputs"}
            continue
        if node.op == "get_attr":
            found[node] = {module.get_submodule(str(node.target).rpartition(".")[0])}
            continue
        if node.op != "call_module":
            found[node] = given | {node}
            continue
        own = module.get_submodule(node.target)
        last = tail(own)
        if is_norm(last):
            # The norm reads its input; in a container, the result of the modules before it.
            before = own
            while before is not last:
                *parts, inner = before._modules.values()
                fresh = bool(parts) and isinstance(tail(parts[-1]), _FRESH)
                given, before = ({(node, "before")} if fresh else given), inner
            found[node] = given | {node}
        else:
            found[node] = {node} if isinstance(last, _FRESH) else given | {node}
    return found


def _fuse(module: Any, chain: _NormChain) -> None:
    """Replace a chain by a call of :func:`~layoutconv.nn.fused_batch_norm.normed`."""
    graph, (norm, between, add, node, activation) = chain.norm.graph, chain
    past, input = chain.past(), norm.args[0]
    with graph.inserting_before(norm):
        if tail(module.get_submodule(norm.target)) is module.get_submodule(norm.target):
            of_norm = graph.get_attr(str(norm.target))
        else:  # modules before the norm stay in place
            pair = graph.call_function(up_to_norm, (graph.get_attr(str(norm.target)), input))
            of_norm = graph.call_function(operator.getitem, (pair, 0))
            input = graph.call_function(operator.getitem, (pair, 1))
    with graph.inserting_before(node):
        last = graph.get_attr(str(node.target)) if node.op == "call_module" else activation
        middle = None if between is None else graph.get_attr(str(between.target))
        first = add is not None and past is add.args[0]
        given = of_norm, input, last, past, middle, is_in_place(add), first
        made = graph.call_function(normed, given)
    node.replace_all_uses_with(made)
    for part in dict.fromkeys((node, add, between, norm)):  # the sum may be the last node
        if part is not None:
            graph.erase_node(part)
