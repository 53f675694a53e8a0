"""More than one GPU, on ``torch.distributed``: a volume split over ranks; data-parallel training.

A top floor: may import every room but ``compat``. Processes, groups and backends (NCCL, gloo) are
torch's; here is what convolutions add to them.
"""

from .data_parallel import mean_over_ranks
from .functional import conv1d, conv2d, conv3d, exchange_halo
from .modules import Conv1d, Conv2d, Conv3d
from .slab import Slab

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Slab",
    "conv1d",
    "conv2d",
    "conv3d",
    "exchange_halo",
    "mean_over_ranks",
]
