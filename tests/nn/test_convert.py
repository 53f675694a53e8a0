"""Conversion of models: which convolutions are swapped, which are not and why, and the way back."""

from __future__ import annotations

import io
from copy import copy, deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrize

import layoutconv as lc
from layoutconv.errors import ArgumentTypeError

from ..watched import Watch


def test_convert_swaps_in_place_and_a_network_trains_the_same():
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, 2, 1),
        torch.nn.Sequential(torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 1)),
        torch.nn.ConvTranspose2d(4, 2, 3, 2, 1, 1),
    ).double()
    ours = deepcopy(theirs)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (theirs, ours)]
    parameters = list(ours.parameters())
    assert lc.nn.convert(ours) is ours
    assert all(p is q for p, q in zip(parameters, ours.parameters(), strict=True))
    assert isinstance(ours[1][2], lc.nn.Conv2d)
    x = torch.randn(3, 3, 8, 6, dtype=torch.float64)
    for _ in range(3):
        for net, optimizer in zip((theirs, ours), optimizers, strict=True):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(p, q)


class Block(torch.nn.Module):
    """A residual block with batch norms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        conv, norm = torch.nn.Conv2d, torch.nn.BatchNorm2d
        self.body = torch.nn.Sequential(
            conv(channels, channels, 3, padding=1, bias=False), norm(channels), torch.nn.ReLU(),
            conv(channels, channels, 3, padding=1, bias=False), norm(channels),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.body(x))


def small_residual_network() -> tuple[torch.nn.Module, torch.Tensor]:
    """A network in float64 whose last batch norms see two elements of a channel, and its input.

    They come to +1 and -1 whatever the elements are, and their gradients are differences of nearly
    equal numbers. In float32 gradients of this network differ by 1e-4 from those in float64, and of
    a ResNet-50 over images of 64x64 by 9e-2, torch's as ours; so float64 is compared.
    """
    torch.manual_seed(0)
    halves = [torch.nn.Conv2d(16, 16, 3, 2, 1, bias=False) for _ in range(3)]
    layers = [layer for half in halves for layer in (half, torch.nn.BatchNorm2d(16), Block(16))]
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1), *layers).double()
    return net, torch.randn(2, 3, 8, 8, dtype=torch.float64)


def gradients_of_a_step(net: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The result of a network in training, and the gradients of its parameters."""
    y = net(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view(y.shape)
    (y * weights).sum().backward()
    return [y.detach(), *(p.grad for p in net.parameters() if p.grad is not None)]


@pytest.mark.parametrize("executor", [None, "view"])
def test_gradients_where_batch_norms_see_two_elements(executor):
    net, x = small_residual_network()
    ours = lc.nn.convert(deepcopy(net))
    if executor:
        for layer in ours.modules():
            if isinstance(layer, lc.nn.Conv2d):
                layer._function = partial(lc.conv2d, executor=executor)  # type: ignore[misc]
    for found, expected in zip(
        gradients_of_a_step(ours, x), gradients_of_a_step(net, x), strict=True
    ):
        scale = expected.norm() + 1e-3  # of zeros but for rounding, before a norm
        assert (found - expected).norm() <= 1e-9 * scale


def test_convert_takes_modules_alone():
    with pytest.raises(ArgumentTypeError, match=r"`module`: expected a torch\.nn\.Module"):
        lc.nn.convert([torch.nn.Conv2d(4, 4, 3)])  # type: ignore[type-var]
    with pytest.raises(ArgumentTypeError, match=r"`module`: expected a torch\.nn\.Module"):
        lc.nn.revert(None)  # type: ignore[type-var]


@pytest.mark.parametrize("groups", [2, 4])
def test_convert_swaps_grouped_convolutions(groups):
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(4, 8, 3, padding=1, groups=groups),
        torch.nn.ConvTranspose2d(8, 4, 3, 2, groups=groups),
    ).double()
    ours = lc.nn.convert(deepcopy(theirs))
    x = torch.randn(2, 4, 7, 6, dtype=torch.float64)
    for net in (ours, theirs):
        net(x).square().sum().backward()
    torch.testing.assert_close(ours(x), theirs(x))
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


# -- subclasses ------------------------------------------------------------------------------------


class Simple(torch.nn.Conv3d):
    """As torchvision's video networks have it: another constructor, the same forward pass."""

    def __init__(self, into: int, out: int, middle: int | None = None, stride: int = 1) -> None:
        super().__init__(into, out, 3, stride, padding=1, bias=False)

    @staticmethod
    def get_downsample_stride(stride: int) -> tuple[int, int, int]:
        return stride, stride, stride


