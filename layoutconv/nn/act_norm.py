"""Batch norms with a dropout and an activation of their own, like timm's ``BatchNormAct2d``.

Such a module subclasses a torch batch norm and has attributes ``drop`` and ``act``. To learn what
its forward pass computes, a copy of it is called in float64: no library is imported here.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from ..base.torch_internals import has_global_hooks
from .chain_nodes import name_of_activation
from .dense_batch_norm import by_kernels
from .fused_batch_norm import are_identities, may_be_fused
from .trained_norm import are_bare

# Attributes that every call reads. Setting others may change what the forward pass does.
READ = frozenset({
    "weight", "bias", "running_mean", "running_var", "num_batches_tracked", "eps", "momentum",
    "drop", "act",
})  # fmt: skip
_PARTS = {"drop", "act"}
_RANKS = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d, 3: torch.nn.BatchNorm3d}


def fused(norm: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Tensor | None:
    """Return the norm's result by kernels; None if the module's own forward pass has to run.

    >>> norm = torch.nn.BatchNorm2d(1)
    >>> norm.drop, norm.act = torch.nn.Identity(), torch.nn.ReLU()
    >>> fused(norm, (torch.ones(1, 1, 2, 2),), {}) is None
    True
    """
    if len(args) != 1 or named or not may_be_fused(norm, args):
        return None
    last = _activation_of(norm)
    if last is None or has_global_hooks():
        return None
    return by_kernels(args[0], norm, None, last)


def _activation_of(norm: Any) -> str | None:
    """Return the name of the activation after a norm without dropout; None for other modules."""
    parts = norm._modules
    if parts.keys() != _PARTS or type(parts["drop"]) is not torch.nn.Identity:
        return None
    return name_of_activation(parts["act"]) if are_bare(*parts.values()) else None


def has_activation(norm: Any) -> bool:
    """Return whether a module is a subclass of torch's ``BatchNorm2d`` that computes the norm and
    then an activation, its child ``act``.

    >>> class Both(torch.nn.BatchNorm2d):
    ...     def __init__(self, C):
    ...         super().__init__(C)
    ...         self.drop, self.act = torch.nn.Identity(), torch.nn.ReLU()
    ...     def forward(self, x):
    ...         return self.act(self.drop(super().forward(x)))
    >>> has_activation(Both(4)), has_activation(torch.nn.BatchNorm2d(4))
    (True, False)
    """
    if not (isinstance(norm, torch.nn.BatchNorm2d) and _activation_of(norm) and are_bare(norm)):
        return False
    return is_norm_and(norm, norm.get_submodule("act"), training=True)


def is_alone(norm: Any) -> bool:
    """Return whether a module is such a subclass with identities as dropout and activation.

    >>> class Alone(torch.nn.BatchNorm2d):
    ...     def __init__(self, C):
    ...         super().__init__(C)
    ...         self.drop, self.act = torch.nn.Identity(), torch.nn.Identity()
    ...     def forward(self, x):
    ...         return self.act(self.drop(super().forward(x)))
    >>> is_alone(Alone(4)), is_alone(torch.nn.BatchNorm2d(4))
    (True, False)
    """
    if not isinstance(norm, torch.nn.BatchNorm2d) or norm._modules.keys() != _PARTS:
        return False
    last: Any = norm._modules["act"]
    identities = are_identities(norm._modules.values())
    return identities and are_bare(norm) and is_norm_and(norm, last, training=True)


def is_norm_and(norm: Any, last: torch.nn.Module, *, training: bool) -> bool:
    """Compare a copy of a batch norm, torch's or a subclass, with torch's own followed by ``last``.

    Returns whether both compute the same in float64 and leave the same statistics; in training,
    also whether the copy keeps the dtype of bfloat16 images. The second call has large results, so
    that it shows limits beyond 6, too.

    >>> is_norm_and(torch.nn.BatchNorm1d(3), torch.nn.Identity(), training=False)
    True
    >>> is_norm_and(torch.nn.BatchNorm1d(3), torch.nn.ReLU(), training=True)
    False
    """
    rank, base = next(((r, b) for r, b in _RANKS.items() if isinstance(norm, b)), (0, None))
    if base is None:
        return False
    random = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
            own: Any = deepcopy(norm).to(device="cpu", dtype=torch.float64).train(training)
            after = deepcopy(last).to(device="cpu", dtype=torch.float64).train(training)
            options = norm.num_features, norm.eps, norm.momentum, norm.affine
            theirs = base(*options, norm.track_running_stats).double().train(training)
            for name, tensor in theirs.state_dict().items():
                found: Tensor = getattr(own, name)
                if found.is_floating_point():
                    numbers = torch.randn(found.shape, generator=random, dtype=torch.float64)
                    found.copy_(numbers.abs() + 0.5 if name == "running_var" else numbers)
                tensor.copy_(found)
            shape = 3, norm.num_features, *[5, 3, 2][:rank]
            x = 3 * torch.randn(shape, generator=random, dtype=torch.float64)
            one, other = [own.forward(x)], [after(theirs(x))]
            x.flatten(2)[0, :, 0] = 1000.0
            for parameter in (*own.parameters(recurse=False), *theirs.parameters()):
                parameter.mul_(1000.0)
            one += [own.forward(x), *(b.clone() for b in own.buffers())]  # after the calls
            other += [after(theirs(x)), *theirs.buffers()]
            if training and own.float().forward(x.bfloat16()).dtype is not torch.bfloat16:
                return False
    except Exception:  # whatever somebody else's code raises
        return False
    return len(one) == len(other) and all(map(_is_close, one, other))


def _is_close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other.to(one.dtype), 1e-9, 1e-9)
