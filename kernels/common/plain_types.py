"""Lists and tuples of anything, to annotate functions that the CuTe DSL compiles.

The DSL reads annotations: it takes ``tuple[Any, ...]`` for a pair, and ``list[Any]`` changes the
names of kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    AnyList = list[Any]
    AnyTuple = tuple[Any, ...]
else:
    AnyList, AnyTuple = list, tuple
