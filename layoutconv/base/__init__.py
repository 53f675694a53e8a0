"""Modules below all others: the GPU's state, caches in memory, processes, progress.

They import nothing of the package but ``layoutconv.errors``.
"""
