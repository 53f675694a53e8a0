"""Networks in 8 bits: what is quantised, what stays so, what it costs, and training for it."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

import layoutconv as lc
from layoutconv import nn
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.nn import quantize
from layoutconv.nn.quantization_aware import QuantizationAware
from layoutconv.nn.quantized_conv import QuantizedConv
from layoutconv.nn.quantized_tensor import QuantizedTensor

from .clouds import cloud

INT8, E4M3 = torch.int8, torch.float8_e4m3fn


def normed(conv: Any, *more: Any) -> list[Any]:
    return [conv, torch.nn.BatchNorm1d(conv.out_channels), *more]


def block(C: int, *past: Any) -> Any:
    first, second = nn.SubmConv2d(C, C, 3, bias=False), nn.SubmConv2d(C, C, 3, bias=False)
    body = nn.Sequential(*normed(first, torch.nn.ReLU()), *normed(second))
    return nn.Residual(body, *past)


def network(seed: int = 0) -> Any:
    """A residual network that was shown clouds: features of it are of many sizes."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        *normed(nn.SubmConv2d(4, 16, 3), torch.nn.ReLU()),
        block(16), block(16),
        *normed(nn.SparseConv2d(16, 24, 2, 2), torch.nn.ReLU()),
        block(24, nn.Sequential(torch.nn.Linear(24, 24))),
        nn.SparseInverseConv2d(24, 8, 2), torch.nn.ReLU(), torch.nn.Linear(8, 3),
    )  # fmt: skip
    with torch.no_grad():
        for i in range(6):
            net(batch(i))
    return net.eval()


def batch(seed: int) -> Any:
    return cloud(2, 4, dtype=torch.float32, seed=seed)


BATCHES = [batch(i) for i in range(4)]


def error(want: torch.Tensor, got: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize(("dtype", "most"), [(INT8, 0.02), (E4M3, 0.05)])
def test_a_residual_network_stays_in_8_bits(dtype: torch.dtype, most: float) -> None:
    net = network()
    small, report = quantize(net, BATCHES, dtype=dtype, return_report=True)
    results = {layer.name: layer.results for layer in report.layers}
    # The last block's features are read by a linear layer too, and the way back by another.
    wide = {"6", "9"}
    assert results == {
        name: torch.float32 if name in wide else dtype
        for name in ("3.body.0", "3.body.3", "4.body.0", "4.body.3", "5", "8.body.0", "8.body.3",
                     "9")
    } | {"5": torch.float32}  # fmt: skip
    assert report.left == {
        "0": "the first layer", "8.past.0": "a linear layer", "11": "a linear layer"
    }  # fmt: skip
    assert all(layer.sqnr > 20 for layer in report.layers)
    x = batch(99)
    with torch.no_grad():
        want, got = net(x).features, small(x).features
    assert 0 < error(want, got) < most
    assert report.sqnr is not None
    assert report.sqnr > 25
    assert len(str(report).splitlines()) == 1 + len(report.layers) + len(report.left)
    made = small[:5](x)
    assert isinstance(made, QuantizedTensor)
    assert made.codes.dtype == dtype
    assert torch.equal(small[5:](made).features, got)
    assert isinstance(net[3].body[0], nn.SubmConv2d)  # the network itself is as it was
    assert all(not parameter.requires_grad for parameter in small.parameters())


def test_a_state_is_saved_and_loaded_into_the_same_structure() -> None:
    net = network()
    for dtype in (INT8, E4M3):
        small = quantize(net, BATCHES, dtype=dtype, keep=("3.body", "9"))
        file = io.BytesIO()
        torch.save(small.state_dict(), file)
        file.seek(0)
        again = quantize(network(1), state=torch.load(file))
        for layer in ("3.body.0", "3.body.3", "9"):
            assert not isinstance(again.get_submodule(layer), QuantizedConv)
        assert torch.equal(again(batch(9)).features, small(batch(9)).features)
        assert str(again) == str(small)


def test_dense_layers_side_by_side_stay_in_8_bits() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.Conv2d(16, 32, 1), torch.nn.SiLU(),
        nn.Conv2d(32, 32, 3, 2, 1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, 1), nn.Conv2d(32, 32, 1), torch.nn.MaxPool2d(1),
        nn.ConvTranspose2d(32, 8, 2, 2), nn.Conv2d(8, 4, 1),
    )  # fmt: skip
    images = [torch.randn(2, 3, 12, 12) for _ in range(3)]
    for image in images:
        net(image)
    small, report = quantize(net.eval(), images, return_report=True)
    assert {layer.name: layer.results for layer in report.layers} == {
        "4": INT8, "6": torch.float32, "10": torch.float32, "12": torch.float32
    }  # fmt: skip
    assert report.left == {
        "0": "the first layer", "3": "depthwise layers are of no 8 bits",
        "9": "torch's own; lc.nn.convert makes it one of layoutconv's", "13": "the last layer",
    }  # fmt: skip
    with torch.no_grad():
        assert error(net(images[0]), small(images[0])) < 0.03
    converted = lc.nn.convert(net, inplace=False)
    _, report = quantize(converted, images, keep=(), return_report=True)
    results = {layer.name: layer.results for layer in report.layers}
    assert (len(results), results["6"], results["9"]) == (7, INT8, INT8)


