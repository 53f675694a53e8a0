"""Lists and tuples of anything, as annotations of functions that the CuTe DSL compiles.

It reads annotations: ``tuple[Any, ...]`` would be a tuple of two, and ``list[Any]`` changes the
names of kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    AnyList = list[Any]
    AnyTuple = tuple[Any, ...]
else:
    AnyList, AnyTuple = list, tuple
