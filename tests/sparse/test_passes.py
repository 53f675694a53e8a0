"""The views of the three passes on the CPU, against a loop over pairs of rows."""

from __future__ import annotations

import pytest
import torch

from layoutconv import execute
from layoutconv.sparse import Coordinates, strided_map, submanifold_map, transposed_map
from layoutconv.sparse.views import kernel_map_dgrad_view, kernel_map_view, pairs_wgrad_view

from ..exact import integers


def cloud(rank: int, rows: int, extent: int = 5, images: int = 2, seed: int = 0) -> Coordinates:
    """Distinct cells in an order of their own."""
    generator = torch.Generator().manual_seed(seed)
    shape = (extent,) * rank
    cells = images * extent**rank
    keys = torch.randperm(cells, generator=generator)[:rows]
    return Coordinates.of_keys(keys, shape, images)


MAPS = {
    "submanifold": lambda: submanifold_map(cloud(3, 60)),
    "even": lambda: submanifold_map(cloud(2, 30), (2, 3), dilation=2),
    "set": lambda: submanifold_map(cloud(3, 60), offsets=[(0, 0, 0), (1, 0, -1), (0, 2, 0)]),
    "strided": lambda: strided_map(cloud(3, 60), 3, 2, padding=1),
    "transposed": lambda: transposed_map(cloud(2, 12), 3, 2, padding=1),
    "inverse": lambda: strided_map(cloud(3, 60), 2, 2).inverse,
    "1-D": lambda: submanifold_map(cloud(1, 7), 5),
    "4-D": lambda: submanifold_map(cloud(4, 80, extent=4), 3),
    "nothing": lambda: submanifold_map(cloud(3, 0)),
}


def pairs(kernel_map):
    for row, taps in enumerate(kernel_map.index.tolist()):
        for tap, source in enumerate(taps):
            if source >= 0:
                yield row, tap, source


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", MAPS)
def test_the_three_passes_are_sums_over_pairs(name, groups):
    found, C, K = MAPS[name](), 4, 6
    rows_in, rows_out, taps = len(found.inputs), len(found.outputs), found.taps
    x, w, g = integers(rows_in, C), integers(K, *taps, C // groups), integers(rows_out, K)
    y, dx, dw = torch.zeros_like(g), torch.zeros_like(x), torch.zeros_like(w)
    flat, dflat = (t.view(groups, K // groups, -1, C // groups) for t in (w, dw))
    for row, tap, source in pairs(found):
        for group in range(groups):
            k, c = (slice(group * n // groups, (group + 1) * n // groups) for n in (K, C))
            y[row, k] += flat[group, :, tap] @ x[source, c]
            dx[source, c] += flat[group, :, tap].T @ g[row, k]
            dflat[group, :, tap] += torch.outer(g[row, k], x[source, c])

    options = {"kernel_size": taps, "groups": groups}
    view = kernel_map_view(found.index, C, K, in_rows=rows_in, **options)
    assert torch.equal(execute(view, x, w), y)

    view = kernel_map_dgrad_view(found.inverse.index, C, K, out_rows=rows_out, **options)
    assert torch.equal(execute(view, g, w), dx)
    if found.mirrored:
        view = kernel_map_dgrad_view(found.index, C, K, mirrored=True, **options)
        assert torch.equal(execute(view, g, w), dx)

    chunks = found.pairs(4)
    view = pairs_wgrad_view(chunks, C, K, in_rows=rows_in, out_rows=rows_out, groups=groups)
    parts = execute(view, g, x)
    summed = torch.segment_reduce(parts, "sum", lengths=chunks.lengths, axis=0)
    assert torch.equal(summed.transpose(0, 1).reshape(dw.shape), dw)


@pytest.mark.parametrize("name", ["submanifold", "strided", "transposed"])
def test_sorted_rows_are_scattered_to_where_they_belong(name):
    found, C, K = MAPS[name](), 4, 8
    x, w = integers(len(found.inputs), C), integers(K, *found.taps, C)
    options = {"kernel_size": found.taps, "in_rows": len(x)}
    plain = execute(kernel_map_view(found.index, C, K, **options), x, w)
    index, order = found.sorted
    assert order.tolist() != list(range(len(order)))
    view = kernel_map_view(index, C, K, scatter_index=order, **options)
    assert torch.equal(execute(view, x, w), plain)
