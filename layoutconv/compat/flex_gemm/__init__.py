"""The interface of FlexGEMM: the sparse convolutions and the sampling that TRELLIS.2 calls.

``import layoutconv.compat.flex_gemm as flex_gemm``, or call :func:`install` to leave the program's
files unchanged. It runs on a CPU, too.

>>> import layoutconv.compat.flex_gemm as flex_gemm
>>> flex_gemm.ops.spconv.Algorithm.IMPLICIT_GEMM
'implicit_gemm'
"""

from __future__ import annotations

from ..installing import Installed, install_as
from . import ops

__all__ = ["install", "ops"]

_ABSENT = {
    "kernels": "layoutconv compiles kernels of its own, which layers choose themselves",
    "utils": "tiles are chosen by a model: there is nothing to tune, and no cache of that",
    "ops.serialize": "lc.sparse.morton_order orders rows along a curve",
}


def install() -> Installed:
    """Let ``import flex_gemm``, and imports of its modules, find those of layoutconv.

    As :func:`layoutconv.compat.spconv.install`.

    >>> with install():
    ...     from flex_gemm.ops.grid_sample import grid_sample_3d
    >>> grid_sample_3d.__module__
    'layoutconv.compat.flex_gemm.ops.grid_sample'
    """
    return install_as("flex_gemm", __name__, _ABSENT)
