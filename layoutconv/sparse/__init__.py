"""Point clouds: readers, voxels, kernel maps, and the GEMM views that gather through them.

May import ``layoutconv.algebra``, ``layoutconv.gemm_view`` and the arguments of convolutions from
``layoutconv.conv.problem``; torch is imported where it is used, and ``layoutconv.kernels`` for maps
that are made on a GPU.
"""

from .chunks import Chunk, Chunks
from .coordinates import Coordinates
from .grid_index import dense_index
from .interpolation import devoxelize
from .join import cat, collate, merge_repeated
from .kernel_map import strided_map, submanifold_map, transposed_map
from .lattice import Lattice
from .order import morton_order, tap_masks, tile_taps
from .points import read_points
from .prune import prune
from .sparse_tensor import SparseTensor
from .taps import tap_offsets
from .two_way import KernelMap
from .views import kernel_map_view
from .voxels import Voxels, voxelize

__all__ = [
    "Chunk",
    "Chunks",
    "Coordinates",
    "KernelMap",
    "Lattice",
    "SparseTensor",
    "Voxels",
    "cat",
    "collate",
    "dense_index",
    "devoxelize",
    "kernel_map_view",
    "merge_repeated",
    "morton_order",
    "prune",
    "read_points",
    "strided_map",
    "submanifold_map",
    "tap_masks",
    "tap_offsets",
    "tile_taps",
    "transposed_map",
    "voxelize",
]
