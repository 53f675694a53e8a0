"""Layout algebra, and the dense and sparse convolutions that it describes.

``import layoutconv`` loads the pure-Python algebra alone; what needs torch or the CuTe DSL is
imported when it is first asked for.
"""

__version__ = "0.1.0"
