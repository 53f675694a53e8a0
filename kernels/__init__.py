"""The kernels, written in the CuTe DSL: the only place that imports ``cutlass``.

Installed as ``layoutconv.kernels``. May import ``layoutconv.algebra`` and ``layoutconv.gemm_view``.
"""
