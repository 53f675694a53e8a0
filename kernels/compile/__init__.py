"""Compile a kernel, keep it on disk, load it."""
