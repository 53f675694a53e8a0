"""Strategies of convolutions give what they say, and the check of kernel maps sees faults."""

from __future__ import annotations

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from layoutconv.sparse import submanifold_map, tap_offsets
from layoutconv.testing import WrongResultError
from layoutconv.testing.problems import check_kernel_map, clouds, conv_problems, kernel_maps


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.integers(1, 2))
def test_submanifold_maps_pass_the_check(data, rank, kernel_size, dilation):
    cloud = data.draw(clouds(rank))
    cells = cloud.cells.tolist()
    index = submanifold_map(cloud, kernel_size, dilation).index.tolist()
    check_kernel_map(cells, cells, tap_offsets(kernel_size, dilation, rank), index)
    if any(row >= 0 for entries in index for row in entries):
        place = next((o, t) for o, e in enumerate(index) for t, row in enumerate(e) if row >= 0)
        index[place[0]][place[1]] = -1
        with pytest.raises(WrongResultError, match="row -1, not"):
            check_kernel_map(cells, cells, tap_offsets(kernel_size, dilation, rank), index)


@settings(max_examples=30, deadline=None)
@given(kernel_maps())
def test_kernel_maps_lead_from_rows_to_rows(found):
    assert found.index.shape[0] == len(found.outputs)
    for tap in found.index.T.tolist():
        rows = [row for row in tap if row >= 0]
        assert len(set(rows)) == len(rows)
        assert all(row < len(found.inputs) for row in rows)


@pytest.mark.parametrize("kind", ["submanifold", "strided", "transposed"])
def test_kernel_maps_shrink_to_one_pair(kind):
    found = find(kernel_maps(rank=2, kind=kind), lambda found: bool((found.index >= 0).any()))
    assert len(found.inputs) == 1


def test_problems_shrink():
    found = find(conv_problems(), lambda p: any(n != f for n, f in p.padding))
    assert (found.rank if hasattr(found, "rank") else len(found.stride)) == 1
    assert sum(map(sum, found.padding)) == 1
