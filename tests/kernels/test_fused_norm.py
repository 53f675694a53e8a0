"""A convolution, a norm, a sum and an activation as one launch, run in the interpreter.

A process stands in for a machine with a GPU: calls choose, compile and bind their kernels as there.
"""

from __future__ import annotations

import pytest

from ..warm_process import run_python

pytest.importorskip("cutlass")

SCRIPT = """
import torch
from tests.campaign.interpreter import install

kernels = []
install(kernels.append)
import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.nn import fused_norm, unfused

fused_norm.runs_kernels = lambda x: True
torch.manual_seed(0)


class Block(spconv.SparseModule):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = spconv.SubMConv1d(8, 8, 3), torch.nn.BatchNorm1d(8, eps=0.1)
        self.last = torch.nn.ReLU()

    def forward(self, x):
        y = self.conv(x)
        y = y.replace_feature(self.norm(y.features))
        y = y.replace_feature(y.features + x.features)
        return y.replace_feature(self.last(y.features))


cells = torch.tensor([[0, i] for i in range(0, 24) if i % 3], dtype=torch.int32)
x = spconv.SparseConvTensor(torch.randn(16, 8), cells, [24], 1)
layers = spconv.SubMConv1d(8, 8, 3, bias=False), torch.nn.BatchNorm1d(8), torch.nn.LeakyReLU(0.3)
net = spconv.SparseSequential(*layers, Block()).eval().requires_grad_(False)
for module in net.modules():
    if isinstance(module, torch.nn.BatchNorm1d):
        for column in (module.running_mean, module.weight, module.bias):
            column.normal_()
        module.running_var.uniform_(0.2, 2)
net.half()
x = x.replace_feature(x.features.half())
for _ in range(2):
    for __ in range(2):  # the first call, and one that finds what was kept
        y = net(x.shadow_copy())
    assert kernels, "nothing was launched"
    with unfused():
        want = net.double()(x.replace_feature(x.features.double())).features
    net.half()
    limit = 0.01 * want.abs().max()
    assert (y.features.double() - want).abs().max() < limit
    for module in net.modules():  # what no version counts
        if isinstance(module, torch.nn.BatchNorm1d):
            module.weight.data.mul_(0.5)
"""


def test_a_network_is_launched_with_its_norms() -> None:
    ran = run_python(["-c", SCRIPT])
    assert ran.returncode == 0, ran.stderr[-3000:]
