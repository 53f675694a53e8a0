"""The epilogue of complete sums on a CPU, some rows at a time, so that they stay in caches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..tensors.epilogue_in_torch import Finish

_ROWS = 1 << 13  # rows of sums that are finished at once: their temporaries stay in a cache


def finish_rows(finish: Finish, values: Tensor, target: Tensor, sources: Sequence[Tensor]) -> None:
    """Apply the epilogue to sums ``values`` (rows, K), into ``target``, which may be their memory.

    Residuals read from ``sources`` (rows, K).

    >>> sums = torch.tensor([[1.4], [2.5]])
    >>> out = torch.empty(2, 1, dtype=torch.int8)
    >>> finish_rows(Finish(None, torch.float32, torch.int8), sums, out, [])
    >>> out.T
    tensor([[1, 2]], dtype=torch.int8)
    """
    for first in range(0, len(values), _ROWS):
        part = slice(first, first + _ROWS)
        rows = None
        if finish.counts_rows:
            rows = torch.arange(first, min(first + _ROWS, len(values)))
        own = [source[part] for source in sources]
        target[part] = finish(values[part], slice(None), own, rows=rows)
