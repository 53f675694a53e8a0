"""Parametrized convolutions, as by weight norm: converted, trained, freed and reverted."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch.nn.utils import parametrize

import layoutconv as lc


class Causal(torch.nn.Conv1d):
    """A subclass that pads its input itself."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.nn.functional.pad(input, (2, 0)))


NORMED = {
    "weight_norm": torch.nn.utils.parametrizations.weight_norm,
    "spectral_norm": torch.nn.utils.parametrizations.spectral_norm,
    "orthogonal": torch.nn.utils.parametrizations.orthogonal,
    "bias": lambda layer: parametrize.register_parametrization(layer, "bias", torch.nn.Tanh()),
    "both": lambda layer: NORMED["bias"](NORMED["weight_norm"](layer)),
}


@pytest.mark.parametrize("kind", NORMED)
@pytest.mark.parametrize("of", [torch.nn.Conv1d, torch.nn.ConvTranspose1d, Causal])
def test_parametrized_convolutions_are_converted_and_reverted(of, kind):
    """Libraries of audio networks norm their convolutions as they make them."""
    torch.manual_seed(0)
    layer = NORMED[kind](of(4, 6, 3, bias=True)).double().eval()
    x = torch.randn(2, 4, 9, dtype=torch.float64)
    state, expected = layer.state_dict(), layer(x)
    names = type(layer).__name__, list(state)
    ours, report = lc.nn.convert(layer, inplace=False, return_report=True)
    assert report.swapped == ("",)
    assert isinstance(ours, lc.nn.Conv1d | lc.nn.ConvTranspose1d)
    assert not isinstance(layer, lc.nn.Conv1d | lc.nn.ConvTranspose1d)
    assert (type(ours).__name__, list(ours.state_dict())) == names
    for net in (ours, deepcopy(ours), lc.nn.revert(deepcopy(ours))):
        net.load_state_dict(state)
        torch.testing.assert_close(net(x), expected)
    results = [torch.autograd.grad(net(x).sin().sum(), net.parameters()) for net in (ours, layer)]
    torch.testing.assert_close(*results)
    if parametrize.is_parametrized(ours, "weight"):
        ours.double().train()
        parametrize.remove_parametrizations(ours, "weight")
        if not parametrize.is_parametrized(ours):
            assert type(lc.nn.revert(ours)) is of


class Thinned(torch.nn.Module):
    """Filters of which some elements are zero, others at each call."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(weight)


@pytest.mark.parametrize("kind", ["spectral_norm", "thinned"])
@pytest.mark.parametrize("of", [torch.nn.Conv1d, Causal])
def test_a_parametrization_computes_nothing_as_it_is_converted(of, kind):
    """In training, vectors of a spectral norm move as a filter is computed, and numbers are drawn
    for one that is thinned out: those of later calls would be others."""
    layer = of(4, 6, 3)
    if kind == "thinned":
        parametrize.register_parametrization(layer, "weight", Thinned())
    else:
        NORMED[kind](layer)
    state, drawn = deepcopy(layer.state_dict()), torch.get_rng_state()
    for change in lc.nn.convert, lc.nn.revert:
        change(layer)
        assert torch.equal(torch.get_rng_state(), drawn)
        torch.testing.assert_close(layer.state_dict(), state, rtol=0, atol=0)


@pytest.mark.parametrize("of", [torch.nn.Conv1d, Causal])
def test_a_network_is_converted_while_parametrizations_are_cached(of):
    layer = torch.nn.utils.parametrizations.weight_norm(of(3, 4, 3))
    x = torch.randn(1, 3, 7)
    expected = layer(x)
    with parametrize.cached():
        torch.testing.assert_close(lc.nn.convert(layer)(x), expected)
        torch.testing.assert_close(lc.nn.revert(layer)(x), expected)


def test_a_converted_network_is_trained_under_a_norm():
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv2d(3, 4, 3))
    ours = lc.nn.convert(torch.nn.Sequential(layer, torch.nn.ReLU()), inplace=False)
    x = torch.randn(2, 3, 6, 6)
    for net in (ours, torch.nn.Sequential(layer, torch.nn.ReLU())):
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(ours[0].weight, layer.weight)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), ours(x))
