"""``ViewCache``: values derived from a view and kept with it, the only place where that is allowed.

A view is a value: its layouts determine it, and nothing else writes to it. Values that take long to
derive, and are used again, are kept in ``view.kept``, under one of these names:

| name | what it is | by |
| --- | --- | --- |
| ``"expected"`` | the tensors it takes | ``tensors.expected_tensors``, ``tensors.tensor_checks`` |
| ``"in pairs"`` | the view whose elements are pairs of 4 bits | ``tensors.packed_int4`` |
| ``"k_major"`` | the view over a K-major filter | ``conv.k_major_filter`` |
| ``"unfolded"`` | the view before its lines were folded | ``gpu.folding_choice`` |
| ``"tables"`` | the addresses that the CPU reads and writes | ``cpu.view_tables`` |
| ``"plans"`` | kernels chosen and loaded, at most 16 | ``gpu.plan``, ``gpu.reduction_plan`` |
"""

from __future__ import annotations

from typing import Any


class ViewCache(dict[str, Any]):
    """Values of one view, by name; copies, in this process or another, have none of them.

    >>> from copy import deepcopy
    >>> from pickle import dumps, loads
    >>> kept = ViewCache(expected=1)
    >>> kept, deepcopy(kept), loads(dumps(kept))
    ({'expected': 1}, {}, {})
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[type[ViewCache], tuple[()]]:
        return ViewCache, ()
