"""Convolutions for networks: torch's modules and functions, argument for argument.

The top floor: may import every room of the package.
"""

from . import functional
from .containers import Features, Prune, Sequential
from .convert import convert
from .fold import fold_batch_norms
from .modules import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from .sparse_modules import (
    SparseConv1d,
    SparseConv2d,
    SparseConv3d,
    SparseConv4d,
    SparseConvTranspose1d,
    SparseConvTranspose2d,
    SparseConvTranspose3d,
    SparseConvTranspose4d,
    SparseInverseConv1d,
    SparseInverseConv2d,
    SparseInverseConv3d,
    SparseInverseConv4d,
    SubmConv1d,
    SubmConv2d,
    SubmConv3d,
    SubmConv4d,
)

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Features",
    "Prune",
    "Sequential",
    "SparseConv1d",
    "SparseConv2d",
    "SparseConv3d",
    "SparseConv4d",
    "SparseConvTranspose1d",
    "SparseConvTranspose2d",
    "SparseConvTranspose3d",
    "SparseConvTranspose4d",
    "SparseInverseConv1d",
    "SparseInverseConv2d",
    "SparseInverseConv3d",
    "SparseInverseConv4d",
    "SubmConv1d",
    "SubmConv2d",
    "SubmConv3d",
    "SubmConv4d",
    "convert",
    "fold_batch_norms",
    "functional",
]
