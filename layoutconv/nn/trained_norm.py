"""Batch norms in training with the sum and the activation after them: one kernel pass each way.

As in :mod:`.fused_norm` no module is changed, and norms with hooks, or of an unknown kind, run as
torch has them. :func:`~layoutconv.nn.fused_norm.unfused` makes all of them do so. Running
statistics and batch counts move like torch's. A ``SyncBatchNorm`` takes its statistics over all
ranks; a rank sends the same message as in torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..base.ranks import ranks_of
from ..gpu.row_norm import Norm
from ..sparse import SparseTensor
from .counted_rows import rows_there
from .row_norm import by_kernels

if TYPE_CHECKING:
    from torch import Tensor

    from ..base.ranks import Ranks

# ``compat.spconv`` and ``layoutconv.distributed`` add their own.
NORMS: set[type] = {torch.nn.BatchNorm1d, torch.nn.SyncBatchNorm}


def trained_features(x: Any, norm: Any, last: Any, past: Any = None) -> SparseTensor | None:
    """Compute :func:`trained` for sparse tensors.

    Also returns None if rows have no cell, unless a training step is captured, and if ``x`` and
    ``past`` have different coordinates.

    >>> x = SparseTensor.from_dense(torch.ones(1, 2, 2))
    >>> trained_features(x, torch.nn.BatchNorm1d(2), None) is None
    True
    """
    if not isinstance(x, SparseTensor):
        return None
    if x.coordinates.padded and rows_there(len(x)) is None:
        return None
    added = None
    if past is not None:
        if not isinstance(past, SparseTensor) or past.coordinates is not x.coordinates:
            return None
        added = past.features
    features = trained(x.features, norm, last, added)
    return None if features is None else x.replace(features)


def trained(x: Tensor, norm: Any, last: Any = None, past: Tensor | None = None) -> Tensor | None:
    """Compute features ``last(norm(x) + past)``; ``last`` and ``past`` may be None.

    Returns None, and has done nothing, if no kernel computes it: the caller then runs module after
    module. ``x`` (rows, C) has passed :func:`~layoutconv.nn.fused_norm.may_fuse`.

    >>> trained(torch.ones(3, 2), torch.nn.BatchNorm1d(2)) is None
    True
    """
    told = told_of(x.shape[0], norm, last, past)
    return None if told is None else by_kernels(x, told)


def are_bare(*modules: Any) -> bool:
    """Return whether calling modules (or None) runs only their classes' ``forward``, and they have
    no backward hooks.

    >>> norm = torch.nn.BatchNorm1d(4)
    >>> handle = norm.register_full_backward_hook(print)
    >>> are_bare(norm, None), handle.remove(), are_bare(norm, None)
    (False, None, True)
    """
    for module in modules:
        if module is not None:
            own = module.__dict__
            if own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
                return False
            if own["_backward_hooks"] or own["_backward_pre_hooks"]:
                return False
    return True


def told_of(rows: int, norm: Any, last: Any, past: Tensor | None) -> Norm | None:
    """Return the kernels' arguments for ``last(norm(x) + past)`` of so many rows; None if torch
    computes it.
    """
    if type(norm) not in NORMS or not norm.training or not are_bare(norm, last):
        return None
    ranks = ranks_of(norm) if "process_group" in norm.__dict__ else None
    if rows < 2 and ranks is None:
        return None
    if last is not None and type(last) is not torch.nn.ReLU:
        return None
    return told(norm, None if last is None else "relu", past, rows_there(rows), ranks)


def told(
    norm: Any,
    activation: str | None,
    past: Tensor | None,
    there: Tensor | None = None,
    ranks: Ranks | None = None,
) -> Norm | None:
    """Return the kernels' arguments for a torch batch norm in training; None if it holds its state
    otherwise, like a replica.

    >>> told(torch.nn.BatchNorm2d(3, affine=False), "relu", None).momentum
    0.1
    """
    held, learnt = norm._buffers, norm._parameters
    mean, variance = held.get("running_mean"), held.get("running_var")
    running = None if mean is None or variance is None else (mean, variance)
    weight, bias = learnt.get("weight"), learnt.get("bias")
    if (weight is None) is norm.affine or (running is None) is norm.track_running_stats:
        return None  # held otherwise: of a replica, or sharded
    counted = None if running is None else held.get("num_batches_tracked")
    return Norm(
        weight, bias, running, norm.momentum, norm.eps, there, past, activation, counted, ranks
    )
