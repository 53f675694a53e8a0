"""Modules: what torch's take, hold and compute."""

from __future__ import annotations

import pickle
from copy import deepcopy
from inspect import signature

import pytest
import torch

import layoutconv as lc
from layoutconv.errors import ArgumentError, ArgumentTypeError

NAMES = [f"{kind}{rank}d" for kind in ("Conv", "ConvTranspose") for rank in (1, 2, 3)]


def image(name: str, channels: int) -> torch.Tensor:
    return torch.randn(2, channels, *(7, 6, 5)[: int(name[-2])], dtype=torch.float64)


def parameters(module: type) -> dict[str, object]:
    """Arguments of a module's constructor, and their defaults."""
    return {name: p.default for name, p in signature(module).parameters.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_module_of_torch_loads_and_computes_the_same(name, groups):
    numbers = {"stride": 2, "padding": 1, "dilation": 2, "groups": groups, "dtype": torch.float64}
    if "Transpose" in name:
        numbers["output_padding"] = 1
    theirs = getattr(torch.nn, name)(4, 8, 3, **numbers)
    ours = getattr(lc.nn, name)(4, 8, 3, **numbers)
    more = {"activation": None, "slope": 0.01}
    assert parameters(type(ours)) == {**parameters(type(theirs)), **more}
    ours.load_state_dict(theirs.state_dict())
    x, copied = image(name, 4), deepcopy(ours)
    for module in (ours, copied):
        assert module.weight.movedim(1, -1).is_contiguous()
        torch.testing.assert_close(module(x), theirs(x))
    copied.weight.data.zero_()
    torch.testing.assert_close(ours(x), theirs(x))
    theirs.load_state_dict(ours.state_dict())
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("padding", ["same", 1, (2, 0)])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_padding_modes(padding, mode):
    arguments = {"padding": padding, "padding_mode": mode, "dtype": torch.float64}
    theirs = torch.nn.Conv2d(4, 6, (3, 2), **arguments)
    ours = lc.nn.Conv2d(4, 6, (3, 2), **arguments)
    ours.load_state_dict(theirs.state_dict())
    x = image("Conv2d", 4)
    torch.testing.assert_close(ours(x), theirs(x))


def test_pairs_of_padding_in_another_mode():
    ours = lc.nn.Conv1d(4, 6, 3, padding=((2, 0),), padding_mode="replicate", dtype=torch.float64)
    x = image("Conv1d", 4)
    padded = torch.nn.functional.pad(x, (2, 0), mode="replicate")
    torch.testing.assert_close(ours(x), lc.conv1d(padded, ours.weight, ours.bias))


@pytest.mark.parametrize("size", [13, 14])
def test_output_size_of_a_transposed_convolution(size):
    theirs = torch.nn.ConvTranspose1d(4, 6, 3, 2, 1, dtype=torch.float64)
    ours = lc.nn.convert(deepcopy(theirs))
    x = image("Conv1d", 4)
    torch.testing.assert_close(ours(x, [size]), theirs(x, [size]))
    with pytest.raises(ArgumentError, match="`output_size`: expected None where padding"):
        lc.nn.ConvTranspose1d(4, 6, 3, 2, ((1, 0),))(x.float(), [size])


@pytest.mark.parametrize("name", NAMES)
def test_a_module_without_memory_says_the_shape(name):
    """As accounts of a model ask for it: parameters on torch's device "meta"."""
    with torch.device("meta"):
        module = getattr(lc.nn, name)(4, 6, 3, stride=2, activation="gelu")
        x = torch.empty_like(image(name, 4), dtype=torch.float32, device="meta")
        y = module(x)
    assert y.is_meta
    assert y.shape == getattr(torch.nn, name)(4, 6, 3, stride=2)(torch.zeros(x.shape)).shape


@pytest.mark.parametrize("activation", ["leaky_relu", "gelu"])
@pytest.mark.parametrize("name", NAMES)
def test_an_activation_is_no_part_of_the_state(name, activation):
    theirs = getattr(torch.nn, name)(4, 6, 3, dtype=torch.float64)
    ours = getattr(lc.nn, name)(4, 6, 3, dtype=torch.float64, activation=activation, slope=0.2)
    ours.load_state_dict(theirs.state_dict())
    x = image(name, 4)
    function = torch.nn.LeakyReLU(0.2) if activation == "leaky_relu" else torch.nn.GELU()
    for module in (ours, deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        torch.testing.assert_close(module(x), function(theirs(x)))
        assert repr(module).endswith(f", activation={activation}" + {
            "leaky_relu": ", slope=0.2)", "gelu": ")"
        }[activation])  # fmt: skip


def test_an_activation_that_there_is_not():
    for module in (lc.nn.Conv1d, lc.nn.ConvTranspose2d):
        with pytest.raises(ArgumentTypeError, match="`slope`: expected a number, got 'a'"):
            module(4, 4, 3, slope="a")
    with pytest.raises(ArgumentError, match="`activation`: expected None or one of relu"):
        lc.nn.Conv2d(4, 4, 3, activation="swish")
