"""Results of empty sums, as of cells of a strided gradient that no window covers: an epilogue's."""

from __future__ import annotations

import torch
from torch import Tensor

from ..tensors.epilogue_in_torch import Finish
from ..view.epilogue import Epilogue

ROWS = 1 << 16  # made at once


def write_empty_sums(out: Tensor, epilogue: Epilogue | None, operand: torch.dtype) -> None:
    """Write the epilogue of empty sums, of products of ``operand`` dtype, to all of a result.

    >>> out = torch.empty(1, 2, 3)
    >>> from .epilogue_args import EpilogueArgs
    >>> ending = EpilogueArgs(torch.tensor([1.0, -1, 0]), activation="relu")
    >>> write_empty_sums(out, ending.epilogue(), out.dtype)
    >>> out
    tensor([[[1., 0., 0.],
             [1., 0., 0.]]])
    """
    out.zero_()
    if epilogue is None:
        return
    finish = Finish(epilogue, operand, out.dtype)
    flat = out.view(-1, out.shape[-1])
    sources = [source.view(flat.shape) for source in finish.sources]
    for rows in range(0, len(flat), ROWS):
        part = slice(rows, rows + ROWS)
        sums = torch.zeros(flat[part].shape, dtype=finish.kind, device=out.device)
        flat[part] = finish(sums, slice(None), [source[part] for source in sources])
