"""Dense convolutions as GEMM views: the problem, and the layouts that describe its passes.

May import ``layoutconv.algebra`` and ``layoutconv.gemm_view``; knows nothing of torch or of GPUs.
"""
