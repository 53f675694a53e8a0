"""What a kernel takes from a view, and which views are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layoutconv.kernels.check import UnsupportedViewError, check_view
from layoutconv.kernels.structure import divisors, index_buffer, runtime_integers

from layoutconv import ComposedLayout, CustomStride, E, IndexedGather, Layout
from layoutconv.conv import ConvProblem, fprop_view, gather_fprop_view
from layoutconv.gemm_view import GemmView
from layoutconv.operands import indexed_rows, row_major, runtime
from layoutconv.sparse import kernel_map_view

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
@pytest.mark.parametrize(("vector", "out"), [(8, 8), (4, 4), (8, 4)])
def test_views_that_the_template_runs(name: str, vector: int, out: int) -> None:
    check_view(VIEWS[name], vector, out)


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


def taps(count: int, memory: int = 4) -> ComposedLayout:
    """Columns in a mode of their own: no row moves it, so that nothing checks it in the kernel."""
    columns = Layout((M, (C, count)), (E(0), (E(2), E(1))))
    return ComposedLayout(row_major((M, memory, C)), 0, columns)


def rows_of_an_index(count: int) -> ComposedLayout:
    stored = indexed_rows(INDEX, count, 60, C)
    return ComposedLayout(stored, 0, Layout((count, C), (E(0), E(1))))


def twice_indexed() -> ComposedLayout:
    first = Layout((M, C), (CustomStride(IndexedGather(INDEX), E(0)), E(1)))
    return ComposedLayout(indexed_rows(INDEX, 60, 60, C), 0, first)


REFUSED: dict[str, tuple[GemmView, str]] = {
    "a plain layout": (
        good(a=Layout((M, C), (C, 1))),
        r"`a` .* a map to coordinates and a map to memory, got \(8,16\):\(16,1\)",
    ),
    "channels": (
        fprop_view(ConvProblem((2, 5, 6, 20), (24, 3, 3))),
        r"`a` .* a multiple of 8 channels \(16 bytes\), got 20",
    ),
    "output channels": (
        fprop_view(ConvProblem((2, 5, 6, 16), (20, 3, 3))),
        r"`d` .* a multiple of 8 channels \(16 bytes\), got 20",
    ),
    "rows apart by what vectors do not divide": (
        good(a=rows_of(Layout((M, C), (C + 4, 1)))),
        r"`a` .* 8 columns \(16 bytes\) side by side in memory, got 4",
    ),
    "columns that are not contiguous": (
        good(a=rows_of(Layout((M, C), (1, M)))),
        r"`a` .* 8 columns \(16 bytes\) side by side in memory, got 1",
    ),
    "a weight matrix that is transposed": (
        good(b=ComposedLayout(Layout((N, C), (1, N)), 0, Layout((N, C), (E(0), E(1))))),
        r"`b` .* side by side in memory, got 1",
    ),
    "two index buffers": (good(a=twice_indexed()), r"`a` .* at most one index buffer"),
    "an index buffer of weights": (
        good(b=rows_of_an_index(N)),
        r"`b` .* no index buffer",
    ),
    "taps that leave memory": (
        good(a=taps(4, memory=3), b=taps(4)),
        r"`a` .* mode 1 inside \[0, 3\) .* got \(0, 3\)",
    ),
    "2^31 rows": (
        fprop_view(ConvProblem((2**29, 2, 2, 16), (24, 1, 1))),
        r"`a` .* fewer than 2\^31 rows, got 2147483648",
    ),
}


def test_the_view_that_the_refused_ones_are_made_from_is_good() -> None:
    check_view(good(), 8, 8)


@pytest.mark.parametrize("name", REFUSED)
def test_a_view_is_refused_with_the_operand_what_is_asked_and_what_came(name: str) -> None:
    view, message = REFUSED[name]
    with pytest.raises(UnsupportedViewError, match=message):
        check_view(view, 8, 8)


def test_an_index_buffer_as_the_first_map_is_refused() -> None:
    with pytest.raises(UnsupportedViewError, match=r"`a` .* index buffer"):
        check_view(good(a=indexed_rows(INDEX, M, 60, C)), 8, 8)


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
        check_view(view, 8, 8)
