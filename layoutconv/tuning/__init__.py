"""Tuning: races between tiles, whose winners are kept on disk.

The cost model, ``planning/cost_model.py``, picks a tile without a trial run. A race measures what
the model can only guess; its winner is kept on disk for the GPU, or ships with the package.

- ``gpu/measured_choices``: keys of choices, and where they are kept; below the executors, which
  look choices up.
- ``race``: compile, run and compare, ``lc.tune``; above the executors, whose plans it runs.
- ``precompile``: compile the kernels of a race, or of a coming call, in several processes;
  ``lc.precompile``.
- ``tuned_problems``: the views of a convolution given by its sizes.
"""
