"""A network of the examples, built twice: of sparse layers, and of torch's on a dense grid.

The dense twin computes every cell of the grid and then clears those that the sparse network does
not have. Outputs, and gradients of the input and of all weights, agree to rounding in float64.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from layoutconv.sparse import SparseTensor

F = nn.functional


class Dense(nn.Conv3d):
    """A convolution of (grid, cells): (N, C, D, H, W), and (N, 1, D, H, W) of 0 and 1."""

    def forward(self, x):
        grid, cells = x
        reached = cells
        if self.stride != (1, 1, 1) or self.padding == (0, 0, 0):
            # The cells whose filters meet a cell.
            reached = F.max_pool3d(cells, self.kernel_size, self.stride, self.padding)
        return super().forward(grid) * reached, reached


class Halved(nn.Conv3d):
    """Stride 2 with a filter of 2, and a cell of padding at the far ends."""

    def forward(self, x):
        grid, cells = (F.pad(part, (0, 1) * 3) for part in x)
        reached = F.max_pool3d(cells, 2, 2)
        return super().forward(grid) * reached, reached


class Back(nn.ConvTranspose3d):
    """From halved cells to those that they came from."""

    def forward(self, x, cells):
        D, H, W = cells.shape[2:]
        return super().forward(x[0])[:, :, :D, :H, :W] * cells, cells


class Norm(nn.BatchNorm1d):
    """A batch norm whose statistics are those of the cells that there are."""

    def forward(self, x):
        grid, cells = x
        there = cells[:, 0] > 0
        rows = super().forward(grid.movedim(1, -1)[there])
        made = torch.zeros(*there.shape, rows.shape[1], dtype=rows.dtype)
        return made.index_put(there.nonzero(as_tuple=True), rows).movedim(-1, 1), cells


def relu(x):
    return x[0].relu(), x[1]


def dense(C, K, taps=3):
    return Dense(C, K, taps, padding=taps // 2, bias=False)


class DenseResidual(nn.Module):
    def __init__(self, C, K):
        super().__init__()
        self.body = nn.ModuleList([dense(C, K), Norm(K), dense(K, K), Norm(K)])
        self.past = nn.ModuleList([dense(C, K, 1), Norm(K)] if C != K else [])

    def forward(self, x):
        one, norm, two, last = self.body
        y, past = last(two(relu(norm(one(x))))), x
        for module in self.past:
            past = module(past)
        return relu((y[0] + past[0], x[1]))


class DenseUNet(nn.Module):
    """The U-Net of two stages: written out, so that it shares nothing with the other one."""

    def __init__(self, C, classes, a, b, c):
        super().__init__()
        self.stem = nn.ModuleList([dense(C, a), Norm(a)])
        self.down1 = nn.ModuleList([Halved(a, a, 2, 2, bias=False), Norm(a), DenseResidual(a, b)])
        self.down2 = nn.ModuleList([Halved(b, b, 2, 2, bias=False), Norm(b), DenseResidual(b, c)])
        self.up1 = nn.ModuleList([Back(b, a, 2, 2, bias=False), Norm(a)])
        self.up2 = nn.ModuleList([Back(c, b, 2, 2, bias=False), Norm(b)])
        self.join1, self.join2 = DenseResidual(2 * a, a), DenseResidual(2 * b, b)
        self.head = Dense(a, classes, 1)

    def forward(self, x):
        fine = relu(self.stem[1](self.stem[0](x)))
        down, norm, residual = self.down1
        middle = residual(relu(norm(down(fine))))
        down, norm, residual = self.down2
        y = residual(relu(norm(down(middle))))
        for (up, norm), join, skip in (
            (self.up2, self.join2, middle),
            (self.up1, self.join1, fine),
        ):
            y = relu(norm(up(y, skip[1])))
            y = join((torch.cat([y[0], skip[0]], dim=1), skip[1]))
        return self.head(y)[0]


class DenseSecond(nn.Module):
    """The backbone, one layer after another."""

    def __init__(self, C, floors, a, b, c):
        super().__init__()
        convolutions = [
            dense(C, a),
            dense(a, a),
            Dense(a, b, 3, 2, 1, bias=False),
            dense(b, b),
            Dense(b, c, 3, 2, 1, bias=False),
            dense(c, c),
            Dense(c, c, (3, 1, 1), (2, 1, 1), (1, 0, 0), bias=False),
        ]
        self.encoder = nn.ModuleList(
            part for one in convolutions for part in (one, Norm(one.out_channels))
        )
        self.head = nn.Sequential(
            nn.Conv2d(floors * c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.Conv2d(c, 1, 1),
        )

    def forward(self, x):
        for number, module in enumerate(self.encoder):
            x = relu(module(x)) if number % 2 else module(x)
        return self.head(x[0].transpose(1, 2).flatten(1, 2)) - 2.0  # floor after floor


def layers(net, twin):
    """The layers of both that have parameters, in pairs: both register them in the same order."""
    ours, theirs = ([m for m in n.modules() if list(m.parameters(False))] for n in (net, twin))
    return list(zip(ours, theirs, strict=True))


def as_dense(weight, layer):
    """A weight as torch has it; that of a convolution is (K, T, R, S, C), or (K, C) of a linear."""
    if weight.ndim == 1 or not isinstance(layer, (nn.Conv3d, Back)):
        return weight
    if isinstance(layer, Back):
        return weight.permute(4, 0, 1, 2, 3)
    return weight.movedim(-1, 1) if weight.ndim == 5 else weight[..., None, None, None]


def cloud(C, spatial_shape, share=0.2):
    """Random cells of two grids, with random features."""
    there = torch.rand(2, *spatial_shape) < share
    cells = there.nonzero()[torch.randperm(int(there.sum()))].int()
    features = torch.randn(len(cells), C, requires_grad=True)
    return SparseTensor(features, cells, spatial_shape, batch_size=2)


def close(ours, theirs):
    scale = theirs.detach().abs().max()
    assert scale > 0
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11 * float(scale))


@pytest.fixture(autouse=True)
def float64():
    """All that a test makes is float64."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(params=["minkunet", "second"])
