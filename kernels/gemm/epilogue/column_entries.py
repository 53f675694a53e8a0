"""Map columns of D to entries of a per-column tensor (a bias): one more layout of the view."""

from __future__ import annotations

from typing import Any

from layoutconv.algebra.int_tuple import crd2idx, map_leaves
from layoutconv.view.gemm_view import GemmView

from ...common.runtime_integers import Extent


class ColumnEntries:
    """Maps a column to its entry: by the view's ``columns`` layout, or to the column's own number.

    Stride phases concatenated along N share one bias: a stride of 0. Extents are constants, so that
    a column takes at most one division by a constant.
    """

    def __init__(self, view: GemmView, group: Any) -> None:
        self.layout = view.columns
        if self.layout is None:
            self.first = group * view.n
        else:
            self.first = self._mode(1, group) if len(self.layout.shape) > 1 else 0

    def __call__(self, column: Any) -> Any:
        return self.first + (column if self.layout is None else self._mode(0, column))

    def _mode(self, mode: int, at: Any) -> Any:
        assert self.layout is not None
        shape, stride = self.layout.shape[mode], self.layout.stride[mode]
        extents = map_leaves(lambda extent: Extent(int(extent)), shape)
        return crd2idx(at, extents, map_leaves(int, stride))
