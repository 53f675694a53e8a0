"""The names of the CuTe DSL that kernels are written in, and what stands for them without it.

Kernels of clouds say what they are, by which they are found in a pack and launched, in the classes
that are compiled. These can be imported where the DSL is not installed; compiling them says so.
"""

from __future__ import annotations

from inspect import isclass, isfunction
from typing import Any

__all__ = [
    "Boolean", "Constexpr", "Float32", "Int32", "Int64", "Uint32", "Uint64", "cute", "cutlass",
    "make_fake_stream", "make_fake_tensor", "range_constexpr",
]  # fmt: skip


class Absent:
    """A name of a DSL that is not installed, and all that is below it.

    It decorates, since what is decorated may be described. Called for anything else, it raises
    ``ModuleNotFoundError``.

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
    from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

    Constexpr = cutlass.Constexpr[Any]
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "cutlass":
        raise
    globals().update(dict.fromkeys(__all__, Absent()))