class Marked(torch.nn.ConvTranspose2d):
    """With more state, a text and a chain of constructors of its own."""

    def __init__(self, *args: Any, mark: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.mark = mark
        self.register_buffer("seen", torch.zeros(1))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        torch.nn.init.constant_(self.weight, 0.5)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mark={self.mark}"


class Inherited(Simple):
    """A subclass of a subclass."""


def example_of(kind: type) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    if kind is Marked:
        return Marked(4, 6, 3, stride=2, mark="up").double(), torch.randn(2, 4, 5, 3).double()
    return kind(4, 6, stride=2).double(), torch.randn(2, 4, 5, 4, 6).double()


def calls_of_torch(function: Any, watched: Watch) -> int:
    """Return how many of torch's own convolutions a function calls."""
    names = "conv3d", "conv_transpose2d"
    calls = [watched(name, torch.nn.functional) for name in names]
    function()
    return sum(map(len, calls))


@pytest.mark.parametrize("kind", [Simple, Marked, Inherited])
def test_subclasses_with_the_forward_pass_of_torch(kind, watched):
    layer, x = example_of(kind)
    expected, text = layer(x), repr(layer)
    weight = layer.weight
    ours = lc.nn.convert(layer)
    assert ours is layer
    assert ours.weight is weight
    assert isinstance(ours, kind)
    assert isinstance(ours, lc.nn.Conv3d | lc.nn.ConvTranspose2d)
    assert repr(ours) == text
    torch.testing.assert_close(ours(x), expected)
    assert calls_of_torch(lambda: ours(x), watched) == 0
    ours.reset_parameters()  # theirs, and then the memory of ours
    assert ours.weight.movedim(1, -1).is_contiguous()
    assert (kind is not Marked) or (ours.weight == 0.5).all()


@pytest.mark.parametrize("kind", [torch.nn.Conv2d, Simple, Marked])
def test_converted_modules_are_copied_and_pickled(kind):
    layer, x = (torch.nn.Conv2d(4, 6, 3).double(), torch.randn(2, 4, 5, 4).double()) if (
        kind is torch.nn.Conv2d
    ) else example_of(kind)  # fmt: skip
    theirs = deepcopy(layer)
    ours = lc.nn.convert(layer)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    for other in (copy(ours), deepcopy(ours), torch.load(file, weights_only=False)):
        assert type(other) is type(ours)
        assert vars(other).keys() == vars(ours).keys()
        assert torch.equal(other(x), ours(x))
        assert type(lc.nn.revert(deepcopy(other))) is kind
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())


