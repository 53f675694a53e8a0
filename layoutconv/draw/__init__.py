"""Pictures of layouts, tensors and point clouds, written with the standard library alone.

May import ``layoutconv.algebra``; nothing else imports this folder but the command line and the
examples.
"""
