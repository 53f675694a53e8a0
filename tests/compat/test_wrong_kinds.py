"""Functions of other libraries' names, given what is none of their tensors: errors by argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import layoutconv.compat.MinkowskiEngine as ME  # noqa: N817
import layoutconv.compat.torchsparse as torchsparse
from layoutconv.compat.spconv.pytorch.functional import sparse_add
from layoutconv.compat.spconv.pytorch.utils import gather_features_by_pc_voxel_id
from layoutconv.compat.torchsparse.nn import functional as spf
from layoutconv.compat.torchsparse.utils.quantize import sparse_quantize
from layoutconv.errors import ArgumentError, ArgumentTypeError

from .dense import cloud

ROWS, PLACES = torch.ones(2, 3), torch.zeros(2, 8, dtype=torch.int64)
COORDS = torch.tensor([[0, 1, 1, 2], [0, 1, 1, 1]]).int()
X = torchsparse.SparseTensor(ROWS, COORDS)

# A function, its arguments, and the name of each that has to be a tensor of its kind.
CALLS: dict[str, tuple[Any, tuple[Any, ...], tuple[str | None, ...]]] = {
    "sphash": (spf.sphash, (COORDS, COORDS[:, 1:]), ("coords", "offsets")),
    "sphashquery": (spf.sphashquery, (PLACES, PLACES), ("queries", "references")),
    "spcount": (spf.spcount, (PLACES, 2), ("coords", None)),
    "spvoxelize": (spf.spvoxelize, (ROWS, PLACES[:, 0], PLACES[0]), ("feats", "coords", "counts")),
    "spdevoxelize": (spf.spdevoxelize, (ROWS, PLACES, PLACES), ("feats", "coords", "weights")),
    "calc_ti_weights": (spf.calc_ti_weights, (ROWS, PLACES), ("coords", "idx_query")),
    "generative_add": (torchsparse.generative_add, (X, X), ("a", "b")),
    "cat": (torchsparse.cat, ([X, X],), ("inputs",)),
    "gather": (
        gather_features_by_pc_voxel_id,
        (ROWS, PLACES[:, 0]),
        ("seg_res_features", "pc_voxel_id"),
    ),
    "sparse_add": (sparse_add, (cloud([4], 2), cloud([4], 2)), ("tens", "tens")),
    "unique": (ME.utils.unique_coordinate_map, (COORDS,), ("coordinates",)),
    "kaiming": (ME.utils.kaiming_normal_, (ROWS,), ("tensor",)),
    "batched_coordinates": (ME.utils.batched_coordinates, ([COORDS],), ("coords",)),
    "sparse_collate": (ME.utils.sparse_collate, ([COORDS], [ROWS]), ("coords", "feats")),
    "batch_sparse_collate": (ME.utils.batch_sparse_collate, ([(COORDS, ROWS)],), ("data",)),
    "summary": (ME.utils.summary, (torch.nn.Identity(), ROWS), ("model", None)),
}


@pytest.mark.parametrize("wrong", [3, "text", np.ones((2, 4)), {"a": 1}, [3]], ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_an_argument_of_another_kind_is_named(call, wrong, capsys):
    function, given, names = CALLS[call]
    function(*given)
    for place, name in enumerate(names):
        if name is not None:
            with pytest.raises(ArgumentTypeError, match=rf"`{name}`: expected (a|Sparse)"):
                function(*given[:place], wrong, *given[place + 1 :])


def test_points_to_quantize_have_three_columns():
    with pytest.raises(ArgumentError, match=r"`coords`: expected \(points, 3\), got \(2, 4\)"):
        sparse_quantize(np.ones((2, 4)))


def test_a_batch_is_of_sparse_tensors():
    with pytest.raises(ArgumentTypeError, match="`inputs`: expected a SparseTensor, got dict"):
        torchsparse.utils.collate.sparse_collate([{"x": ROWS}])
