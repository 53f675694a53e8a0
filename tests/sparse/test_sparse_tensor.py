"""SparseTensor, against dense grids: what it does to rows is what is done to the grids."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.sparse import (
    Coordinates,
    SparseTensor,
    cat,
    collate,
    merge_repeated,
    submanifold_map,
    voxelize,
)


@st.composite
def grids(draw, rank=None):
    rank = draw(st.integers(1, 4)) if rank is None else rank
    return tuple(draw(st.integers(1, 4)) for _ in range(rank)), draw(st.integers(1, 3))


@st.composite
def tensors(draw, shape, batch_size, channels=2, dtype=torch.float64):
    """Distinct cells in any order; whole numbers, so that sums are exact."""
    cell = st.tuples(st.integers(0, batch_size - 1), *(st.integers(0, e - 1) for e in shape))
    cells = draw(st.lists(cell, max_size=12, unique=True))
    coords = torch.tensor(cells, dtype=torch.int32).reshape(len(cells), 1 + len(shape))
    numbers = draw(st.lists(st.integers(-9, 9), min_size=12 * channels, max_size=12 * channels))
    features = torch.tensor(numbers, dtype=dtype).view(12, channels)[: len(cells)]
    x = SparseTensor(features, coords, shape, batch_size)
    return x.padded(len(x) + draw(st.integers(0, 3))) if draw(st.booleans()) else x


@st.composite
def one(draw):
    return draw(tensors(*draw(grids())))


def fixed(rows=5, channels=2, requires_grad=True, dtype=torch.float64, seed=0) -> SparseTensor:
    """The same cells of a 3 x 4 grid of two images for each seed, in no order."""
    random = torch.Generator().manual_seed(seed)
    keys = torch.randperm(24, generator=random)[:rows]
    coords = torch.stack([keys // 12, keys // 4 % 3, keys % 4], 1).int()
    features = torch.randn(rows, channels, dtype=torch.float64, generator=random).to(dtype)
    return SparseTensor(features.requires_grad_(requires_grad), coords, (3, 4), 2)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_sums_are_those_of_the_grids(data):
    shape, batch_size = data.draw(grids())
    x, y = (data.draw(tensors(shape, batch_size)) for _ in range(2))
    total = x + y
    assert torch.equal(total.dense(), x.dense() + y.dense())
    assert torch.equal((x - y).dense(), x.dense() - y.dense())
    both = {tuple(c) for t in (x, y) for c in t.unpadded().coords.tolist()}
    assert [tuple(cell) for cell in total.coords.tolist()] == sorted(both)
    shared = x + x.replace(3 * x.features)
    assert shared.coordinates is x.coordinates
    assert torch.equal(shared.dense(), 4 * x.dense())
    product = x * y
    assert torch.equal(product.dense(), x.dense() * y.dense())
    assert torch.equal(product.coords, total.coords)
    for result in (-x, 2 * x, x * 2, x / 2, x + 1, 1 - x, x**2):
        assert result.coordinates is x.coordinates
    f = x.features
    assert torch.equal((1 - x).features, 1 - f)
    assert torch.equal((x**2 + 1).features, f * f + 1)
    assert torch.equal((x * f[:1].sum(0)).features, f * f[:1].sum(0))
    assert torch.equal((2 * x - x / 2).dense(), 1.5 * x.dense())
    assert torch.equal((-x).features, -x.features)


@settings(max_examples=60, deadline=None)
@given(one(), st.data())
def test_a_slice_is_that_of_the_grid(x, data):
    n = x.batch_size
    images = data.draw(st.slices(n))
    chosen = range(n)[images]
    part = x[images]
    assert torch.equal(part.dense(), x.dense()[list(chosen)])
    rows = [row for row, cell in enumerate(x.coords.tolist()) if cell[0] in chosen]
    assert torch.equal(part.features, x.features[rows])
    assert torch.equal(part.coords[:, 1:], x.coords[rows, 1:])
    for image in (0, n - 1, -1, -n):
        assert torch.equal(x[image].dense(), x.dense()[[image]])
    for image in (n, -n - 1):
        with pytest.raises(IndexError, match=f"^image {image} of a batch of {n}$"):
            x[image]
    for wrong in ([0], 0.0, "a", None):
        with pytest.raises(ArgumentTypeError, match="`images`: expected an int or a slice"):
            x[wrong]
    assert [t.batch_size for t in x] == [1] * n


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_images_that_are_joined_come_apart_again(data):
    rank = data.draw(st.integers(1, 4))
    parts = [
        data.draw(tensors(*data.draw(grids(rank)))) for _ in range(data.draw(st.integers(1, 3)))
    ]
    batch = collate(parts)
    extents = [part.spatial_shape for part in parts]
    assert batch.spatial_shape == tuple(max(e) for e in zip(*extents, strict=True))
    start = 0
    for part in parts:
        again = batch[start : start + part.batch_size]
        start += part.batch_size
        part = part.unpadded()
        assert torch.equal(again.coords, part.coords)
        assert torch.equal(again.features, part.features)
    assert start == batch.batch_size
    assert batch.coordinates.padded == any(part.coordinates.padded for part in parts)
    batch.check()


@settings(max_examples=40, deadline=None)
@given(one(), st.integers(0, 4))
def test_rows_that_fill_up_change_nothing(x, more):
    full = x.padded(len(x) + more)
    assert len(full) == len(x) + more
    assert full.coordinates.padded
    assert torch.equal(full.features[: len(x)], x.features)
    assert not full.features[len(x) :].any()
    assert torch.equal(full.dense(), x.dense())
    assert torch.equal(full.unpadded().coords, x.unpadded().coords)
    assert torch.equal(full.unpadded().features, x.unpadded().features)
    here, there = (submanifold_map(t.coordinates, 3).index for t in (x, full))
    assert torch.equal(there[: len(x)], here)
    assert (there[len(x) :] == -1).all()
    assert x.coordinates.padded or x.unpadded() is x


def test_channels_side_by_side():
    x = fixed()
    y = x.replace(x.features[:, :1] * 5)
    joined = cat([x, y, x])
    assert joined.coordinates is x.coordinates
    assert torch.equal(joined.dense(), torch.cat([x.dense(), y.dense(), x.dense()], dim=-1))
    voxels = voxelize(torch.rand(9, 4), 0.5)
    assert type(cat([voxels, voxels])) is type(voxels)
    with pytest.raises(ValueError, match=r"`tensors`: expected tensors that share .* at 1"):
        cat([x, fixed()])
    for join in (cat, collate):
        with pytest.raises(ValueError, match="`tensors`: expected one sparse tensor or more"):
            join([])
        with pytest.raises(TypeError, match=r"`tensors`: expected a sequence .* got generator"):
            join(each for each in [])


@settings(max_examples=80, deadline=None)
@given(st.data(), st.sampled_from(["sum", "mean", "max", "min", "first"]))
def test_repeated_cells_are_reduced(data, reduce):
    shape, batch_size = data.draw(grids())
    cell = st.tuples(st.integers(0, batch_size - 1), *(st.integers(0, e - 1) for e in shape))
    cells = data.draw(st.lists(cell, max_size=20))
    coords = torch.tensor(cells, dtype=torch.int32).reshape(len(cells), 1 + len(shape))
    features = torch.randn(len(cells), 3)
    merged = merge_repeated(features, coords, shape, batch_size, reduce).check()
    rows = {c: [r for r, other in enumerate(cells) if other == c] for c in sorted(set(cells))}
    assert [tuple(c) for c in merged.coords.tolist()] == list(rows)
    expected = {
        "sum": lambda f: f.sum(0), "mean": lambda f: f.mean(0), "first": lambda f: f[0],
        "max": lambda f: f.amax(0), "min": lambda f: f.amin(0),
    }[reduce]  # fmt: skip
    for row, of in zip(merged.features, rows.values(), strict=True):
        torch.testing.assert_close(row, expected(features[of].double()).float())
    again = merge_repeated(features, coords, shape, batch_size, reduce)
    assert torch.equal(again.features, merged.features)


def test_gradients():
    a, b = fixed(), fixed(seed=1)
    assert len(a + b) < len(a) + len(b)  # some cells are shared
    coords = fixed(rows=6).coords % 2

    def check(function, *inputs):
        assert torch.autograd.gradcheck(function, inputs)

    check(lambda x, y: (a.replace(x) + b.replace(y)).features, a.features, b.features)
    check(lambda x, y: (a.replace(x) - a.replace(y)).features, a.features, b.features)
    check(lambda x, y: cat([a.replace(x), a.replace(y)]).features, a.features, b.features)
    check(lambda x, y: collate([a.replace(x), b.replace(y)]).features, a.features, b.features)
    check(lambda x: a.replace(x)[1].features, a.features)
    check(lambda x: a.replace(x).padded(8).unpadded().features, a.features)
    check(lambda x: a.replace(x).padded(8).dense(), a.features)
    check(lambda x: SparseTensor.from_dense(a.replace(x).dense()).features, a.features)
    for reduce in ("sum", "mean", "max", "min", "first"):
        six = fixed(rows=6).features
        check(lambda x, how=reduce: merge_repeated(x, coords, (2, 2), 2, how).features, six)


def copies():
    def saved(x, **options):
        file = io.BytesIO()
        torch.save(x, file)
        file.seek(0)
        return torch.load(file, **options)

    return [
        lambda x: pickle.loads(pickle.dumps(x)),
        copy.deepcopy,
        lambda x: saved(x, weights_only=False),
        lambda x: saved(x, weights_only=True),
    ]


@pytest.mark.parametrize("copied", copies())
@pytest.mark.parametrize("padded", [False, True])
def test_copies_are_equal_and_share_as_before(copied, padded):
    x = fixed(requires_grad=False)
    x = x.padded(7) if padded else x
    submanifold_map(x.coordinates, 3)
    again, other = copied([x, x.replace(2 * x.features)])
    assert torch.equal(again.features, x.features)
    assert again.features is not x.features
    assert torch.equal(again.coords, x.coords)
    assert torch.equal(again.dense(), x.dense())
    assert other.coordinates is again.coordinates
    assert again.coordinates.padded == padded
    assert repr(again) == repr(x)


def test_voxels_are_copied_with_their_points():
    voxels = voxelize(torch.rand(9, 4), 0.3, range=(0, 0, 0, 1, 1, 0.5))
    file = io.BytesIO()
    torch.save(voxels, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    for again in (saved, pickle.loads(pickle.dumps(voxels)), copy.deepcopy(voxels)):
        assert torch.equal(again.dense(), voxels.dense())
        assert torch.equal(again.point_to_voxel, voxels.point_to_voxel)
        assert again.lattice == voxels.lattice
        assert again.dropped == voxels.dropped


def test_a_shallow_copy_shares():
    x = fixed()
    again = copy.copy(x)
    assert again.features is x.features
    assert again.coordinates is x.coordinates


def loaded_with(x, **changed):
    """Return a file's tensor of which parts were replaced before it was saved."""
    saved = copy.copy(x)
    for name, value in changed.items():
        saved.__dict__[name] = value
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_files_are_not_believed():
    """Kernels read the rows that cells name: those of a file are looked at as any others."""
    x = fixed(requires_grad=False)
    with pytest.raises(ArgumentError, match="features"):
        loaded_with(x, features=x.features[:2])
    outside = x.coordinates.cells + 1000
    wrong = Coordinates(outside, x.spatial_shape, x.batch_size, valid=True)
    with pytest.raises(ArgumentError, match="outside"):
        loaded_with(x, coordinates=wrong).check()


