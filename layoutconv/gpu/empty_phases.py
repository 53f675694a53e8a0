"""Choice of who writes the cells of a strided gradient that no tap reaches: kernels, or torch.

A view without taps stores zeros, or what the epilogue makes of them. It has all cells of the modes
behind the one that no tap reaches, so a 1x1 filter of stride 2 has two such views in 2-D. Where
kernels run together, they store beside the products, and nothing is written twice: torch sets the
whole result to zero, and the products wait for that.
"""

from __future__ import annotations

from ..conv import ConvProblem
from ..conv.stride_phases import reached_residues
from ..planning.machine import starts_early
from .filter_choice import reads_along_sums
from .packing_choice import Multiplied

# Views of a pass, at most, before an epilogue, which takes torch several kernels; and views without
# taps beside products.
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

    Too many would be launches of little work:

    >>> sparse = ConvProblem((8, 224, 224, 256), (512, 1, 1), stride=8)
    >>> writes_empty_sums(sparse, fp16[1], ends=False), writes_empty_sums(sparse, ends=True)
    (False, True)
    """
    products, empty = 1, 0
    for mode, cells in enumerate(map(min, problem.stride, problem.spatial)):
        reached = len(reached_residues(problem, mode))
        products, empty = products * reached, empty + products * (cells - reached)
    if ends:
        return products + empty <= FOR_EPILOGUE
    if of is None or not starts_early(of.machine.arch):
        return empty == 0
    words = reads_along_sums(of.dtype, of.precision, of.machine) and not k_major
    return empty <= (0 if words else BESIDE)
