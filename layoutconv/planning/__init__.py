"""From a view and a GPU to the kernel that runs it: tile, schedule, legality, cost model.

Pure Python: imports neither torch nor ``cutlass``, and from the package only the layers below it,
such as ``view`` and ``algebra``.
"""
