"""The kernels, written in the CuTe DSL: the only place that imports ``cutlass``.

Installed as ``layoutconv.kernels``. May import ``layoutconv.planning`` and what lies
below it: ``view`` and ``algebra``.
"""

# A checkout on the path shows this folder to whoever asks for the package of that name: they get
# that package from further down the path, or a folder without code, which has no file (PEP 420).
# An error instead would end `import transformers`, which imports what it finds to see its version.
if __name__ == "kernels":
    import sys
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    from pathlib import Path

    _places = [place for place in sys.path if not Path(place, "kernels", "gemm").is_dir()]
    _spec = PathFinder.find_spec("kernels", _places)
    if _spec is not None and _spec.loader is not None:
        sys.modules["kernels"] = module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules["kernels"])
    else:
        del __file__
