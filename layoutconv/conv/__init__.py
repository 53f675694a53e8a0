"""Dense convolutions as GEMM views: the problem, and the layouts that describe its passes.

May import ``layoutconv.algebra``, ``layoutconv.gemm_view`` and what is beside it; knows nothing of
torch or of GPUs.
"""

from .gradients import dgrad_views, wgrad_view
from .problem import ConvProblem
from .views import fprop_view, gather_fprop_view

__all__ = ["ConvProblem", "dgrad_views", "fprop_view", "gather_fprop_view", "wgrad_view"]
