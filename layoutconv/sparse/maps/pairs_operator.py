"""The pairs of a kernel map as an operator, which ``torch.compile`` takes into its graphs whole.

How many there are depends on data, and a graph has shapes that do not: so there are as many chunks
as there could be, those past the last pair empty.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .tap_pairs import Counts, Pairs, counts_of, pairs_of

torch.library.define(
    "layoutconv::map_pairs",
    "(Tensor index, int chunk) -> (Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)


@torch.library.impl("layoutconv::map_pairs", ("cpu", "cuda"))
def _map_pairs(index: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    pairs = pairs_of(index, chunk, Counts(counts_of(index).there))  # as if nobody read the numbers
    return pairs.outputs, pairs.inputs.clone(), pairs.lengths  # of an operator, memory of its own


@torch.library.register_fake("layoutconv::map_pairs")
def _fake_map_pairs(index: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, taps = index.shape
    chunks = taps * ((rows + chunk - 1) // chunk)
    outputs, inputs = (index.new_empty((chunks, chunk)) for _ in range(2))
    return outputs, inputs, index.new_empty(taps, dtype=torch.int64)


def map_pairs(index: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, inputs and lengths, as :class:`~layoutconv.sparse.maps.tap_pairs.Pairs` has them.

    >>> index = torch.tensor([[4, -1], [5, 0], [6, -1]], dtype=torch.int32)
    >>> outputs, inputs, lengths = map_pairs(index, 2)
    >>> outputs.tolist(), inputs.tolist(), lengths.tolist()
    ([[0, 1], [2, -1], [1, -1], [-1, -1]], [[4, 5], [6, -1], [0, -1], [-1, -1]], [2, 1])
    """
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.layoutconv.map_pairs(index, chunk)
    return found


def compiled_or_not(index: Tensor, chunk: int, counts: Counts | None = None) -> Pairs:
    """:func:`~layoutconv.sparse.maps.tap_pairs.pairs_of`, or in ``torch.compile`` the operator."""
    if torch.compiler.is_compiling():
        return Pairs(*map_pairs(index, chunk), chunk)
    return pairs_of(index, chunk, counts)
