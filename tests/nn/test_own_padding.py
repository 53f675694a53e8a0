"""Forward passes of subclasses that call ours: recognised where they pad, else run as they are."""

from __future__ import annotations

import random
import sys
from collections import Counter, deque
from copy import deepcopy
from typing import Any, ClassVar

import pytest
import torch
from torch.nn.functional import pad

import layoutconv as lc
from layoutconv.nn.own_padding import OwnPadding, own_padding

from ..watched import Watch
from .test_convert import calls_of_torch

DOUBLE = torch.float64
Tensor = torch.Tensor


class Causal(torch.nn.Conv3d):
    """As video autoencoders have it: zeros and the frames of a cache before those of the input."""

    def __init__(self, *sizes: Any, padding: Any = 0, **options: Any) -> None:
        super().__init__(*sizes, padding=padding, **options)
        before, high, wide = self.padding  # type: ignore[misc]
        self.zeros = (wide, wide, high, high, 2 * before, 0)  # type: ignore[operator]
        self.padding = (0, 0, 0)

    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor:  # type: ignore[override]
        zeros = list(self.zeros)
        if kept is not None and self.zeros[4] > 0:
            x = torch.cat([kept.to(x.device), x], dim=2)
            zeros[4] -= kept.shape[2]
        return super().forward(pad(x, zeros))


class Sides(torch.nn.Conv2d):
    """More padding at one side, beside that of the convolution."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(pad(input, (0, 1, 2, 0)))


class Beside(torch.nn.Conv2d):
    """A convolution of ours, and more."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(2 * input) / 2 + self.weight.mean()


class Inner(torch.nn.Conv2d):
    def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
        return super()._conv_forward(input[..., 1:], weight, bias)


class Reflecting(torch.nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(pad(input, (1, 1, 1, 1), mode="reflect"))


class Ones(torch.nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(pad(input, (1, 1, 1, 1), value=1.0))


class Looking(torch.nn.Conv2d):
    """A layer whose padding depends on the values of its input."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(pad(input, (1, 1, 1, 1)) if input.mean() > 0 else input)


class Sized(torch.nn.Conv2d):
    """It pads wide images more."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(pad(input, (input.shape[-1] - 2, 0, 0, 0)))


class Behind(Causal):
    """Frames behind those of the input, which no stream has."""

    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return torch.nn.Conv3d.forward(
            self, pad(x if kept is None else torch.cat([x, kept], 2), self.zeros)
        )


class Counting(torch.nn.Conv2d):
    """A state that a trial would change, were it not of an object of its own."""

    calls: int = 0
    seen: ClassVar[list[Any]] = []

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("sum", torch.zeros(1))

    def forward(self, input: Tensor) -> Tensor:
        self.calls += 1
        self.sum += 1
        return super().forward(pad(input, (1, 1, 1, 1)))


class Adapted(torch.nn.Conv2d):
    """A low-rank adapter beside the convolution, as LoRA adds it."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.down = torch.nn.Conv2d(sizes[0], 2, sizes[2])
        self.up = torch.nn.Conv2d(2, sizes[1], 1)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + self.up(self.down(input))


class Asserting(torch.nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        assert isinstance(input, Tensor), "not a tensor"
        return super().forward(input)


class OwnError(Exception):
    """An error that no library knows."""


class Raising(torch.nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        if type(input) is not Tensor:
            raise OwnError
        return super().forward(input)


class Queueing(torch.nn.Conv2d):
    """A state that is no list: the last inputs, and a count of all."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.last: deque[Any] = deque(maxlen=2)
        self.calls = Counter[str]()

    def forward(self, input: Tensor) -> Tensor:
        self.last.append(input)
        self.calls["forward"] += 1
        return super().forward(pad(input, (1, 1, 1, 1)))


class Keeping(Queueing):
    def forward(self, input: Tensor) -> Tensor:
        self.last, self.calls = deque([input]), Counter(["forward"])
        return super(Queueing, self).forward(pad(input, (1, 1, 1, 1)))


def same(layer: Any, *args: Any) -> None:
    """A converted layer gives what the layer gave, and its gradients."""
    ours = lc.nn.convert(deepcopy(layer))
    found, expected = ours(*args), layer(*args)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected)
    for net, y in ((ours, found), (layer, expected)):
        net.zero_grad()
        y.square().sum().backward()
    for p, q in zip(ours.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.parametrize("count", [None, 1, 2, 3])
@pytest.mark.parametrize(
    ("sizes", "padding", "found"),
    [
        ((4, 6, 3), 1, ((2, 0), (1, 1), (1, 1))),
        ((4, 6, (3, 1, 1), (2, 1, 1)), (1, 0, 0), ((2, 0), (0, 0), (0, 0))),
        ((4, 6, 1), 0, ((0, 0), (0, 0), (0, 0))),
    ],
)
def test_a_causal_convolution_pads_as_it_reads(
    sizes: Any, padding: Any, found: Any, count: int | None, watched: Watch
) -> None:
    torch.manual_seed(0)
    layer = Causal(*sizes, padding=padding, dtype=DOUBLE)
    assert own_padding(layer, torch.nn.Conv3d) == OwnPadding(("x", "kept"), found)
    x = torch.randn(2, 4, 5, 4, 3, dtype=DOUBLE, requires_grad=True)
    kept = None if count is None else torch.randn(2, 4, count, 4, 3, dtype=DOUBLE)
    same(layer, x, kept)
    expected = layer(x, kept)
    ours = lc.nn.convert(layer)
    assert calls_of_torch(lambda: ours(x, kept=kept), watched) == 0
    padded = watched("pad", sys.modules[__name__])  # by the forward pass of the subclass
    torch.testing.assert_close(ours(x, kept=kept), expected)
    assert not padded
    back = lc.nn.revert(ours)
    assert type(back) is Causal
    assert "_own_padding" not in vars(back)
    assert torch.equal(back(x, kept), expected)


def test_an_image_alone_goes_through_the_forward_pass_of_the_subclass() -> None:
    layer = Causal(4, 6, 3, padding=1, dtype=DOUBLE)
    same(layer, torch.randn(4, 5, 4, 3, dtype=DOUBLE))
    with pytest.raises(TypeError, match="unexpected keyword"):
        lc.nn.convert(layer)(torch.zeros(1, 4, 2, 3, 3, dtype=DOUBLE), kopt=None)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (Sides, OwnPadding(("input",), ((3, 1), (1, 2)))),
        *((kind, None) for kind in (Beside, Inner, Reflecting, Ones, Looking, Sized)),
    ],
)
def test_other_forward_passes_call_ours(
    kind: Any, found: OwnPadding | None, watched: Watch
) -> None:
    torch.manual_seed(0)
    layer = kind(4, 6, 3, padding=1).double()
    assert own_padding(layer, torch.nn.Conv2d) == found
    x = torch.randn(2, 4, 6, 5, dtype=DOUBLE)
    same(layer, x)
    same(layer, -x)
    ours, report = lc.nn.convert(layer, return_report=True)
    assert report.swapped == ("",)
    assert isinstance(ours, lc.nn.Conv2d)
    torch_was_called = watched("conv2d", torch.nn.functional)
    ours(x)
    assert not torch_was_called


