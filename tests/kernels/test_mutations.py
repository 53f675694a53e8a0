"""Every guard of the template is needed, and the tests would notice: each, removed, is caught.

A mutation changes the template while it is traced. The mutated kernel must break a rule of the
machine or give another result on a problem that the template itself gets right.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import cutlass.cute as cute
import pytest
import torch
from cutlass import Boolean, Int32
from layoutconv.kernels import operand
from layoutconv.kernels.mainloop_sm80 import MainloopSm80, Producer
from layoutconv.kernels.operand import Column, Operand
from layoutconv.kernels.shared import SharedTile
from layoutconv.kernels.tile import Tile

from layoutconv.conv import ConvProblem, fprop_view, gather_fprop_view
from layoutconv.gemm_view import GemmView
from layoutconv.sparse import kernel_map_view

from ..machine import Fault
from .launcher import Case, Compiled, check_exact, compile_view, compiled_view, half_line, run_case

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch], None]


# -- problems: each has what some guards are for --------------------------------------------------


def dense() -> GemmView:
    """Padding, rows and columns that no tile divides, two k-tiles in every tap."""
    return fprop_view(ConvProblem((1, 7, 11, 64), (40, 2, 3), padding=1))


def straddling() -> GemmView:
    """K-tiles that lie in several taps, and a last one that is not full."""
    return fprop_view(ConvProblem((1, 7, 11, 24), (40, 2, 3), padding=1))


def long_filter() -> GemmView:
    """More taps than a mask has bits: coordinates are compared."""
    return fprop_view(ConvProblem((1, 75, 16), (8, 70), padding=5))


def large_filter() -> GemmView:
    """More taps than a mask has bits, but not more values of their digits."""
    return fprop_view(ConvProblem((1, 4, 7, 16), (8, 7, 10), padding=5))


def grid() -> GemmView:
    """Gathered and scattered through indices with absent entries, of rows in another order."""
    cells = torch.randperm(77, generator=torch.Generator().manual_seed(0)).int()
    cells[::5] = -1
    return gather_fprop_view(
        ConvProblem((1, 7, 11, 64), (40, 2, 3), padding=((0, 1), 1)), cells, cells, out_rows=77
    )


def neighbours() -> GemmView:
    """A kernel map with absent entries, and with rows that do not exist."""
    generator = torch.Generator().manual_seed(0)
    entries = torch.randint(-30, 99, (77, 3), generator=generator, dtype=torch.int32)
    return kernel_map_view(entries.T.contiguous().T, 64, 40, kernel_size=(3,), in_rows=77)


PROBLEMS = {p.__name__: p for p in (dense, straddling, large_filter, long_filter, grid, neighbours)}
ABOVE_A_TIE = 1 + 2**-11 + 2**-13  # tf32 nearest to it is ROUNDED; truncated, it is 1
ROUNDED = 1 + 2**-10


def compile_problem(compile_: Any, problem: str, dtype: torch.dtype) -> Compiled:
    return compile_(PROBLEMS[problem](), dtype, Tile(64, 64, half_line(dtype), 2, 2, 3))


def check(problem: str, dtype: torch.dtype, compiled: Compiled) -> None:
    """Raises where a kernel is wrong."""
    case = Case.of(PROBLEMS[problem](), dtype)
    if dtype == torch.float32:
        powers = case.a.sign() * 2.0 ** case.a.abs()
        case.a = powers * ABOVE_A_TIE
        ran = run_case(case, compiled)
        case.a = powers * ROUNDED
    else:
        ran = run_case(case, compiled)
    check_exact(case, ran)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_template_is_right(problem: str) -> None:
    check(problem, torch.float16, compile_problem(compiled_view, problem, torch.float16))


def test_the_template_rounds() -> None:
    check("dense", torch.float32, compile_problem(compiled_view, "dense", torch.float32))


# -- ways to change the template ------------------------------------------------------------------


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> Mutation:
    """Put ``make(original)`` in the place of ``owner.name``."""
    return lambda patch: patch.setattr(owner, name, make(getattr(owner, name)))


def without_call(owner: Any, name: str, number: int) -> Mutation:
    """Leave out one call of a function, by its number in the order of the program."""

    def make(original: Any) -> Any:
        calls = count()
        return lambda *args: None if next(calls) == number else original(*args)

    return replace(owner, name, make)


def with_operand(name: str, **attributes: Any) -> Mutation:
    """Give an operand, "A", "B" or "D", other attributes right after it is made."""

    def make(original: Any) -> Any:
        names = iter("ABD")

        def init(self: Operand, *args: Any) -> None:
            original(self, *args)
            if next(names) == name:
                vars(self).update(attributes)

        return init

    return replace(Operand, "__init__", make)


def of_first(change: Callable[..., Any]) -> Callable[[Any], Any]:
    """A method that is ``change(original, self, ...)`` for the first object that calls it."""

    def make(original: Any) -> Any:
        seen: list[Any] = []

        def method(self: Any, *args: Any) -> Any:
            seen.append(self)
            return change(original, self, *args) if self is seen[0] else original(self, *args)

        return method

    return make


def swap_stages(copy: Any, self: Producer, first: Any, stage: Any) -> None:
    copy(self, first, 1 - stage if isinstance(stage, int) else stage)


def into_the_stage_that_is_read(copy: Any, self: Producer, first: Any, stage: Any) -> None:
    if not isinstance(stage, int):
        stage = (stage + 1) % 3
    copy(self, first, stage)


def shift_taps(column: Any) -> Any:
    def shifted(self: Operand, k: Any) -> Column:
        result = column(self, k)
        result.bits = [bit + 1 for bit in result.bits]
        return result

    return shifted


def steps_added(pointer: Any) -> Any:
    return lambda self, start, step, stage: pointer(self, start + step, 0, stage)


def first_bit(column: Any) -> Any:
    def only(self: Operand, k: Any) -> Column:
        result = column(self, k)
        result.bits = result.bits[:1]
        return result

    return only


def straight_on(k_tiles: Any) -> Any:
    return lambda self, a: (k_tiles(self, a)[0], lambda first: first + a.vector_extent)


BOUNDLESS: dict[str, Any] = {"fields": [], "by_row": [], "row_count": 2**30}
WAIT, COMMIT, BARRIER = "cp_async_wait_group", "cp_async_commit_group", "sync_threads"

MUTATIONS: dict[str, tuple[str, Mutation]] = {
    # bounds
    "padding is read": ("dense", with_operand("A", **BOUNDLESS)),
    "rows of B beyond N are read": ("dense", with_operand("B", **BOUNDLESS)),
    "rows of D beyond M are written": ("dense", with_operand("D", **BOUNDLESS)),
    "columns of B beyond K are read": ("straddling", with_operand("B", ragged=False)),
    "columns of D beyond N are written": ("dense", with_operand("D", ragged=False)),
    "coordinates are not compared": ("long_filter", with_operand("A", live=[])),
    "the second digit is not looked up": ("large_filter", replace(Operand, "column", first_bit)),
    "every vector is there": (
        "dense",
        replace(Operand, "locate", lambda f: lambda *a: (f(*a)[0], Boolean(True))),
    ),
    "bounds are off by one": (
        "dense",
        replace(operand, "_outside", lambda f: lambda x, extent, word: f(x, extent + 1, word)),
    ),
    "the mask of the next tap": ("dense", replace(Operand, "column", shift_taps)),
    # index buffers
    "the index of a cell outside is read": (
        "grid",
        replace(Operand, "present", lambda f: lambda self, row, col: Int32(1)),
    ),
    "absent rows are read": (
        "neighbours",
        replace(Operand, "locate", lambda f: lambda *a: (f(*a)[0], Boolean(True))),
    ),
    "the index is that of the first k-tile": (
        "neighbours",
        replace(Producer, "read_index", lambda f: lambda self, first: f(self, first * 0)),
    ),
    # the pipeline
    "waits are one too lax": (
        "dense", replace(cute.arch, WAIT, lambda f: lambda n: f(n + 1))
    ),
    "the first wait is dropped": ("dense", without_call(cute.arch, WAIT, 0)),
    "the loop's wait is dropped": ("dense", without_call(cute.arch, WAIT, 1)),
    "the first commit is dropped": ("dense", without_call(cute.arch, COMMIT, 0)),
    "the loop's commit is dropped": ("dense", without_call(cute.arch, COMMIT, 2)),
    "the barrier before the loop is dropped": ("dense", without_call(cute.arch, BARRIER, 0)),
    "the loop's barrier is dropped": ("dense", without_call(cute.arch, BARRIER, 1)),
    "the barrier after the loop is dropped": ("straddling", without_call(cute.arch, BARRIER, 2)),
    "the epilogue's barrier is dropped": ("dense", without_call(cute.arch, BARRIER, 3)),
    "two stages of A are swapped": ("dense", replace(Producer, "copy", of_first(swap_stages))),
    "A is copied into the stage that is read": (
        "dense", replace(Producer, "copy", of_first(into_the_stage_that_is_read))
    ),
    "k-tiles go on to the next row of B": ("dense", replace(MainloopSm80, "k_tiles", straight_on)),
    # addresses and numbers
    "steps along k are added, not XORed": ("dense", replace(SharedTile, "pointer", steps_added)),
    "fp32 is not rounded": (
        "dense fp32", replace(MainloopSm80, "_round", lambda f: lambda *_: None)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str, monkeypatch: Patch) -> None:
    problem, mutate = MUTATIONS[name]
    dtype = torch.float32 if problem.endswith("fp32") else torch.float16
    problem = problem.removesuffix(" fp32")
    with monkeypatch.context() as patch:
        mutate(patch)
        compiled = compile_problem(compile_view, problem, dtype)
    with pytest.raises((Fault, AssertionError)):
        check(problem, dtype, compiled)
