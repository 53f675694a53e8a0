"""The few functions of other packages that real networks compute with, and their small helpers.

Each is here by its documented behaviour; :func:`parts` has them under the names that model files
import them from. Where a package is installed, its own functions are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from layoutconv.compat.attributes import Attributes


class DropPath(nn.Identity):
    """``timm.layers.DropPath`` that drops nothing."""

    def __init__(self, drop_prob: float = 0.0, scale_by_keep: bool = True) -> None:
        super().__init__()


def scatter(
    src: Tensor, index: Tensor, dim: int = 0, dim_size: int | None = None, reduce: str = "sum"
) -> Tensor:
    """``torch_geometric.utils.scatter`` along the first mode."""
    size = int(index.max()) + 1 if dim_size is None else dim_size
    kinds = {"sum": "sum", "add": "sum", "mean": "mean", "max": "amax", "min": "amin"}
    where = index.view(-1, *[1] * (src.dim() - 1)).expand_as(src)
    zeros = src.new_zeros((size, *src.shape[1:]))
    return zeros.scatter_reduce(0, where, src, kinds[reduce], include_self=False)


def segment_csr(src: Tensor, indptr: Tensor, reduce: str = "sum") -> Tensor:
    """``torch_scatter.segment_csr`` along the first mode."""
    segments = torch.arange(len(indptr) - 1).repeat_interleave(indptr.diff())
    return scatter(src, segments, dim_size=len(indptr) - 1, reduce=reduce)


def voxel_grid(
    pos: Tensor, size: Any, batch: Tensor | None = None, start: Any = None, end: Any = None
) -> Tensor:
    """``torch_geometric.nn.pool.voxel_grid``: the number of each point's cell."""
    low = pos.amin(0) if start is None else torch.as_tensor(start, dtype=pos.dtype)
    cells = ((pos - low) / torch.as_tensor(size, dtype=pos.dtype)).floor().long()
    if batch is not None:
        cells = torch.cat([cells, batch.view(-1, 1)], dim=1)
    extents = cells.amax(0) + 1
    strides = torch.cat([extents.new_ones(1), extents[:-1].cumprod(0)])
    return (cells * strides).sum(1)


def build_conv_layer(cfg: dict[str, Any] | None, *args: Any, **options: Any) -> nn.Module:
    """``mmcv.cnn.build_conv_layer`` for layers of spconv, and torch's two-dimensional one."""
    of = dict(cfg or {"type": "Conv2d"})
    kind = of.pop("type")
    if hasattr(nn, kind):
        return getattr(nn, kind)(*args, **options, **of)
    spconv = import_module("spconv.pytorch")
    return getattr(spconv, kind)(*args, **options, **of)


def build_norm_layer(cfg: dict[str, Any], num_features: int, postfix: Any = "") -> Any:
    """``mmcv.cnn.build_norm_layer`` for batch norms: a name, and the module."""
    of = dict(cfg)
    kinds: dict[str, Callable[..., nn.Module]]
    kinds = {"BN": nn.BatchNorm2d, "BN1d": nn.BatchNorm1d, "BN2d": nn.BatchNorm2d}
    options = {"eps": of.get("eps", 1e-5), "momentum": of.get("momentum", 0.1)}
    return f"bn{postfix}", kinds[of["type"]](num_features, **options)


class BaseModule(nn.Module):
    """``mmengine.model.BaseModule``."""

    def __init__(self, init_cfg: Any = None) -> None:
        super().__init__()
        self.init_cfg = init_cfg


class BasicBlock(BaseModule):
    """Layers of a block of ``mmdet``'s ResNet; subclasses have a forward pass.

    It takes what the blocks of networks on clouds pass, and no more.
    """

    expansion = 1

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: nn.Module | None = None,
        conv_cfg: Any = None,
        norm_cfg: Any = None,
    ) -> None:
        super().__init__()
        of: dict[str, Any] = {"padding": 1, "bias": False}
        self.conv1 = build_conv_layer(conv_cfg, inplanes, planes, 3, stride=stride, **of)
        self.bn1 = build_norm_layer(norm_cfg, planes, 1)[1]
        self.conv2 = build_conv_layer(conv_cfg, planes, planes, 3, **of)
        self.bn2 = build_norm_layer(norm_cfg, planes, 2)[1]
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    @property
    def norm1(self) -> nn.Module:
        return self.bn1

    @property
    def norm2(self) -> nn.Module:
        return self.bn2


class _Precision:
    """``mmengine.runner.amp`` where all is fp32."""

    @staticmethod
    def autocast(*args: Any, **options: Any) -> Any:
        return torch.autocast("cpu", enabled=False)


def parts() -> dict[str, ModuleType]:
    """Modules of packages that are not installed, by their names."""
    written: dict[str, dict[str, Any]] = {
        "addict": {"Dict": Attributes},
        "easydict": {"EasyDict": Attributes},
        "timm.layers": {"DropPath": DropPath, "trunc_normal_": nn.init.trunc_normal_},
        "timm.models.layers": {"DropPath": DropPath, "trunc_normal_": nn.init.trunc_normal_},
        "torch_geometric.utils": {"scatter": scatter},
        "torch_geometric.nn.pool": {"voxel_grid": voxel_grid},
        "torch_scatter": {"segment_csr": segment_csr},
        "mmcv.cnn": {"build_conv_layer": build_conv_layer, "build_norm_layer": build_norm_layer},
        "mmengine.model": {"BaseModule": BaseModule},
        "mmengine.runner": {"amp": _Precision},
        "mmdet.models.backbones.resnet": {"BasicBlock": BasicBlock, "Bottleneck": BasicBlock},
    }
    found = {}
    for name, names in written.items():
        module = ModuleType(name)
        module.__dict__.update(names)
        found[name] = module
    return found
