"""Blocks of networks, as ``MinkowskiEngine.modules``."""
