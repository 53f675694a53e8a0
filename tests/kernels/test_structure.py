"""Arguments that a kernel takes from a view, and views that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from layoutconv import ComposedLayout, CustomStride, E, IndexedGather, Layout
from layoutconv.conv import (
    ConvProblem,
    dgrad_views,
    fprop_view,
    gather_fprop_view,
    wgrad_view,
)
from layoutconv.planning.kernel_key import divisors, index_buffer, runtime_integers, signature
from layoutconv.planning.kernel_spec import vectors_of
from layoutconv.planning.view_rules import UnsupportedViewError, check_view
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import GemmView
from layoutconv.view.operands import indexed_rows, row_major, runtime

PROBLEM = ConvProblem((2, 5, 6, 16), (24, 3, 3), stride=2, padding=1)
INDEX = torch.arange(60, dtype=torch.int32)


def test_runtime_integers_are_the_letters_that_the_layouts_have() -> None:
    assert runtime_integers(fprop_view(PROBLEM)) == {
        "Q": 3, "P": 3, "N": 2, "H": 5, "W": 6,
        "H*W*C": 480, "W*C": 96, "P*Q*K": 216, "Q*K": 72,
    }  # fmt: skip
    view = kernel_map_view(INDEX[:54].view(9, 6).T, 16, 24, kernel_size=(3, 3), in_rows=40)
    assert runtime_integers(view) == {"M": 6, "L": 54, "in_rows": 40}
    row_major_map = kernel_map_view(INDEX[:54].view(6, 9), 16, 24, kernel_size=(3, 3))
    assert runtime_integers(row_major_map) == {"M": 6, "ld": 9, "L": 54, "in_rows": 6}


def test_divisors_are_the_extents_that_split_a_row_number() -> None:
    assert divisors(fprop_view(PROBLEM)) == ["P", "Q"]
    assert divisors(fprop_view(ConvProblem((2, 5, 16), (24, 3)))) == ["Q"]
    kernel_map = INDEX[:54].view(9, 6).T
    assert divisors(kernel_map_view(kernel_map, 16, 24, kernel_size=(3, 3))) == []


def test_index_buffers() -> None:
    dense = fprop_view(PROBLEM)
    assert index_buffer(dense.a) is index_buffer(dense.d) is None
    view = gather_fprop_view(PROBLEM, INDEX, INDEX[:18])
    assert torch.equal(index_buffer(view.a), INDEX)
    assert torch.equal(index_buffer(view.d), INDEX[:18])


VIEWS = {
    "dense": fprop_view(PROBLEM),
    "grid": gather_fprop_view(PROBLEM, INDEX, INDEX[:18]),
    "kernel map": kernel_map_view(INDEX[:54].view(6, 9), 16, 24, kernel_size=(3, 3)),
    "empty": fprop_view(ConvProblem((0, 5, 6, 16), (24, 3, 3))),
    "scattered rows": kernel_map_view(
        INDEX[:54].view(6, 9), 16, 24, kernel_size=(3, 3), scatter_index=INDEX[:6]
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_that_the_template_runs(name: str) -> None:
    check_view(VIEWS[name])


def test_what_is_unrolled_is_in_the_signature_and_what_is_an_argument_is_not() -> None:
    def problem(N: int, C: int, K: int) -> ConvProblem:
        return ConvProblem((N, 5, 6, C), (K, 3, 3), padding=1)

    wgrad = [wgrad_view(problem(N, 16, 24)) for N in (1, 9)]
    assert len({signature(view, (0, 0)) for view in wgrad}) == 1  # the sum is an argument
    assert len({signature(view, along) for view in wgrad for along in ((0, 0), (1, 0))}) > 1
    for C, K in ((16, 32), (32, 24)):
        assert signature(wgrad_view(problem(1, C, K)), (0, 0)) != signature(wgrad[0], (0, 0))


@pytest.mark.parametrize(
    ("C", "K", "sizes", "vectors"),
    [
        (24, 40, (2, 2, 2), (8, 8, 8)),
        (12, 20, (2, 2, 2), (4, 4, 4)),
        (6, 10, (2, 2, 2), (2, 2, 2)),
        (5, 7, (2, 2, 2), (1, 1, 1)),
        (16, 24, (4, 4, 2), (4, 4, 8)),
        (16, 24, (1, 1, 4), (16, 16, 4)),
        (48, 20, (8, 8, 8), (2, 2, 2)),
    ],
)
def test_vectors_of_fprop(
    C: int, K: int, sizes: tuple[int, int, int], vectors: tuple[int, int, int]
) -> None:
    names = {1: "int8", 2: "float16", 4: "float32", 8: "float64"}
    view = fprop_view(ConvProblem((2, 5, 6, C), (K, 3, 3), padding=1))
    assert vectors_of(view, names[sizes[0]], names[sizes[2]]) == (vectors, (1, 1))


@pytest.mark.parametrize(
    ("aligned", "vectors"),
    [
        ((16, 8, 16), (8, 4, 8)),
        ((4, 16, 2), (2, 8, 1)),
        ((2, 2, 4), (1, 1, 2)),
        ((6, 12, 24), (1, 2, 4)),  # bytes that are no power of two: vectors are
        ((1, 10, 48), (1, 1, 8)),
    ],
)
def test_vectors_are_as_long_as_the_start_of_a_tensor_is_aligned(
    aligned: tuple[int, int, int], vectors: tuple[int, int, int]
) -> None:
    view = fprop_view(ConvProblem((2, 5, 6, 16), (24, 3, 3), padding=1))
    assert vectors_of(view, "float16", "float16", aligned)[0] == vectors


def test_the_mode_that_runs_along_memory() -> None:
    problem = ConvProblem((2, 5, 6, 16), (24, 3, 3), padding=1)
    (dgrad,) = dgrad_views(problem)
    for dtype, along in (("float16", (0, 0)), ("float64", (0, 0)), ("int8", (1, 1))):
        assert vectors_of(wgrad_view(problem), dtype, "float32")[1] == along
    assert vectors_of(dgrad, "float16", "float16") == ((8, 8, 8), (1, 0))
    assert vectors_of(dgrad, "int8", "int32") == ((8, 1, 4), (1, 1))
    odd = ConvProblem((2, 5, 6, 5), (7, 3, 3), padding=1)
    assert vectors_of(fprop_view(odd), "float16", "float16") == ((1, 1, 1), (1, 1))
    # In a tie, a sum whose length is an argument does not run along memory: one kernel for all.
    assert vectors_of(wgrad_view(odd), "float16", "float32") == ((1, 1, 1), (0, 0))


# -- views that are refused -----------------------------------------------------------------------

M, N, C = 8, 16, 16


def good(**other: Any) -> GemmView:
    """A matrix product, some operands of which are replaced."""
    return GemmView(
        **{
            "a": ComposedLayout(row_major((M, C)), 0, Layout((M, C), (E(0), E(1)))),
            "b": ComposedLayout(row_major((N, C)), 0, Layout((N, C), (E(0), E(1)))),
            "d": ComposedLayout(row_major((M, N)), 0, Layout((M, N), (E(0), E(1)))),
            **other,
        }
    )


def rows_of(memory: Layout) -> ComposedLayout:
    return ComposedLayout(memory, 0, Layout((M, C), (E(0), E(1))))


def taps(count: int, memory: int = 4, rows: int = M) -> ComposedLayout:
    """Columns in a mode of their own: no row moves it, so that nothing checks it in the kernel."""
    columns = Layout((rows, (C, count)), (E(0), (E(2), E(1))))
    return ComposedLayout(row_major((rows, memory, C)), 0, columns)


def rows_of_an_index(count: int) -> ComposedLayout:
    stored = indexed_rows(INDEX, count, 60, C)
    return ComposedLayout(stored, 0, Layout((count, C), (E(0), E(1))))


def twice_indexed(rows: int = M) -> ComposedLayout:
    first = Layout((rows, C), (CustomStride(IndexedGather(INDEX), E(0)), E(1)))
    return ComposedLayout(indexed_rows(INDEX, 60, 60, C), 0, first)


def columns_by_index(
    stride: tuple[Any, ...], offset: Any = 0, start: Any = 0, steps: tuple[Any, Any] = (E(1), E(0))
) -> ComposedLayout:
    """D with an index buffer that is read at the column; ``stride`` is the map it is part of."""
    gather = Layout((N, M), stride)
    stored = ComposedLayout(row_major((2 * N, 2 * M)), offset, gather)
    return ComposedLayout(stored, start, Layout((M, N), steps))


NAMED = CustomStride(IndexedGather(INDEX[:N]), E(0))
AS_THEY_ARE = "`d` .* an index buffer for mode 0 of 2, and all others as they are, got "
EVERY = Layout((M * N,), (CustomStride(IndexedGather(torch.arange(M * N).int()), E(0)),))


REFUSED: dict[str, tuple[GemmView, str]] = {
    "a plain layout": (
        good(a=Layout((M, C), (C, 1))),
        r"`a` .* a map to coordinates and a map to memory, got \(8,16\):\(16,1\)",
    ),
    "two index buffers": (good(a=twice_indexed()), r"`a` .* at most one index buffer"),
    "two index buffers of weights": (good(b=twice_indexed(N)), r"`b` .* at most one index buffer"),
    "strides that are no basis": (
        good(a=ComposedLayout(row_major((M, C)), 0, Layout((M, C), (C, 1)))),
        r"`a` .* scaled-basis strides before memory",
    ),
    "65536 groups": (
        fprop_view(ConvProblem((1, 3, 65536), (65536, 1), groups=65536)),
        r"`a` .* at most 65535 groups, got 65536",
    ),
    "taps of a sum that leave memory": (
        # Rows do not move what only the sum moves: of B, which runs along n, the sum is rows.
        good(b=taps(4, memory=3, rows=N), a=taps(4)),
        r"`b` .* mode 1 inside \[0, 3\) .* got \(0, 3\)",
    ),
    "taps that leave memory": (
        good(a=taps(4, memory=3), b=taps(4, rows=N)),
        r"`a` .* mode 1 inside \[0, 3\) .* got \(0, 3\)",
    ),
    "every second row of an index": (
        good(d=columns_by_index((CustomStride(IndexedGather(INDEX[:N]), 2 * E(0)), E(1)))),
        AS_THEY_ARE + r"\(16,8\):\(gather\*2@0,1@1\)",
    ),
    "a mode beside an index that steps": (
        good(d=columns_by_index((NAMED, 2 * E(1)))),
        AS_THEY_ARE + r"\(16,8\):\(gather\*1@0,2@1\)",
    ),
    "a mode beside an index that is added to it": (
        good(d=columns_by_index((NAMED, E(0)))),
        AS_THEY_ARE,
    ),
    "an offset behind an index": (
        good(d=columns_by_index((NAMED, E(1)), offset=(0, 1))),
        AS_THEY_ARE + r".* \+ \(0, ?1\)",
    ),
    "an index of elements, of memory that has rows": (
        good(
            d=ComposedLayout(
                ComposedLayout(row_major((M, N)), 0, EVERY), 0, Layout((M, N), (E(0), M * E(0)))
            )
        ),
        AS_THEY_ARE + r"\(128\):\(gather\*1@0\)",
    ),
    "a mode that the next map has not": (
        good(d=ComposedLayout(row_major((M, N)), 0, Layout((M, N), (E(0), E(2))))),
        r"`d` .* strides in the 2 modes of the next map, got \(8,16\):\(1@0,1@2\)",
    ),
    "one offset for two modes": (
        good(d=columns_by_index((NAMED, E(1)), start=3)),
        r"`d` .* an offset 0, or one for each of 2 modes, got 3",
    ),
    "one offset for a coordinate of one mode": (
        good(d=ComposedLayout(row_major((M * N + 3,)), 3, Layout((M, N), (N * E(0), E(0))))),
        r"`d` .* an offset 0, or one for each of 1 modes, got 3",
    ),
    "columns beyond an index": (
        good(d=columns_by_index((NAMED, E(1)), steps=(E(1), 2 * E(0)))),
        r"`d` .* mode 0 inside \[0, 16\) .* got \(0, 30\)",
    ),
    "2^31 rows": (
        fprop_view(ConvProblem((2**29, 2, 2, 16), (24, 1, 1))),
        r"`a` .* fewer than 2\^31 rows and columns, got 2147483648",
    ),
}


ALLOWED = {
    "good": good(),
    "weights by an index": good(b=rows_of_an_index(N)),
    "a weight matrix that is transposed": good(
        b=ComposedLayout(Layout((N, C), (1, N)), 0, Layout((N, C), (E(0), E(1))))
    ),
    "rows apart by what vectors do not divide": good(a=rows_of(Layout((M, C), (C + 4, 1)))),
    "columns that are not contiguous": good(a=rows_of(Layout((M, C), (3, 100)))),
    "an index of columns": good(d=columns_by_index((NAMED, E(1)))),
    "an offset before an index": good(d=columns_by_index((NAMED, E(1)), start=(0, -3))),
    "65535 groups": fprop_view(ConvProblem((1, 3, 65535), (65535, 1), groups=65535)),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_views_beside_those_that_are_refused(name: str) -> None:
    check_view(ALLOWED[name])


def test_what_is_checked_depends_on_the_mode_that_runs_along_memory() -> None:
    """Bounds that columns alone move are not compared: with k in rows, they are."""
    leaving = good(a=taps(4, memory=3), b=taps(4, rows=N))
    check_view(leaving, (0, 1))
    with pytest.raises(UnsupportedViewError, match="mode 1 inside"):
        check_view(leaving, (1, 1))


@pytest.mark.parametrize("name", REFUSED)
def test_a_view_is_refused_with_the_operand_what_is_asked_and_what_came(name: str) -> None:
    view, message = REFUSED[name]
    with pytest.raises(UnsupportedViewError, match=message):
        check_view(view)


def test_an_index_buffer_as_the_first_map_is_refused() -> None:
    with pytest.raises(UnsupportedViewError, match=r"`a` .* index buffer"):
        check_view(good(a=indexed_rows(INDEX, M, 60, C)))


def test_an_index_of_2_31_entries_is_refused() -> None:
    m, count = runtime(2**27, "M"), 27
    index = torch.empty(1, dtype=torch.int32).expand(count * m)  # without the memory
    memory = indexed_rows(index, runtime(count * m, "L"), runtime(10, "in_rows"), C)
    fold = Layout((m, count, C), (E(0), m * E(0), E(1)))
    columns = Layout((m, (C, count)), (E(0), (E(2), E(1))))
    view = GemmView(
        a=ComposedLayout(ComposedLayout(memory, 0, fold), 0, columns),
        b=ComposedLayout(row_major((N, count * C)), 0, Layout((N, count * C), (E(0), E(1)))),
        d=ComposedLayout(row_major((m, N)), 0, Layout((m, N), (E(0), E(1)))),
    )
    with pytest.raises(UnsupportedViewError, match=r"`a` .* index"):
        check_view(view)
