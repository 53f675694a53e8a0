"""Pooling layers, window by window."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

import layoutconv.compat.spconv.pytorch as spconv

from .dense import cloud

SHAPES = {1: [40], 2: [9, 8], 3: [5, 6, 7], 4: [3, 4, 3, 4]}


def windows(layer: Any, x: Any) -> dict[tuple[int, ...], list[int]]:
    """The rows of ``x`` that each cell of the result has in its window."""
    rows = {tuple(cell): row for row, cell in enumerate(x.indices.tolist())}
    found: dict[tuple[int, ...], list[int]] = {}
    sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    of = list(zip(x.spatial_shape, *sizes, strict=True))
    shape = [(e + 2 * p - d * (k - 1) - 1) // s + 1 for e, k, s, p, d in of]
    for n, *cell in product(range(x.batch_size), *map(range, shape)):
        for tap in product(*map(range, layer.kernel_size)):
            at = (c * s + t * d - p for c, t, (_, _, s, p, d) in zip(cell, tap, of, strict=True))
            row = rows.get((n, *at))
            if row is not None:
                found.setdefault((n, *cell), []).append(row)
    return found


@pytest.mark.parametrize("kind", ["Max", "Avg"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "sizes", [{}, {"stride": 1, "padding": 1, "kernel_size": 3}, {"dilation": 2}], ids=str
)
def test_pooling(kind: str, rank: int, sizes: dict[str, Any]) -> None:
    """The maximum of what is there, below zero too; a mean of the cells that there are."""
    x = cloud(SHAPES[rank], 3)
    x = x.replace_feature((x.features - 5).requires_grad_())
    name = f"Sparse{kind}Pool{rank}d"
    if name == "SparseAvgPool4d":
        layer = spconv.pool.SparseAvgPool(4, **{"kernel_size": 2, "stride": None, **sizes})
    else:
        layer = getattr(spconv, name)(**{"kernel_size": 2, **sizes})
    y = layer(x)
    found = windows(layer, x)
    assert sorted(found) == list(map(tuple, y.indices.tolist()))
    reduce = (lambda v: v.amax(0)) if kind == "Max" else (lambda v: v.mean(0))
    wanted = torch.stack([reduce(x.features[found[cell]]) for cell in sorted(found)])
    torch.testing.assert_close(y.features, wanted)
    grad = torch.randn_like(wanted)
    ours, theirs = (torch.autograd.grad(v, x.features, grad)[0] for v in (y.features, wanted))
    torch.testing.assert_close(ours, theirs)


def test_back_through_a_pooling() -> None:
    """By its key; and a layer of the same key and sizes takes the same map."""
    x = cloud([9, 8], 4)
    pool = spconv.SparseMaxPool2d(3, 2, 1, indice_key="pool")
    up = spconv.SparseInverseConv2d(4, 5, 3, indice_key="pool").double()
    y = pool(x)
    assert y.spatial_shape == [5, 4]
    assert up(y).indices is x.indices
    conv = spconv.SparseConv2d(4, 4, 3, 2, 1, indice_key="pool").double()
    known = x.shadow_copy()
    known.indice_dict = y.indice_dict
    assert conv(known).indices is y.indices


def test_submanifold_pooling() -> None:
    x = cloud([9, 8], 4)
    y = spconv.pool.SparseMaxPool(2, 3, subm=True)(x)
    assert y.indices is x.indices
    assert bool((y.features >= x.features).all())
    assert not torch.equal(y.features, x.features)


@pytest.mark.parametrize("kind", ["Max", "Avg"])
def test_global_pooling(kind: str) -> None:
    """(N, C), zeros for an image without cells."""
    x = cloud([9, 8], 4, batch=3)
    x = x.select_by_index(x.indices[:, 0] != 1)
    y = getattr(spconv, f"SparseGlobal{kind}Pool")()(x)
    for n in (0, 2):
        rows = x.features[x.indices[:, 0] == n]
        torch.testing.assert_close(y[n], rows.amax(0) if kind == "Max" else rows.mean(0))
    assert torch.equal(y[1], torch.zeros(4).double())


def test_voxels_are_counted() -> None:
    layer = spconv.SparseMaxPool2d(2, record_voxel_count=True)
    y = layer(cloud([9, 8], 4))
    layer(cloud([9, 8], 4, rows=2))
    assert layer.get_max_num_voxels().tolist() == [len(y.indices)]
