"""Convolutions, norms and activations that a module's own forward pass calls one after another.

:mod:`.recorded_pass` records the pass in evaluation mode. Calls of a module's children from
elsewhere are not seen.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node
from torch.nn.modules.batchnorm import _BatchNorm

from .act_norm import is_norm_and
from .forward_code import UnknownPass
from .fused_norm import ACTIVATIONS, is_relu6
from .recorded_pass import recorded

NORMS = frozenset({
    torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm
})  # fmt: skip
_ACTIVATIONS = {**ACTIVATIONS, torch.nn.Hardswish: "hardswish"}


class Called(NamedTuple):
    """Names of modules that a pass calls one after another, each once, with no other reader.

    ``after`` names what follows the convolution, without identities: a norm, an activation, or one
    and then the other.
    """

    conv: str
    after: tuple[str, ...]


def called_in_a_row(module: Any, is_conv: Any) -> list[Called]:
    """Find the convolutions that a forward pass calls, and what it calls on their results.

    ``is_conv`` says which modules are convolutions. Returns [] if ``torch.fx`` cannot record the
    pass.

    >>> class Block(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.conv, self.norm = torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)
    ...     def forward(self, x):
    ...         return self.norm(self.conv(x)).relu()
    >>> called_in_a_row(Block(), lambda module: isinstance(module, torch.nn.Conv2d))
    [Called(conv='conv', after=('norm',))]
    """
    try:
        graph = recorded(module, training=False, rewrites=False)
    except UnknownPass:
        return []
    calls = _calls_of(graph)
    found = []
    for node in calls:
        if is_conv(module.get_submodule(node.target)) and _is_single(node, calls):
            names = _after(module, node, calls)
            if names:
                found.append(Called(str(node.target), tuple(names)))
    return found


def _calls_of(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "call_module"]


def _is_single(node: Node, calls: list[Node]) -> bool:
    """Return whether a call is the only one of its module, and takes one tensor."""
    times = Counter(other.target for other in calls)
    return times[node.target] == 1 and len(node.args) == 1 and not node.kwargs


def _after(module: Any, node: Node, calls: list[Node]) -> list[str]:
    """Return the modules called on a result, one after another: at most two."""
    names: list[str] = []
    while len(node.users) == 1 and len(names) < 2:
        (user,) = node.users
        if user.op != "call_module" or user.args != (node,) or not _is_single(user, calls):
            break
        if type(module.get_submodule(user.target)) is not torch.nn.Identity:
            names.append(str(user.target))
        node = user
    return names


def activation_of(module: Any) -> tuple[str, float] | None:
    """Return the name and slope of an activation module; None for another module.

    >>> activation_of(torch.nn.LeakyReLU(0.2)), activation_of(torch.nn.Identity())
    (('leaky_relu', 0.2), None)
    """
    if type(module) is torch.nn.GELU:
        return ("gelu" if module.approximate == "none" else "gelu_tanh"), 0.01
    name = _ACTIVATIONS.get(type(module))
    if name is None or (name == "relu6" and not is_relu6(module)):
        return None
    return name, getattr(module, "negative_slope", 0.01)


def after_norm(norm: Any) -> Any:
    """Return the module that follows a batch norm: an identity, or the activation that a subclass
    like timm's ``BatchNormAct2d`` calls itself; None for anything but a batch norm with running
    statistics.

    A subclass may have that child and identities only. A copy of it is called in float64, in
    evaluation mode: it counts as a norm only if it computes torch's norm followed by the child.

    >>> class NormAct(torch.nn.BatchNorm2d):
    ...     def __init__(self, C):
    ...         super().__init__(C)
    ...         self.drop, self.act = torch.nn.Identity(), torch.nn.SiLU()
    ...     def forward(self, x):
    ...         return self.act(self.drop(super().forward(x)))
    >>> after_norm(NormAct(4)), after_norm(torch.nn.BatchNorm2d(4)), after_norm(torch.nn.ReLU())
    (SiLU(), Identity(), None)
    """
    if not isinstance(norm, _BatchNorm) or norm.running_mean is None:
        return None
    if type(norm) in NORMS:
        return torch.nn.Identity().eval()
    children: list[Any] = [m for m in norm._modules.values() if type(m) is not torch.nn.Identity]
    if len(children) > 1 or set(norm._parameters) != {"weight", "bias"}:
        return None
    last = children[0] if children else torch.nn.Identity().eval()
    return last if is_norm_and(norm, last, training=False) else None
