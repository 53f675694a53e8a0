"""Containers and small modules."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn

import layoutconv.compat.spconv as ours
import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.errors import ArgumentError

from .dense import cloud


def test_sequential_mixes_sparse_modules_with_those_of_features() -> None:
    x = cloud([9, 8], 4)
    conv, norm = spconv.SubMConv2d(4, 6, 3).double(), nn.BatchNorm1d(6).double()
    net = spconv.SparseSequential(conv, norm, nn.ReLU(), spconv.ToDense(), nn.Flatten())
    y = net(x)
    wanted = conv(x)
    norm.reset_running_stats()
    wanted = wanted.replace_feature(norm(wanted.features).relu())
    torch.testing.assert_close(y, wanted.dense().flatten(1))


def layers_of_features() -> spconv.SparseSequential:
    return spconv.SparseSequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(),
        spconv.SubMConv2d(8, 6, 3), spconv.SparseSyncBatchNorm(6), nn.GELU(),
        spconv.SparseConv2d(6, 6, 3, 2), nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 5)),
        spconv.SubMConv2d(5, 3, 3, groups=1),
    )  # fmt: skip


@pytest.mark.parametrize("lowered", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("interface", ["1.2", "2.3"])
def test_no_rows_go_where_rows_go(interface: str, training: bool, lowered: bool) -> None:
    """Channels and dtype are those of a cloud with rows, gradients zeros, statistics stay."""
    net, x = layers_of_features().train(training), cloud([9, 8], 4)
    features = torch.zeros(0, 4, requires_grad=True)
    none = spconv.SparseConvTensor(features, x.indices[:0], [9, 8], 2)
    before = {name: t.clone() for name, t in net.state_dict().items() if "running" in name}
    ours.set_interface(interface)
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=lowered):
            y = net(none)
            like = copy.deepcopy(net)(x.replace_feature(x.features.float()))
    finally:
        ours.set_interface("2.3")
    assert y.features.shape == (0, like.features.shape[1])
    assert (y.features.dtype, y.spatial_shape) == (like.features.dtype, like.spatial_shape)
    y.features.sum().backward()
    assert not any(p.grad.any() for p in (*net.parameters(), features))
    for name, tensor in before.items():
        assert torch.equal(net.state_dict()[name], tensor)


def test_a_module_of_a_user_is_passed_over_without_rows() -> None:
    class Centred(nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return features - features.amax(0)  # which refuses no rows

    net = spconv.SparseSequential(Centred(), nn.Sequential(nn.ReLU(), Centred()), nn.ReLU())
    x = cloud([9, 8], 4)
    assert not net(x).features.any()
    none = spconv.SparseConvTensor(x.features[:0], x.indices[:0], [9, 8], 2)
    assert net(none).features.shape == (0, 4)


class Widening(nn.Module):
    """A user's module, which torch's follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layer(features - features.amax(0))  # type: ignore[no-any-return]


def replaced(module: nn.Module) -> nn.Module:
    module.forward = lambda features: features - features.amax(0)  # type: ignore[method-assign]
    return module


