"""GEMM views on a GPU: select a kernel, bind it to a view, launch it."""
