"""Networks as files that are served: exported programs with their weights and kernels."""
