"""Batch norms of padded clouds, with statistics over the rows that have a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ..gpu.row_norm import Norm
from ..sparse.coords.rows import spread
from .dense_batch_norm import BatchNorm1d
from .fused_norm import runs_only_forward
from .modules import Activated
from .row_norm import batch_norm, follow

if TYPE_CHECKING:
    from torch import Tensor

    from ..sparse import SparseTensor

_FORWARDS = frozenset({_BatchNorm.forward, BatchNorm1d.forward})


def mixes_rows(module: torch.nn.Module) -> bool:
    """Return whether a row's result depends on the other rows.

    >>> norm = torch.nn.BatchNorm1d(4)
    >>> mixes_rows(norm), mixes_rows(norm.eval()), mixes_rows(torch.nn.LayerNorm(4))
    (True, False, False)
    """
    if isinstance(module, torch.nn.Sequential):
        return any(map(mixes_rows, module))
    if not isinstance(module, _BatchNorm):
        return False
    return module.training or module.running_mean is None


def on_cells(module: Any, input: SparseTensor) -> Tensor:
    """Apply a plain module to the rows of ``input`` that have a cell; returns features (rows, K).

    Rows without a cell get zeros. torch's batch norms need no sync, so a CUDA graph can capture
    them; nor do those over ranks, of :mod:`layoutconv.distributed`. Other modules, such as torch's
    ``SyncBatchNorm`` or one with hooks, get only these rows, which needs a device-to-host sync.

    >>> from ..sparse import SparseTensor
    >>> x = SparseTensor.from_dense(torch.tensor([[[1.0], [3.0]]])).padded(3)
    >>> on_cells(torch.nn.BatchNorm1d(1, eps=0), x).T
    tensor([[-1.,  1.,  0.]], grad_fn=<PermuteBackward0>)
    """
    there = input.coords[:, 0] >= 0
    if type(module).forward in _FORWARDS and not is_hooked(module):
        found = _batch_norm(module, input.features, there)
        return module._activated(found) if isinstance(module, Activated) else found
    of_rows = getattr(module, "of_rows", None)  # of modules of a package above, which take clouds
    if of_rows is not None and not is_hooked(module):
        found = of_rows(input.features, there)
        return found
    rows = there.nonzero()[:, 0]
    return spread(module(input.features[rows]), rows, len(there))


def is_hooked(module: Any) -> bool:
    """Return whether a module has hooks, or a forward pass of its own in the instance.

    >>> is_hooked(torch.nn.ReLU())
    False
    """
    return not runs_only_forward(module)


def _batch_norm(module: Any, features: Tensor, there: Tensor) -> Tensor:
    """Apply torch's batch norm to the rows in ``there``, bool (rows,), in fp32 or more."""
    module._check_input_dim(features)
    weight, bias = (module.weight, module.bias) if module.affine else (None, None)
    running, momentum = None, module.momentum
    if module.training and module.running_mean is not None:
        running = module.running_mean, module.running_var
        momentum = _momentum(module)
    return batch_norm(features, Norm(weight, bias, running, momentum, module.eps, there))


def _momentum(module: Any) -> Any:
    """Count a batch; return its share in running statistics."""
    module.num_batches_tracked.add_(1)
    if module.momentum is None:  # a mean over all batches
        return 1 / module.num_batches_tracked.double()
    return module.momentum


def remember(module: Any, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    """Update running statistics like torch, but not for fewer than two rows, which torch refuses.

    ``count`` stays on the device: no sync.

    >>> norm, number = torch.nn.BatchNorm1d(1), torch.tensor(2)
    >>> remember(norm, torch.tensor([4.0]), torch.tensor([1.0]), number)
    >>> norm.running_mean, norm.running_var
    (tensor([0.4000]), tensor([1.1000]))
    """
    momentum = _momentum(module)
    follow((module.running_mean, module.running_var), momentum, mean, variance, count)
