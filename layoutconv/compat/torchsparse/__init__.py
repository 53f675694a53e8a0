"""The interface of TorchSparse 2.1: the same names, arguments and rules, computed by layoutconv.

Replace ``import torchsparse`` by ``import layoutconv.compat.torchsparse as torchsparse``, or call
:func:`install` to leave the program's files unchanged; :func:`set_interface` is for programs of 1.4
and 2.0. docs/coming_from_torchsparse.md lists what is the same and what is not.

>>> import torch
>>> import layoutconv.compat.torchsparse as torchsparse
>>> x = torchsparse.SparseTensor(torch.ones(1, 4), torch.tensor([[0, -1, 2, 5]]).int())
>>> y = torchsparse.nn.Conv3d(4, 8, kernel_size=2, stride=2)(x)
>>> y.C.tolist(), y.s
([[0, -1, 1, 2]], (2, 2, 2))
"""

from __future__ import annotations

from ..installing import Installed, install_as
from . import backbones, backend, backends, nn, utils
from .operators import cat, generative_add
from .tensor import (
    PointTensor,
    SparseTensor,
    get_allow_negative_coordinates,
    set_allow_negative_coordinates,
)
from .utils.tune import tune
from .version import set_interface

__version__ = "2.1.0"  # of the interface

# TorchSparse's files whose names are in another module here.
_FILES = {
    "backbones.modules.blocks": backbones.modules,
    "nn.functional.conv": nn.functional,
    "nn.functional.conv.conv": nn.functional,
    "nn.functional.conv.conv_config": nn.functional.conv_config,
    "nn.functional.conv.conv_mode": nn.functional.conv_config,
    "nn.functional.conv.hash": nn.functional,
    "nn.modules": nn,
    "nn.modules.bev": nn.bev,
    "utils.to_dense": utils,
    "utils.utils": utils,
    **{f"nn.functional.{name}": nn.functional for name in ("activation", "count", "hash")},
    **{f"nn.functional.{name}": nn.functional for name in ("pooling", "voxelize")},
    **{f"nn.modules.{name}": nn for name in ("activation", "conv", "crop", "norm", "pooling")},
    **{f"nn.utils.{name}": nn.utils for name in ("apply", "kernel")},
}
_ABSENT = {
    "nn.functional.conv.func": "layoutconv.nn.sparse has convolutions as functions of kernel maps",
    "nn.functional.conv.kmap": (
        "layoutconv.sparse has kernel maps: submanifold_map, strided_map and transposed_map"
    ),
}


def install(version: str = "2.1") -> Installed:
    """Let ``import torchsparse``, and imports of its modules, find those of layoutconv.

    It works as :func:`layoutconv.compat.spconv.install`; ``version`` is as for
    :func:`set_interface`.

    >>> with install():
    ...     from torchsparse.nn.functional.devoxelize import calc_ti_weights
    >>> calc_ti_weights.__module__
    'layoutconv.compat.torchsparse.nn.functional.devoxelize'
    """
    set_interface(version)
    return install_as("torchsparse", __name__, absent=_ABSENT, elsewhere=_FILES)


__all__ = [
    "PointTensor",
    "SparseTensor",
    "__version__",
    "backbones",
    "backend",
    "backends",
    "cat",
    "generative_add",
    "get_allow_negative_coordinates",
    "install",
    "nn",
    "set_allow_negative_coordinates",
    "set_interface",
    "tune",
    "utils",
]
