"""Coordinates of MinkowskiEngine's tensors: several of one manager, and bounds of sparse grids."""

from __future__ import annotations

import pytest
import torch

import layoutconv.compat.MinkowskiEngine as ME  # noqa: N817
from layoutconv.errors import ArgumentError


def tensor(images: list[int], manager: ME.CoordinateManager | None = None) -> ME.SparseTensor:
    coords = torch.tensor([[image, row] for row, image in enumerate(images)]).reshape(-1, 2).int()
    return ME.SparseTensor(torch.ones(len(coords), 1), coords, coordinate_manager=manager)


def test_a_manager_takes_tensors_of_more_images_than_its_first():
    """Layers compute what they do where the number of images is known before."""

    def results(images: int) -> list[torch.Tensor]:
        manager = ME.CoordinateManager(D=1)
        manager.count_images(images)
        few, more, most = (tensor(of, manager) for of in ([0, 0, 1], [2, 0, 2], [1, 1, 1, 3]))
        torch.manual_seed(0)
        down = ME.MinkowskiConvolution(1, 2, 3, 2, dimension=1)
        up = ME.MinkowskiConvolutionTranspose(2, 1, 2, 2, dimension=1)
        every = [few + more, most + few, down(few), up(down(most)), more, up(down(few + more))]
        every += [ME.MinkowskiGlobalSumPooling()(x) for x in every]
        return [torch.cat([x.C, x.F], 1) for x in every]

    for expected, found in zip(results(4), results(0), strict=True):
        assert torch.equal(expected, found)


def test_layers_work_on_both_sides_of_a_tensor_of_more_images():
    """Coordinates and kernel maps from before stay those of their tensors."""
    x = tensor([0, 0, 1])
    down = ME.MinkowskiConvolution(1, 2, 2, 2, dimension=1)
    up = ME.MinkowskiConvolutionTranspose(2, 1, 2, 2, dimension=1)
    coarse, pooled = down(x), ME.MinkowskiGlobalSumPooling()(x)
    expected = up(coarse)
    tensor([0, 3], x.coordinate_manager)
    back = up(coarse)
    assert back.coordinate_map_key == expected.coordinate_map_key == x.coordinate_map_key
    assert torch.equal(back.F, expected.F)
    assert torch.equal(pooled.C[:, 0], torch.tensor([0, 1]))
    assert len(ME.MinkowskiGlobalSumPooling()(x)) == 4
    with pytest.raises(ArgumentError, match=r"`values`: expected \(4, C\), a row for each image"):
        ME.MinkowskiBroadcast()(x, pooled)
    points = torch.tensor([[0, 0.5], [5, 1.5]])
    field = ME.TensorField(torch.ones(2, 1), points, coordinate_manager=x.coordinate_manager)
    assert len(ME.MinkowskiGlobalSumPooling()(field)) == 6
    assert x.coordinate_manager.number_of_unique_batch_indices() == 6


def test_a_tensor_without_rows_leaves_the_number_of_images_open():
    none = tensor([])
    x = tensor([0, 2], none.coordinate_manager)
    for total in (x + none, none + x):
        assert total.C.tolist() == x.C.tolist()
        assert torch.equal(total.F, x.F)
    assert ME.MinkowskiGlobalSumPooling()(x).F.tolist() == [[1.0], [0.0], [1.0]]


def along(values: torch.Tensor) -> ME.SparseTensor:
    """One feature at each coordinate 0, 1, ... of one image."""
    rows = torch.arange(len(values), dtype=torch.int32)
    return ME.SparseTensor(values[:, None], torch.stack([rows * 0, rows], 1))


def test_outputs_at_another_tensor_stride_than_the_layers_read_their_own_neighbours():
    """Cells are counted in units of their tensor stride, but neighbours are those in space."""
    x = along(torch.randn(9, dtype=torch.float64))
    halves = ME.MinkowskiMaxPooling(2, 2, dimension=1)(x)
    quarters = ME.MinkowskiMaxPooling(2, 2, dimension=1)(halves)
    conv = ME.MinkowskiConvolution(1, 1, kernel_size=3, dimension=1).double()
    every = conv(x).F
    for coarse, step in ((halves, 2), (quarters, 4)):
        for where in (coarse, coarse.coordinate_map_key):
            y = conv(x, where)
            assert y.tensor_stride == [step]
            torch.testing.assert_close(y.F, every[::step])
    up = ME.MinkowskiConvolutionTranspose(1, 1, kernel_size=3, stride=2, dimension=1).double()
    wide = torch.nn.functional.pad(quarters.F * up.kernel[:, 0, 0], (0, 1))  # to a stride of 4
    torch.testing.assert_close(up(quarters, x).F[:, 0], wide.flatten()[1:10])
    pooled = ME.MinkowskiMaxPooling(2, 2, dimension=1)(x, quarters)
    torch.testing.assert_close(pooled.F, quarters.F)


@pytest.mark.parametrize(
    "layer",
    [
        ME.MinkowskiConvolution(1, 1, 3, dimension=1),
        ME.MinkowskiConvolutionTranspose(1, 1, 2, 2, dimension=1),
        ME.MinkowskiMaxPooling(2, 2, dimension=1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_outputs_that_a_layer_cannot_compute_are_named(layer):
    x, other = along(torch.ones(8)), along(torch.ones(5))
    pool = ME.MinkowskiMaxPooling(2, 2, dimension=1)
    coarse = pool(x)
    wrong = pool(coarse) if isinstance(layer, ME.MinkowskiConvolutionTranspose) else x
    with pytest.raises(ArgumentError, match="`coordinates`: expected ones whose tensor stride"):
        layer(coarse, wrong)
    with pytest.raises(ArgumentError, match="`coordinates`: expected a tensor with the same coord"):
        layer(coarse, other)


def test_bounds_of_a_sparse_grid_that_do_not_fit_are_named():
    x, none = along(torch.ones(4)), tensor([])
    first, last = torch.tensor([0]), torch.tensor([3])
    assert x.sparse(first, last)[0].shape == (1, 4, 1)
    assert none.sparse(first)[0].to_dense().shape[-1] == 1
    for call, why in (
        (
            lambda: none.sparse(),
            "`min_coords`: expected the first coordinate, as the tensor has no",
        ),
        (lambda: x.sparse(first + 1), r"`min_coords`: expected at most \[0\], got \[1\]"),
        (lambda: x.sparse(torch.zeros(2)), r"`min_coords`: expected 1 coordinates, got \(2,\)"),
        (lambda: x.sparse("x"), "`min_coords`: expected a torch tensor, got str"),
        (lambda: x.sparse(first, last - 1), r"`max_coords`: expected at least \[3\], got \[2\]"),
        (lambda: x.dense(None, "x"), "`min_coordinate`: expected a torch tensor, got str"),
    ):
        with pytest.raises(ArgumentError, match=why):
            call()
