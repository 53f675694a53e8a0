"""Pieces below every room: the GPU's state, memory of results, processes, progress.

Imports nothing of the package but ``layoutconv.errors``.
"""
