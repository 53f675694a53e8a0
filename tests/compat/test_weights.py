"""Checkpoints of every spconv: recognised, or refused; never loaded wrongly."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.compat.spconv.pytorch.weights import convert_state_dict, layouts_of, to_krsc
from layoutconv.errors import ArgumentError


def stored(weight: Tensor, layout: str) -> Tensor:
    """A filter (K, *taps, C) in a layout, written by its letters; of one tap its numbers stay."""
    K, *taps, C = weight.shape
    shape = {"KRSC": (K, *taps, C), "RSKC": (*taps, K, C), "RSCK": (*taps, C, K)}[layout]
    if set(taps) == {1}:
        return weight.detach().view(shape)
    found = torch.empty(shape)
    for k, c in itertools.product(range(K), range(C)):
        at = {"KRSC": (k, ..., c), "RSKC": (..., k, c), "RSCK": (..., c, k)}[layout]
        found[at] = weight[k, ..., c]
    return found


def network() -> Any:
    """Filters of all kinds: more channels, as many, fewer, one tap, a modules' name between."""
    return nn.ModuleDict(
        {
            "first": spconv.SparseSequential(
                spconv.SubMConv3d(4, 6, 3, indice_key="a"), nn.BatchNorm1d(6), nn.ReLU()
            ),
            "same": spconv.SubMConv3d(6, 6, 3, indice_key="a"),
            "down": spconv.SparseConv3d(6, 8, (3, 1, 2), 2, indice_key="b"),
            "up": spconv.SparseInverseConv3d(8, 5, (3, 1, 2), indice_key="b"),
            "one": spconv.SubMConv3d(5, 7, 1),
            "square": spconv.SparseConv3d(5, 5, 1),
            "dense": nn.Conv3d(3, 3, 3),
        }
    )


FILTERS = [f"{name}.weight" for name in ("first.0", "same", "down", "up", "one", "square")]


def old(net: Any, layout: str, names: list[str] = FILTERS) -> dict[str, Tensor]:
    state = dict(net.state_dict())
    return {key: stored(v, layout) if key in names else v for key, v in state.items()}


