"""``ViewCache``: what is derived from a view and kept with it, in the one place where that may be.

A view is a value: its layouts say all of it, and nobody else writes to it. What takes long to find
out of a view that is used again is kept in ``view.kept``, under one of these names:

| name | what it is | by |
| --- | --- | --- |
| ``"expected"`` | what the view expects of its tensors | ``tensors.tensor_checks`` |
| ``"in pairs"`` | the view whose elements are pairs of 4 bits | ``tensors.packed_int4`` |
| ``"k_major"`` | the view over a K-major filter | ``conv.k_major_filter`` |
| ``"unfolded"`` | the view before its lines were folded | ``gpu.folding_choice`` |
| ``"tables"`` | where the CPU reads and writes | ``cpu.view_tables`` |
| ``"plans"`` | kernels chosen and loaded, at most 16 | ``gpu.plan``, ``gpu.reduction_plan`` |
"""

from __future__ import annotations

from typing import Any


class ViewCache(dict[str, Any]):
    """Values by name, of one view: a deep copy of it, or one in another process, has none of them.

    >>> from copy import deepcopy
    >>> from pickle import dumps, loads
    >>> kept = ViewCache(expected=1)
    >>> kept, deepcopy(kept), loads(dumps(kept))
    ({'expected': 1}, {}, {})
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[type[ViewCache], tuple[()]]:
        return ViewCache, ()
