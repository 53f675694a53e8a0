"""Group and instance norms as modules: torch's, and what ``convert`` makes of these."""

from __future__ import annotations

import pickle
import warnings
from copy import deepcopy
from inspect import signature
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import layoutconv as lc
from layoutconv.errors import ArgumentError

from ..warm_process import run_python

MODULES: list[tuple[Any, Any, tuple[int, ...]]] = [
    (lambda nn, **more: nn.GroupNorm(2, 6, **more), "GroupNorm", (2, 6, 5, 4)),
    (lambda nn, **more: nn.GroupNorm(3, 6, affine=False, **more), "GroupNorm", (2, 6)),
    (lambda nn, **more: nn.InstanceNorm1d(6, **more), "InstanceNorm1d", (2, 6, 9)),
    (lambda nn, **more: nn.InstanceNorm2d(6, affine=True, **more), "InstanceNorm2d", (6, 4, 5)),
    (
        lambda nn, **more: nn.InstanceNorm3d(6, track_running_stats=True, **more),
        "InstanceNorm3d", (2, 6, 3, 4, 5),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "name", "shape"), MODULES)
@pytest.mark.parametrize("activation", [None, "silu", "leaky_relu", "gelu"])
def test_modules_are_torchs_and_an_activation(
    make: Any, name: str, shape: tuple[int, ...], activation: str | None
) -> None:
    theirs, ours = make(torch.nn), make(lc.nn, activation=activation, slope=0.3)
    assert isinstance(ours, getattr(torch.nn, name))
    ours.load_state_dict(theirs.state_dict())
    assert ("activation" in repr(ours)) == (activation is not None)
    for training in True, False:
        x = torch.randn(shape)
        y = theirs.train(training)(x)
        if activation is not None:
            more = (0.3,) if activation == "leaky_relu" else ()
            y = getattr(torch.nn.functional, activation)(y, *more)
        assert torch.equal(ours.train(training)(x), y)
    assert theirs.state_dict().keys() == ours.state_dict().keys()


@pytest.mark.parametrize(("make", "name", "shape"), MODULES)
def test_convert_swaps_them_and_revert_swaps_them_back(
    make: Any, name: str, shape: tuple[int, ...]
) -> None:
    net = torch.nn.Sequential(make(torch.nn), torch.nn.ReLU())
    x = torch.randn(shape)
    expected, norm = net(x), net[0]
    _, report = lc.nn.convert(net, return_report=True)
    assert report.norms == ("0",)
    assert str(report) == "0 of 0 convolutions swapped, and 1 norm"
    assert net[0] is norm
    assert type(norm) is getattr(lc.nn, name)
    for copied in net, deepcopy(net), pickle.loads(pickle.dumps(net)):
        assert torch.equal(copied(x), expected)
        _, report = lc.nn.revert(copied, return_report=True)
        assert report.norms == ("0",)
        assert type(copied[0]) is getattr(torch.nn, name)
        lc.nn.convert(copied)
    made = lc.nn.GroupNorm(2, 6)
    assert type(lc.nn.revert(made)) is lc.nn.GroupNorm  # nobody converted it


class Own(torch.nn.GroupNorm):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + 1


def test_norms_with_a_forward_pass_or_a_name_of_their_own_are_left() -> None:
    named = torch.nn.GroupNorm(2, 6)
    named.activation = torch.nn.ReLU()
    replaced = torch.nn.GroupNorm(2, 6)
    replaced.forward = lambda input: input  # type: ignore[method-assign]
    for norm in Own(2, 6), named, replaced:
        kind = type(norm)
        _, report = lc.nn.convert(norm, return_report=True)
        assert report.norms == ()
        assert type(norm) is kind


def test_over_voxels_they_are_norms_of_images() -> None:
    """In ``lc.nn.Sequential``, converted or not, as torch's are."""
    x = lc.SparseTensor.from_dense(torch.randn(2, 5, 5, 6).relu())
    for theirs, ours in (
        (torch.nn.GroupNorm(2, 6), lc.nn.GroupNorm(2, 6, activation="silu")),
        (torch.nn.InstanceNorm2d(6), lc.nn.InstanceNorm2d(6, activation="silu")),
    ):
        expected = lc.nn.Sequential(theirs)(x).features
        assert torch.equal(lc.nn.Sequential(lc.nn.convert(theirs))(x).features, expected)
        found = lc.nn.Sequential(ours)(x).features
        assert torch.allclose(found, torch.nn.functional.silu(expected), atol=1e-6)


