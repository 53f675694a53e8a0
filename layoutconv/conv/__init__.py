"""Dense convolutions as GEMM views: the problem, and the layouts that describe its passes.

May import ``layoutconv.algebra`` and ``layoutconv.view``; depends neither on torch nor on GPUs.
"""

from .dense_views import fprop_view, gather_fprop_view
from .depthwise_views import depthwise_dgrad_views, depthwise_fprop_view, depthwise_wgrad_view
from .gradients import dgrad_views, wgrad_view
from .problem import ConvProblem
from .stored_layouts import interleaved, interleaved_filter

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
