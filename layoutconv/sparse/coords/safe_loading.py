"""Files of sparse tensors that ``torch.load`` reads with ``weights_only=True``.

torch makes objects of classes that it knows to be harmless, and of no others. These are: their
state is tensors and numbers, of which features and cells are checked as those of a caller are.
Nothing of a kernel map is saved.
"""

from __future__ import annotations

import torch

from .coordinates import Coordinates
from .lattice import Lattice
from .sparse_tensor import SparseTensor
from .voxels import Voxels

CLASSES = (SparseTensor, Coordinates, Voxels, Lattice)


def register() -> None:
    """Tell torch of the classes, for the life of the process."""
    torch.serialization.add_safe_globals([*CLASSES])
