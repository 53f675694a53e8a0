"""Batch norms of dense networks with the sum and the activation after them, in training.

As in :mod:`.trained_norm` no module is changed. Modules that have hooks, are in evaluation or of an
unknown kind, and calls that no kernel computes, run as the network has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..base.torch_internals import has_global_hooks
from ..ops.guard import PLAIN
from .chain_nodes import MODULES, name_of_activation
from .dense_batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d, by_kernels
from .dense_sum import followed
from .trained_norm import are_bare

_OURS = frozenset({BatchNorm1d, BatchNorm2d, BatchNorm3d})
_THEIRS = frozenset({torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d})
NORMS = _THEIRS | _OURS
# The attribute of classes made from batch norms with parts of their own, like timm's.
WITH_PARTS = "_norm_with_parts"


def is_norm(module: Any) -> bool:
    """Return whether a module is a batch norm of torch, or of this package without an activation,
    or another's that was found to be torch's norm followed by identities.

    >>> is_norm(torch.nn.BatchNorm2d(4)), is_norm(BatchNorm2d(4, activation="relu"))
    (True, False)
    """
    kind = type(module)
    if kind in _THEIRS or (kind in _OURS and module.activation is None):
        return True
    return WITH_PARTS in kind.__dict__ and are_identities(module._modules.values())


def are_identities(modules: Iterable[Any]) -> bool:
    """Return whether all modules are identities without hooks.

    >>> are_identities([torch.nn.Identity()]), are_identities([torch.nn.ReLU()])
    (True, False)
    """
    return all(type(module) is torch.nn.Identity and are_bare(module) for module in modules)


def normed(
    norm: Any,
    input: Any,
    last: Any,
    past: Any = None,
    between: Any = None,
    in_place: bool = False,
    first: bool = False,
) -> Tensor:
    """Compute ``last(between(norm(input)) + past)``, of modules and tensors.

    ``past`` and ``between``, a ``torch.nn.Identity`` when the forward pass was rewritten, may be
    None; ``last`` is an activation, the name of a function, or None. ``in_place`` says that the sum
    is ``+=``, which has the dtype of the norm; ``first`` that ``past`` is its first operand.

    >>> norm, x = torch.nn.BatchNorm1d(1, eps=3.0, affine=False), torch.tensor([[1.0], [3.0]])
    >>> normed(norm, x, torch.nn.ReLU(), x).T
    tensor([[0.5000, 3.5000]])
    """
    module = None if type(last) is str else last
    activation = last if module is None else name_of_activation(module)
    if (
        is_norm(norm)
        and (activation is not None or last is None)
        and (between is None or type(between) is torch.nn.Identity)
        and are_bare(norm, module, between)
        and not has_global_hooks()
    ):
        found = by_kernels(input, norm, past, activation)
        if found is not None:
            return found
    y = norm(input)
    if between is not None:
        y = between(y)
    return followed(y, last, past, in_place, first)


def up_to_norm(module: Any, input: Any) -> tuple[Any, Any]:
    """Run a ``torch.nn.Sequential`` up to its last module; return that and its input.

    Another module is returned with the input as it is.

    >>> norm = torch.nn.BatchNorm1d(1)
    >>> found, x = up_to_norm(torch.nn.Sequential(torch.nn.ReLU(), norm), torch.tensor([[-1.0]]))
    >>> found is norm, x
    (True, tensor([[0.]]))
    """
    while is_container(module) and are_bare(module) and not has_global_hooks():
        *parts, module = module._modules.values()
        input = fused_in_turn(parts, input)
    return module, input


def is_container(module: Any) -> bool:
    """Return whether a module is a ``torch.nn.Sequential`` by its forward pass, and not empty."""
    return type(module).forward in CONTAINERS and bool(module._modules)


def fused_in_turn(modules: list[Any], input: Any) -> Any:
    """Run modules one after another; those that are norms and activations are :func:`normed`.

    >>> fused_in_turn([torch.nn.ReLU(), torch.nn.Flatten(0)], torch.tensor([[-1.0]]))
    tensor([0.])
    """
    at = 0
    while at < len(modules):
        module, at = modules[at], at + 1
        if is_norm(module) and at < len(modules) and type(modules[at]) in MODULES:
            input, at = normed(module, input, modules[at]), at + 1
        else:
            input = module(input)
    return input


def sequence(self: Any, input: Any) -> Any:
    """Run a ``torch.nn.Sequential``; its norms and activations are :func:`normed`."""
    modules = list(self._modules.values())
    if may_be_fused(self, (input,)):
        return fused_in_turn(modules, input)
    for module in modules:
        input = module(input)
    return input


def may_be_fused(module: Any, inputs: tuple[Any, ...], *, training: bool = True) -> bool:
    """Return whether a module is in this mode, and gets plain tensors that nothing traces.

    >>> may_be_fused(torch.nn.ReLU(), (torch.ones(1),)), may_be_fused(torch.nn.ReLU().eval(), ())
    (True, False)
    """
    return (
        module.training is training
        and not torch.compiler.is_compiling()
        and PLAIN.issuperset(map(type, inputs))
    )


CONTAINERS = {torch.nn.Sequential.forward, sequence}
