"""Point clouds: readers, voxels, kernel maps, and the GEMM views that gather through them.

May import ``layoutconv.algebra`` and ``layoutconv.gemm_view``; torch is imported where it is used.
"""

from .kernel_map import dense_index, submanifold_kernel_map, tap_offsets
from .points import read_points
from .sparse_tensor import SparseTensor
from .views import kernel_map_view
from .voxels import Voxels, voxelize

__all__ = [
    "SparseTensor",
    "Voxels",
    "dense_index",
    "kernel_map_view",
    "read_points",
    "submanifold_kernel_map",
    "tap_offsets",
    "voxelize",
]
