"""Choice of one launch for all stride phases of a strided dgrad that is too small for several.

``phase_choice.py`` concatenates phases that share what a tile reads. A phase that does not fill the
GPU leaves SMs idle, and where kernels do not run together, each launch waits for the one before.
Here such phases become columns of one view, zeros included: a filter of 3 taps and a stride of 2
then has 4 products for 3 along each mode, on SMs that had none. Kernels that run together (PDL) use
these SMs without the zeros; joined, only groups were faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..conv import ConvProblem, dgrad_views
from ..conv.k_major_filter import k_major_view
from ..planning.machine import starts_early
from ..planning.view_rules import UnsupportedViewError
from ..view.gemm_view import GemmView
from .filter_choice import reads_along_sums
from .packing_choice import Multiplied
from .phase_choice import ONE_WAVE

GAIN = 0.8  # of the time that the model expects of a view per phase, at most


def joined_phases(
    problem: ConvProblem, views: Sequence[GemmView], of: Multiplied | None, *, k_major: bool = False
) -> tuple[int, ...]:
    """Return the spatial modes whose phases to join in place of ``views``; () if that is slower.

    ``k_major``: a filter is copied to K-major for kernels that read along the sum alone.

    >>> from ..planning.machine import MACHINES
    >>> from .packing_choice import multiplied_on
    >>> from .phase_choice import arranged_dgrad
    >>> import torch
    >>> fp16 = multiplied_on(torch.float16, MACHINES["sm_80"])
    >>> small = ConvProblem((1, 14, 14, 512), (512, 3, 3), stride=2, padding=1)
    >>> large = ConvProblem((256, 14, 14, 512), (512, 3, 3), stride=2, padding=1)
    >>> [joined_phases(each, arranged_dgrad(each), fp16) for each in (small, large)]
    [(0, 1), ()]
    """
    if of is None or len(views) < 2 or not _is_small(problem):
        return ()
    modes = _strided(problem)
    if not modes or (starts_early(of.machine.arch) and problem.groups == 1):
        return ()
    along_sums = k_major and reads_along_sums(of.dtype, of.precision, of.machine)

    def time(some: Sequence[GemmView]) -> float:
        return of.expected([k_major_view(v) if along_sums else v for v in some if v.k])

    try:
        joined = dgrad_views(problem, side_by_side=modes, empty=False)
        return modes if time(joined) < GAIN * time(views) else ()
    except UnsupportedViewError:
        return ()


def _is_small(problem: ConvProblem) -> bool:
    """Return whether no stride phase has a tile for every SM."""
    modes = zip(problem.spatial, problem.stride, strict=True)
    return problem.N * problem.C * prod(-(-extent // step) for extent, step in modes) <= ONE_WAVE


def _strided(problem: ConvProblem) -> tuple[int, ...]:
    """Return the spatial modes whose phases may be joined."""
    numbers = zip(problem.stride, problem.dilation, strict=True)
    return tuple(mode for mode, (step, apart) in enumerate(numbers) if step > 1 and apart == 1)
