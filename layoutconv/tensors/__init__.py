"""A view's tensors in torch, for ``cpu`` and ``gpu``: checks, byte-packed types, epilogues."""
