"""Subclasses whose forward pass calls torch's functions: it runs as written, by ours."""

from __future__ import annotations

import io
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.overrides import TorchFunctionMode

import layoutconv as lc
from layoutconv.errors import ArgumentTypeError

CONVOLUTIONS = {torch.conv1d, torch.conv2d, torch.conv3d, torch.conv_transpose2d}


class Calls(TorchFunctionMode):
    """A count of torch's convolutions that a block calls."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in CONVOLUTIONS
        return func(*args, **(kwargs or {}))


class Standardized(torch.nn.Conv2d):
    """A weight of mean 0 and variance 1 in each output channel, by a batch norm."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = functional.batch_norm(flat, None, None, training=True, momentum=0.0)
        sizes = self.stride, self.padding, self.dilation, self.groups
        return functional.conv2d(input, weight.view_as(self.weight), self.bias, *sizes)


class Same(torch.nn.Conv2d):
    """Padding that depends on the input's extents, as in TensorFlow."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        sides = []
        for extent in input.shape[:1:-1]:
            missing = max(0, (-(-extent // 2) - 1) * 2 + 3 - extent)
            sides += [missing // 2, missing - missing // 2]
        return functional.conv2d(functional.pad(input, sides), self.weight, self.bias, stride=2)


class Followed(torch.nn.Conv2d):
    """A norm and an activation of its own, whose name means a fused one in this package."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.norm, self.activation = torch.nn.BatchNorm2d(sizes[1]), torch.nn.ReLU()
        self.slope = 0.5

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        y = torch.conv2d(input, self.weight, self.bias, padding="same")
        return self.activation(self.norm(y)) * self.slope


class Beneath(torch.nn.Conv2d):
    def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
        return functional.conv2d(input[..., 1:], weight, bias)


class Above(Standardized):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + 1


class Halved(torch.nn.ConvTranspose2d):
    def forward(self, input: torch.Tensor, output_size: Any = None) -> torch.Tensor:
        return functional.conv_transpose2d(input, self.weight / 2, self.bias, self.stride)


KINDS = [Standardized, Same, Followed, Beneath, Above, Halved]


def example_of(kind: type) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    return kind(4, 6, 3, 2).double(), torch.randn(2, 4, 7, 8).double().requires_grad_()


def results(layer: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """The output, and gradients of the input and all parameters."""
    y = layer(x)
    return [y, *torch.autograd.grad(y.cos().sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("kind", KINDS)
def test_they_compute_the_same_without_a_convolution_of_torch(kind):
    layer, x = example_of(kind)
    text, expected = repr(layer), results(deepcopy(layer), x)
    parameters = list(layer.parameters())
    ours, report = lc.nn.convert(layer, return_report=True)
    assert (ours, report.swapped, report.left) == (layer, ("",), {})
    assert isinstance(ours, kind)
    assert repr(ours) == text
    assert all(a is b for a, b in zip(ours.parameters(), parameters, strict=True))
    with Calls() as calls:
        found = results(ours, x)
    assert calls.count == 0
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    with Calls() as calls:
        lc.nn.revert(ours)(x)
    assert (type(ours), calls.count) == (kind, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_files_of_them_are_converted_too(kind):
    layer, x = example_of(kind)
    ours = lc.nn.convert(layer).eval()
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    for other in (deepcopy(ours), torch.load(file, weights_only=False)):
        with Calls() as calls:
            assert torch.equal(other(x), ours(x))
        assert calls.count == 0
        assert type(lc.nn.revert(other)) is kind
        assert vars(other).keys() == vars(kind(4, 6, 3, 2)).keys()


def test_what_is_converted_again_or_called_by_another_name():
    layer, _ = example_of(Standardized)
    lc.nn.convert(layer)
    report = lc.nn.convert(layer, return_report=True)[1]
    assert report.left == {"": "layoutconv computes it already"}
    with pytest.raises(ArgumentTypeError, match="TorchScript"):
        torch.jit.script(layer)


def test_nothing_is_folded_into_them():
    layer, x = example_of(Standardized)
    net = torch.nn.Sequential(layer, torch.nn.BatchNorm2d(6).double(), torch.nn.ReLU()).eval()
    net[1].running_mean.fill_(0.3)
    expected = net(x)
    folded = lc.nn.fold_batch_norms(lc.nn.convert(net))
    torch.testing.assert_close(folded(x), expected, rtol=1e-12, atol=1e-12)
    assert isinstance(folded[0], Standardized)
    folded.append(lc.nn.Conv2d(6, 6, 1).eval())
    batches = [x.detach().float()]
    report = lc.nn.quantize(folded.float(), batches, keep=(), return_report=True)[1]
    assert report.left == {"0": "Standardized overrides forward"}


def test_parametrized_ones():
    layer, x = example_of(Standardized)
    parametrizations.weight_norm(layer)
    expected = layer(x)
    lc.nn.convert(layer)
    with Calls() as calls:
        torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)
    assert calls.count == 0


@pytest.mark.parametrize("kind", [Standardized, Followed])
def test_they_are_compiled_exported_and_traced(kind):
    layer, x = example_of(kind)
    net, x = lc.nn.convert(torch.nn.Sequential(layer)).eval(), x.detach()
    expected = net(x)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    exported = torch.export.export(net, (x,))
    for made in (compiled, exported.module(), torch.fx.symbolic_trace(net)):
        torch.testing.assert_close(made(x), expected)
    targets = {str(node.target) for node in exported.graph.nodes}
    assert "layoutconv.conv_fprop.default" in targets


def test_the_trial_leaves_everything_as_it_was():
    layer, x = example_of(Followed)
    called = []
    layer.register_forward_hook(lambda *_: called.append("layer"))
    layer.norm.register_forward_pre_hook(lambda *_: called.append("norm"))
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    seed = torch.random.get_rng_state()
    lc.nn.convert(layer)
    assert not called
    assert torch.equal(torch.random.get_rng_state(), seed)
    assert all(torch.equal(tensor, state[name]) for name, tensor in layer.state_dict().items())
    layer(x)
    assert called == ["norm", "layer"]


class OfValues(torch.nn.Conv2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        scale = float(self.weight.abs().max())
        return functional.conv2d(input, self.weight / scale)


class WithMask(torch.nn.Conv2d):
    def forward(self, input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(input * mask, self.weight)


class Pointwise(torch.nn.Conv2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.einsum("kcrs,nchw->nkhw", self.weight, input)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (OfValues, "forward, which fails when it is tried on the meta device: RuntimeError: "),
        (WithMask, "forward, which fails when it is tried on the meta device: TypeError: "),
        (Pointwise, "forward, which calls neither that of super() nor a convolution of torch"),
    ],
)
def test_what_cannot_be_tried_is_left(kind, why):
    layer, report = lc.nn.convert(kind(2, 2, 1), return_report=True)
    assert type(layer) is kind
    assert f"{kind.__name__} overrides {why}" in report.left[""]