def test_frames_behind_the_input_are_not_taken_for_those_before_it() -> None:
    layer = Behind(4, 6, 3, padding=1, dtype=DOUBLE)
    assert own_padding(layer, torch.nn.Conv3d) is None


def test_a_layer_is_not_changed_by_the_look_at_it() -> None:
    layer = Counting(4, 6, 3)
    assert own_padding(layer, torch.nn.Conv2d) is None
    ours = lc.nn.convert(layer)
    assert (ours.calls, float(ours.sum)) == (0, 0)
    ours(torch.randn(1, 4, 5, 5))
    assert (ours.calls, float(ours.sum)) == (1, 1)


def test_a_pass_that_writes_attributes_is_run_and_not_by_the_look_at_it() -> None:
    x = torch.randn(1, 4, 5, 5)
    for kind in (Queueing, Keeping):
        ours = lc.nn.convert(kind(4, 6, 3))
        assert (len(ours.last), ours.calls.total()) == (0, 0)
        ours(x)
        assert ours.last[0] is x
        assert ours.calls.total() == 1


@pytest.mark.parametrize("kind", [Adapted, Asserting, Raising])
def test_any_error_of_a_traced_forward_pass_leaves_the_layer_convertible(kind: Any) -> None:
    torch.manual_seed(0)
    layer = kind(4, 6, 3)
    assert own_padding(layer, torch.nn.Conv2d) is None
    same(layer, torch.randn(2, 4, 7, 6))
    _, report = lc.nn.convert(layer, return_report=True)
    assert not report.left


