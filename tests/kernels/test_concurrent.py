"""Concurrent kernels: stride phases that start beside the phase before, and end after it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from layoutconv.conv import ConvProblem, dgrad_views
from layoutconv.gpu.phase_choice import concurrent
from layoutconv.gpu.select import choose_kernel
from layoutconv.planning.machine import MACHINES
from layoutconv.view.gemm_view import GemmView

from .launcher import Case, Compiled, check_exact, compile_spec, run_case

H200 = MACHINES["sm_90a"]
STRIDED = ConvProblem((2, 9, 10, 64), (32, 3, 3), stride=2, padding=1)
PROBLEMS = {
    "fp16": (STRIDED, torch.float16),
    "tf32": (STRIDED, torch.float32),
    "no taps": (ConvProblem((2, 9, 64), (32, 1), stride=2), torch.float16),
    "groups": (replace(STRIDED, filter=(64, 3, 3), groups=8), torch.float16),
}
WAIT = re.compile(r"@p griddepcontrol\.wait")


def compiled(view: GemmView, dtype: torch.dtype) -> Compiled:
    chosen = choose_kernel(view, dtype, H200, splits=1)
    return compile_spec(chosen.view, replace(chosen.spec, concurrent=True))


@pytest.mark.parametrize("name", PROBLEMS)
def test_each_place_writes_its_phase(name: str) -> None:
    """Results are exact at every place, and only the place tells the launches apart."""
    problem, dtype = PROBLEMS[name]
    views = concurrent(dgrad_views(problem))
    assert [view.place for view in views] == list(range(len(views)))
    for view in views:
        kernel = compiled(view, dtype)
        case = Case.of(view, dtype)
        check_exact(case, run_case(case, kernel, place=view.place))


def test_the_kernel_waits_at_one_end_or_the_other() -> None:
    """It lets the next one start at once, and waits first, or last, as its place says."""
    source = compiled(concurrent(dgrad_views(STRIDED))[0], torch.float16).ptx
    begin, end = (found.start() for found in WAIT.finditer(source))
    start = source.index("griddepcontrol.launch_dependents")
    assert begin < start < end
