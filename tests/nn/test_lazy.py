"""Convolutions without a number of input channels, against torch's."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import layoutconv as lc
from layoutconv.errors import ArgumentError

NAMES = [f"Conv{kind}{rank}d" for kind in ("", "Transpose") for rank in (1, 2, 3)]
each = pytest.mark.parametrize("name", NAMES)


def pair(name, **options):
    """Our lazy module and torch's."""
    return [getattr(of, f"Lazy{name}")(4, 3, stride=2, **options) for of in (lc.nn, torch.nn)]


def image(name, channels=6):
    return torch.randn(2, channels, *[7] * int(name[-2]))


@each
def test_the_first_call_makes_the_module_that_torch_makes(name):
    ours, theirs = pair(name, padding=1, groups=2)
    x, found = image(name), []
    for module in (ours, theirs):
        torch.manual_seed(0)
        found.append(module(x))
    torch.testing.assert_close(*found)
    assert type(ours) is getattr(lc.nn, name)
    assert repr(ours) == repr(theirs)
    assert ours.weight.stride()[1] == 1  # the memory order that kernels read
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)
    for module, y in zip((ours, theirs), found, strict=True):
        y.square().sum().backward()
        assert module.weight.grad.shape == module.weight.shape
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    torch.testing.assert_close(ours(x), theirs(x))


@each
def test_a_state_dict_brings_the_channels(name):
    ours, _ = pair(name)
    other = getattr(lc.nn, name)(6, 4, 3, stride=2)
    assert ours.load_state_dict(other.state_dict()).missing_keys == []
    x = image(name)
    torch.testing.assert_close(ours(x), other(x))
    assert ours.weight.stride()[1] == 1


@each
def test_copies_before_the_first_call_are_lazy_too(name):
    ours, _ = pair(name)
    x = image(name)
    for made in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert made.has_uninitialized_params()
        assert type(made) is type(ours)
        made(x)
        assert type(made) is getattr(lc.nn, name)


@each
def test_an_activation_stays(name):
    lazy = getattr(lc.nn, f"Lazy{name}")(4, 3, activation="leaky_relu", slope=0.5)
    x = image(name)
    y = lazy(x)
    assert (lazy.activation, lazy.slope) == ("leaky_relu", 0.5)
    plain = getattr(torch.nn, name)(6, 4, 3)
    plain.load_state_dict(lazy.state_dict())
    torch.testing.assert_close(y, torch.nn.functional.leaky_relu(plain(x), 0.5))
    with pytest.raises(ArgumentError, match="`activation`: expected None or one of"):
        getattr(lc.nn, f"Lazy{name}")(4, 3, activation="swish")


def test_a_network_is_lazy_until_its_first_call():
    net = torch.nn.Sequential(lc.nn.LazyConv2d(8, 3), lc.nn.LazyConvTranspose2d(2, 3))
    assert "LazyConv2d(0, 8" in repr(net)
    assert net(torch.randn(1, 5, 6, 6)).shape == (1, 2, 6, 6)
    assert [type(layer) for layer in net] == [lc.nn.Conv2d, lc.nn.ConvTranspose2d]
    converted, report = lc.nn.convert(
        torch.nn.Sequential(lc.nn.LazyConv2d(8, 3)), return_report=True
    )
    assert report.left == {"0": "layoutconv computes it already"}
    assert converted[0].has_uninitialized_params()
