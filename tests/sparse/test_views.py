"""Views of kernel maps against a plain loop nest, for every order of their memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import locate

MEMORY = {
    "tap-major": lambda m: m.T.contiguous().T,
    "row-major": lambda m: m.contiguous(),
    "rows of a larger map": lambda m: (
        torch.nn.functional.pad(m.T, (0, 5)).contiguous()[:, : len(m)].T
    ),
    "every other row and tap": lambda m: (
        torch.stack([m, m], 1).reshape(-1, m.shape[1]).repeat_interleave(2, 1)[::2, ::2]
    ),
}


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 6),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    C=st.integers(1, 3),
    extra=st.integers(0, 3),
    memory=st.sampled_from(sorted(MEMORY)),
    seed=st.integers(0, 99),
)
def test_kernel_map_view_is_the_loop_nest(rows, sizes, C, extra, memory, seed):
    torch.manual_seed(seed)
    taps, K = int(torch.tensor(sizes).prod()), 2
    entries = torch.randint(-1, max(1, rows + extra), (rows, taps), dtype=torch.int32)
    kernel_map = MEMORY[memory](entries)
    assert torch.equal(kernel_map, entries)
    view = kernel_map_view(kernel_map, C, K, kernel_size=sizes, in_rows=rows + extra)
    assert (view.m, view.n, view.k) == (rows, K, taps * C)
    for row in range(rows):
        for tap in range(taps):
            for c in range(C):
                offset, valid = locate(view.a, row, tap * C + c)
                source = int(entries[row, tap])
                expected = (source * C + c, True) if source >= 0 else (0, False)
                assert (int(offset), bool(valid)) == expected
    # Tap s + S*(r + R*t) of the columns is tap (t, r, s) of the weights.
    weights = torch.arange(K * taps * C).view(K, taps * C)
    for n in range(K):
        assert [locate(view.b, n, k)[0] for k in range(view.k)] == weights[n].tolist()
        assert [locate(view.d, m, n)[0] for m in range(rows)] == [m * K + n for m in range(rows)]


def test_a_tap_major_map_compiles_once_for_all_numbers_of_rows():
    def texts(rows: int) -> str:
        kernel_map = torch.zeros(27, rows, dtype=torch.int32).T
        return str(kernel_map_view(kernel_map, 4, 8))

    assert texts(0) == texts(1) == texts(2) == texts(1000)


def test_scatter_index():
    kernel_map = torch.zeros(3, 1, dtype=torch.int32)
    index = torch.tensor([4, -1, 0], dtype=torch.int32)
    view = kernel_map_view(kernel_map, 1, 2, kernel_size=(1,), scatter_index=index, out_rows=5)
    assert [locate(view.d, m, 1) for m in range(3)] == [(9, True), (0, False), (1, True)]


def test_printing():
    kernel_map = torch.zeros(27, 5, dtype=torch.int32).T
    assert kernel_map_view(kernel_map, 16, 32).describe() == "\n".join(
        [
            "A: (in_rows,C):(C,1) o 0 o (L,C):(gather*1@0,1@1) o 0 o "
            "(M,T*R*S,C):(1@0,M@0,1@1) o 0 o (M,(C,S,R,T)):(1@0,(1@2,1@1,S@1,R*S@1))",
            "B: (K,T,R,S,C):(T*R*S*C,R*S*C,S*C,C,1) o 0 o (K,(C,S,R,T)):(1@0,(1@4,1@3,1@2,1@1))",
            "D: (M,K):(K,1) o 0 o (M,K):(1@0,1@1)",
            "runtime: in_rows=5 M=5 L=135",
            "static: C=16 K=32 T=3 R=3 S=3",
        ]
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"kernel_map": torch.zeros(5, 27)}, ArgumentTypeError, "`kernel_map`: expected a torch"),
        ({"kernel_map": [[0] * 27]}, ArgumentTypeError, "a torch tensor of int32, got list"),
        (
            {"kernel_map": torch.zeros(5, 3, 9, dtype=torch.int32)},
            ArgumentError,
            "`kernel_map`: expected 2 modes, (rows, taps), got shape (5, 3, 9)",
        ),
        (
            {"kernel_size": (3, 3)},
            ArgumentError,
            "`kernel_map`: expected 9 taps, as kernel_size (3, 3) has, got shape (5, 27)",
        ),
        ({"kernel_size": 0}, ArgumentError, "`kernel_size`: expected an int >= 1, or 1 to 4"),
        ({"in_channels": 0}, ArgumentError, "`in_channels`: expected a number of channels >= 1"),
        ({"out_channels": 0}, ArgumentError, "`out_channels`: expected a number of channels"),
        ({"in_rows": -1}, ArgumentError, "`in_rows`: expected a number of rows >= 0, got -1"),
        (
            {"out_rows": 7},
            ArgumentError,
            "`out_rows`: expected None without a scatter_index, got 7",
        ),
        (
            {"scatter_index": torch.zeros(4, dtype=torch.int32)},
            ArgumentError,
            "`scatter_index`: expected M = 5 entries, got shape (4,)",
        ),
    ],
)
def test_errors_name_the_argument(arguments, error, message):
    good = {
        "kernel_map": torch.zeros(5, 27, dtype=torch.int32),
        "in_channels": 4,
        "out_channels": 4,
    }
    with pytest.raises(error) as caught:
        kernel_map_view(**{**good, **arguments})
    assert message in str(caught.value)


@pytest.mark.parametrize("wrong", [None, "3", [1], torch.ones(2), np.ones(3), 2.5])
def test_views_name_what_is_no_number(wrong):
    index = torch.zeros(5, 27, dtype=torch.int32)
    for name, channels in (
        ("in_channels", (wrong, 8)),
        ("out_channels", (8, wrong)),
        ("groups", (8, 8)),
        ("kernel_size", (8, 8)),
    ):
        options = {name: wrong} if name in ("groups", "kernel_size") else {}
        if name == "kernel_size" and isinstance(wrong, list):
            continue  # one mode
        with pytest.raises(ArgumentError, match=f"`{name}`: expected an integer"):
            kernel_map_view(index, *channels, **options)