class Pyramid(torch.nn.Module):
    """The layers of a sequence, one by one, each of whose results is read beside the next."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(8, 8, 3, padding=1, activation="relu") for _ in range(3)]
        self.body = torch.nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [x]
        for layer in self.body:
            made.append(layer(made[-1]))
        return torch.cat(made[1:], 1)


def test_results_that_a_network_reads_itself_are_numbers_and_no_codes() -> None:
    torch.manual_seed(0)
    net, x = Pyramid().eval(), torch.randn(2, 8, 9, 9)
    small, report = quantize(net, [x], keep=(), return_report=True)
    assert [layer.results for layer in report.layers] == [torch.float32] * 3
    with torch.no_grad():
        assert error(net(x), small(x)) < 0.03


def test_a_hook_between_layers_sees_numbers_and_no_codes() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(nn.Conv2d(8, 8, 3), torch.nn.Identity(), nn.Conv2d(8, 8, 3)).eval()
    seen: list[torch.Tensor] = []
    net[1].register_forward_hook(lambda module, given, result: seen.append(result))
    x = torch.randn(2, 8, 9, 9)
    small = quantize(net, [x], keep=())
    seen.clear()
    with torch.no_grad():
        net(x)
        small(x)
    want, got = seen
    assert got.dtype == torch.float32
    assert error(want, got) < 0.03


def test_a_layer_that_read_nothing_is_left() -> None:
    net, x = (
        torch.nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)).eval(),
        torch.ones(0, 4, 3, 3),
    )
    with pytest.warns(UserWarning, match="every layer of the network: `0`: no batch reached it"):
        _, report = quantize(net, [x], keep=(), return_report=True)
    assert report.left == {"0": "no batch reached it", "1": "no batch reached it"}


class Product(torch.nn.Module):
    """A layer of another library."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = torch.nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Any) -> Any:
        return x @ self.kernel


def test_layers_of_other_libraries_are_left_by_name() -> None:
    """They were passed over without a word: nothing was quantised, and nobody knew."""
    net, x = torch.nn.Sequential(*(Product() for _ in range(6))).eval(), torch.ones(2, 4)
    with pytest.warns(UserWarning, match="`3`: .*Product has no 8-bit version, and 2 more"):
        made, report = quantize(net, [x], return_report=True)
    assert torch.equal(made(x), net(x))
    assert list(report.left) == [str(number) for number in range(6)]
    body = torch.nn.Sequential(Product(), nn.Conv1d(4, 4, 1), Product()).eval()
    _, report = quantize(body, [torch.ones(2, 4, 4)], return_report=True)
    assert [layer.name for layer in report.layers] == ["1"]  # neither the first nor the last


