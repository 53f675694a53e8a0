"""More than one GPU, on ``torch.distributed``: volumes and clouds split over ranks; training.

A top layer: it may import every package but ``compat``. Processes, groups and backends (NCCL, gloo)
are torch's; this package adds convolutions. Every call begins with an ``Agreement``: if ranks
disagree, all of them raise the same error, and none hangs. Only ``SyncBatchNorm`` does without, as
it is in every layer.
"""

from .cloud import Cloud, partition, restore
from .data_parallel import mean_over_ranks
from .functional import conv1d, conv2d, conv3d, exchange_halo
from .modules import Conv1d, Conv2d, Conv3d
from .slab import Slab
from .sparse import SubmConv1d, SubmConv2d, SubmConv3d, SubmConv4d, subm_conv
from .sync_norm import SyncBatchNorm

__all__ = [
    "Cloud",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Slab",
    "SubmConv1d",
    "SubmConv2d",
    "SubmConv3d",
    "SubmConv4d",
    "SyncBatchNorm",
    "conv1d",
    "conv2d",
    "conv3d",
    "exchange_halo",
    "mean_over_ranks",
    "partition",
    "restore",
    "subm_conv",
]