def test_an_activation_that_there_is_not() -> None:
    for make in (lambda: lc.nn.GroupNorm(2, 4, activation="swish"),
                 lambda: lc.nn.InstanceNorm1d(2, activation="swish")):  # fmt: skip
        with pytest.raises(ArgumentError, match="`activation`: expected None or one of relu"):
            make()


@pytest.mark.parametrize(("make", "name", "shape"), MODULES)
def test_tracers_see_torchs_function(make: Any, name: str, shape: tuple[int, ...]) -> None:
    net = torch.nn.Sequential(make(lc.nn, activation="silu")).eval()
    x = torch.randn(1, *shape) if shape[0] == 6 else torch.randn(shape)  # of a batch
    y = net(x)
    traced = torch.fx.symbolic_trace(net)
    assert torch.equal(traced(x), y)
    assert torch.equal(torch.jit.trace(net, x)(x), y)
    assert torch.equal(torch.export.export(net, (x,)).module()(x), y)


@pytest.mark.parametrize(("make", "name", "shape"), MODULES)
def test_tracers_warn_of_nothing_that_they_do_not_of_torchs(
    make: Any, name: str, shape: tuple[int, ...]
) -> None:
    counts = []
    for nn in torch.nn, lc.nn:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            torch.jit.trace(make(nn).eval(), torch.randn(shape))
        counts.append(sum(w.category is torch.jit.TracerWarning for w in found))
    assert counts[0] == counts[1]


@pytest.fixture
def launched(normalised_by: Any) -> list[Any]:
    """Images that kernels are launched of, and their norms, on a CPU that says it is a GPU."""
    return normalised_by(lc.nn.dense_norm.group_norm, lambda x, norm: (x, x))


def image(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last)


def test_an_empty_batch_is_torchs(launched: list[Any]) -> None:
    for kind in "InstanceNorm2d", "GroupNorm":
        given = (6,) if kind == "InstanceNorm2d" else (2, 6)
        x = torch.zeros(0, 6, 4, 5)
        assert getattr(lc.nn, kind)(*given)(x).shape == getattr(torch.nn, kind)(*given)(x).shape
    assert launched == []