def test_moves():
    x = fixed()
    half = x.to(torch.float16)
    assert half.coordinates is x.coordinates
    assert (half.dtype, x.dtype) == (torch.float16, torch.float64)
    for name in ("half", "bfloat16", "float", "double"):
        moved = getattr(x, name)()
        assert moved.dtype == getattr(torch, name)
        assert torch.equal(moved.features, getattr(x.features, name)())
        assert moved.coordinates is x.coordinates
    assert x.to("cpu") is x.cpu() is x
    away = x.to("meta", torch.float32)
    assert {away.device.type, away.coords.device.type} == {"meta"}
    assert away.dtype == torch.float32
    half.features.sum().backward()
    assert torch.equal(x.features.grad, torch.ones_like(x.features))
    assert not x.detach().features.requires_grad
    voxels = voxelize(torch.rand(9, 4), 0.5).to("meta")
    assert voxels.point_to_voxel.device.type == "meta"
    assert voxels.voxel_size == (0.5, 0.5, 0.5)


def test_text():
    x = fixed()
    about = "5 rows, 2 channels, torch.float64, spatial_shape=(3, 4), batch_size=2"
    assert repr(x) == f"SparseTensor({about})"
    assert repr(x.padded(5)) == f"SparseTensor({about}, padded)"
    assert repr(x.to("meta")) == f"SparseTensor({about}, device='meta')"
    assert repr(voxelize(torch.ones(1, 3), 1.0)).startswith("Voxels(1 rows, 3 channels, ")


