"""Kernels of point clouds: hash tables, kernel maps, sorting, output coordinates."""
