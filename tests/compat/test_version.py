"""The interface of spconv 1.2: features that are assigned, and kernel maps that tensors share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import layoutconv.compat.spconv as ours
import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.errors import ArgumentError

from ..warm_process import run_python


@pytest.fixture
def first_interface() -> Iterator[None]:
    ours.set_interface("1.2")
    yield
    ours.set_interface("2.3")


def cloud(channels: int = 4) -> spconv.SparseConvTensor:
    random = torch.Generator().manual_seed(0)
    grid = torch.randn(2, 5, 6, 7, channels, generator=random, dtype=torch.float64)
    grid *= torch.rand(2, 5, 6, 7, 1, generator=random) < 0.3
    return spconv.SparseConvTensor.from_dense(grid)


def by_definition(x: spconv.SparseConvTensor, weight: Tensor) -> Tensor:
    """A submanifold convolution by torch's dense one; ``weight`` (K, *taps, C)."""
    padding = [taps // 2 for taps in weight.shape[1:-1]]
    y = nn.functional.conv3d(x.dense(), weight.movedim(-1, 1), padding=padding)
    batch, *cell = x.indices.long().T
    return y.movedim(1, -1)[(batch, *cell)]


def layer(taps: tuple[int, int, int], key: str) -> spconv.SubMConv3d:
    return spconv.SubMConv3d(4, 4, taps, bias=False, indice_key=key).double()


def test_a_map_is_that_of_its_key_for_all_tensors_that_share_it(first_interface):
    x = cloud()
    first, second, third = layer((1, 3, 3), "k"), layer((3, 1, 3), "k"), layer((3, 3, 3), "k")
    torch.testing.assert_close(first(x).features, by_definition(x, first.weight))
    assert "k" in x.indice_dict
    turned = second.weight.reshape(4, 1, 3, 3, 4)
    torch.testing.assert_close(second(x).features, by_definition(x, turned))
    part = third.weight.reshape(4, 27, 4)[:, :9].reshape(4, 1, 3, 3, 4)
    torch.testing.assert_close(third(x).features, by_definition(x, part))
    third(x).features.sum().backward()
    used = third.weight.grad.reshape(4, 27, 4).abs().sum((0, 2)) > 0
    assert used.tolist() == [True] * 9 + [False] * 18
    with pytest.raises(ArgumentError, match="indice_key"):  # fewer taps than the map has
        layer((1, 1, 3), "k")(x)


def test_sizes_of_a_key_are_compared_otherwise():
    y = layer((1, 3, 3), "k")(cloud())
    with pytest.raises(ArgumentError, match="indice_key"):
        layer((3, 1, 3), "k")(y)
    with pytest.raises(ValueError, match="read-only"):
        y.features = y.features + 1


def test_modules_of_features_write_to_the_tensor_they_are_given(first_interface):
    x = cloud()
    before, held = x.features.clone(), spconv.SparseConvTensor(
        x.features, x.indices, x.spatial_shape, x.batch_size
    )  # fmt: skip
    net = spconv.SparseSequential(nn.Tanh(), layer((3, 3, 3), "k"), nn.ReLU())
    with torch.no_grad():
        y = net(x)
    torch.testing.assert_close(x.features, before.tanh())
    assert torch.equal(held.features, before)
    torch.testing.assert_close(y.features, by_definition(x, net[1].weight).relu())
    y.features += held.features
    torch.testing.assert_close(y.features, by_definition(x, net[1].weight).relu() + before)


def test_a_program_of_1_2():
    found = run_python(["-c", PROGRAM])
    assert not found.returncode, found.stderr


PROGRAM = """
import sys
import layoutconv.compat.spconv as ours
handle = ours.install("1.2")
import spconv
from spconv.modules import SparseModule
from spconv.utils import VoxelGeneratorV2
assert spconv.SubMConv3d.__module__.startswith("layoutconv.")
assert issubclass(spconv.SparseSequential, SparseModule)
try:
    import spconv.pytorch
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("there is no spconv.pytorch in 1.2")
from layoutconv.compat.spconv.version import INTERFACE
assert ours.install() is handle and INTERFACE.is_1x  # a second call changes nothing
handle.undo()
assert not [name for name in sys.modules if name.split(".")[0] == "spconv"]
assert not INTERFACE.is_1x
try:
    ours.install("3")
except ValueError as error:
    assert "version" in str(error), error
else:
    raise SystemExit("there is no version 3")
"""


def test_there_are_two_versions():
    with pytest.raises(ArgumentError, match="version"):
        ours.set_interface("2.1")
