"""Any numbers of channels, and tensors that start anywhere, through the template."""

from __future__ import annotations

import pytest
import torch

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.view.gemm_view import GemmView

from ..grid_cover import with_deep
from .launcher import (
    KINDS,
    Case,
    Kind,
    check_exact,
    check_kind_runs,
    compiled_view,
    run_case,
    tile_of,
)

COUNTS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 20]
PASSES = ["fprop", "dgrad", "wgrad"]


def view_of(problem: ConvProblem, name: str) -> GemmView:
    if name == "fprop":
        return fprop_view(problem)
    return wgrad_view(problem) if name == "wgrad" else dgrad_views(problem)[-1]


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("C", with_deep(COUNTS, 7, 9, 20))
@pytest.mark.chessboard
def test_channels(C: int, name: str) -> None:
    number = COUNTS.index(C) + 3 * PASSES.index(name)
    K = COUNTS[(4 * number + 1) % len(COUNTS)]
    kind = KINDS[number % len(KINDS)]
    problem = ConvProblem((2, 5, 6, C), (K, 3, 2), stride=(1, 1 + number % 2), padding=(1, (0, 1)))
    ran = check_kind_runs(view_of(problem, name), kind, tile_of(number, kind))
    assert ran.written.any()


# Bytes past a multiple of 16 at which A, B and D start, at least an element.
SHIFTS = [(2, 4, 8), (8, 2, 4), (4, 8, 2)]


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("shift", SHIFTS, ids=str)
@pytest.mark.chessboard
def test_tensors_that_start_anywhere(shift: tuple[int, int, int], name: str) -> None:
    number = SHIFTS.index(shift) + PASSES.index(name)
    kind = KINDS[0] if number % 2 else KINDS[5]
    types = kind.dtype, kind.dtype, kind.out
    shift = tuple(max(s, t.itemsize) for s, t in zip(shift, types, strict=True))
    view = view_of(ConvProblem((2, 5, 6, 16), (32, 3, 3), padding=1), name)
    check_shifted(view, kind, number, shift)


def check_shifted(view: GemmView, kind: Kind, number: int, shift: tuple[int, int, int]) -> None:
    tile = tile_of(number, kind)
    aligned = tuple(s & -s for s in shift)
    options = {"kind": kind.name, "aligned": aligned}
    compiled = compiled_view(view, kind.dtype, tile, kind.arch, kind.out, **options)
    sizes = kind.dtype.itemsize, kind.dtype.itemsize, kind.out.itemsize
    at_once = [v * s for v, s in zip(compiled.spec.vectors, sizes, strict=True)]
    assert all(width <= bytes_ for width, bytes_ in zip(at_once, aligned, strict=True))
    case = Case.of(view, kind.dtype, kind.out)
    check_exact(case, run_case(case, compiled, shift=shift))


def test_odd_channels_that_start_at_any_element() -> None:
    for number, name in enumerate(PASSES):
        view = view_of(ConvProblem((1, 7, 5), (3, 3), stride=2, padding=1), name)
        check_shifted(view, KINDS[number], number, (12, 4, 4))


def test_a_kernel_for_aligned_tensors_faults_on_one_that_is_not() -> None:
    """The machine would notice: what the tests above say is not empty."""
    view = fprop_view(ConvProblem((1, 9, 16), (16, 3), padding=1))
    compiled = compiled_view(view, torch.float16, tile_of(0, KINDS[0]))
    case = Case.of(view, torch.float16)
    with pytest.raises(Exception, match="align"):
        run_case(case, compiled, shift=(8, 0, 0))
