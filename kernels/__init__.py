"""The kernels, written in the CuTe DSL: the only place that imports ``cutlass``.

Installed as ``layoutconv.kernels``. May import ``layoutconv.planning`` and what lies
below it: ``view`` and ``algebra``.
"""

# A checkout on the path shows this folder to whoever asks for the package of that name.
if __name__ == "kernels":
    raise ModuleNotFoundError("No module named 'kernels'", name="kernels")
