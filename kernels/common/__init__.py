"""Pieces of every kernel: runtime integers, loop nests, programmatic dependent launch."""
