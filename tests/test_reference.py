"""The references, against torch's own convolution; their bound, against results that are off."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.reference import dense_reference, sparse_reference
from layoutconv.sparse.coords.sparse_tensor import SparseTensor
from layoutconv.sparse.maps.kernel_map import submanifold_map
from layoutconv.stencils import RESPONSES, lift, stencil_weight


def conv3d(grid: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """torch's convolution, for NDHWC and KTRSC memory, padded to the input's size."""
    padding = [extent // 2 for extent in weight.shape[1:-1]]
    y = torch.nn.functional.conv3d(grid.movedim(-1, 1), weight.movedim(-1, 1), padding=padding)
    return y.movedim(1, -1)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([(3, 3, 3), (1, 3, 5), (1, 1, 1)]))
def test_both_references_are_the_convolution(seed, taps):
    random = torch.Generator().manual_seed(seed)
    grid = torch.randn(2, 4, 3, 5, 3, generator=random, dtype=torch.float64)
    grid *= torch.rand(2, 4, 3, 5, 1, generator=random) < 0.4
    weight = torch.randn(2, *taps, 3, generator=random, dtype=torch.float64)
    expected = conv3d(grid, weight)
    dense = dense_reference(grid, weight)
    torch.testing.assert_close(dense.value, expected)
    torch.testing.assert_close(dense.magnitude, conv3d(grid.abs(), weight.abs()))

    voxels = SparseTensor.from_dense(grid)
    kernel_map = submanifold_map(voxels.coordinates, taps).index
    sparse = sparse_reference(voxels.features, weight, kernel_map)
    where = tuple(voxels.coords.long().T)
    torch.testing.assert_close(sparse.value, expected[where])
    torch.testing.assert_close(sparse.magnitude, dense.magnitude[where])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_bound_admits_rounding_and_nothing_else(dtype):
    random = torch.Generator().manual_seed(1)
    grid = torch.randn(1, 5, 6, 7, 16, generator=random).to(dtype)
    weight = torch.randn(8, 3, 3, 3, 16, generator=random).to(dtype)
    reference = dense_reference(grid, weight)
    bound = reference.bound(dtype, tensor_cores=False)
    rounded = conv3d(grid.float(), weight.float()).to(dtype).double()
    assert ((rounded - reference.value).abs() <= bound).all()
    missing = weight.clone()
    missing[:, 2, 1, 0] = 0  # a tap that is not there is seen in nearly all outputs that it reaches
    wrong = conv3d(grid.float(), missing.float()).to(dtype).double()
    inner = ((wrong - reference.value).abs() > bound)[:, :-1, :, 1:]
    assert inner.double().mean() > 0.95


def test_tensor_cores_may_round_float32_to_tf32_and_others_may_not():
    random = torch.Generator().manual_seed(2)
    grid = torch.randn(1, 4, 4, 4, 8, generator=random)
    weight = torch.randn(8, 3, 3, 3, 8, generator=random)
    reference = dense_reference(grid, weight)

    def tf32(x: torch.Tensor) -> torch.Tensor:
        return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    error = (conv3d(tf32(grid).double(), tf32(weight).double()) - reference.value).abs()
    assert (error <= reference.bound(torch.float32, tensor_cores=True)).all()
    assert (error > reference.bound(torch.float32, tensor_cores=False)).double().mean() > 0.5


@pytest.mark.parametrize("channels", [RESPONSES, 16, 33])
def test_the_norm_over_channels_is_the_norm_of_the_stencils_responses(channels):
    from layoutconv.sparse.coords.voxels import voxelize

    random = torch.Generator().manual_seed(3)
    points = torch.rand(300, 4, generator=random)
    voxels = voxelize(points, 0.15)
    kernel_map = submanifold_map(voxels.coordinates).index
    features, weight = lift(voxels, channels), stencil_weight(channels)
    energy = sparse_reference(features, weight, kernel_map).value.norm(dim=1)

    # The same by hand, from the two signals: their slopes, and what is above and below.
    present = kernel_map >= 0
    order = torch.quantile(voxels.features[:, 3], torch.tensor([0.02, 0.98]))
    bright = (voxels.features[:, 3] - order[0]) / (order[1] - order[0])
    bright = torch.where(present, (bright.clamp(0, 1) - 0.5)[kernel_map.long()], 0.0).double()
    offset = torch.cartesian_prod(*[torch.arange(-1.0, 2.0)] * 3).double()
    near = torch.exp(-offset.square().sum(1) / 2)
    above = near * offset[:, 0].abs()
    squares = (present.double() @ (above / above.sum())).square()
    for axis in range(3):
        slope = near * offset[:, axis]
        squares += (0.7 * bright @ (slope / (slope @ offset[:, axis]))).square()
    torch.testing.assert_close(energy, squares.sqrt(), rtol=1e-5, atol=1e-6)
