"""Every guard of the template is needed, and the tests would notice: each, removed, is caught.

A mutation changes the template while it is traced. The mutated kernel must break a rule of the
machine or give another result on a problem that the template itself gets right.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
from cutlass import Boolean, Float32, Int32

from layoutconv.kernels.gemm import active_taps, implicit_gemm, mma_atoms, operand
from layoutconv.kernels.gemm.cp_async import CpAsyncLoad
from layoutconv.kernels.gemm.epilogue import convert as convert_
from layoutconv.kernels.gemm.epilogue.column_statistics import SumsByRow
from layoutconv.kernels.gemm.epilogue.ops import Steps
from layoutconv.kernels.gemm.epilogue.smem_store import SmemStore
from layoutconv.kernels.gemm.k_tiles import KTiles
from layoutconv.kernels.gemm.mma_atoms import Multiplier
from layoutconv.kernels.gemm.operand import Column, Operand
from layoutconv.kernels.gemm.smem_tile import SharedTile
from tools.ptx_sim import Fault

from .launcher import (
    compile_view,
    compiled_view,
)
from .mutation_problems import PROBLEMS
from .mutations import Mutation, Patch, replace


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_template_is_right(name: str) -> None:
    problem = PROBLEMS[name]
    problem.check(problem.compile(compiled_view))


# -- ways to change the template ------------------------------------------------------------------


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

        def init(self: Operand, *args: Any, **rest: Any) -> None:
            original(self, *args, **rest)
            if next(names) == name:
                vars(self).update(attributes)

        return init

    return replace(Operand, "__init__", make)


def of_first(change: Callable[..., Any]) -> Callable[[Any], Any]:
    """A method that is ``change(original, self, ...)`` for the first object that calls it."""

    def make(original: Any) -> Any:
        seen: list[Any] = []

        def method(self: Any, *args: Any, **some: Any) -> Any:
            seen.append(self)
            mine = self is seen[0]
            return change(original, self, *args, **some) if mine else original(self, *args, **some)

        return method

    return make


def swap_stages(copy: Any, self: CpAsyncLoad, vectors: Any, stage: Any) -> None:
    copy(self, vectors, 1 - stage if isinstance(stage, int) else stage)


def into_the_stage_that_is_read(copy: Any, self: CpAsyncLoad, vectors: Any, stage: Any) -> None:
    if not isinstance(stage, int):
        stage = (stage + 1) % 3
    copy(self, vectors, stage)


def shift_taps(column: Any) -> Any:
    def shifted(self: Operand, k: Any) -> Column:
        result = column(self, k)
        result.bits = [bit + 1 for bit in result.bits]
        return result

    return shifted


def steps_added(at: Any) -> Any:
    return lambda self, start, step, stage: at(self, start + step, 0, stage)


def first_bit(column: Any) -> Any:
    def only(self: Operand, k: Any) -> Column:
        result = column(self, k)
        result.bits = result.bits[:1]
        return result

    return only


def straight_on(advance: Any) -> Any:
    return lambda self, first: first + self.channels


def of_gathers(name: str, change: Callable[[Any], Any]) -> Mutation:
    """Change what a method returns, for operands with an index buffer."""

    def make(original: Any) -> Any:
        def method(self: Operand, *args: Any) -> Any:
            result = original(self, *args)
            return change(result) if self.gather else result

        return method

    return replace(Operand, name, make)


def words_like_rows(start: Any) -> Any:
    def permuted(self: SharedTile, logical: Any) -> Any:
        read, self.read = self.read, "rows" if self.read == "words" else self.read
        try:
            return start(self, logical)
        finally:
            self.read = read

    return permuted


def unclamped(column: Any) -> Any:
    return lambda self, pointer, number, count, extras: column(self, pointer, number, 2**30, extras)


def not_atomic(store: Any) -> Any:
    def plain(self: SmemStore, *args: Any) -> None:
        self.atomic = False
        store(self, *args)

    return plain


def source_everywhere(at: Any) -> Any:
    return lambda self, d, offset, _, extras: at(self, d, offset, Boolean(True), extras)


def own_warp(of_all: Any) -> Any:
    """Make a mutant that looks at the words of the first warp alone."""
    return lambda own, base, warps, tid, *rows: of_all(own, base, 1, tid, *rows)


def no_stride(int64: Any) -> Any:
    return lambda x: int64(x) if not isinstance(x, Int32) else int64(0)


def nothing_left(split: Any) -> Any:
    def zeros(*args: Any) -> Any:
        finite, rest = split(*args)
        cute.recast_tensor(rest, Float32).fill(0.0)
        return finite, rest

    return zeros


def nothing_left_of_b(split: Any) -> Any:
    calls = count()
    zeros = nothing_left(split)
    return lambda *args: (zeros if next(calls) % 2 else split)(*args)


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
    "the index of a cell outside is read": ("grid", of_gathers("absent", lambda _: Int32(0))),
    "absent rows are read": (
        "neighbours", of_gathers("locate", lambda found: (found[0], Boolean(True)))
    ),
    "the index is that of the first k-tile": (
        "neighbours",
        replace(CpAsyncLoad, "read_ahead", lambda f: lambda self, first: f(self, first * 0)),
    ),
    # sums over rows
    "windows beyond the image are read": ("weights", with_operand("B", live=[])),
    "rows of A beyond the sum are read": ("weights", with_operand("A", row_count=2**30)),
    "rows of B beyond the sum are read": ("weights", with_operand("B", row_count=2**30)),
    "columns of A beyond M are read": ("weights", with_operand("A", ragged=False)),
    "words are permuted as rows are": (
        "weights fp32", replace(SharedTile, "start", words_like_rows)
    ),
    # sums in parts
    "every part starts at the first k-tile": (
        "one tap in parts", replace(KTiles, "first", lambda f: lambda self, number: f(self, 0))
    ),
    "every part of a sum over rows starts at the first": (
        "weights in parts", replace(KTiles, "first", lambda f: lambda self, number: f(self, 0))
    ),
    "the last part is as long as the others": (
        "one tap in parts", replace(cutlass, "min", lambda f: lambda a, b: a)
    ),
    "parts overwrite each other": ("weights in one", replace(SmemStore, "_store", not_atomic)),
    "parts are one result": ("weights in parts", replace(implicit_gemm, "Int64", no_stride)),
    # groups, offsets
    "the group is left out": ("groups", replace(Operand, "_group", lambda f: lambda *_: None)),
    "the first tap is left out": ("residue", with_operand("B", start=0)),
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
    "two stages of A are swapped": (
        "dense", replace(CpAsyncLoad, "copy_vectors", of_first(swap_stages))
    ),
    "A is copied into the stage that is read": (
        "dense", replace(CpAsyncLoad, "copy_vectors", of_first(into_the_stage_that_is_read))
    ),
    "k-tiles go on to the next row of B": ("dense", replace(KTiles, "advance", straight_on)),
    # addresses and numbers
    "steps along k are added, not XORed": ("dense", replace(SharedTile, "at", steps_added)),
    "fp32 is not rounded": (
        "dense fp32", replace(Multiplier, "_round", lambda f: lambda *_: None)
    ),
    "the small products are left out": (
        "dense three products", replace(mma_atoms, "_split", nothing_left)
    ),
    "a product of small numbers is missing": (
        "dense three products", replace(mma_atoms, "_split", nothing_left_of_b)
    ),
    "results in int8 wrap": (
        "dense int8",
        replace(convert_, "_each", lambda f: lambda x, t, i: f(x, t, i.replace(".sat", ""))),
    ),
    # the epilogue
    "numbers of columns beyond N are read": (
        "dense bias", replace(SmemStore, "_column", unclamped)
    ),
    "a source is read where D has nothing": (
        "grid residual",
        replace(SmemStore, "_sources", source_everywhere),
    ),
    "rows that are not written are in the statistics": (
        "grid statistics by row",
        replace(SumsByRow, "add", lambda f: lambda self, row, _: f(self, row, Boolean(True))),
    ),
    "rows that are not written stay in the turned tile": (
        "grid statistics", replace(SmemStore, "_clear", lambda f: lambda *_: None)
    ),
    "rows past the last are counted": (
        "dense bias and statistics", replace(Steps, "keep_zero", lambda _: True)
    ),
    **{
        f"barrier {number - 3} of the statistics {kind} is dropped": (
            problem, without_call(cute.arch, BARRIER, number)
        )
        for kind, problem, numbers in (
            ("by matrix", "grid statistics", (4,)),
            ("by warps that share rows", "grid statistics of shared rows", (4, 5, 6)),
            ("by row", "grid statistics by row", (4, 5)),
        )
        for number in numbers
    },
    # taps that are left out
    "a tap that another lane has is left out": (
        "skipping", replace(cute.arch, "warp_redux_sync", lambda f: lambda own, _: own)
    ),
    "a tap that another warp has is left out": (
        "skipping", replace(active_taps, "_of_all", own_warp)
    ),
    "a tap that another warp has in a map is left out": (
        "skipping map", replace(active_taps, "_of_all", own_warp)
    ),
    "a tap of a map is left out": (
        "skipping map", replace(active_taps, "WORD", lambda word: 2 * word)
    ),
    "the taps' first barrier is dropped": ("skipping", without_call(cute.arch, BARRIER, 0)),
    "the taps' second barrier is dropped": ("skipping", without_call(cute.arch, BARRIER, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str, monkeypatch: Patch) -> None:
    of, mutate = MUTATIONS[name]
    problem = PROBLEMS[of]
    with monkeypatch.context() as patch:
        mutate(patch)
        compiled = problem.compile(compile_view)
    with pytest.raises((Fault, AssertionError)):
        problem.check(compiled)
