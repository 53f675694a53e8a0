"""Functions, as ``torchsparse.nn.functional``."""

from .conv3d import conv3d
from .devoxelize import calc_ti_weights, spdevoxelize
from .pooled import global_avg_pool, global_max_pool, leaky_relu, relu, silu
from .query import spcount, sphash, sphashquery, spvoxelize

__all__ = [
    "calc_ti_weights",
    "conv3d",
    "global_avg_pool",
    "global_max_pool",
    "leaky_relu",
    "relu",
    "silu",
    "spcount",
    "spdevoxelize",
    "sphash",
    "sphashquery",
    "spvoxelize",
]
