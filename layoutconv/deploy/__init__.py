"""Deployment: a network in one file, an exported program with its weights and kernels."""
