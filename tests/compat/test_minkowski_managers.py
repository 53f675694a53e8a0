"""Several tensors of one MinkowskiEngine coordinate manager."""

from __future__ import annotations

import pytest
import torch

import layoutconv.compat.MinkowskiEngine as ME  # noqa: N817
from layoutconv.errors import ArgumentError


def tensor(images: list[int], manager: ME.CoordinateManager | None = None) -> ME.SparseTensor:
    coords = torch.tensor([[image, row] for row, image in enumerate(images)]).reshape(-1, 2).int()
    return ME.SparseTensor(torch.ones(len(coords), 1), coords, coordinate_manager=manager)


def test_a_tensor_of_more_images_than_the_first_is_named_where_it_is_made():
    x = tensor([0, 1])
    with pytest.raises(ArgumentError, match=r"`coordinates`: expected images from 0 to 1.*got 2"):
        tensor([0, 2], x.coordinate_manager)
    assert len(x + tensor([1, 1, 0], x.coordinate_manager)) == 4


def test_a_tensor_without_rows_leaves_the_number_of_images_open():
    none = tensor([])
    x = tensor([0, 2], none.coordinate_manager)
    for total in (x + none, none + x):
        assert total.C.tolist() == x.C.tolist()
        assert torch.equal(total.F, x.F)
    assert ME.MinkowskiGlobalSumPooling()(x).F.tolist() == [[1.0], [0.0], [1.0]]
