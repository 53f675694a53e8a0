"""The interfaces of other sparse-convolution libraries, implemented by this package.

The top layer: it may import every other part of the package, and no other part imports it.
"""
