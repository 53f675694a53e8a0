"""Point clouds: readers, voxels, kernel maps, and the GEMM views that gather through them.

May import ``layoutconv.algebra``, ``layoutconv.view`` and the arguments of convolutions from
``layoutconv.conv.problem``; torch is imported where it is used, and ``layoutconv.kernels`` for maps
that are made on a GPU.
"""

from .coords.coordinates import Coordinates
from .coords.grid_index import dense_index
from .coords.interpolation import devoxelize
from .coords.join import cat, collate, merge_repeated
from .coords.lattice import Lattice
from .coords.points import read_points
from .coords.prune import prune
from .coords.sparse_tensor import SparseTensor
from .coords.voxels import Voxels, voxelize
from .maps.kernel_map import strided_map, submanifold_map, transposed_map
from .maps.row_orders import morton_order, tap_masks, tile_taps
from .maps.taps import tap_offsets
from .maps.two_way import KernelMap
from .stream.chunks import Chunk, Chunks
from .views import kernel_map_view

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
