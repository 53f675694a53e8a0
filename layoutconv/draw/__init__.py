"""Pictures: of layouts with the standard library alone, of point clouds with NumPy beside it.

May import ``layoutconv.algebra`` and ``layoutconv.errors``; nothing else imports this folder but
the command line and the examples.
"""
