"""A convolution, a norm, a sum and an activation as one launch, run in the interpreter.

A process stands in for a machine with a GPU: calls choose, compile and bind their kernels as there.
"""

from __future__ import annotations

import pytest

from ..warm_process import run_python

pytest.importorskip("cutlass")

SCRIPT = """
import copy
import pickle
import torch
from tests.campaign.interpreter import install

kernels = []
install(kernels.append)
import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.nn import fused_norm, unfused
from layoutconv.nn.warm_layers import WarmLayer
from layoutconv.ops import sparse_calls

fused_norm.is_launch = lambda x: True
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

warm, run = [], WarmLayer.run


def noted(*given):
    found = run(*given)
    warm.append(found is not None)
    return found


WarmLayer.run = noted
norms = [module for module in net.modules() if isinstance(module, torch.nn.BatchNorm1d)]


def changed_in_place():
    for norm in norms:  # what no version counts
        norm.weight.data.mul_(0.5)


def replaced():
    net[0].weight = torch.nn.Parameter(-net[0].weight, requires_grad=False)
    norms[0].running_mean = norms[0].running_mean + 1


def told_otherwise():
    norms[0].eps, net[2].negative_slope = 0.7, -0.5


def copied():
    global net, norms
    kept = net
    net = copy.deepcopy(net)
    net._modules["0"] = pickle.loads(pickle.dumps(net[0]))
    assert len(kept[0].__dict__["_layoutconv_warm"]) > 0
    assert net[0].__dict__["_layoutconv_warm"] == ()
    norms = [module for module in net.modules() if isinstance(module, torch.nn.BatchNorm1d)]
    changed_in_place()


def cleared():
    sparse_calls.forget()  # as lc.clear_caches() does


def hooked():
    net[2].register_forward_hook(lambda module, given, made: made + 1)


# And which of the two layers are found without a look into the cache, at the first call and later.
for change, first, later in (
    (None, [], [True, True]),
    (changed_in_place, [True, True], [True, True]),
    (replaced, [True, True], [True, True]),
    (told_otherwise, [False, True], [True, True]),
    (copied, [], [True, True]),
    (cleared, [False, False], [True, True]),
    (hooked, [True], [True]),
):
    if change is not None:
        change()
    for at in range(3):  # the first calls, and one that finds what was kept
        warm.clear()
        y = net(x.shadow_copy())
        for expected in [first] if at == 0 else [later] if at == 2 else []:
            assert warm == expected, (change, at, warm)
    assert kernels, "nothing was launched"
    with unfused():
        want = net.double()(x.replace_feature(x.features.double())).features
    net.half()
    limit = 0.01 * want.abs().max()
    assert (y.features.double() - want).abs().max() < limit, change

# Under autocast the filter is lowered at every call, and the rest is found as without it.
net[2]._forward_hooks.clear()
net.float()
x = x.replace_feature(x.features.float())
for dtype, limit in ((torch.float16, 0.01), (torch.bfloat16, 0.08), (torch.float16, 0.01)):
    changed_in_place()
    net[0].weight.data.mul_(1.5)
    for _ in range(3):
        warm.clear()
        with torch.autocast("cpu", dtype):
            y = net(x.shadow_copy())
    assert warm.count(True) == 2, (dtype, warm)  # of several that are kept
    assert y.features.dtype is dtype
    with unfused():
        want = net.double()(x.replace_feature(x.features.double())).features
    net.float()
    assert (y.features.double() - want).abs().max() < limit * want.abs().max(), dtype
"""


def test_a_network_is_launched_with_its_norms() -> None:
    ran = run_python(["-c", SCRIPT])
    assert ran.returncode == 0, ran.stderr[-3000:]