def test_nothing_is_changed_in_place():
    x = fixed(requires_grad=False)
    before = x
    features = x.features.clone()
    x += x
    assert torch.equal(before.features, features)
    assert torch.equal(x.features, 2 * features)
    with pytest.raises(AttributeError, match="cannot be changed"):
        x.coordinates = before.coordinates
    with pytest.raises(AttributeError, match="cannot be changed"):
        del x.features


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.complex64, torch.bool])
def test_sums_of_any_type(dtype):
    x, y = fixed(requires_grad=False), fixed(requires_grad=False, seed=1)
    x, y = (t.replace((4 * t.features).to(dtype)) for t in (x, y))
    assert (x + y).dtype == dtype
    assert torch.equal((x + y).dense(), x.dense() + y.dense())
    wide = y.to(torch.complex128)
    assert torch.equal((x + wide).dense(), x.dense() + wide.dense())


def test_numbers_of_numpy():
    x = fixed(requires_grad=False)
    for product in (np.float32(2) * x, x * np.float64(2), np.int64(2) * x):
        assert isinstance(product, SparseTensor)
        assert torch.equal(product.features, 2 * x.features)


def test_features_may_be_views():
    x = fixed(channels=6, requires_grad=False)
    view = x.replace(x.features[:, ::2])
    assert torch.equal(view.dense(), x.dense()[..., ::2])
    assert torch.equal((view + fixed(channels=3, seed=1)).dense()[..., 0],
                       x.dense()[..., 0] + fixed(channels=3, seed=1).dense()[..., 0])  # fmt: skip


