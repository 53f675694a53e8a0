"""Shared parts of kernels: runtime integers, loop nests, programmatic dependent launch."""
