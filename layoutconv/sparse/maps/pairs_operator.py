"""The pairs of a kernel map as an operator, which ``torch.compile`` takes into its graphs whole.

The number of pairs depends on data, but the shapes of a graph must not: so there are as many chunks
as possible pairs need, and those past the last pair are empty. One tap has a chunk more: torch asks
of every tensor in a graph if a mode is 1, and a graph whose chunks may be 1 serves few rows alone.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from .tap_pairs import Counts, Pairs, counts_of, pairs_of

torch.library.define(
    "layoutconv::map_pairs",
    "(Tensor index, int chunk) -> (Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)


@torch.library.impl("layoutconv::map_pairs", ("cpu", "cuda"))
def _map_pairs(index: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    pairs = pairs_of(index, chunk, Counts(counts_of(index).there))  # unread by the host
    if index.shape[1] == 1:
        both = pairs.outputs, pairs.inputs
        outputs, inputs = (pad(rows, (0, 0, 0, 1), value=-1) for rows in both)
        return outputs, inputs, pairs.lengths
    return pairs.outputs, pairs.inputs.clone(), pairs.lengths  # operators need memory of their own


@torch.library.register_fake("layoutconv::map_pairs")
def _fake_map_pairs(index: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, taps = index.shape
    chunks = taps * ((rows + chunk - 1) // chunk) + (1 if taps == 1 else 0)  # no number of a bool
    outputs, inputs = (index.new_empty((chunks, chunk)) for _ in range(2))
    return outputs, inputs, index.new_empty(taps, dtype=torch.int64)


def map_pairs(index: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, inputs and lengths as in :class:`~layoutconv.sparse.maps.tap_pairs.Pairs`.

    >>> index = torch.tensor([[4, -1], [5, 0], [6, -1]], dtype=torch.int32)
    >>> outputs, inputs, lengths = map_pairs(index, 2)
    >>> outputs.tolist(), inputs.tolist(), lengths.tolist()
    ([[0, 1], [2, -1], [1, -1], [-1, -1]], [[4, 5], [6, -1], [0, -1], [-1, -1]], [2, 1])
    """
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.layoutconv.map_pairs(index, chunk)
    return found


def compiled_or_not(index: Tensor, chunk: int, counts: Counts | None = None) -> Pairs:
    """Call :func:`~layoutconv.sparse.maps.tap_pairs.pairs_of`, or its operator when compiling."""
    if torch.compiler.is_compiling():
        return Pairs(*map_pairs(index, chunk), chunk)
    return pairs_of(index, chunk, counts)
