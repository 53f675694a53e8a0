"""Point clouds: readers, voxels, kernel maps, and the GEMM views that gather through them.

May import ``layoutconv.algebra``, ``layoutconv.view`` and the arguments of convolutions from
``layoutconv.conv.problem``; ``layoutconv.kernels`` is imported where it is used, for maps
that are made on a GPU.
"""

from .coords import safe_loading
from .coords.broadcast import broadcast
from .coords.coordinates import Coordinates
from .coords.grid_index import dense_index
from .coords.interpolation import devoxelize
from .coords.join import cat, collate, merge_repeated
from .coords.labelled.nuscenes import NuScenes
from .coords.labelled.recognise import labelled_clouds
from .coords.labelled.scannet import ScanNet
from .coords.labelled.scans import LabelledCloud, LabelledClouds
from .coords.labelled.semantic_kitti import SemanticKitti
from .coords.lattice import Lattice
from .coords.lookup import lookup
from .coords.neighbours import Neighbours, knn_search, radius_search
from .coords.points import read_points
from .coords.prune import prune
from .coords.sparse_tensor import SparseTensor
from .coords.splatting import splat
from .coords.voxels import Voxels, voxelize
from .maps.downsample import downsample
from .maps.kernel_map import strided_map, submanifold_map, transposed_map
from .maps.levels import build_maps
from .maps.row_orders import morton_order, tap_masks, tile_taps
from .maps.taps import tap_offsets
from .maps.two_way import KernelMap
from .stream.chunks import Chunk, Chunks
from .views import kernel_map_view

safe_loading.register()

__all__ = [
    "Chunk",
    "Chunks",
    "Coordinates",
    "KernelMap",
    "LabelledCloud",
    "LabelledClouds",
    "Lattice",
    "Neighbours",
    "NuScenes",
    "ScanNet",
    "SemanticKitti",
    "SparseTensor",
    "Voxels",
    "broadcast",
    "build_maps",
    "cat",
    "collate",
    "dense_index",
    "devoxelize",
    "downsample",
    "kernel_map_view",
    "knn_search",
    "labelled_clouds",
    "lookup",
    "merge_repeated",
    "morton_order",
    "prune",
    "radius_search",
    "read_points",
    "splat",
    "strided_map",
    "submanifold_map",
    "tap_masks",
    "tap_offsets",
    "tile_taps",
    "transposed_map",
    "voxelize",
]
