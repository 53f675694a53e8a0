"""Tools for developers, which stand beside the package: ``ptx_sim``, the PTX simulator."""
