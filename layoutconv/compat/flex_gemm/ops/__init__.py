"""Operations, as ``flex_gemm.ops``."""

from . import grid_sample, spconv

__all__ = ["grid_sample", "spconv"]
