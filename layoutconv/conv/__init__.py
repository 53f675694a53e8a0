"""Dense convolutions as GEMM views: the problem, and the layouts that describe its passes.

May import ``layoutconv.algebra``, ``layoutconv.gemm_view`` and what is beside it; knows nothing of
torch or of GPUs.
"""

from .problem import ConvProblem
from .views import fprop_view, gather_fprop_view

__all__ = ["ConvProblem", "fprop_view", "gather_fprop_view"]
