"""Explain the choice of a kernel: expected times of tiles, and reasons why some are illegal.

No GPU is needed: a machine is one of ``MACHINES``, by its architecture.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import torch

from ..errors import check_choice
from ..planning.cost_model import Problem, expected_time, ranked
from ..planning.kernel_spec import KernelSpec
from ..planning.machine import MACHINES, Machine
from ..planning.tile import TileConfig
from ..planning.view_rules import UnsupportedViewError
from ..view.epilogue import Epilogue
from ..view.gemm_view import GemmView
from .select import Choice, choose_kernel


@dataclass(frozen=True)
class Candidate:
    """A tile, into how many parts it cuts a sum, and why no kernel has it; empty if one does.

    ``microseconds`` are what the cost model expects.
    """

    tile: TileConfig
    splits: int
    microseconds: float
    refused: str = ""


@dataclass(frozen=True)
class Explanation:
    """The kernel of a view on a machine, and what else there was.

    Attributes:
        view: as the kernel gets it.
        spec: of the kernel.
        splits: how many parts of a sum are computed apart.
        problem, machine: what decided.
        candidates: what the cost model ranks, the fastest expected first.
        measured: whether the choice was measured rather than expected.
    """

    view: GemmView
    spec: KernelSpec
    splits: int
    problem: Problem
    machine: Machine
    candidates: tuple[Candidate, ...]
    measured: bool


def explain(
    view: GemmView,
    dtype: torch.dtype,
    arch: str = "sm_90a",
    out_dtype: torch.dtype | None = None,
    *,
    precision: str = "tf32",
    epilogue: Epilogue | None = None,
    most: int = 8,
) -> Explanation:
    """The kernel that runs a view on a GPU of an architecture, and ``most`` candidates for it.

    Raises :class:`~layoutconv.errors.ArgumentError` for an architecture that the cost model does
    not know, ``UnsupportedViewError`` for a view that the template cannot run.

    >>> from layoutconv.conv import ConvProblem, fprop_view
    >>> view = fprop_view(ConvProblem((8, 64, 64, 64), (64, 3, 3), padding=1))
    >>> found = explain(view, torch.float16, "sm_80")
    >>> print(found.spec.tile)
    128x64x64, 2x2 warps, 3 stages, multistage
    >>> found.candidates[0].tile == found.spec.tile, found.candidates[0].refused
    (True, '')
    """
    check_choice("arch", arch, MACHINES)
    machine, structure = MACHINES[arch], "" if epilogue is None else epilogue.structure

    def chosen(tile: TileConfig | None = None, splits: int | None = None) -> Choice:
        return choose_kernel(
            view, dtype, machine, out_dtype, precision=precision, structure=structure, tile=tile,
            splits=splits,
        )  # fmt: skip

    choice = chosen()
    candidates = []
    for tile, splits in islice(ranked(choice.problem, machine), most):
        refused = ""
        try:
            chosen(tile, splits)
        except UnsupportedViewError as error:
            refused = str(error).partition("expected ")[2]
        expected = expected_time(choice.problem, tile, splits, machine)
        candidates.append(Candidate(tile, splits, expected, refused))
    first = next((c for c in candidates if not c.refused), None)
    measured = first is None or (first.tile, first.splits) != (choice.spec.tile, choice.splits)
    return Explanation(
        choice.view,
        choice.spec,
        choice.splits,
        choice.problem,
        machine,
        tuple(candidates),
        measured,
    )
