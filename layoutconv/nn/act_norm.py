"""Batch norms that have a dropout and an activation of their own, as timm's ``BatchNormAct2d``.

Such a module is a subclass of torch's with attributes ``drop`` and ``act``. What its forward pass
does is found out by calling a copy of it, in float64, so that no library is imported here.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from ..base.torch_internals import has_global_hooks
from .dense_batch_norm import by_kernels
from .fused_batch_norm import may_be_fused
from .trained_norm import are_bare

_PARTS = {"drop": torch.nn.Identity, "act": torch.nn.ReLU}


def fused(norm: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Tensor | None:
    """The result of such a norm by kernels; None where it has to run as it is written.

    >>> norm = torch.nn.BatchNorm2d(1)
    >>> norm.drop, norm.act = torch.nn.Identity(), torch.nn.ReLU()
    >>> fused(norm, (torch.ones(1, 1, 2, 2),), {}) is None
    True
    """
    if len(args) != 1 or named or not may_be_fused(norm, args):
        return None
    if not _has_parts(norm) or has_global_hooks():
        return None
    return by_kernels(args[0], norm, None, True)


def _has_parts(norm: Any) -> bool:
    """Return whether nothing is dropped after a norm, and a ReLU follows."""
    parts = norm._modules
    return parts.keys() == _PARTS.keys() and all(
        type(parts[name]) is kind and are_bare(parts[name]) for name, kind in _PARTS.items()
    )


def is_norm_and_relu(norm: Any) -> bool:
    """Return whether a module is a subclass of torch's ``BatchNorm2d`` that computes it and a ReLU.

    >>> class Both(torch.nn.BatchNorm2d):
    ...     def __init__(self, C):
    ...         super().__init__(C)
    ...         self.drop, self.act = torch.nn.Identity(), torch.nn.ReLU()
    ...     def forward(self, x):
    ...         return self.act(self.drop(super().forward(x)))
    >>> is_norm_and_relu(Both(4)), is_norm_and_relu(torch.nn.BatchNorm2d(4))
    (True, False)
    """
    if not isinstance(norm, torch.nn.BatchNorm2d) or not _has_parts(norm) or not are_bare(norm):
        return False
    random = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
            own = deepcopy(norm).to(device="cpu", dtype=torch.float64).train()
            numbers = norm.num_features, norm.eps, norm.momentum, norm.affine
            theirs = torch.nn.BatchNorm2d(*numbers, norm.track_running_stats).double()
            for parameter in own.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=random, dtype=torch.float64))
            theirs.load_state_dict(own.state_dict())
            x = torch.randn(3, norm.num_features, 2, 3, generator=random, dtype=torch.float64)
            found = [own(x), *own.buffers()]  # buffers after the call
            expected = [theirs(x).relu(), *theirs.buffers()]
    except Exception:  # whatever somebody else's code raises
        return False
    return len(found) == len(expected) and all(map(_is_close, found, expected))


def _is_close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other.to(one.dtype), 1e-9, 1e-9)
