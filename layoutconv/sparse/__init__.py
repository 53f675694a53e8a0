"""Point clouds: readers, voxels, kernel maps, and the GEMM views that gather through them.

May import ``layoutconv.algebra`` and ``layoutconv.gemm_view``; torch is imported where it is used.
"""

from .views import kernel_map_view

__all__ = ["kernel_map_view"]
