"""Strict readers of point files, one module per format, which all read through ``source``.

``source`` opens a file and reads parts of it, each exactly or with an error. ``columns`` collects
the results of readers, in pieces. ``text`` reads lines of numbers. A reader is a function of a
``Source`` and of ``Wanted``, and returns rows. It checks every number of a header against the
file's size before it allocates, skips or loops by it, so that this size bounds memory and time.

May import ``layoutconv.errors`` and NumPy; ``lazrs`` is imported on demand.
"""