def test_tensors_without_rows():
    nothing = SparseTensor(torch.ones(0, 2), torch.ones(0, 3).int(), (3, 4), 2)
    x = fixed(requires_grad=False, dtype=torch.float32)
    assert torch.equal((x + nothing).dense(), x.dense())
    assert (nothing + nothing[:]).features.shape == (0, 2)
    assert collate([nothing, x, nothing])[2:4].features.shape == x.features.shape
    assert x[2:].batch_size == 0
    assert len(nothing[0]) == len(nothing.unpadded()) == 0
    assert not nothing.padded(3).dense().any()
    merged = merge_repeated(nothing.features, nothing.coords, (3, 4), 2)
    assert merged.features.shape == (0, 2)
    assert SparseTensor(torch.ones(2, 0), x.coords[:2], (3, 4), 2).dense().shape == (2, 3, 4, 0)


def test_what_is_refused():
    x = fixed()
    with pytest.raises(ValueError, match="`other`: expected a tensor of 2 channels, got 3"):
        x + fixed(channels=3)
    moved = SparseTensor(x.features, x.coords, (3, 5), 2)
    with pytest.raises(ValueError, match=r"`other`: .*same grid.*\(3, 4\).* got .*\(3, 5\)"):
        x + moved
    with pytest.raises(ValueError, match=r"`other`: .* on cpu, got .* on meta"):
        x + x.to("meta")
    for other in ("2", None):
        with pytest.raises(TypeError):
            x * other
        with pytest.raises(TypeError):
            x + other
    for other in (torch.ones(3), torch.ones(2, 5, 2)):
        with pytest.raises(ValueError, match=r"`other`: .* broadcasts to \(5, 2\), got shape"):
            x * other
    with pytest.raises(ValueError, match=r"`other`: expected a tensor of the same cells.* 9 cells"):
        x / fixed(rows=5, seed=3)
    with pytest.raises(TypeError):
        x["0"]
    with pytest.raises(ValueError, match="`capacity`: expected 5 rows or more, got 4"):
        x.padded(4)
    with pytest.raises(TypeError, match="`capacity`: expected a number of rows, an integer, got 5"):
        x.padded(5.5)  # type: ignore[arg-type]
    for join in (cat, collate):
        with pytest.raises(TypeError, match="`tensors`: expected sparse tensors, got Tensor at 1"):
            join([x, x.features])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="`grid`: expected a torch tensor, got ndarray"):
        SparseTensor.from_dense(x.dense().detach().numpy())  # type: ignore[arg-type]
    for other in (x.float(), fixed(channels=3), x.to("meta")):
        with pytest.raises(
            ValueError, match=r"`tensors`: expected tensors of the same kind.* at 1"
        ):
            collate([x, other])
    twice = SparseTensor(torch.ones(2, 1), torch.zeros(2, 4).int(), (2, 2, 2), 1)
    for use in (twice.dense, lambda: twice[0], lambda: twice + twice[:]):
        with pytest.raises(ValueError, match=r"distinct cells, .* \(lc.sparse.merge_repeated"):
            use()
    outside = torch.tensor([[0, 0], [1, 9], [0, 5]], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"column 0 in \[0, 1\), got \[1, 9\] in row 1"):
        merge_repeated(torch.ones(3, 1), outside, (5,), 1)
    with pytest.raises(ValueError, match=r"column 1 in \[0, 5\), got \[0, -1\]"):
        merge_repeated(torch.ones(1, 1), torch.tensor([[0, -1]]).int(), (5,), 1)
    with pytest.raises(TypeError, match=r"`features`: expected .* floating-point .* their sum"):
        merge_repeated(torch.ones(1, 1).int(), outside[:1], (5,), 1)
    with pytest.raises(ValueError, match="`reduce`: expected mean"):
        merge_repeated(torch.ones(1, 1), outside[:1], (5,), 1, "most")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`features`: expected \(3, C\)"):
        merge_repeated(torch.ones(1, 1), outside, (5,), 1)
    assert Coordinates(outside[:1], (5,), 1).check()


