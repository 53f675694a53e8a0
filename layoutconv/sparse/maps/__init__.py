"""Kernel maps: which row of the inputs feeds which tap of which row of the outputs."""