class Apart(torch.nn.Conv2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.einsum("kcrs,nchw->nkhw", self.weight, input)


class Beneath(torch.nn.Conv2d):
    def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
        return torch.einsum("kcrs,nchw->nkhw", weight, input)


class Above(Apart):
    """It calls one that computes by itself."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + 1


class Registering(torch.nn.Conv2d):
    def __init_subclass__(cls, *, name: str) -> None:
        super().__init_subclass__()


class Activated(torch.nn.Conv2d):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.activation = torch.nn.ReLU()  # for a forward pass of its owner


def left_alone() -> dict[str, tuple[Any, str]]:
    """Modules that stay as they are, with a part of the reason."""
    sizes = 4, 4, 3
    replaced, tagged = torch.nn.Conv2d(*sizes), torch.nn.Conv2d(*sizes)
    replaced.forward = lambda input: input  # type: ignore[method-assign]
    tagged.activation = "relu"  # as initialisers look for it
    sparse = torch.nn.Conv2d(*sizes)
    sparse.weight = torch.nn.Parameter(sparse.weight.detach().to_sparse())
    return {
        "apart": (Apart(*sizes), "Apart overrides forward, which calls neither"),
        "beneath": (Beneath(*sizes), "Beneath overrides _conv_forward"),
        "above": (Above(*sizes), "Above overrides forward"),
        "registering": (Registering(*sizes), "__init_subclass__"),
        "activated": (Activated(*sizes), "`activation` has another meaning"),
        "tagged": (tagged, "`activation` has another meaning"),
        "replaced": (replaced, "forward was replaced"),
        "lazy": (torch.nn.LazyConv2d(4, 3), "it is lazy"),
        "sparse": (sparse, "torch.sparse_coo"),
        "ours": (lc.nn.Conv2d(*sizes), "layoutconv computes it already"),
    }


def test_a_report_says_what_was_left_and_why():
    modules = {name: module for name, (module, _) in left_alone().items()}
    reasons = {name: why for name, (_, why) in left_alone().items()}
    kinds = {name: type(module) for name, module in modules.items()}
    torn = torch.nn.ModuleDict(modules)
    torn["inner"] = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 3), Simple(2, 2))
    torn["again"] = torn["inner"]
    net, report = lc.nn.convert(torn, return_report=True)
    assert net is torn
    assert report.swapped == ("inner.1", "inner.2")
    assert report.left.keys() == reasons.keys()
    for name, why in reasons.items():
        assert why in report.left[name]
        assert type(net[name]) is kinds[name]
        assert f"left `{name}`: {report.left[name]}" in str(report)
    assert str(report).startswith("2 of 12 convolutions swapped\n")
    back, report = lc.nn.revert(net, return_report=True)
    assert report.swapped == ("inner.1", "inner.2")
    assert set(report.left.values()) == {"it was not converted"}
    assert type(back["ours"]) is lc.nn.Conv2d
    root = lc.nn.convert(torch.nn.Conv1d(2, 2, 1), return_report=True)[1]
    assert root == lc.nn.ConversionReport(("",), {})


# -- copies, and the way back ----------------------------------------------------------------------


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    last = torch.nn.Conv3d(6, 2, 1).to(memory_format=torch.channels_last_3d)
    layers = torch.nn.Conv3d(3, 4, 3), torch.nn.BatchNorm3d(4), torch.nn.ReLU(), Simple(4, 6), last
    return torch.nn.Sequential(*layers).double().eval()


def state(net: torch.nn.Module) -> list[Any]:
    """All that a model is: classes, attributes, and parameters with their memory."""
    return [
        (type(m), sorted(vars(m)), [(n, p.stride(), p.tolist()) for n, p in m._parameters.items()
                                    if p is not None])
        for m in net.modules()
    ]  # fmt: skip


@pytest.mark.parametrize("copied", [False, True])
def test_revert_gives_back_what_there_was(copied):
    net = network()
    before, x = state(net), torch.randn(2, 3, 5, 5, 5, dtype=torch.float64)
    expected = net(x)
    parameters = list(net.parameters())
    ours = lc.nn.convert(net)
    assert state(ours) != before
    if copied:
        ours = deepcopy(ours)
    back = lc.nn.revert(ours)
    assert back is ours
    assert state(back) == before
    assert torch.equal(back(x), expected)
    assert copied or all(p is q for p, q in zip(parameters, back.parameters(), strict=True))
    assert state(lc.nn.revert(lc.nn.convert(back))) == before


def test_revert_keeps_what_was_learnt():
    net = lc.nn.convert(network())
    with torch.no_grad():
        for p in net.parameters():
            p.add_(1)
    x = torch.randn(2, 3, 5, 5, 5, dtype=torch.float64)
    expected = net(x)
    torch.testing.assert_close(lc.nn.revert(net)(x), expected)


def test_a_copy_leaves_the_model_as_it_was():
    net = network()
    before = state(net)
    ours, report = lc.nn.convert(net, inplace=False, return_report=True)
    assert state(net) == before
    assert report.swapped == ("0", "3", "4")
    assert isinstance(ours[0], lc.nn.Conv3d)
    assert not {id(p) for p in ours.parameters()} & {id(p) for p in net.parameters()}
    theirs = lc.nn.revert(ours, inplace=False)
    assert state(theirs) == before
    assert isinstance(ours[0], lc.nn.Conv3d)


def test_what_was_folded_is_not_reverted():
    net = lc.nn.fold_batch_norms(lc.nn.convert(network()))
    x = torch.randn(2, 3, 5, 5, 5, dtype=torch.float64)
    expected = net(x)
    net, report = lc.nn.revert(net, return_report=True)
    assert report.left == {"0": "`relu` was folded into it"}
    assert report.swapped == ("3", "4")
    torch.testing.assert_close(net(x), expected)


def test_a_copied_module_without_state_is_no_reason_not_to_fold():
    """Layers of einops are in training once they are copied or loaded."""
    net = lc.nn.convert(network()).append(torch.nn.Flatten())
    net[-1].training = True
    expected = net(x := torch.randn(2, 3, 5, 5, 5, dtype=torch.float64))
    torch.testing.assert_close(lc.nn.fold_batch_norms(net)(x), expected)
    net[0].training = True
    with pytest.raises(lc.errors.ArgumentError, match="`0` in training mode"):
        lc.nn.fold_batch_norms(net)


def test_converted_subclasses_can_be_parametrized_and_compiled():
    class Doubled(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 2 * weight

    layer, x = example_of(Simple)
    expected = layer(x)
    ours = lc.nn.convert(layer)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    parametrize.register_parametrization(ours, "weight", Doubled())
    torch.testing.assert_close(ours(x), 2 * expected)
    assert not lc.nn.revert(ours, return_report=True)[1].left
    assert not isinstance(ours, lc.nn.Conv2d | lc.nn.Conv3d)
    torch.testing.assert_close(ours(x), 2 * expected)
    parametrize.remove_parametrizations(ours, "weight", leave_parametrized=False)
    torch.testing.assert_close(ours(x), expected)
    assert type(ours) is Simple


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("taps", "groups"), [(1, 1), (3, 1), (1, 4), (3, 4), (3, 2)])
def test_gradients_have_the_strides_of_parameters(
    rank: int, transposed: bool, taps: int, groups: int
) -> None:
    """Else optimizers of torch take a list of parameters one by one, and copies of lists do."""
    kind = getattr(torch.nn, f"Conv{'Transpose' if transposed else ''}{rank}d")
    net = lc.nn.convert(torch.nn.Sequential(kind(4, 8, taps, groups=groups)))
    x = torch.randn(2, 4, *[5] * rank)
    for _ in range(3):
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = net(x)
        y.float().square().sum().backward()
        for parameter in net.parameters():
            assert parameter.grad is not None
            assert parameter.grad.stride() == parameter.stride()
            assert torch.empty_like(parameter).stride() == parameter.stride()
