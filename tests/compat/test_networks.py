"""Networks as people write them with spconv, against the same networks on dense grids."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.compat.spconv.pytorch.core import SparseConvTensor

from .blocks import Detecting
from .dense import TRANSPOSED, at, cloud, dense_conv, occupied, reached, torch_weight

# -- a detector's backbone, in the manner of SECOND ------------------------------------------------


def conv_block(
    C: int, K: int, kernel_size: Any, key: str, kind: str, stride: Any = 1, padding: Any = 0
) -> spconv.SparseSequential:
    """A convolution without bias, a batch norm and a ReLU."""
    if kind == "subm":
        conv = spconv.SubMConv3d(C, K, kernel_size, bias=False, indice_key=key)
    else:
        of = {"stride": stride, "padding": padding, "bias": False, "indice_key": key}
        conv = spconv.SparseConv3d(C, K, kernel_size, **of)
    norm = partial(nn.BatchNorm1d, eps=1e-3, momentum=0.01)
    return spconv.SparseSequential(conv, norm(K), nn.ReLU())


class Second(nn.Module):
    """From voxels to a bird's-eye view: strided stages, then the height folded into channels."""

    tensor = spconv.SparseConvTensor

    def __init__(self) -> None:
        super().__init__()
        self.sparse_shape = [9, 16, 14]
        self.conv_input = conv_block(4, 6, 3, "subm1", "subm")
        self.conv1 = spconv.SparseSequential(conv_block(6, 6, 3, "subm1", "subm"))
        self.conv2 = spconv.SparseSequential(
            conv_block(6, 8, 3, "spconv2", "spconv", 2, 1),
            conv_block(8, 8, 3, "subm2", "subm"),
            Detecting(C=8, key="res2"),
        )
        self.conv3 = spconv.SparseSequential(
            conv_block(8, 8, 3, "spconv3", "spconv", 2, (0, 1, 1)),
            conv_block(8, 8, 3, "subm3", "subm"),
        )
        self.conv_out = conv_block(8, 10, (2, 1, 1), "spconv_down2", "spconv", (2, 1, 1))

    def forward(self, batch: dict[str, Any]) -> Tensor:
        x = self.tensor(
            features=batch["voxel_features"],
            indices=batch["voxel_coords"].int(),
            spatial_shape=self.sparse_shape,
            batch_size=batch["batch_size"],
        )
        x = self.conv1(self.conv_input(x))
        out = self.conv_out(self.conv3(self.conv2(x)))
        N, C, D, H, W = out.dense().shape
        return out.dense().view(N, C * D, H, W)


# -- a segmentation network with skip connections --------------------------------------------------


class UBlock(nn.Module):
    """A level of a U: down, what lies below, up by the inverse of the same key, and a skip."""

    def __init__(self, planes: list[int], level: int = 1) -> None:
        super().__init__()
        C = planes[0]
        self.blocks = Detecting(C=C, key=f"subm{level}")
        self.below: UBlock | None = None
        if len(planes) > 1:
            norm_act = (nn.BatchNorm1d(C), nn.ReLU())
            self.conv = spconv.SparseSequential(
                *norm_act,
                spconv.SparseConv3d(C, planes[1], 2, 2, bias=False, indice_key=f"spconv{level}"),
            )
            self.below = UBlock(planes[1:], level + 1)
            self.deconv = spconv.SparseSequential(
                nn.BatchNorm1d(planes[1]),
                nn.ReLU(),
                spconv.SparseInverseConv3d(
                    planes[1], C, kernel_size=2, bias=False, indice_key=f"spconv{level}"
                ),
            )
            self.tail = spconv.SparseSequential(
                spconv.SubMConv3d(2 * C, C, kernel_size=1, padding=0, bias=False),
                Detecting(C=C, key=f"subm{level}"),
            )

    def forward(self, x: Any) -> Any:
        out = self.blocks(x)
        if self.below is None:
            return out
        up = self.deconv(self.below(self.conv(out)))
        return self.tail(out.replace_feature(torch.cat([out.features, up.features], dim=1)))


class UNet(nn.Module):
    tensor = spconv.SparseConvTensor

    def __init__(self) -> None:
        super().__init__()
        self.input_conv = spconv.SparseSequential(
            spconv.SubMConv3d(4, 6, kernel_size=5, padding=1, bias=False, indice_key="stem")
        )
        self.unet = UBlock([6, 8, 10])
        self.final = spconv.SubMConv3d(6, 3, kernel_size=1, padding=1, bias=True)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        x = self.tensor(
            batch["voxel_features"], batch["voxel_coords"], [9, 16, 14], batch["batch_size"]
        )
        return self.final(self.unet(self.input_conv(x))).features


