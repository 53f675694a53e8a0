"""Tuning: races between tiles, whose winners are kept.

The cost model, ``planning/cost_model.py``, picks a tile with no trial run. A race measures what the
model can only guess, and its winner is remembered on disk for the GPU, or comes with the package.

- ``choices``: what a choice is known by, where it is kept and found; below the
  executors, which ask.
- ``race``: compile, run and compare; ``lc.tune``; above them, since it runs their plans.
- ``compile``: kernels in several processes, of a race or of what a program is about to call;
  ``lc.precompile``.
- ``problems``: the views of a convolution that is given by its sizes.
"""
