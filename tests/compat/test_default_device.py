"""Functions that take arrays and tensors leave tensors where they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import layoutconv as lc
from layoutconv.compat import MinkowskiEngine, torchsparse
from layoutconv.compat.torchsparse.utils import collate

POINTS = torch.rand(50, 4)
XYZ = POINTS[:, :3]


def collated() -> torch.Tensor:
    one = torchsparse.SparseTensor(torch.ones(1, 2), torch.tensor([[4, 5, 6]]).int())
    with torch.device("meta"):  # the default device, as torch.set_default_device sets it
        return collate.sparse_collate([one, one]).F


@pytest.mark.parametrize(
    "call",
    [
        lambda: lc.voxelize(POINTS, voxel_size=0.2).features,
        lambda: lc.sparse.knn_search(XYZ, 3)[0],
        lambda: MinkowskiEngine.utils.sparse_collate([XYZ] * 2, [POINTS] * 2)[1],
        lambda: MinkowskiEngine.utils.sparse_quantize(XYZ, POINTS, quantization_size=0.2)[1],
        lambda: collate.sparse_collate_fn([{"x": POINTS}] * 2)["x"],
    ],
    ids=["voxelize", "knn_search", "sparse_collate", "sparse_quantize", "sparse_collate_fn"],
)
def test_clouds_stay_on_their_device_whatever_the_default_is(
    call: Callable[[], torch.Tensor],
) -> None:
    expected = call()
    with torch.device("meta"):
        found = call()
    torch.testing.assert_close(found, expected)


def test_sparse_tensors_are_joined_on_their_device() -> None:
    assert collated().tolist() == [[1.0, 1.0]] * 2
