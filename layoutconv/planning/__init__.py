"""From a view and a GPU to the kernel that runs it: tile, schedule, legality, cost model.

Pure Python: imports neither torch nor ``cutlass``, and of the package what lies below: ``view`` and
``algebra``.
"""
