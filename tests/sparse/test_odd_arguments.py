"""Functions of points and cells, given odd arguments: an answer, or an error that names one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

import layoutconv.sparse as sparse
from layoutconv import Layout
from layoutconv.errors import ArgumentError, PointFileError

from ..odd_arguments import ODD, refusals
from . import labelled_folders

POINTS = torch.rand(20, 4, generator=torch.Generator().manual_seed(0))
VOXELS = sparse.voxelize(POINTS, 0.2)
CELLS = VOXELS.coordinates
NEAR = {"points": POINTS[:, :3], "queries": POINTS[:5, :3]}
CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "voxelize": (
        sparse.voxelize,
        {"points": POINTS, "voxel_size": 0.2, "rank": 3},
    ),
    "devoxelize": (sparse.devoxelize, {"voxels": VOXELS, "points": POINTS, "mode": "nearest"}),
    "splat": (sparse.splat, {"points": POINTS, "voxel_size": 0.2, "reduce": "sum", "rank": 3}),
    "radius_search": (sparse.radius_search, {**NEAR, "radius": 0.3, "limit": 4, "rank": 3}),
    "knn_search": (sparse.knn_search, {**NEAR, "k": 3, "rank": 3}),
    "lookup": (
        sparse.lookup,
        {"coordinates": CELLS, "coords": CELLS.cells, "offsets": [(0, 0, 1)], "stride": 1},
    ),
    "submanifold_map": (
        sparse.submanifold_map,
        {"coordinates": CELLS, "kernel_size": [3, 3, 3], "dilation": 1},
    ),
    "strided_map": (
        sparse.strided_map,
        {
            "coordinates": CELLS,
            "kernel_size": 3,
            "stride": 2,
            "padding": [1, [0, 1], 1],
            "dilation": 1,
        },
    ),
    "transposed_map": (
        sparse.transposed_map,
        {"coordinates": CELLS, "kernel_size": 3, "stride": [2, 2, 2], "padding": 1, "dilation": 1},
    ),
    "downsample": (sparse.downsample, {"coordinates": CELLS, "stride": 2}),
    "tap_offsets": (sparse.tap_offsets, {"kernel_size": 3, "dilation": 1, "rank": 3}),
    "collate": (sparse.collate, {"tensors": [VOXELS, VOXELS]}),
    "cat": (sparse.cat, {"tensors": [VOXELS, VOXELS]}),
    "prune": (sparse.prune, {"x": VOXELS, "mask": torch.ones(len(VOXELS.features)).bool()}),
}


@pytest.mark.parametrize("call", CALLS)
def test_odd_arguments_are_answered_or_named(call):
    """No other exception of any kind: not Python's, not NumPy's, not torch's."""
    function, given = CALLS[call]
    errors = refusals(function, given)
    assert {error.name.partition("[")[0] for error in errors} <= {*given, "rank"}


@pytest.mark.parametrize("odd", [np.array(3), slice(3), [[[1]]], Layout((4, 8))])
@pytest.mark.parametrize("name", ["kernel_size", "stride", "padding"])
def test_what_is_no_size_of_a_filter_is_named(name, odd):
    """A number that is an array, what has no hash, and a layout, whose modes are layouts again."""
    given = {"coordinates": CELLS, "kernel_size": 3, "stride": 2, "padding": 1, name: odd}
    for function in (sparse.strided_map, sparse.transposed_map):
        with pytest.raises(ArgumentError, match=f"`{name}`: expected"):
            function(**given)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ({"stride": 2.5}, "`stride`: expected one, or 3 integers, got"),
        ({"stride": (1, 2)}, "`stride`: expected one, or 3 integers of 32 bits"),
        ({"offsets": 3}, "`offsets`: expected a list of 3 integers each, got 3"),
        ({"offsets": [(0, 1)]}, "`offsets`: expected a list of 3 integers of 32 bits, got"),
        ({"offsets": [(0, 0, 1 << 40)]}, "`offsets`: expected a list of 3 integers of 32 bits"),
        ({"offsets": torch.ones(2, 3)}, "`offsets`: expected a list of 3 integers, got"),
    ],
)
def test_lookup_names_strides_and_offsets_that_are_none(call, why):
    with pytest.raises(ArgumentError, match=why):
        sparse.lookup(**(CALLS["lookup"][1] | call))


def test_lookup_takes_integers_of_arrays():
    given = CALLS["lookup"][1]
    found = sparse.lookup(**given)
    for offsets in (torch.tensor([[0, 0, 1]]), np.array([[0, 0, 1]]), iter([np.array([0, 0, 1])])):
        assert torch.equal(sparse.lookup(**(given | {"offsets": offsets})), found)
    ones = torch.tensor([1, 1, 1])
    assert torch.equal(sparse.lookup(**(given | {"stride": ones})), found)


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_folders_and_files_are_read_or_named(tmp_path, odd):
    labelled_folders.semantic_kitti(tmp_path, {"08/000000": [10]})
    labelled_folders.nuscenes(tmp_path, {"scene-0103": [[17, 24]]})
    labelled_folders.scannet(tmp_path, {"scene0000_00": [1, 2, 3]})
    sweep = tmp_path / "sequences" / "08" / "velodyne" / "000000.bin"
    for kind, given in (
        (sparse.SemanticKitti, {"root": tmp_path, "split": "val"}),
        (sparse.NuScenes, {"root": tmp_path, "split": "all", "version": None, "scenes": None}),
        (sparse.ScanNet, {"root": tmp_path, "split": "train"}),
        (sparse.labelled_clouds, {"root": tmp_path, "split": "val"}),
        (sparse.read_points, {"path": sweep, "columns": 4, "dtype": "float32"}),
    ):
        for name in given:
            with suppress(ArgumentError, PointFileError):
                kind(**(given | {name: odd}))
