"""The interfaces of libraries that people already use, over this package's functions.

The top floor: may import every room of the package, and no room imports it.
"""
