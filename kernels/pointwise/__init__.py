"""Kernels without tensor cores: reductions, depthwise convolution, pooling, sums of parts."""
