"""Norms: torch's batch norms in a submodule ``bn``, and instance norms over each image."""

from __future__ import annotations

from typing import Any

import torch

from ...nn.image_norm import per_image
from ...nn.scripting import refuse_scripting
from .MinkowskiCommon import MinkowskiModuleBase, check_input
from .MinkowskiSparseTensor import SparseTensor
from .MinkowskiTensor import over_features


class MinkowskiBatchNorm(torch.nn.Module):
    """``torch.nn.BatchNorm1d``, which is ``bn``, over all rows.

    >>> sorted(MinkowskiBatchNorm(4).state_dict())[:2]
    ['bn.bias', 'bn.num_batches_tracked']
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__()
        self.bn: Any = torch.nn.BatchNorm1d(
            num_features, eps, momentum, affine, track_running_stats
        )

    def forward(self, input: Any) -> Any:
        return over_features(input, self.bn)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bn.extra_repr()})"


class MinkowskiSyncBatchNorm(MinkowskiBatchNorm):
    """``torch.nn.SyncBatchNorm``, which is ``bn``."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.bn = torch.nn.SyncBatchNorm(
            num_features, eps, momentum, affine, track_running_stats, process_group
        )

    @classmethod
    def convert_sync_batchnorm(cls, module: torch.nn.Module, process_group: Any = None) -> Any:
        """Replace each ``MinkowskiBatchNorm`` in a module by such a norm with the same state."""
        for name, child in module.named_children():
            setattr(module, name, cls.convert_sync_batchnorm(child, process_group))
        if not isinstance(module, MinkowskiBatchNorm):
            return module
        made = torch.nn.SyncBatchNorm.convert_sync_batchnorm(module.bn, process_group)
        found = cls(module.bn.num_features, process_group=process_group)
        found.bn = made
        return found


def normed(input: SparseTensor, eps: float) -> torch.Tensor:
    """Normalize features (rows, C): each channel of each image to mean 0 and variance 1."""
    norm = torch.nn.InstanceNorm1d(input.F.shape[1], eps)  # without parameters
    return per_image(norm, input.to_layoutconv())


class MinkowskiInstanceNorm(MinkowskiModuleBase):
    """Norm of each channel of each image over its rows; ``weight`` and ``bias`` are (1, C)."""

    eps = 1e-8

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features
        self.weight = torch.nn.Parameter(torch.ones(1, num_features))
        self.bias = torch.nn.Parameter(torch.zeros(1, num_features))
        self.inst_norm = torch.nn.InstanceNorm1d(num_features, self.eps)  # has no parameters

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, input: SparseTensor) -> SparseTensor:
        x = per_image(self.inst_norm, check_input(input).to_layoutconv())
        return input.on(x * self.weight + self.bias)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(nchannels={self.num_features})"


class MinkowskiStableInstanceNorm(MinkowskiInstanceNorm):
    """The same with a larger ``eps``."""

    eps = 1e-6
