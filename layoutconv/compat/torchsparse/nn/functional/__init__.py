"""Functions, as ``torchsparse.nn.functional``."""

from . import conv_config
from .conv3d import conv3d
from .conv_config import (
    ConvMode,
    Dataflow,
    get_conv_mode,
    get_downsample_mode,
    get_kmap_mode,
    set_conv_mode,
    set_downsample_mode,
    set_kmap_mode,
)
from .crop import spcrop
from .devoxelize import calc_ti_weights, spdevoxelize
from .pooled import global_avg_pool, global_max_pool, leaky_relu, relu, silu
from .query import spcount, sphash, sphashquery, spvoxelize

__all__ = [
    "ConvMode",
    "Dataflow",
    "calc_ti_weights",
    "conv3d",
    "conv_config",
    "get_conv_mode",
    "get_downsample_mode",
    "get_kmap_mode",
    "global_avg_pool",
    "global_max_pool",
    "leaky_relu",
    "relu",
    "set_conv_mode",
    "set_downsample_mode",
    "set_kmap_mode",
    "silu",
    "spcount",
    "spcrop",
    "spdevoxelize",
    "sphash",
    "sphashquery",
    "spvoxelize",
]
