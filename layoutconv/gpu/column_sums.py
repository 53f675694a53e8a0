"""Launch column sums (``kernels/pointwise/column_sums.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..base.caches import remembered
from ..base.dry_hooks import dry_hooks
from ..base.memory import maker
from ..planning.norm_schedule import BYTES, PARTS, NormShape, columns_per_load, schedule
from . import machines

if TYPE_CHECKING:
    from torch import Tensor

    from ..kernels.maps.per_rank import Chain

TYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})
LARGE = 1 << 23  # bytes; above, a matrix is split into ...
MANY_PARTS = 512  # ... this many parts: more loads in flight, though parts take longer to merge


def takes(x: Tensor, dtype: torch.dtype) -> bool:
    """Return whether kernels can compute the column sums of ``x`` in ``dtype``: a contiguous,
    aligned matrix of 16- or 32-bit floats with 1 to 2^31 - 1 rows.
    """
    return (
        x.dtype in TYPES
        and dtype in TYPES
        and x.dim() == 2
        and 0 < x.shape[0] < 1 << 31
        and x.shape[1] > 0
        and x.is_contiguous()
        and not x.data_ptr() & (BYTES - 1)
    )


def column_sums(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum of each column of ``x`` (rows, C), on a GPU: (C,) of ``dtype``, summed in fp32
    and rounded once. :func:`takes` must accept ``x``.
    """
    rows, C = x.shape
    early = x.is_cuda and machines.starts_early(x.get_device())
    per_rank, chain, vector = _kernels_of(x.dtype, dtype, C, early)
    cut = schedule(rows, C, vector, MANY_PARTS if x.nbytes > LARGE else PARTS)
    make = maker(x.device)
    size = cut.parts * C
    words = make((1, size), (size, 1), torch.int32)  # the first tensor that launches expect
    # A dry run writes nothing.
    out = make((C,), (1,), dtype) if dry_hooks.load is None else x.new_zeros(C, dtype=dtype)
    addresses = x.data_ptr(), words.data_ptr(), out.data_ptr()
    per_rank.launch(chain, (words, x, out), addresses, tuple(cut))
    return out


@remembered(128)
def _kernels_of(
    dtype: torch.dtype, out_dtype: torch.dtype, C: int, early: bool
) -> tuple[Any, Chain, int]:
    """Return the launching module, the kernels of a kind of columns, and the columns per thread."""
    from ..kernels.maps import per_rank
    from ..kernels.pointwise.column_sums import column_sums as chain_of

    name, out = (str(kind).removeprefix("torch.") for kind in (dtype, out_dtype))
    vector = columns_per_load(C, dtype.itemsize)
    return per_rank, chain_of(NormShape(name, vector, out, early=early)), vector