# -- the same on dense grids -----------------------------------------------------------------------


class Dense:
    """A sparse tensor of spconv's interface whose features lie in a grid, with torch's layers."""

    def __init__(self, grid: Tensor, cells: SparseConvTensor, keys: dict[str, Any]) -> None:
        self.grid, self.cells, self.keys = grid, cells, keys

    @property
    def features(self) -> Tensor:
        return at(self.grid, self.cells.indices)

    @property
    def indices(self) -> Tensor:
        return self.cells.indices

    def replace_feature(self, features: Tensor) -> Dense:
        grid = features.new_zeros(*self.grid.shape[:1], *self.grid.shape[2:], features.shape[1])
        grid = grid.index_put(tuple(self.cells.indices.long().T), features)
        return Dense(grid.movedim(-1, 1), self.cells, self.keys)

    def dense(self) -> Tensor:
        return self.grid


def dense_forward(layer: Any, x: Dense) -> Dense:
    """A layer of a network, by :mod:`.dense`, with cells from torch's convolutions of ones."""
    cells = x.cells
    if layer.inverse:
        down, fine = x.keys[layer.indice_key]
        w = torch_weight(layer.weight).transpose(0, 1)
        of = down.stride, down.padding
        ends = zip(fine.spatial_shape, down.kernel_size, *of, strict=True)
        more = [(e + 2 * p - k) % s for e, k, s, p in ends]
        grid, cells = TRANSPOSED[layer.ndim](x.grid, w, layer.bias, *of, more), fine
    elif layer.subm:
        grid = dense_conv(layer, x.grid)
    else:
        grid, there = dense_conv(layer, x.grid), reached(layer, cells)
        x.keys[layer.indice_key] = layer, cells
        found = there[:, 0].nonzero().int()
        ones = torch.ones(len(found), 1, dtype=grid.dtype)
        cells = SparseConvTensor(ones, found, list(grid.shape[2:]), len(grid))
    return Dense(grid * occupied(cells).bool(), cells, x.keys)


def on_dense_grids(net: Any) -> Any:
    """The same network, and the same parameters, of torch's layers."""

    def tensor(*arguments: Any, **named: Any) -> Dense:
        x = SparseConvTensor(*arguments, **named)
        return Dense(x.dense(), x, {})

    def sequential(self: Any, x: Any) -> Any:
        for module in self._modules.values():
            sparse = spconv.modules.is_spconv_module(module)
            x = module(x) if sparse else x.replace_feature(module(x.features))
        return x

    net = copy.deepcopy(net)
    net.tensor = tensor
    for module in net.modules():
        if isinstance(module, spconv.conv.SparseConvolution):
            module.forward = partial(dense_forward, module)  # type: ignore[method-assign]
        elif isinstance(module, spconv.SparseSequential):
            module.forward = partial(sequential, module)  # type: ignore[method-assign]
    return net


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("network", [Second, UNet])
def test_a_network_and_the_same_on_dense_grids(network: Any, training: bool) -> None:
    """Forward, gradients of the features and of every parameter, running statistics."""
    torch.manual_seed(0)
    x = cloud([9, 16, 14], 4, rows=120)
    ours = network().double().train(training)
    results = []
    for net in ours, on_dense_grids(ours):
        features = x.features.clone().requires_grad_()
        batch = {"voxel_features": features, "voxel_coords": x.indices, "batch_size": 2}
        y = net(batch)
        y.square().sum().backward()
        results.append([y, features.grad, *(p.grad for p in net.parameters()), *net.buffers()])
    assert len(results[0]) > 20
    for ours_, theirs_ in zip(*results, strict=True):
        torch.testing.assert_close(ours_, theirs_, rtol=1e-6, atol=1e-8)
    assert results[0][0].abs().max() > 1e-3


@pytest.mark.parametrize("network", [Second, UNet])
def test_training_goes_down(network: Any) -> None:
    """A few steps under autocast; what a step computes is the same bits the second time."""
    torch.manual_seed(0)
    x = cloud([9, 16, 14], 4, rows=120)
    batch = {"voxel_features": x.features.float(), "voxel_coords": x.indices, "batch_size": 2}
    losses = []
    for _ in range(2):
        torch.manual_seed(1)
        net = network()
        optimizer = torch.optim.Adam(net.parameters(), 0.01)
        target = torch.randn_like(net(batch))
        losses.append([])
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = (net(batch).float() - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]
