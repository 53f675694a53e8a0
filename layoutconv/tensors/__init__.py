"""Tensors of views in torch, for ``cpu`` and ``gpu``: checks, types of bytes, epilogues."""
