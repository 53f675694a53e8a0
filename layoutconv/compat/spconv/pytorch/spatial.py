"""``spconv.pytorch.spatial``: one row for each cell."""

from __future__ import annotations

from ....sparse.coords.rows import runs_of
from .core import SparseConvTensor, check_input
from .modules import SparseModule


class RemoveDuplicate(SparseModule):
    """Keep the first row of each cell, in lexicographic order; the result has no kernel maps.

    Layers keep all rows of repeated cells; this module drops the repeats.

    >>> import torch
    >>> cells = torch.tensor([[0, 2], [0, 1], [0, 2]], dtype=torch.int32)
    >>> x = SparseConvTensor(torch.tensor([[1.0], [2.0], [3.0]]), cells, [4], batch_size=1)
    >>> RemoveDuplicate()(x).features.T
    tensor([[2., 1.]])
    """

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        check_input(x, name="x")
        runs = runs_of(x.coordinates.check().keys())
        return x.select_by_index(runs.order[runs.first])
