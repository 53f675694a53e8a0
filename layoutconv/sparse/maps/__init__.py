"""Kernel maps: which input row feeds which tap of which output row."""