class Own(torch.nn.Module):
    """A user's module: a skip, arithmetic on features, two readers of one result, a spare layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.SubmConv2d(4, 8, 3)
        self.shared = nn.SubmConv2d(8, 8, 3, activation="gelu")
        self.left, self.right = nn.SubmConv2d(8, 8, 3), nn.SubmConv2d(8, 8, 1)
        self.last, self.spare = nn.SubmConv2d(16, 8, 3), nn.SubmConv2d(8, 8, 3)

    def forward(self, x: Any, factor: float = 1.0) -> Any:
        x = self.shared(self.stem(x))
        a, b = self.left(x), self.right(x)
        y = self.last(lc.sparse.cat([a, b]))
        return y.replace(y.features * factor)


def test_a_users_forward_reads_features_as_it_did() -> None:
    torch.manual_seed(0)
    net = Own().eval()
    batches = [(batch(i), 2.0) for i in range(3)]
    small, report = quantize(net, iter(batches), return_report=True)
    # Both readers of `shared` are quantised; what they make is joined in floats.
    assert {layer.name: layer.results for layer in report.layers} == {
        "shared": INT8, "left": torch.float32, "right": torch.float32
    }  # fmt: skip
    assert report.left == {
        "stem": "the first layer", "last": "the last layer", "spare": "no batch reached it"
    }  # fmt: skip
    with torch.no_grad():
        want = net(batch(9), 3.0).features
    assert error(want, small(batch(9), 3.0).features) < 0.03
    _, report = quantize(net, batches, keep=("left",), return_report=True)
    assert {layer.name: layer.results for layer in report.layers}["shared"] == torch.float32
    assert report.left == {"left": "kept by name", "spare": "no batch reached it"}
    alone, report = quantize(net.stem, [batch(0)], keep=(), return_report=True)
    assert isinstance(alone, QuantizedConv)
    assert [layer.name for layer in report.layers] == [""]


def test_half_networks_run_in_half_between_layers_of_8_bits() -> None:
    net = network().half()
    x = batch(9).half()
    small = quantize(net, [b.half() for b in BATCHES])
    assert small(x).features.dtype == torch.float16
    with torch.no_grad():
        assert error(net(x).features.float(), small(x).features.float()) < 0.02


def test_training_for_8_bits_moves_weights_and_scales() -> None:
    net = network()
    aware, report = quantize(net, BATCHES, training=True, return_report=True)
    assert aware.training
    layers = {n for n, m in aware.named_modules() if isinstance(m, QuantizationAware)}
    assert layers == {layer.name for layer in report.layers}
    assert "dB" not in str(report)
    x, target = batch(0), torch.randn(len(batch(0)), 3)
    before = float(aware.get_submodule("5").input_amax)
    optimizer = torch.optim.Adam(aware.parameters(), 0.01)
    losses = []
    for _ in range(20):
        loss = (aware(x.replace(2 * x.features)).features - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert float(aware.get_submodule("5").input_amax) != before
    twice = [b.replace(2 * b.features) for b in BATCHES]
    small, report = quantize(aware.eval(), twice, return_report=True)
    assert {layer.name for layer in report.layers} == layers
    with torch.no_grad():
        loss = (small(twice[0]).features - target).square().mean()
    assert float(loss) < 1.2 * losses[-1] + 0.02
    assert set(small.state_dict()) == set(quantize(net, BATCHES).state_dict())


def test_a_state_of_training_goes_on() -> None:
    net = network()
    one, other = (quantize(n, BATCHES, training=True) for n in (net, network(1)))
    other.load_state_dict(one.state_dict())
    x = batch(5)
    assert torch.equal(one.eval()(x).features, other.eval()(x).features)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batches": []}, "`batches`: expected at least one batch"),
        ({"batches": BATCHES[0]}, r"`batches`: expected an iterable of batches, such as \[x\]"),
        ({"batches": torch.ones(2, 4)}, "`batches`: expected an iterable.*got Tensor"),
        ({"batches": 3}, "`batches`: expected an iterable of batches.*got int"),
        ({}, "`batches`: expected either `batches` to calibrate with or `state`, got neither"),
        ({"batches": BATCHES, "state": {}}, "got both"),
        ({"batches": BATCHES, "dtype": torch.float16}, "`dtype`: expected torch.int8 or torch.fl"),
        ({"batches": BATCHES, "keep": "5"}, "`keep`: expected a sequence of names"),
        ({"batches": BATCHES, "keep": ["nobody"]}, "`keep`: expected names of modules"),
        ({"batches": BATCHES, "dtype": [8]}, r"`dtype`: expected torch.int8 or .*got \[8\]"),
        ({"batches": BATCHES, "keep": 5}, "`keep`: expected a sequence of names of modules, got 5"),
        ({"state": [0]}, "`state`: expected a state_dict, got list"),
        ({"state": {"0.weight_scale": 0, "0.weight": torch.zeros(1)}}, "`dtype`"),
        (
            {"state": {"7.weight_scale": torch.zeros(1)}},
            "`state`.*which is not an 8-bit layer here",
        ),
        ({"state": {"1.weight_scale": torch.zeros(8)}}, "`state`: expected a tensor under `1.wei"),
        ({"state": {}, "training": True}, "`training`: expected False"),
        ({"state": {}, "return_report": True}, "`return_report`: expected False"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], words: str) -> None:
    net = nn.Sequential(nn.SubmConv2d(4, 8, 3), nn.SubmConv2d(8, 8, 3)).eval()
    with pytest.raises((ArgumentError, ArgumentTypeError), match=words):
        quantize(net, **arguments)


def test_networks_that_cannot_be_quantised() -> None:
    net = network()
    with pytest.raises(ArgumentError, match=r"`module`.*eval"):
        quantize(network().train(), BATCHES)
    with pytest.raises(ArgumentTypeError, match="`module`"):
        quantize(lambda x: x, BATCHES)
    with pytest.raises(ArgumentError, match=r"`module`.*not quantised"):
        quantize(quantize(net, BATCHES), BATCHES)
    x = batch(0)
    bad = x.replace(x.features.clone().fill_(torch.nan))
    with pytest.raises(ArgumentError, match=r"`batches`.*`0` reads nan"):
        quantize(net, [bad])
    for name, module in net.named_modules():  # nothing is left behind by a call that failed
        assert not module._forward_hooks, name


def test_a_network_is_exported_from_features_and_cells() -> None:
    class Whole(torch.nn.Module):
        def __init__(self, net: Any) -> None:
            super().__init__()
            self.net = net

        def forward(self, features: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
            x = lc.SparseTensor(features, cells, (9, 11), batch_size=2)
            return self.net(x).features  # type: ignore[no-any-return]

    net = nn.Sequential(nn.SubmConv2d(4, 8, 3), block(8), block(8), torch.nn.Linear(8, 3)).eval()
    small = Whole(quantize(net, BATCHES)).eval()
    one, other = ((x.features, x.coords) for x in (batch(7), batch(8)))
    rows = torch.export.Dim("rows", min=2, max=1000)
    with torch.no_grad():
        exported = torch.export.export(small, one, dynamic_shapes=({0: rows}, {0: rows}))
        assert torch.equal(exported.module()(*other), small(*other))


def test_errors_are_those_of_a_batch_with_rows() -> None:
    """The first batch may be a cloud without points, of which there is no error."""
    net, full = network(), batch(0)
    empty = full[0:0]
    report = nn.quantize(net, [empty, full], return_report=True)[1]
    assert report == nn.quantize(net, [full], return_report=True)[1]
    assert 0 < report.sqnr < torch.inf


def test_batches_without_numbers_are_refused() -> None:
    net = lc.nn.Sequential(*(lc.nn.Conv2d(2, 2, 1) for _ in range(3))).eval().to("meta")
    with pytest.raises(ArgumentError, match="`batches`: expected tensors with values, got `0` re"):
        nn.quantize(net, [torch.empty(1, 2, 3, 3, device="meta")])