class Switched(torch.nn.Conv2d):
    """Zeros that attributes ask for."""

    pads = True

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.on, self.sides = True, [1, 2, 0, 1]

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(pad(input, self.sides) if self.on and self.pads else input)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer, "on", False),
        lambda layer: setattr(layer, "sides", [3, 0, 0, 0]),
        lambda layer: layer.sides.reverse(),
        lambda layer: setattr(layer, "padding", (2, 1)),
        lambda layer: setattr(layer, "stride", (2, 2)),
        lambda layer: setattr(layer, "pads", False),
        lambda layer: None,
    ],
)
def test_padding_follows_the_attributes_of_a_converted_layer(change: Any) -> None:
    torch.manual_seed(0)
    layer, x = Switched(4, 6, 3), torch.randn(2, 4, 6, 5)
    assert own_padding(layer, torch.nn.Conv2d) is not None
    ours = lc.nn.convert(deepcopy(layer))
    torch.testing.assert_close(ours(x), layer(x))
    change(ours)
    change(layer)
    torch.testing.assert_close(ours(x), layer(x))
    torch.testing.assert_close(deepcopy(ours)(x), layer(x))


class Doubling(torch.nn.Conv2d):
    twice = False

    def forward(self, input: Tensor) -> Tensor:
        result = super().forward(pad(input, (1, 1, 1, 1)))
        return 2 * result if self.twice else result


def test_norms_behind_a_pass_that_changed_are_not_folded() -> None:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(6)
    with torch.no_grad():
        norm.running_mean.uniform_()  # type: ignore[union-attr]
    net = lc.nn.convert(torch.nn.Sequential(Doubling(4, 6, 3), norm).eval())
    net[0].twice = True
    x = torch.randn(2, 4, 6, 5)
    expected = net(x)
    torch.testing.assert_close(lc.nn.fold_batch_norms(net)(x), expected)


class InTraining(torch.nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(pad(input, (1, 1, 1, 1)) if self.training else input)


class WithGradient(torch.nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        on = torch.is_grad_enabled()
        return super().forward(pad(input, (1, 1, 1, 1)) if on else input)


class ByChance(torch.nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(pad(input, (random.randrange(2), 0, 0, 0)))


class OfBias(torch.nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input if self.bias is None else pad(input, (1, 1, 1, 1)))


@pytest.mark.parametrize("kind", [InTraining, WithGradient, ByChance, OfBias])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_padding_that_depends_on_modes_or_chance(kind: Any, training: bool, wanted: bool) -> None:
    torch.manual_seed(0)
    layer, x = kind(4, 6, 3), torch.randn(2, 4, 6, 5)
    state = random.getstate()
    ours = lc.nn.convert(deepcopy(layer))
    assert random.getstate() == state
    with torch.set_grad_enabled(wanted):
        for seed in range(4):
            random.seed(seed)
            expected = layer.train(training)(x)
            random.seed(seed)
            torch.testing.assert_close(ours.train(training)(x), expected)


def test_norms_are_folded_where_the_sums_are_the_result() -> None:
    x = torch.randn(2, 4, 6, 6, dtype=DOUBLE)
    for kind, folded in ((Sides, True), (Beside, False)):
        norm = torch.nn.BatchNorm2d(6)
        net = torch.nn.Sequential(kind(4, 6, 3), norm, torch.nn.ReLU()).double()
        with torch.no_grad():
            for parameter in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
                parameter.uniform_(0.5, 1.5)  # type: ignore[union-attr]
        net.eval()
        expected = net(x)
        net = lc.nn.fold_batch_norms(lc.nn.convert(net))
        assert isinstance(net[1], torch.nn.Identity) is folded
        torch.testing.assert_close(net(x), expected)


class Decoder(torch.nn.Module):
    """Causal convolutions, and a cache of frames for each, as in decoders of video."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (4, 8, 3), (8, 8, (3, 1, 1)), (8, 3, 3)
        paddings = 1, (1, 0, 0), 1
        self.layers = torch.nn.ModuleList(
            Causal(*size, padding=p) for size, p in zip(sizes, paddings, strict=True)
        )

    def forward(self, x: Tensor, kept: list[Tensor | None] | None = None) -> Tensor:
        for at, layer in enumerate(self.layers):
            before = None if kept is None else kept[at]
            y = layer(x, before)
            if kept is not None:
                kept[at] = (x if before is None else torch.cat([before, x], 2))[:, :, -2:]
            x = torch.nn.functional.silu(y)
        return x


@pytest.mark.parametrize("lengths", [(1, 1, 1, 1, 1), (1, 4), (3, 2), (2, 1, 2)])
def test_a_converted_decoder_streams_what_it_makes_of_the_whole(lengths: Any) -> None:
    torch.manual_seed(0)
    net = Decoder().double()
    x = torch.randn(1, 4, 5, 4, 4, dtype=DOUBLE)
    ours = lc.nn.convert(deepcopy(net))
    kept: list[Tensor | None] = [None] * 3
    stream = torch.cat([ours(part, kept) for part in x.split(lengths, 2)], 2)
    whole = ours(x)
    assert (stream - whole).abs().max() <= 1e-12
    assert (whole - net(x)).abs().max() <= 1e-12
