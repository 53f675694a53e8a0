"""Explain the choice of a kernel: expected times of tiles, and reasons why some are illegal.

Needs no GPU: an architecture selects one of ``MACHINES``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import torch

from ..errors import check_choice
from ..planning.cost_model import Problem, expected_time, ranked
from ..planning.group_sums import GroupSumTile
from ..planning.group_tile import GroupTile
from ..planning.kernel_spec import ASYNC_BYTES, BYTES, KernelSpec
from ..planning.machine import MACHINES, Machine
from ..planning.tile import TileConfig
from ..planning.tma_im2col import im2col_of_a, im2col_of_b
from ..planning.tma_tiled import memory_of_b
from ..planning.view_rules import UnsupportedViewError
from ..view.epilogue import Epilogue
from ..view.gemm_view import GemmView
from .select import KernelChoice, choose_kernel


@dataclass(frozen=True)
class Candidate:
    """A tile and a number of split-K slices.

    ``microseconds`` is the time that the cost model expects; ``refused`` says why the tile is
    illegal, and is empty if it is legal.
    """

    tile: TileConfig
    splits: int
    microseconds: float
    refused: str = ""


@dataclass(frozen=True)
class Explanation:
    """The kernel of a view on a machine, and its alternatives.

    Attributes:
        view: the view that the kernel runs.
        spec: of the kernel.
        splits: the number of split-K slices.
        problem, machine: the inputs of the cost model.
        candidates: ranked by the cost model, fastest first.
        measured: whether the choice was measured rather than predicted.
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
    """Return the kernel that runs a view on an architecture, and at most ``most`` candidates.

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

    def chosen(tile: TileConfig | None = None, splits: int | None = None) -> KernelChoice:
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


def loaded_by(view: GemmView, spec: KernelSpec) -> tuple[str, str]:
    """Return the instructions that load A and B, in words: "TMA im2col", "TMA tiled", "cp.async",
    or "loads of threads", which need registers.

    >>> from layoutconv.conv import ConvProblem, fprop_view
    >>> view = fprop_view(ConvProblem((8, 64, 64, 64), (64, 3, 3), padding=1))
    >>> for arch in "sm_90a", "sm_80":
    ...     found = explain(view, torch.float16, arch)
    ...     loaded_by(found.view, found.spec)
    ('TMA im2col', 'TMA tiled')
    ('cp.async', 'cp.async')
    """
    a, b = (
        "cp.async" if vector * BYTES[spec.dtype] >= ASYNC_BYTES else "loads of threads"
        for vector in spec.vectors[:2]
    )
    if isinstance(spec.tile, GroupTile | GroupSumTile):
        return a, b
    if im2col_of_a(view, spec) is not None:
        a = "TMA im2col"
    if memory_of_b(view, spec) is not None:
        b = "TMA tiled"
    elif im2col_of_b(view, spec) is not None:
        b = "TMA im2col"
    return a, b
