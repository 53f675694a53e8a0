"""Strict readers of point files, one file per format, over one guarded way to the bytes.

``source`` opens a file and reads parts of it, each exact or an error. ``columns`` takes what the
readers find, in pieces. ``text`` reads lines of numbers. A reader is a function of a ``Source`` and
of what is ``Wanted``, and returns rows. It checks every number of a header against the size of the
file before it allocates, skips or loops by it, so that memory and time are bounded by that size.

May import ``layoutconv.errors`` and NumPy; ``lazrs`` is imported where it is used.
"""
