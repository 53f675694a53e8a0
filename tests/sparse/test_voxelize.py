"""voxelize, against a dictionary of cells; SparseTensor, against a dense grid."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.compat.MinkowskiEngine.utils import sparse_quantize
from layoutconv.compat.spconv.utils import Point2VoxelCPU3d
from layoutconv.errors import ArgumentError
from layoutconv.sparse import collate, knn_search
from layoutconv.sparse.coords.sparse_tensor import SparseTensor
from layoutconv.sparse.coords.voxels import voxelize
from layoutconv.tensors.of_array import tensor_of_array

# Sums and differences of these are exact in float64, so no cell depends on rounding.
VALUES = st.integers(-(4 << 16), 4 << 16).map(lambda i: i / (1 << 16))


@st.composite
def point_clouds(draw, columns=4):
    rows = draw(st.lists(st.tuples(*[VALUES] * columns), max_size=30))
    return torch.tensor(rows, dtype=torch.float32).reshape(len(rows), columns)


REDUCTIONS: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "min": min,
    "first": lambda values: values[0],
}


@settings(max_examples=80, deadline=None)
@given(
    st.lists(point_clouds(), min_size=1, max_size=3),
    st.tuples(*[st.sampled_from([0.25, 0.5, 1.0, 3.0])] * 3),
    st.sampled_from([None, (-1.0, -2.0, -0.5, 3.0, 2.0, 1.5), (5.0, 5.0, 5.0, 6.0, 6.0, 6.0)]),
    st.sampled_from(sorted(REDUCTIONS)),
)
def test_rows_are_the_reduced_points_of_each_cell(batch, size, box, reduce):
    voxels = voxelize(batch, size, range=box, reduce=reduce)
    cells: dict[tuple[int, ...], list[int]] = defaultdict(list)
    points = [(b, p) for b, cloud in enumerate(batch) for p in cloud.tolist()]
    for number, (b, p) in enumerate(points):
        if box is None or all(box[i] <= p[i] < box[i + 3] for i in range(3)):
            corner = voxels.origin if box is None else box[:3]
            x, y, z = (math.floor(Fraction(p[i] - corner[i]) / Fraction(size[i])) for i in range(3))
            cells[b, z, y, x].append(number)

    assert [tuple(row) for row in voxels.coords.tolist()] == sorted(cells)
    owner = {number: row for row, cell in enumerate(sorted(cells)) for number in cells[cell]}
    assert voxels.point_to_voxel.tolist() == [owner.get(i, -1) for i in range(len(points))]
    assert voxels.dropped == len(points) - len(owner)
    reduced = [
        [REDUCTIONS[reduce]([points[i][1][column] for i in cells[cell]]) for column in range(4)]
        for cell in sorted(cells)
    ]
    expected = torch.tensor(reduced, dtype=torch.float64).reshape(len(cells), 4)
    torch.testing.assert_close(voxels.features.double(), expected, rtol=2**-23, atol=1e-7)
    voxels.check()


@settings(max_examples=30, deadline=None)
@given(point_clouds(), st.randoms(use_true_random=False))
def test_the_order_of_the_points_does_not_matter(points, random):
    shuffled = list(range(len(points)))
    random.shuffle(shuffled)
    one, other = voxelize(points, 0.5), voxelize(points[shuffled], 0.5)
    assert torch.equal(one.coords, other.coords)
    assert torch.equal(one.point_to_voxel[shuffled], other.point_to_voxel)
    torch.testing.assert_close(one.features, other.features)


def test_points_lie_inside_their_cell():
    points = torch.rand(200, 3, generator=torch.Generator().manual_seed(0)) * 9 - 4
    voxels = voxelize(points, (0.3, 0.5, 0.7))
    off = (voxels.centres()[voxels.point_to_voxel] - points).abs() / torch.tensor([0.3, 0.5, 0.7])
    assert off.max() <= 0.5 + 1e-6


def test_a_range_that_rounds_is_a_whole_number_of_cells():
    # 70.4 / 0.1 is 704.0000000000001 in binary, and the last point falls in cell 703 all the same.
    edge = np.nextafter(70.4, 0)
    points = np.array([[edge, 0.0, 0.0], [70.4, 0.0, 0.0]])
    voxels = voxelize(points, 0.1, range=(0, -40, -3, 70.4, 40, 1))
    assert voxels.spatial_shape == (40, 800, 704)
    assert voxels.coords.tolist() == [[0, 30, 400, 703]]
    assert voxels.point_to_voxel.tolist() == [0, -1]


def test_no_points_give_no_rows():
    voxels = voxelize(torch.empty(0, 5), 0.1)
    assert voxels.features.shape == (0, 5)
    assert voxels.coords.shape == (0, 4)
    assert voxels.dense().shape == (1, 0, 0, 0, 5)
    batch = voxelize([torch.empty(0, 3), torch.ones(1, 3)], 0.1)
    assert batch.coords.tolist() == [[1, 0, 0, 0]]


def test_arrays_and_tensors_say_a_voxel_size():
    points, size = torch.rand(20, 3), (0.25, 0.5, 0.125)
    for same in (list(size), torch.tensor(size), torch.tensor(size).numpy()):
        assert voxelize(points, same).voxel_size == size
    assert voxelize(points, torch.tensor(0.5)).voxel_size == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    "size",
    [0, -0.1, 10**400, math.nan, math.inf, (0.1, 0.1), (0.1, 0.1, 0.0), (), "0.1", None, 1j],
)
def test_voxel_sizes_that_are_refused(size):
    with pytest.raises(ValueError, match="`voxel_size`: expected a finite positive number"):
        voxelize(torch.ones(1, 3), size)


def test_a_matrix_is_no_voxel_size_and_is_not_printed():
    """As points in the wrong place are, whose numbers fill pages."""
    with pytest.raises(ArgumentError, match=r"`voxel_size`: .*, got Tensor of shape \(9, 3\)$"):
        voxelize(torch.ones(1, 3), torch.ones(9, 3))
    with pytest.raises(ArgumentError, match=r"`k`: expected .*, got Tensor of shape \(9, 3\)$"):
        knn_search(torch.ones(1, 3), torch.ones(9, 3))


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (torch.ones(3), r"`points`: expected \(points, F\)"),
        (torch.ones(3, 2), r"`points`: expected \(points, F\)"),
        (
            torch.ones(3, 4, dtype=torch.int32),
            "`points`: expected .* floating-point type, got torch.int32",
        ),
        (
            torch.tensor([[0.0, 0, 0], [0, math.nan, 0]]),
            "in point 1, and 1 of 2 points that are not finite",
        ),
        ([torch.ones(3, 4), torch.ones(3, 3)], "agree in columns"),
        ([], "one or more clouds"),
        (None, "`points`: expected a tensor, a NumPy array, or a list of them, got NoneType"),
        ("sweep.bin", "`points`: expected a tensor, a NumPy array, or a list of them, got str"),
        ([[0.0, 1.0, 2.0]], "`points`: expected a tensor, a NumPy .*, got list in a sequence"),
        (torch.ones(3, 4, device="meta"), "`points`: expected points on a device that holds them"),
    ],
)
def test_points_that_are_refused(points, message):
    with pytest.raises(ValueError, match=message):
        voxelize(points, 0.1)


def test_grids_that_are_too_large_are_errors():
    far = torch.tensor([[0.0, 0.0, 0.0], [3e9, 0.0, 0.0]])
    with pytest.raises(ValueError, match=r"fewer than 2\*\*31 cells on each axis"):
        voxelize(far, 1.0)
    with pytest.raises(ValueError, match=r"fewer than 2\*\*31 cells on each axis"):
        voxelize(far[:1], 1e-9, range=(0, 0, 0, 100, 1, 1))
    with pytest.raises(ValueError, match=r"fewer than 2\*\*63 cells in all"):
        voxelize(torch.tensor([[0.0] * 3, [2e9] * 3]), 1.0)
    near = torch.tensor([[0.1, 0.1, 0.1], [0.3, 0.1, 0.1]])
    assert torch.equal(voxelize(near, 1.0, reduce="avg").features, voxelize(near, 1.0).features)
    with pytest.raises(ValueError, match="`reduce`: expected mean, sum, max, min or first"):
        voxelize(far, 1.0, reduce="median")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`range`: expected 6 numbers"):
        voxelize(far, 1.0, range="street")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`range`: expected finite"):
        voxelize(far, 1.0, range=(0, 0, 0, 1, 1, 0))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=3, max_size=5), st.integers(0, 2**31))
def test_from_dense_and_dense_are_inverse(shape, seed):
    grid = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).sub(1).clamp(min=0)
    sparse = SparseTensor.from_dense(grid)
    assert torch.equal(sparse.dense(), grid)
    assert (sparse.features != 0).any(1).all()
    doubled = sparse.replace(2 * sparse.features)
    assert doubled.coords is sparse.coords
    assert torch.equal(doubled.dense(), 2 * grid)


def test_a_sparse_tensor_checks_what_it_is_made_of():
    coords = torch.zeros(2, 4, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"`features`: expected \(2, C\)"):
        SparseTensor(torch.ones(3, 1), coords, (2, 2, 2), 1)
    with pytest.raises(ValueError, match=r"`coords`: expected \(rows, 3\)"):
        SparseTensor(torch.ones(2, 1), coords, (2, 2), 1)
    with pytest.raises(ValueError, match="`coords`: expected a torch tensor of int32"):
        SparseTensor(torch.ones(2, 1), coords.long(), (2, 2, 2), 1)
    with pytest.raises(ValueError, match="device of coords"):
        SparseTensor(torch.ones(2, 1, device="meta"), coords, (2, 2, 2), 1)
    with pytest.raises(ValueError, match=r"`spatial_shape`: .* got -1"):
        SparseTensor(torch.ones(2, 1), coords, (2, -1, 2), 1)
    outside = SparseTensor(torch.ones(2, 1), coords + 5, (9, 9, 5), 9)
    with pytest.raises(ValueError, match=r"column 3 in \[0, 5\)"):
        outside.dense()
    with pytest.raises(AttributeError):
        outside.features = torch.ones(2, 1)  # type: ignore[misc]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(point_clouds(), min_size=1, max_size=3),
    st.sampled_from([0.5, 1.0, (0.5, 1.0, 2.0)]),
    st.sampled_from([None, (-1.0, -1.0, -1.0, 1.5, 2.0, 1.0)]),
)
def test_voxels_that_are_joined_are_those_of_all_clouds(parts, size, box):
    joined, whole = collate([voxelize(p, size, box) for p in parts]), voxelize(parts, size, box)
    assert torch.equal(joined.coords, whole.coords)
    assert torch.equal(joined.features, whole.features)
    assert torch.equal(joined.point_to_voxel, whole.point_to_voxel)
    assert joined.spatial_shape == whole.spatial_shape
    assert joined.lattice == whole.lattice
    assert (joined.batch_size, joined.dropped) == (whole.batch_size, whole.dropped)


def test_voxels_of_other_sizes_are_joined_as_tensors():
    points = torch.tensor([[0.1, 0.1, 0.1], [2.0, 0.0, 1.0]])
    joined = collate([voxelize(points, 0.5), voxelize(points, 1.0)])
    assert type(joined) is SparseTensor
    assert joined.spatial_shape == (3, 1, 5)


ARRAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "reversed": lambda points: points[::-1].copy()[::-1],
    "reversed columns": lambda points: points[:, ::-1].copy()[:, ::-1],
    "big-endian": lambda points: points.astype(">f4"),
    "read-only": lambda points: np.frombuffer(points.tobytes(), "f4").reshape(points.shape),
    "sliced": lambda points: np.repeat(points, 2, 1)[:, ::2],
    "in Fortran's order": np.asfortranarray,
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.filterwarnings("error")
def test_an_array_in_any_memory_has_the_voxels_of_its_numbers(kind: str) -> None:
    points = (9 * np.random.default_rng(0).random((40, 4))).astype(np.float32)
    array, tensor = ARRAYS[kind](points), torch.tensor(points)
    whole, found = voxelize(tensor, 0.5), voxelize(array, 0.5)
    assert torch.equal(found.coords, whole.coords)
    assert torch.equal(found.features, whole.features)
    assert torch.equal(knn_search(array, 3)[0], knn_search(tensor, 3)[0])
    grid = [1, 1, 1], [0, 0, 0, 9, 9, 9], 4, 100, 5
    tables = [Point2VoxelCPU3d(*grid).point_to_voxel(each) for each in (array, tensor)]
    assert all(np.array_equal(*pair) for pair in zip(*tables, strict=True))
    cells = [sparse_quantize(each[:, :3], each, quantization_size=0.5) for each in (array, tensor)]
    assert all(np.array_equal(*pair) for pair in zip(*cells, strict=True))


def test_arrays_on_a_gpu_are_not_read_by_numpy() -> None:
    """As CuPy's: NumPy may not convert them, and torch reads them where it has CUDA."""
    asked = []

    class OnGpu:
        @property
        def __cuda_array_interface__(self) -> dict[str, object]:
            return {"shape": (0, 3), "typestr": "<f4", "data": (0, False), "version": 3}

        def __array__(self, *_: object, **__: object) -> np.ndarray:
            asked.append(self)
            raise TypeError("implicit conversion to a NumPy array is not allowed")

    with suppress(Exception):  # a torch without CUDA refuses
        tensor_of_array(OnGpu())
    assert not asked