CELL = torch.zeros(1, 4, dtype=torch.int32)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("features", ([[1.0]], CELL, (4, 4, 4), 1)),
        ("features", (torch.ones(1, 2).numpy(), CELL, (4, 4, 4), 1)),
        ("coords", (torch.ones(1, 2), [[0, 0, 0, 0]], (4, 4, 4), 1)),
        ("coords", (torch.ones(1, 2), CELL.numpy(), (4, 4, 4), 1)),
        ("coords", (torch.ones(1, 2), CELL.long(), (4, 4, 4), 1)),
        ("spatial_shape", (torch.ones(1, 2), CELL, 4, 1)),
        ("spatial_shape", (torch.ones(1, 2), CELL, (4.5, 4, 4), 1)),
        ("batch_size", (torch.ones(1, 2), CELL, (4, 4, 4), 1.5)),
        ("batch_size", (torch.ones(1, 2), CELL, (4, 4, 4), "1")),
    ],
)
def test_what_is_of_another_kind_is_refused_by_name(name, arguments):
    with pytest.raises(ArgumentTypeError, match=f"argument `{name}`: expected "):
        SparseTensor(*arguments)


def test_integers_of_any_kind_say_a_grid():
    shape, batch_size = torch.tensor([4, 5, 6]), torch.tensor(2)
    for x in (
        SparseTensor(torch.ones(1, 2), CELL, shape, batch_size),
        SparseTensor(torch.ones(1, 2), CELL, shape.numpy(), batch_size.numpy()),
    ):
        assert (x.spatial_shape, x.batch_size) == ((4, 5, 6), 2)
        assert {type(extent) for extent in (*x.spatial_shape, x.batch_size)} == {int}


def test_cells_on_a_device_without_kernels_are_refused():
    x = SparseTensor(torch.ones(1, 2), CELL, (4, 4, 4), 1).to("meta")
    with pytest.raises(ArgumentError, match="`coords`: expected cells on a CPU or a GPU, got meta"):
        x.check()
    checked = SparseTensor(torch.ones(1, 2), CELL, (4, 4, 4), 1).check().to("meta")
    with pytest.raises(ArgumentError, match="`coords`: expected cells on a CPU or a GPU, got meta"):
        submanifold_map(checked.coordinates, 3)


def test_there_is_no_array_of_a_sparse_tensor():
    x = SparseTensor.from_dense(torch.ones(1, 2, 1))
    for make in (np.asarray, np.array, lambda x: np.asarray(x, dtype=np.float32), np.stack):
        with pytest.raises(
            TypeError, match=r"NumPy cannot read a SparseTensor: x.features.detach\(\).cpu"
        ):
            make(x if make is not np.stack else [x])
    with pytest.raises(ArgumentTypeError, match="`points`: expected a tensor, a NumPy array"):
        voxelize(x, 0.1)


def test_merged_rows_come_as_tensors():
    x = SparseTensor(torch.ones(1, 2), CELL, (4, 4, 4), 1)
    for wrong in (x, np.ones((1, 2)), None, [[1.0, 2.0]]):
        with pytest.raises(ArgumentTypeError, match="`features`: expected a torch tensor, got"):
            merge_repeated(wrong, CELL, (4, 4, 4), 1)
        with pytest.raises(ArgumentTypeError, match="`coords`: expected a torch tensor, got"):
            merge_repeated(torch.ones(1, 2), wrong, (4, 4, 4), 1)
