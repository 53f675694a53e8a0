"""GEMM views on a CPU, by torch."""
