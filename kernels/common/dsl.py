"""The CuTe DSL's names that kernels use, and stand-ins for them if the DSL is not installed.

Kernels for point clouds define the keys by which a pack finds and launches them in the classes that
the DSL compiles. So these classes can be imported without the DSL; compiling them raises an error.
"""

from __future__ import annotations

from inspect import isclass, isfunction
from typing import Any

__all__ = [
    "Boolean", "Constexpr", "Float32", "Int32", "Int64", "Uint32", "Uint64", "cute", "cutlass",
    "llvm", "make_fake_stream", "make_fake_tensor", "range_constexpr",
]  # fmt: skip


class Absent:
    """Stand-in for a name of a DSL that is not installed, and for all its attributes.

    As a decorator it returns the class or function unchanged, so that modules of kernels can be
    imported. Any other call raises ``ModuleNotFoundError``.

    >>> Absent().cute.jit(len.__class__) is len.__class__
    True
    """

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **options: Any) -> Any:
        if len(args) == 1 and not options and (isfunction(args[0]) or isclass(args[0])):
            return args[0]
        what = "a kernel is compiled by the CuTe DSL, which is not installed"
        raise ModuleNotFoundError(f"{what}: pip install nvidia-cutlass-dsl", name="cutlass")


try:
    import cutlass
    import cutlass.cute as cute
    from cutlass import Boolean, Float32, Int32, Int64, Uint32, Uint64, range_constexpr
    from cutlass._mlir import dialects
    from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

    llvm: Any = dialects.llvm
    Constexpr = cutlass.Constexpr[Any]
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "cutlass":
        raise
    globals().update(dict.fromkeys(__all__, Absent()))
