"""Batches, quantization and initialization, as ``MinkowskiEngine.utils``."""

from .collation import SparseCollation, batch_sparse_collate, batched_coordinates, sparse_collate
from .init import kaiming_normal_
from .quantization import sparse_quantize, unique_coordinate_map

__all__ = [
    "SparseCollation",
    "batch_sparse_collate",
    "batched_coordinates",
    "kaiming_normal_",
    "sparse_collate",
    "sparse_quantize",
    "unique_coordinate_map",
]
