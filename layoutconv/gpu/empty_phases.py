"""Choice of who writes the cells of a strided gradient that no tap reaches: kernels, or torch.

A view without taps stores zeros, or what the epilogue makes of them. It has all cells of the modes
behind the one that no tap reaches, so a 1x1 filter of stride 2 has two such views in 2-D. Where
kernels run together, they store beside the products, and nothing is written twice: torch sets the
whole result to zero, and the products wait for that.
"""

from __future__ import annotations

from ..conv import ConvProblem
from ..conv.gradients import reached_residues
from ..planning.machine import starts_early
from .filter_choice import reads_along_sums
from .packing_choice import Multiplied

# Residues of all modes that no tap reaches, at most: before an epilogue, which takes torch several
# kernels, and beside products.
FOR_EPILOGUE, BESIDE = 64, 4


def writes_empty_sums(
    problem: ConvProblem, of: Multiplied | None = None, *, ends: bool, k_major: bool = False
) -> bool:
    """Return whether views write the cells that no tap reaches.

    ``ends``: an epilogue follows. ``k_major``: the filter is copied to K-major. Products of tf32
    that read it word by word took up to 1.7 times as long beside stores (H200).

    >>> from ..planning.machine import MACHINES
    >>> from .packing_choice import multiplied_on
    >>> import torch
    >>> down = ConvProblem((8, 56, 56, 256), (512, 1, 1), stride=2)
    >>> fp16 = [multiplied_on(torch.float16, MACHINES[arch]) for arch in ("sm_80", "sm_90a")]
    >>> [writes_empty_sums(down, each, ends=False) for each in fp16]
    [False, True]
    """
    cells = map(min, problem.stride, problem.spatial)
    empty = sum(n - len(reached_residues(problem, mode)) for mode, n in enumerate(cells))
    if ends or of is None or not starts_early(of.machine.arch):
        return empty <= (FOR_EPILOGUE if ends else 0)
    words = reads_along_sums(of.dtype, of.precision, of.machine) and not k_major
    return empty <= (0 if words else BESIDE)
