"""Convolutions for networks: torch's functions, argument for argument.

The top floor: may import every room of the package.
"""

from . import functional

__all__ = ["functional"]
