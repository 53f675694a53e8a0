"""Executors of GEMM views: torch on the CPU, the kernel template on a GPU.

May import every room below it (``conv``, ``sparse``, ``kernels``, ``gemm_view``, ``algebra``).
"""
