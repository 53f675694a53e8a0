"""Convolutions for networks: torch's modules and functions, argument for argument.

The top floor: may import every room of the package.
"""

from . import functional
from .convert import convert
from .modules import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "convert",
    "functional",
]