FOLLOWING = {
    "linear": lambda: nn.Linear(8, 4),
    "layer norm": lambda: nn.LayerNorm(8),
    "rms norm": lambda: nn.Sequential(nn.ReLU(), nn.RMSNorm(8)),
    "batch norm": lambda: nn.BatchNorm1d(8),
    "group norm": lambda: nn.GroupNorm(2, 8),
    "prelu": lambda: nn.PReLU(8),
    "nested": lambda: spconv.SparseSequential(nn.Linear(8, 4)),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_so_are_those_of_torch_that_expect_its_channels(name: str) -> None:
    net, x = spconv.SparseSequential(Widening(), FOLLOWING[name]()), cloud([9, 8], 4)
    x = x.replace_feature(x.features.float())
    assert net(x).features.shape[1] in (4, 8)
    none = spconv.SparseConvTensor(x.features[:0], x.indices[:0], [9, 8], 2)
    assert net(none).features.shape == (0, 4)


OTHERS = {
    "scripted": lambda: torch.jit.script(nn.Linear(4, 4)),
    "recorded": lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4))),
    "compiled": lambda: torch.compile(Widening(), backend="eager"),
    "replaced": lambda: replaced(nn.Identity()),
    "a module without a pass": lambda: replaced(nn.Module()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_so_are_modules_whose_pass_is_not_that_of_their_class(name: str) -> None:
    net, x = spconv.SparseSequential(nn.Sequential(OTHERS[name]())), cloud([9, 8], 4)
    none = spconv.SparseConvTensor(x.features[:0], x.indices[:0], [9, 8], 2)
    assert net(none).features.shape == (0, 4)


def test_channels_count_behind_modules_that_change_them() -> None:
    layers = nn.Sequential(nn.GLU(), nn.Linear(2, 3)), nn.PReLU(), nn.LazyLinear(5), nn.PReLU(5)
    x = cloud([9, 8], 4)
    none = spconv.SparseConvTensor(x.features[:0].float(), x.indices[:0], [9, 8], 2)
    y = spconv.SparseSequential(*layers)(none).features
    assert y.shape == (0, 5)
    assert len(torch.autograd.grad(y.sum(), layers[0][1].weight)) == 1


def test_sequential_is_a_list() -> None:
    a, b, c = nn.ReLU(), nn.ReLU(), nn.Identity()
    net = spconv.SparseSequential(OrderedDict(one=a, two=b), three=c)
    assert (net[0], net[1], net[-1], len(net)) == (a, b, c, 3)
    assert list(net._modules) == ["one", "two", "three"]
    net.add(nn.ELU())
    net.add(nn.CELU(), name="last")
    assert list(net._modules)[3:] == ["3", "last"]
    with pytest.raises(IndexError):
        net[5]
    with pytest.raises(KeyError, match="last"):
        net.add(nn.ELU(), "last")
    with pytest.raises(ArgumentError, match="one"):
        spconv.SparseSequential(OrderedDict(one=a), one=b)


def test_who_takes_sparse_tensors() -> None:
    from layoutconv.compat.spconv.pytorch.modules import is_sparse_conv, is_spconv_module

    class Own(spconv.SparseModule):
        pass

    sparse = Own(), spconv.SubMConv2d(4, 4, 3), spconv.SparseSequential(), spconv.SparseReLU()
    assert all(map(is_spconv_module, sparse))
    assert not any(map(is_spconv_module, (nn.ReLU(), nn.Sequential(), spconv.Identity())))
    assert [is_sparse_conv(m) for m in sparse] == [False, True, False, False]


def test_modules_of_features() -> None:
    x = cloud([9, 8], 4)
    for module, like in (
        (spconv.SparseReLU(), nn.ReLU()),
        (spconv.SparseIdentity(), nn.Identity()),
        (spconv.SparseBatchNorm(4).double(), nn.BatchNorm1d(4).double()),
    ):
        wanted = like(x.features)
        torch.testing.assert_close(module(x.features), wanted)
        torch.testing.assert_close(module(x).features, wanted)
        assert module(x).indices is x.indices
    norm = spconv.SparseSyncBatchNorm(4).double().eval()
    torch.testing.assert_close(norm(x).features, norm(x.features))


def test_tables() -> None:
    x = cloud([9, 8], 4)
    y = x.replace_feature(x.features[:, :2] * 2)
    joined = spconv.JoinTable()([x, y])
    assert torch.equal(joined.features, torch.cat([x.features, y.features], 1))
    added = spconv.AddTable()([x, x, x])
    torch.testing.assert_close(added.features, x.features * 3)
    both = spconv.ConcatTable().add(spconv.Identity()).add(spconv.SparseReLU())(x)
    assert torch.equal(both[0].features, x.features)
    assert torch.equal(both[1].features, x.features.relu())
    assert len(list(spconv.ConcatTable().add(nn.Linear(2, 2)).parameters())) == 2
    for table in (spconv.JoinTable(), spconv.AddTable()):
        with pytest.raises(ArgumentError, match=r"40 rows.*39 rows"):
            table([x, x.select_by_index(torch.arange(39))])
    apart = cloud([9, 8], 4, seed=1)
    torch.testing.assert_close(
        spconv.tables.AddTableMisaligned()([x, apart]).dense(), x.dense() + apart.dense()
    )


def test_names_and_grids() -> None:
    net = nn.ModuleDict({"a": spconv.SparseSequential(spconv.SubMConv2d(4, 4, 3, name="mine"))})
    spconv.assign_name_for_sparse_modules(net)
    conv = net["a"][0]
    assert (conv.name, conv._sparse_unique_name) == ("mine", "a.0")
    x = cloud([9, 8], 4)
    assert spconv.RemoveGrid()(x).grid is None
    assert spconv.SparseSequential(spconv.SubMConv2d(4, 4, 3)).double()(x).grid is None


def test_what_modules_print() -> None:
    layer = spconv.SparseConv2d(4, 6, 3, 2, groups=2, bias=False, indice_key="down")
    assert repr(layer) == (
        "SparseConv2d(4, 6, kernel_size=[3, 3], stride=[2, 2], indice_key='down', groups=2, "
        "bias=False)"
    )
    assert repr(spconv.SparseMaxPool2d(2, padding=1)) == (
        "SparseMaxPool2d(kernel_size=[2, 2], stride=[2, 2], padding=[1, 1])"
    )


@pytest.mark.parametrize("module", [nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 2)])
def test_modules_that_get_no_features_say_what_gives_them(module: nn.Module) -> None:
    x = cloud([9, 8], 4)
    layers = spconv.SubMConv2d(4, 4, 3), module
    with pytest.raises((TypeError, AttributeError), match=r"SparseConvTensor.*SparseSequential"):
        nn.Sequential(*layers).double()(x)
    assert len(spconv.SparseSequential(*layers)(x).features) == len(x.features)
    with pytest.raises(TypeError, match=r"torch's cat takes.*x\.replace_feature"):
        torch.cat([x, x])
