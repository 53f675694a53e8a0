"""K-major copies of filters: those of the view's room, and the rows that a GPU's kernel makes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from layoutconv.conv.k_major_filter import k_major_filter, k_major_strides
from layoutconv.gpu.k_major_copy import k_major_copy, runs_of
from layoutconv.gpu.voxel_runs import voxel_runs

shapes = st.tuples(
    st.integers(0, 20), st.lists(st.integers(1, 3), max_size=4), st.integers(0, 20)
).map(lambda modes: (modes[0], *modes[1], modes[2]))


@given(shapes)
def test_rows_over_taps_are_the_copy(shape: tuple[int, ...]) -> None:
    """The kernel reads and writes whole vectors: there are no rows of others."""
    w, rows = torch.randn(shape), runs_of(shape)
    assert (rows is None) == (shape[0] % 4 > 0 or shape[-1] % 4 > 0 or 0 in shape)
    if rows is not None:
        copy = voxel_runs(w, rows)
        assert copy.numel() == w.numel()
        assert torch.equal(copy.as_strided(shape, k_major_strides(shape)), w)


def test_rows_are_those_that_a_grid_has_room_for() -> None:
    assert runs_of((4, 65535 * 64)) is not None
    assert runs_of((4, 65535 * 64 + 4)) is None  # its second mode has 65,535 CTAs at most
    assert runs_of((32, 1 << 26)) is None  # 2^31 elements
    assert runs_of((8,)) is runs_of(()) is None  # of which the copy raises an error


@given(shapes.filter(lambda shape: 0 not in shape), st.booleans())
def test_a_copy_is_that_of_the_filter(shape: tuple[int, ...], strided: bool) -> None:
    w = torch.randn(shape)
    given = w.mT.contiguous().mT if strided else w
    copy = k_major_copy(given)
    assert torch.equal(copy, w)
    assert copy.stride() == k_major_filter(w).stride()


def test_a_filter_in_the_order_of_torch_is_taken_for_its_memory() -> None:
    w = torch.randn(8, 3, 2, 4)  # (K, R, S, C)
    assert torch.equal(k_major_copy(w.movedim(-1, 1), w.shape), w)