def networks(request, example):
    """Both twins, and an input."""
    if request.param == "minkunet":
        net = example("minkunet_segmentation").MinkUNet(3, classes=5, width=2, stages=2)
        return net, DenseUNet(3, 5, 2, 4, 8), cloud(3, (5, 6, 7))
    net = example("second_backbone").Second(3, depth=11, width=2)
    return net, DenseSecond(3, 2, 2, 4, 8), cloud(3, (11, 10, 9))


@pytest.mark.parametrize("training", [True, False])
def test_sparse_and_dense_agree_forward_and_backward(networks, training):
    net, twin, x = networks
    pairs = layers(net, twin)
    with torch.no_grad():
        for one, other in pairs:
            for name, parameter in one.named_parameters():
                parameter.normal_()
                getattr(other, name).copy_(as_dense(parameter, other))
            if hasattr(one, "running_var"):
                one.running_mean.normal_()
                one.running_var.uniform_(0.5, 2)
                other.load_state_dict(one.state_dict())
    net.train(training)
    twin.train(training)

    there = torch.zeros(2, *x.spatial_shape, dtype=torch.bool)
    cells = tuple(x.coords.long().T)
    there[cells] = True
    grid = x.dense().detach().movedim(-1, 1).requires_grad_()
    theirs = twin((grid, there[:, None].double()))
    ours = net(x)
    if isinstance(ours, SparseTensor):
        ours = ours.dense().movedim(-1, 1)
    close(ours, theirs)

    upstream = torch.randn_like(theirs)
    (ours * upstream).sum().backward()
    (theirs * upstream).sum().backward()
    close(x.features.grad, grid.grad.movedim(1, -1)[cells])
    for one, other in pairs:
        for name, parameter in one.named_parameters():
            close(as_dense(parameter.grad, other), getattr(other, name).grad)
        if hasattr(one, "running_var"):
            close(one.running_mean, other.running_mean)
            close(one.running_var, other.running_var)
