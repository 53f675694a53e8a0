"""Views, which kernels and CPUs run: ``GemmView`` has three layouts, ``ReductionView`` two.

This package imports only ``algebra``.
"""

from __future__ import annotations

from .epilogue import Activation, Bias, Clamp, Epilogue, Pointwise, Residual, Scale
from .gemm_view import GemmView, Stage, gathers, inside, locate, stages
from .reduction_view import ReductionView, reduction_view

__all__ = [
    "Activation",
    "Bias",
    "Clamp",
    "Epilogue",
    "GemmView",
    "Pointwise",
    "ReductionView",
    "Residual",
    "Scale",
    "Stage",
    "gathers",
    "inside",
    "locate",
    "reduction_view",
    "stages",
]
