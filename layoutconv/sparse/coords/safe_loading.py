"""Classes that ``torch.load`` accepts with ``weights_only=True``.

torch only makes objects of classes that are registered as safe. These are: their state is tensors
and numbers, and features and cells are checked like a caller's. Kernel maps are not saved.
"""

from __future__ import annotations

import torch

from .coordinates import Coordinates
from .lattice import Lattice
from .sparse_tensor import SparseTensor
from .voxels import Voxels

CLASSES = (SparseTensor, Coordinates, Voxels, Lattice)


def register() -> None:
    """Register the classes with torch, for the life of the process."""
    torch.serialization.add_safe_globals([*CLASSES])