def same(net: Any, other: Any) -> bool:
    pairs = zip(net.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("layout", ["KRSC", "RSKC", "RSCK"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_one_layer(layout: str, rank: int) -> None:
    net, other = (getattr(spconv, f"SubMConv{rank}d")(4, 6, 3) for _ in range(2))
    other.load_state_dict({"weight": stored(net.weight, layout), "bias": net.bias})
    assert same(net, other)
    assert other.weight.is_contiguous()


@pytest.mark.parametrize("layout", ["KRSC", "RSKC", "RSCK"])
def test_a_network(layout: str) -> None:
    """Filters with as many channels in as out are known by the others."""
    net, other = network(), network()
    other.load_state_dict(convert_state_dict(other, old(net, layout)))
    assert same(net, other)
    again = network()
    again.load_state_dict(convert_state_dict(again, old(net, layout), layout))
    assert same(net, again)


@pytest.mark.parametrize("layout", ["KRSC", "RSKC", "RSCK"])
@pytest.mark.parametrize(("C", "K"), [(4, 6), (5, 5), (1, 4), (4, 1)])
def test_one_tap(layout: str, C: int, K: int) -> None:
    """A matrix (C, K) in every layout, so that none has to be known."""
    net, other = spconv.SubMConv3d(C, K, 1), spconv.SubMConv3d(C, K, 1)
    state = {"weight": stored(net.weight, layout), "bias": net.bias}
    other.load_state_dict(state)
    assert same(net, other)
    other.reset_parameters()
    other.load_state_dict(convert_state_dict(other, state))
    assert same(net, other)
    x = torch.randn(3, C)
    cells = torch.arange(12, dtype=torch.int32).view(3, 4) % torch.tensor([1, 12, 12, 12])
    y = other(spconv.SparseConvTensor(x, cells.int(), [12] * 3, 1))
    matrix = state["weight"].reshape(C, K)
    torch.testing.assert_close(y.features, torch.addmm(net.bias, x, matrix))


@pytest.mark.parametrize("layout", ["RSKC", "RSCK"])
def test_one_tap_of_a_stride_is_a_filter_like_others(layout: str) -> None:
    net, other = (spconv.SparseConv3d(4, 6, 1, stride=2) for _ in range(2))
    old_one = net.weight.detach().movedim(0, -2 if layout == "RSKC" else -1)
    other.load_state_dict({"weight": old_one, "bias": net.bias})
    assert same(net, other)
    square = spconv.SparseConv3d(4, 4, 1, stride=2)
    with pytest.raises(RuntimeError, match="convert_state_dict"):
        square.load_state_dict({"weight": torch.zeros(1, 1, 1, 4, 4), "bias": torch.zeros(4)})


def test_mixed_layouts_of_2_0() -> None:
    """Large filters were RSKC, others KRSC: then none is 1.x's."""
    net, other = network(), network()
    state = old(net, "RSKC", ["same.weight"])
    other.load_state_dict(convert_state_dict(other, state))
    assert same(net, other)


@pytest.mark.parametrize("layout", ["RSKC", "RSCK"])
def test_what_one_layer_cannot_know_is_refused(layout: str) -> None:
    net, other = network(), network()
    with pytest.raises(RuntimeError, match=r"same\.weight.*convert_state_dict"):
        other.load_state_dict(old(net, layout))
    alone = spconv.SubMConv3d(6, 6, 3)
    with pytest.raises(ArgumentError, match=r"layout.*leave it open"):
        convert_state_dict(alone, {"weight": torch.zeros(3, 3, 3, 6, 6)})


@pytest.mark.parametrize("layout", ["RSKC", "RSCK"])
def test_the_layout_that_is_said(layout: str, constants: Any) -> None:
    """By spconv's setting, which is read when something is loaded."""
    net, other = network(), network()
    constants.SAVED_WEIGHT_LAYOUT = layout
    other.load_state_dict(old(net, layout))
    assert same(net, other)
    other.load_state_dict(net.state_dict())  # which says itself that it is KRSC
    assert same(net, other)
    constants.SAVED_WEIGHT_LAYOUT = "KCRS"
    with pytest.raises(ArgumentError, match="SAVED_WEIGHT_LAYOUT"):
        other.load_state_dict(old(net, layout))


def test_a_filter_that_fits_every_layout() -> None:
    """Is KRSC, as all are since spconv 2.2, unless another filter or the user says it is not."""
    net = nn.ModuleList([spconv.SubMConv3d(3, 3, 3), spconv.SubMConv3d(3, 4, 3)])
    cube = net[0].weight.detach().clone()
    other = spconv.SubMConv3d(3, 3, 3)
    other.load_state_dict({"weight": cube, "bias": net[0].bias})
    assert torch.equal(other.weight, cube)
    for layout in ("KRSC", "RSKC", "RSCK"):
        state = old(net, layout, ["0.weight", "1.weight"])
        told = convert_state_dict(net, state, layout)
        assert torch.equal(told["0.weight"], cube)
        if layout == "RSKC":  # a state dict that has some of these may have KRSC as well
            with pytest.raises(ArgumentError, match="leave it open"):
                convert_state_dict(net, state)
        else:
            assert torch.equal(convert_state_dict(net, state)["0.weight"], cube)


def test_versions() -> None:
    """State dicts say that their filters are KRSC; what convert_state_dict made says it too."""
    net = network()
    state = net.state_dict()
    assert state._metadata["same"]["version"] == 2
    marked = OrderedDict(old(net, "RSCK"))
    marked._metadata = OrderedDict({"": {"version": 1}, "same": {"version": 1}})  # type: ignore[attr-defined]
    new = convert_state_dict(net, marked)
    assert new._metadata["same"]["version"] == 2  # type: ignore[attr-defined]
    assert marked._metadata["same"]["version"] == 1  # type: ignore[attr-defined]
    again = convert_state_dict(net, new)
    assert all(torch.equal(again[key], value) for key, value in net.state_dict().items())
    # A filter that says it is KRSC, and is not, does not fit.
    state["up.weight"] = stored(net["up"].weight, "RSCK")
    with pytest.raises(RuntimeError, match=r"size mismatch for up\.weight"):
        net.load_state_dict(state)


def test_filters_that_fit_nothing() -> None:
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        spconv.SubMConv3d(4, 6, 3).load_state_dict(
            {"weight": torch.zeros(5), "bias": torch.zeros(6)}
        )
    with pytest.raises(ArgumentError, match=r"\(6, 3, 3, 3, 4\)"):
        convert_state_dict(spconv.SubMConv3d(4, 6, 3), {"weight": torch.zeros(5)})
    with pytest.raises(ArgumentError, match="a mixture: "):
        layouts_of([((3, 4, 6), (6, 3, 4)), ((6, 3, 4), (6, 3, 4))])
    with pytest.raises(ArgumentError, match="layout"):
        to_krsc(torch.zeros(3, 4, 6), "NHWC")
    with pytest.raises(ArgumentError, match="RSKC layout"):
        convert_state_dict(spconv.SubMConv1d(4, 6, 3), {"weight": torch.zeros(3, 4, 6)}, "RSKC")


def test_a_loader_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As mmdetection3d does it: the method is replaced, and every old filter turned once.

    Those of one tap, too, which spconv then multiplies by as if nobody had.
    """

    def load(self: Any, state_dict: Any, prefix: str, local_metadata: Any, *others: Any) -> None:
        for name, parameter in self._parameters.items():
            value = state_dict.get(prefix + name)
            if value is not None:
                turned = value if local_metadata.get("version") == 2 else value.movedim(-1, 0)
                parameter.data.copy_(turned)

    monkeypatch.setattr(spconv.SparseModule, "_version", 2)
    monkeypatch.setattr(spconv.SparseModule, "_load_from_state_dict", load)
    net, other = network(), network()
    turned = old(net, "RSCK")
    for name in ("one", "square"):
        turned[f"{name}.weight"] = net[name].weight.detach().movedim(0, -1)
    other.load_state_dict(turned)
    assert same(net, other)
    other.load_state_dict(network().state_dict())
    assert not same(net, other)
    other.load_state_dict(net.state_dict())
    assert same(net, other)


def test_the_filters_of_a_model_are_found_by_their_type() -> None:
    """As OpenPCDet finds them."""
    found = [
        f"{name}.weight"
        for name, layer in network().named_modules()
        if isinstance(layer, spconv.conv.SparseConvolution)
    ]
    assert found == FILTERS
