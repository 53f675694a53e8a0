"""Coordinates without bounds, against dictionaries of cells and the same cells in a grid."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv as lc
from layoutconv.errors import ArgumentError
from layoutconv.sparse import (
    Coordinates,
    SparseTensor,
    broadcast,
    collate,
    downsample,
    prune,
    strided_map,
    transposed_map,
)


def floored(cell, stride):
    return (cell[0], *(c // s for c, s in zip(cell[1:], stride, strict=True)))


@st.composite
def clouds(draw, rank=None):
    rank = rank or draw(st.integers(1, 4))
    near = draw(st.sampled_from([0, -7, 1000, -(10**6), 2**31 - 60]))
    cell = st.tuples(st.integers(0, 2), *[st.integers(near - 6, near + 6)] * rank)
    cells = draw(st.lists(cell, min_size=1, max_size=25, unique=True))
    return torch.tensor(cells, dtype=torch.int32)


def by_definition(rows, outputs, offsets, stride, transposed):
    """{(output, tap): input} of cells as tuples."""
    found = {}
    for y, t in itertools.product(outputs, range(len(offsets))):
        for x in rows:
            fine, coarse = (y, x) if transposed else (x, y)
            steps = zip(coarse[1:], stride, offsets[t], strict=True)
            if fine == (coarse[0], *(c * s + o for c, s, o in steps)):
                found[y, t] = x
    return found


def of_map(found):
    inputs = [tuple(c) for c in found.inputs.coords.tolist()]
    outputs = [tuple(c) for c in found.outputs.coords.tolist()]
    pairs = found.index.ge(0).nonzero().tolist()
    return {(outputs[o], t): inputs[found.index[o, t]] for o, t in pairs}, outputs


@settings(max_examples=40, deadline=None)
@given(clouds(), st.data())
def test_maps_are_their_definition(cells, data):
    rank = cells.shape[1] - 1
    stride = tuple(data.draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)))
    offset = st.tuples(*[st.integers(-3, 3)] * rank)
    offsets = data.draw(st.lists(offset, min_size=1, max_size=4, unique=True))
    transposed = data.draw(st.booleans())
    if transposed and cells.abs().max() > 10**8:  # three times as far is no int32
        stride = (1,) * rank
        cells[:, 1:] -= 20
    x = Coordinates.unbounded(cells, 4)
    assert torch.equal(x.coords, cells)
    rows = [tuple(c) for c in cells.tolist()]
    make = transposed_map if transposed else strided_map
    found, outputs = of_map(make(x, stride=stride, offsets=offsets))
    assert found == by_definition(rows, outputs, offsets, stride, transposed)
    reach = set()
    for cell, o in itertools.product(rows, offsets):
        if transposed:
            reach.add((cell[0], *(c * s + d for c, s, d in zip(cell[1:], stride, o, strict=True))))
        elif all((c - d) % s == 0 for c, s, d in zip(cell[1:], stride, o, strict=True)):
            reach.add(
                (cell[0], *((c - d) // s for c, s, d in zip(cell[1:], stride, o, strict=True)))
            )
    assert outputs == sorted(reach)
    given_cells = Coordinates.unbounded(data.draw(clouds(rank)), 4)
    found, outputs = of_map(make(x, stride=stride, offsets=offsets, outputs=given_cells))
    assert found == by_definition(rows, outputs, offsets, stride, transposed)
    assert make(x, stride=stride, offsets=offsets) is make(x, stride=stride, offsets=offsets)
    down = downsample(x, stride)
    assert [tuple(c) for c in down.coords.tolist()] == sorted({floored(c, stride) for c in rows})


@pytest.mark.parametrize("stride", [(32, 32, 32), (17, 17, 17), (64, 1, 128), 4096])
@pytest.mark.parametrize("bounded", [False, True])
def test_strides_of_more_taps_than_a_map_has(stride, bounded):
    """MinkowskiEngine's networks of completion divide a target's cells by 32 and by 64."""
    random = torch.Generator().manual_seed(0)
    rank = 1 if stride == 4096 else 3
    cells = torch.randint(0, 9000, (50, 1 + rank), generator=random).int()
    cells[:, 0] %= 2
    if bounded:
        x = Coordinates(cells, (9001,) * rank, 2)
    else:
        x = Coordinates.unbounded(torch.cat([cells[:, :1], cells[:, 1:] - 4000], 1))
    down = downsample(x, stride)
    steps = [stride] * rank if isinstance(stride, int) else stride
    rows = [tuple(cell) for cell in x.coords.tolist()]
    assert [tuple(c) for c in down.coords.tolist()] == sorted({floored(c, steps) for c in rows})
    assert downsample(x, stride) is down
    if bounded:
        assert down.spatial_shape == tuple(-(-9001 // step) for step in steps)


def shifted(rows=60, by=(-37, 11, -5), seed=0, channels=2):
    random = torch.Generator().manual_seed(seed)
    keys = torch.randperm(2 * 8**3, generator=random)[:rows]
    cells = torch.stack([keys // 512, keys // 64 % 8, keys // 8 % 8, keys % 8], 1).int()
    features = torch.randn(rows, channels, dtype=torch.float64, generator=random)
    return features, cells, cells + torch.tensor([0, *by], dtype=torch.int32)


def test_layers_compute_what_they_do_in_a_grid():
    features, cells, moved = shifted(by=(-32, 16, -8))
    weight = torch.randn(3, 3, 3, 3, 2, dtype=torch.float64)
    down = torch.randn(4, 2, 2, 2, 3, dtype=torch.float64)
    results = []
    for coords, grid in ((cells, ((8, 8, 8), 2)), (moved, ())):
        f = features.clone().requires_grad_()
        x = SparseTensor(f, coords, *grid)
        y = lc.subm_conv(x, weight, activation="relu")
        z = lc.sparse_conv(y, down, stride=2)
        back = lc.sparse_inverse_conv(z, down.transpose(0, 4))
        assert back.coordinates is x.coordinates
        pooled = lc.nn.sparse_max_pool(back, 2)
        total = pooled + z * 0.5 if z.features.shape == pooled.features.shape else pooled
        total.features.square().sum().backward()
        results.append((x, z, back, pooled, f.grad))
    for a, b in zip(results[0][:4], results[1][:4], strict=True):
        assert torch.equal(a.features, b.features)
    assert torch.equal(results[0][4], results[1][4])
    x, z = results[1][:2]
    assert z.coords[:, 1:].min() < 0
    assert torch.equal(x.coords, moved)
    there = z.coords - torch.tensor([0, -16, 8, -4], dtype=torch.int32)
    assert torch.equal(there, results[0][1].coords)


def test_a_filter_reaches_past_all_sides():
    x = SparseTensor(torch.ones(1, 1), torch.zeros(1, 3, dtype=torch.int32))
    y = lc.sparse_conv(x, torch.arange(9.0).view(1, 3, 3, 1), padding=1)
    assert y.coords[:, 1:].tolist() == list(map(list, itertools.product((-1, 0, 1), repeat=2)))
    assert y.features[:, 0].tolist() == [8.0, 7, 6, 5, 4, 3, 2, 1, 0]
    z = lc.sparse_conv_transpose(y, torch.ones(1, 2, 2, 1), stride=2)
    assert z.coords[:, 1:].tolist() == list(map(list, itertools.product(range(-2, 4), repeat=2)))


def test_rows_keep_their_places():
    features, _, moved = shifted()
    x = SparseTensor(features, moved)
    for y in (
        x.padded(70).unpadded(),
        prune(x, torch.ones(len(x), dtype=torch.bool)),
        copy.deepcopy(x),
        pickle.loads(pickle.dumps(x)),
        collate([x[0], x[1]]) + 0,
        x.replace(x.features),
    ):
        order = [sorted(range(len(t)), key=lambda i, t=t: t.coords[i].tolist()) for t in (x, y)]
        assert torch.equal(x.coords[order[0]], y.coords[order[1]])
        assert torch.equal(x.features[order[0]], y.features[order[1]])
    padded = x.padded(70)
    assert padded.coords[60:].tolist() == [[-1, 0, 0, 0]] * 10
    assert torch.equal(SparseTensor(padded.features[:60], padded.coords[:60]).coords, moved)
    first, second = (
        x[0],
        SparseTensor(features[:5], moved[:5] - torch.tensor([0, 900, 900, 900]).int()),
    )
    both = {
        tuple(c): torch.zeros(2).double() for c in [*x.coords.tolist(), *second.coords.tolist()]
    }
    for t, sign in ((x, 1), (second, -1)):
        for cell, row in zip(t.coords.tolist(), t.features, strict=True):
            both[tuple(cell)] = both[tuple(cell)] + sign * row
    total = x - second
    assert [tuple(c) for c in total.coords.tolist()] == sorted(both)
    assert torch.equal(total.features, torch.stack([both[c] for c in sorted(both)]))
    assert set(map(tuple, first.coords.tolist())) == {tuple(c) for c in moved.tolist() if c[0] == 0}


def test_devoxelize_knows_the_corner():
    features, _, moved = shifted()
    x = SparseTensor(features, moved)
    centres = [(x[i].coords[:, 1:].flip(1) + 0.5).double() for i in (0, 1)]
    for mode in ("nearest", "linear", "trilinear"):
        found = lc.devoxelize(x, centres, mode, voxel_size=1.0, origin=(0, 0, 0))
        torch.testing.assert_close(found, torch.cat([x[0].features, x[1].features]))


def test_images_are_broadcast():
    features, _, moved = shifted()
    x = SparseTensor(features, moved).padded(64)
    values = torch.tensor([[1.0, 2.0], [10.0, 20.0]], dtype=torch.float64, requires_grad=True)
    y = broadcast(values, x)
    image = x.coords[:, 0].tolist()
    expected = [[0.0, 0.0] if b < 0 else values[b].tolist() for b in image]
    assert y.features.tolist() == expected
    (grad,) = torch.autograd.grad(((x + y) * y).features.sum(), values)
    sums = torch.stack([x.features[x.coords[:, 0] == b].sum(0) for b in (0, 1)])
    counts = torch.tensor([image.count(0), image.count(1)]).double()[:, None]
    torch.testing.assert_close(grad, sums + 2 * counts * values.detach())
    with pytest.raises(ValueError, match=r"`values`: expected \(2, C\), a row for each image"):
        broadcast(values[:1], x)


def test_what_is_refused():
    features, cells, moved = shifted()
    x, grid = SparseTensor(features, moved), SparseTensor(features, cells, (8, 8, 8), 2)
    with pytest.raises(
        ValueError, match=r"`other`: .* same grid, 3 modes without bounds.* got spa"
    ):
        x + grid
    with pytest.raises(ValueError, match="`outputs`: expected cells without bounds"):
        strided_map(x.coordinates, outputs=grid.coordinates)
    with pytest.raises(ValueError, match="`outputs`: expected cells of a grid"):
        strided_map(grid.coordinates, outputs=x.coordinates)
    with pytest.raises(ValueError, match="`spatial_shape`: expected None for cells without bounds"):
        strided_map(x.coordinates, spatial_shape=(4, 4, 4))
    with pytest.raises(ValueError, match="`tensors`: expected tensors of the same kind"):
        collate([x, grid])
    with pytest.raises(ValueError, match=r"distinct cells, got \[0, -5\] in rows 0 and 1"):
        SparseTensor(torch.ones(2, 1), torch.tensor([[0, -5], [0, -5]]).int()).check()
    far = torch.tensor([[0, -(2**31)], [0, 2**31 - 1]]).int()
    with pytest.raises(ValueError, match=r"`coords`: expected a box of fewer than 2\*\*31 cells"):
        SparseTensor(torch.ones(2, 1), far)
    with pytest.raises(ValueError, match=r"column 0 in \[0, 1\), got \[1, "):
        SparseTensor(features, moved, batch_size=1).check()
    with pytest.raises(ValueError, match="`corner`: expected 3 integers"):
        Coordinates(cells, (8, 8, 8), 2, corner=(1, 2))
    empty = SparseTensor(torch.ones(0, 1), torch.zeros(0, 4).int(), batch_size=2)
    assert lc.sparse_conv(empty, torch.ones(1, 3, 3, 3, 1), padding=1).features.shape == (0, 1)


@pytest.mark.parametrize("place", [2**31 - 1, -(2**31), 2**30])
def test_results_beyond_32_bits_are_no_other_cells(place):
    """Not wrapped: cell 2**31 is another one than -2**31."""
    x = SparseTensor(torch.ones(1, 1), torch.tensor([[0, place, 0]], dtype=torch.int32))
    twice = lc.nn.SparseConvTranspose2d(1, 1, 2, 2)
    with pytest.raises(ArgumentError, match=r"`coords`: expected ones whose results lie in"):
        twice(x)
    grown = lc.nn.SparseConv2d(1, 1, 3, padding=1)
    if place == 2**30:
        assert grown(x).coords[:, 1].unique().tolist() == [place - 1, place, place + 1]
        near = SparseTensor(x.features, x.coords - torch.tensor([0, 1, 0], dtype=torch.int32))
        assert twice(near).coords[:, 1].unique().tolist() == [2**31 - 2, 2**31 - 1]
    else:
        with pytest.raises(ArgumentError, match=r"`coords`: expected ones whose results lie in"):
            grown(x)


def test_unions_beyond_32_bits_are_refused():
    far, farther = (
        SparseTensor(torch.ones(1, 1), torch.tensor([[0, place, 0]], dtype=torch.int32))
        for place in (-(2**31), 2**31 - 1)
    )
    for join in (lambda: far + farther, lambda: lc.sparse.collate([far, farther])):
        with pytest.raises(ArgumentError, match=r"`coords`: expected a box of fewer than 2\*\*31"):
            join()


def test_a_box_too_large_for_keys_is_named_without_images_too():
    """The key's stride per image must fit into 64 bits, even if there is no image."""
    none = torch.zeros(0, 5, dtype=torch.int32)
    for images in (0, 1):
        x = SparseTensor(torch.zeros(0, 1), none, (2**16,) * 4, images)
        with pytest.raises(ArgumentError, match=r"`spatial_shape`: expected fewer than 2\*\*63"):
            lc.nn.SparseMaxPool4d(3, 2)(x)
