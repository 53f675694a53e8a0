"""Dense convolutions as GEMM views: the problem, and the layouts that describe its passes.

May import ``layoutconv.algebra``, ``layoutconv.gemm_view`` and what is beside it; knows nothing of
torch or of GPUs.
"""

from .depthwise import depthwise_dgrad_views, depthwise_fprop_view, depthwise_wgrad_view
from .gradients import dgrad_views, wgrad_view
from .memory import interleaved, interleaved_filter
from .problem import ConvProblem
from .views import fprop_view, gather_fprop_view

__all__ = [
    "ConvProblem",
    "depthwise_dgrad_views",
    "depthwise_fprop_view",
    "depthwise_wgrad_view",
    "dgrad_views",
    "fprop_view",
    "gather_fprop_view",
    "interleaved",
    "interleaved_filter",
    "wgrad_view",
]