def test_one_value_to_a_group_is_an_error_as_of_torchs(launched: list[Any]) -> None:
    for norm, x in (
        (lc.nn.GroupNorm(6, 6), image(1, 6, 1, 1)), (lc.nn.InstanceNorm2d(6), image(2, 6, 1, 1)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="Expected more than 1"):
            norm(x)
    assert launched == []
    with torch.no_grad():
        lc.nn.GroupNorm(6, 6)(image(2, 6, 1, 1))
        lc.nn.GroupNorm(2, 6)(image(1, 6, 1, 1))
    assert len(launched) == 2


def test_kernels_are_not_given_memory_that_is_to_be_negated(launched: list[Any]) -> None:
    norm, x = lc.nn.GroupNorm(2, 6), image(2, 6, 4, 5)
    with torch.no_grad():
        y = norm(torch._neg_view(x))
        assert launched == []
        assert torch.allclose(y, norm(-x.contiguous()), atol=1e-5)
        norm(x)
        assert len(launched) == 1


def test_a_norm_that_is_parametrized_after_it_is_reverted() -> None:
    class Double(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 2 * weight

    norm, x = lc.nn.convert(torch.nn.GroupNorm(2, 6)), torch.randn(2, 6, 5)
    torch.nn.utils.parametrize.register_parametrization(norm, "weight", Double())
    y = norm(x)
    assert torch.equal(lc.nn.revert(norm)(x), y)
    assert not isinstance(norm, lc.nn.GroupNorm)
    torch.nn.utils.parametrize.remove_parametrizations(norm, "weight")
    assert type(norm) is torch.nn.GroupNorm


@pytest.mark.skipif(
    "bias" not in signature(torch.nn.GroupNorm).parameters, reason="torch has no `bias` here"
)
def test_a_weight_without_a_bias() -> None:
    """As of torch 2.13, of images and of the voxels of a sparse tensor."""
    x = torch.randn(2, 6, 4, 3)
    sparse = lc.SparseTensor.from_dense(torch.randn(2, 5, 5, 6).relu())
    for theirs, ours in (
        (torch.nn.GroupNorm(2, 6, bias=False), lc.nn.GroupNorm(2, 6, bias=False)),
        (
            torch.nn.InstanceNorm2d(6, affine=True, bias=False),
            lc.nn.InstanceNorm2d(6, affine=True, bias=False),
        ),
    ):
        assert ours.bias is theirs.bias is None
        assert torch.equal(ours(x), theirs(x))
        found, expected = (lc.nn.Sequential(norm)(sparse).features for norm in (ours, theirs))
        assert torch.equal(found, expected)
        assert found.isfinite().all()


BETWEEN_CHANNELS_LAST_LAYERS = """
from itertools import product
import torch
import layoutconv as lc


def gradients(net, x, run=None):
    net.zero_grad()
    (run or net)(x).square().sum().backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def check(kind, images, wants):
    rank = 3 if kind.endswith("3d") else 2
    of_kind = getattr(torch.nn, kind)
    norm = of_kind(2, 6) if kind == "GroupNorm" else of_kind(6, affine=True)
    conv = getattr(torch.nn, f"Conv{rank}d")
    net = torch.nn.Sequential(conv(3, 6, 1), norm, conv(6, 2, 1)).double()
    net[0].requires_grad_(wants)
    x = torch.randn(images, 3, *(5,) * rank, dtype=torch.float64)
    expected = gradients(net, x)
    lc.nn.convert(net)
    torch._dynamo.reset()
    for run in None, torch.compile(net, backend="aot_eager"):
        for found, wanted in zip(gradients(net, x, run), expected, strict=True):
            torch.testing.assert_close(found, wanted)
    if kind == "GroupNorm":  # of parameters alone, though the image wants a gradient
        learnt = list(net[1].parameters())
        found = torch.autograd.grad(net(x).square().sum(), learnt)
        for one, wanted in zip(found, expected[2 * wants : 2 * wants + 2], strict=True):
            torch.testing.assert_close(one, wanted)


for case in product(["InstanceNorm2d", "InstanceNorm3d", "GroupNorm"], [1, 2], [True, False]):
    print(*case, flush=True)
    check(*case)
one = torch.ones(1, 1, 6, 7).as_strided((1, 1, 6, 7), (42, 1, 7, 1))  # as convolutions return it
lc.nn.GroupNorm(1, 1)(one).sum().backward()
"""


def test_gradients_between_channels_last_layers_on_a_cpu() -> None:
    """Gradients of one image, and none of an image, as after layers that are frozen, compiled
    too; in a process of its own, which torch's group norm would end: its cases print their names.
    """
    ended = run_python(["-c", BETWEEN_CHANNELS_LAST_LAYERS])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(ended.stdout.splitlines()) == 12


TRANSFORMS: dict[str, Any] = {
    "vmap": lambda f: torch.vmap(f),
    "vmap in another mode": lambda f: lambda x: torch.vmap(f, 2)(x.movedim(0, 2)),
    "gradients of samples": lambda f: torch.vmap(torch.func.grad(lambda x: f(x).square().sum())),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x[0],), (x[1],)),
    "linearize": lambda f: lambda x: torch.func.linearize(f, x[0])[1](x[1]),
    "hessian": lambda f: lambda x: torch.func.hessian(lambda x: f(x).square().sum())(x[0]),
    "forward mode": lambda f: (
        lambda x: torch.autograd.functional.jvp(f, x[0], x[1], create_graph=True)
    ),
    "a dual number": lambda f: lambda x: _tangent(f, x[0], x[1]),
    "compiled": lambda f: torch.compile(torch.vmap(f), backend="aot_eager"),
}


def _tangent(function: Any, x: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        found: torch.Tensor = forward_ad.unpack_dual(
            function(forward_ad.make_dual(x, change))
        ).tangent
    return found


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("trains", [True, False])
def test_transforms_of_channels_last_images(name: str, trains: bool) -> None:
    """As in a converted network, where torch's group norm has neither ``vmap`` nor forward mode.

    Its parameters want no gradients in an ensemble, nor where a network is frozen."""
    norm = torch.nn.GroupNorm(2, 4).double().requires_grad_(trains)
    ours = lc.nn.convert(deepcopy(norm))
    x = torch.randn(2, 2, 4, 3, 3, dtype=torch.float64)
    in_rows = x.movedim(2, -1).contiguous().movedim(-1, 2)
    transform = TRANSFORMS[name]
    torch.testing.assert_close(transform(ours)(in_rows), transform(norm)(x))
