"""Networks with fused batch norms: what they compute, what is fused, what is left and why."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.errors import ArgumentTypeError
from layoutconv.nn.fused_batch_norm import normed

C = 4


class Block(nn.Module):
    """The layers of a residual block of two convolutions."""

    taps = 1

    def __init__(self, down: bool = False) -> None:
        super().__init__()
        layer = partial(nn.Conv2d, C, C, self.taps, padding=self.taps // 2, bias=False)
        self.conv1, self.bn1 = layer(), nn.BatchNorm2d(C)
        self.conv2, self.bn2 = layer(), nn.BatchNorm2d(C)
        self.downsample = nn.Sequential(nn.Conv2d(C, C, 1), nn.BatchNorm2d(C)) if down else None


class Vision(Block):
    """A residual block with one ReLU for all places, as torchvision writes it."""

    taps = 3

    def __init__(self, down: bool = False) -> None:
        super().__init__(down)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Models(Block):
    """A residual block whose steps are modules that may do nothing, as timm writes it."""

    def __init__(self, down: bool = False) -> None:
        super().__init__(down)
        self.drop_block, self.act1 = nn.Identity(), nn.ReLU(inplace=True)
        self.aa, self.drop_path = nn.Identity(), nn.Dropout(0.5)
        self.act2 = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.aa(self.act1(self.drop_block(self.bn1(self.conv1(x)))))
        x = self.drop_path(x)
        x = self.bn2(self.conv2(x))
        if self.downsample is not None:
            shortcut = self.downsample(shortcut)
        x += shortcut
        return self.act2(x)


class Video(nn.Module):
    """A residual block of containers, the last of which ends in a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(C, C, 1), nn.BatchNorm2d(C), nn.ReLU(inplace=True))
        inner = nn.Sequential(nn.BatchNorm2d(C), nn.ReLU(), nn.Conv2d(C, C, 1), nn.BatchNorm2d(C))
        self.conv2 = nn.Sequential(nn.Conv2d(C, C, 3, padding=1), inner)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(self.conv1(x))
        out += x
        return self.relu(out)


class Functions(nn.Module):
    """Norms before and after sums, by functions and methods."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(C, C, 1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(C) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.relu(self.norms[0](self.convs[0](x)), inplace=True)
        z = torch.relu(torch.add(y, self.norms[1](self.convs[1](y))))
        z = (z + self.norms[2](self.convs[2](z))).relu_()
        return self.norms[3](self.convs[3](z)).add_(x).relu()


def network() -> nn.Module:
    torch.manual_seed(0)
    stem = nn.Conv2d(3, C, 3), nn.BatchNorm2d(C), nn.ReLU(inplace=True), nn.MaxPool2d(2)
    blocks = Vision(), Vision(True), Models(), Models(True), Video(), Functions()
    return nn.Sequential(*stem, *blocks, nn.Flatten(), nn.LazyLinear(2)).double()


def image() -> Tensor:
    return torch.randn(3, 3, 12, 10, generator=torch.Generator().manual_seed(1)).double()


def step(net: nn.Module, x: Tensor) -> list[Tensor]:
    """The result of a step, the gradients, and the buffers after it."""
    torch.manual_seed(2)  # of dropout
    x = x.clone().requires_grad_()
    y = net(x)
    wanted = [x, *net.parameters()]
    loss = (y * torch.linspace(-1, 2, y.shape[-1])).sum()
    grads = torch.autograd.grad(loss, wanted, allow_unused=True)
    used = (grad for grad in grads if grad is not None)
    return [y.detach(), *used, *(buffer.clone() for buffer in net.buffers())]


def built() -> tuple[nn.Module, nn.Module, Tensor]:
    net, x = network(), image()
    net(x)
    return net, lc.nn.fuse_batch_norms(net, inplace=False), x


def test_a_network_trains_as_before(fused_norms: list[tuple[Any, bool]]) -> None:
    net, ours, x = built()
    optimizers = [torch.optim.SGD(n.parameters(), lr=0.1, momentum=0.9) for n in (net, ours)]
    for _ in range(2):
        fused_norms.clear()
        expected, found = step(net, x), step(ours, x)
        assert all(map(torch.equal, found, expected))
        for optimizer, n in zip(optimizers, (net, ours), strict=True):
            n.zero_grad()
            torch.manual_seed(3)
            n(x).square().sum().backward()
            optimizer.step()
    assert ours.state_dict().keys() == net.state_dict().keys()
    assert [type(m).__name__ for m in ours.modules()] == [type(m).__name__ for m in net.modules()]
    assert sum(added for _, added in fused_norms[: len(fused_norms) // 2]) == 8
    norms = [m for m in ours.modules() if isinstance(m, nn.BatchNorm2d)]
    shortcuts = {ours[5].downsample[1], ours[7].downsample[1]}
    assert {norm for norm, _ in fused_norms} == set(norms) - shortcuts


def test_a_report_says_what_is_fused_and_what_is_left() -> None:
    net, report = lc.nn.fuse_batch_norms(network(), return_report=True)
    assert report.fused == (
        "1", "4.bn1", "4.bn2", "5.bn1", "5.bn2", "6.bn1", "6.bn2", "7.bn1", "7.bn2",
        "8.conv1.1", "8.conv2.1.0", "8.conv2.1.3", *(f"9.norms.{i}" for i in range(4)),
    )  # fmt: skip
    assert report.left == {
        f"{at}.downsample.1": "it is added to a tensor in place" for at in (5, 7)
    }  # fmt: skip
    assert str(report).startswith("16 of 18 batch norms fused\nleft `5.downsample.1`: it is added")
    again = lc.nn.fuse_batch_norms(net, return_report=True)[1]
    assert again == report


class Mobile(nn.Module):
    """Norms before activations other than ReLUs: modules, functions, in a sequence, after a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(C, C, 1) for _ in range(6))
        self.norms = nn.ModuleList(nn.BatchNorm2d(C) for _ in range(6))
        self.act, self.last = nn.SiLU(inplace=True), nn.Hardswish()
        self.stem = nn.Sequential(nn.Conv2d(C, C, 1), nn.BatchNorm2d(C), nn.ReLU6(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norms[0](self.convs[0](3 * self.stem(x))))
        y = nn.functional.silu(self.norms[1](self.convs[1](y)), inplace=True)
        y = nn.functional.relu6(self.norms[2](self.convs[2](y)))
        y = nn.functional.hardswish(self.norms[3](self.convs[3](y)))
        y = self.act(self.norms[4](self.convs[4](y)) + y)
        return self.last(self.norms[5](self.convs[5](y)))


def test_other_activations_than_relus(fused_norms: list[tuple[Any, bool]]) -> None:
    torch.manual_seed(0)
    net, x = Mobile().double(), image()[:, :1].expand(3, C, 12, 10)
    ours, report = lc.nn.fuse_batch_norms(net, inplace=False, return_report=True)
    assert report.fused == (*(f"norms.{i}" for i in range(6)), "stem.1")
    assert all(map(torch.equal, step(ours, x), step(net, x)))
    assert [added for _, added in fused_norms] == [i == 5 for i in range(7)]
    ours.act.register_forward_hook(lambda *_: None)
    fused_norms.clear()
    assert torch.equal(ours(x), net(x))
    assert len(fused_norms) == 5


def test_evaluation_compile_and_tracers_run_what_was_written(fused_norms: list[Any]) -> None:
    net, ours, x = built()
    net.eval(), ours.eval()
    assert torch.equal(ours(x), net(x))
    assert fused_norms == []
    traced = torch.fx.symbolic_trace(ours)
    assert torch.equal(traced(x), net(x))
    assert torch.equal(torch.export.export(ours, (x,)).module()(x), net(x))
    assert torch.equal(torch.jit.trace(ours, x)(x), net(x))
    block = lc.nn.fuse_batch_norms(Vision().double())
    expected = step(deepcopy(lc.nn.revert(deepcopy(block))), x[:, :1].expand(3, C, 12, 10))
    compiled = torch.compile(block, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x[:, :1].expand(3, C, 12, 10)), expected[0])
    assert fused_norms == []
    with pytest.raises(ArgumentTypeError, match=r"lc\.nn\.revert"):
        torch.jit.script(block)


def test_copies_and_pickles_are_fused(fused_norms: list[tuple[Any, bool]]) -> None:
    net, ours, x = built()
    expected = step(deepcopy(net), x)
    for copied in deepcopy(ours), pickle.loads(pickle.dumps(ours)):
        fused_norms.clear()
        assert all(map(torch.equal, step(copied, x), expected))
        assert len(fused_norms) == 16
        assert all(norm in set(copied.modules()) for norm, _ in fused_norms)
        assert type(copied[4]) is type(ours[4])
    other = network()
    other(x)
    other.load_state_dict(ours.state_dict())
    assert all(map(torch.equal, step(other, x), step(ours, x)))


def test_revert_gives_classes_back() -> None:
    net, ours, x = built()
    before = [type(m) for m in net.modules()]
    expected = step(deepcopy(net), x)
    assert [type(m) for m in lc.nn.revert(ours).modules()] == before
    assert all(map(torch.equal, step(ours, x), expected))
    lc.nn.convert(lc.nn.fuse_batch_norms(ours))
    assert isinstance(ours[0], lc.nn.Conv2d)
    _, report = lc.nn.revert(ours, return_report=True)
    assert report.norms == ()
    assert [type(m) for m in ours.modules()] == before


def test_folded_for_inference_it_computes_the_same() -> None:
    net, _, x = built()
    ours = lc.nn.fuse_batch_norms(lc.nn.convert(net), inplace=False)
    step(net, x), step(ours, x)
    net.eval(), ours.eval()
    folded = lc.nn.fold_batch_norms(ours)
    assert type(folded[1]) is type(folded[2]) is nn.Identity
    assert folded[0].activation == "relu"
    assert type(folded[8].conv1[1]) is nn.Identity
    torch.testing.assert_close(folded(x), net(x))


def test_what_changes_later_runs_as_it_is(fused_norms: list[tuple[Any, bool]]) -> None:
    x = image()[:, :1].expand(3, C, 12, 10)
    changes: list[Callable[[Any], object]] = [
        lambda b: setattr(b, "relu", nn.SiLU()),
        lambda b: b.add_module("relu", nn.SiLU()),
        lambda b: b._modules.update(bn1=nn.GroupNorm(2, C).double()),
        lambda b: setattr(b, "downsample", None),
        lambda b: nn.SyncBatchNorm.convert_sync_batchnorm(b).train(False).train(),
        lambda b: b.bn2.eval(),
        lambda b: b.relu.register_forward_hook(lambda m, i, y: y * 2),
        lambda b: b.bn1.register_forward_hook(lambda m, i, y: y * 2),
        lambda b: b.downsample.register_forward_pre_hook(lambda m, i: (i[0] * 2,)),
        lambda b: setattr(b, "forward", lambda x: x.mul(2)),
        lambda b: b.downsample.append(nn.Tanh()),
    ]
    for number, change in enumerate(changes):
        torch.manual_seed(0)
        block = Vision(True).double()
        ours = lc.nn.fuse_batch_norms(deepcopy(block))
        random_state = torch.get_rng_state()
        change(block)
        torch.set_rng_state(random_state)
        change(ours)
        if number == 4:  # ranks are on GPUs
            block.eval(), ours.eval()
        try:
            expected = step(block, x) if number != 9 else [block(x)]
        except Exception as error:
            with pytest.raises(type(error)):
                step(ours, x)
            continue
        found = step(ours, x) if number != 9 else [ours(x)]
        assert all(map(torch.equal, found, expected)), number


def test_so_do_parts_that_did_nothing_and_containers(fused_norms: list[tuple[Any, bool]]) -> None:
    x = image()[:, :1].expand(3, C, 12, 10)
    changes: list[tuple[Any, Callable[[Any], object]]] = [
        (Models, lambda b: b.add_module("drop_block", nn.Hardtanh(-0.1, 0.1))),
        (Models, lambda b: b.drop_block.register_forward_hook(lambda m, i, y: y * 2)),
        (Video, lambda b: b.conv2.register_forward_pre_hook(lambda m, i: (i[0] * 2,))),
        (Video, lambda b: b.conv2[1].register_forward_hook(lambda m, i, y: y * 2)),
        (Video, lambda b: b.conv2.append(nn.Hardtanh(-0.1, 0.1))),
        (Video, lambda b: b.conv1.insert(2, nn.Hardtanh(-0.1, 0.1))),
    ]
    for kind, change in changes:
        block = kind().double()
        ours = lc.nn.fuse_batch_norms(deepcopy(block))
        change(block), change(ours)
        assert all(map(torch.equal, step(ours, x), step(block, x)))
    assert len(fused_norms) > len(changes)


def test_global_hooks_see_every_module(fused_norms: list[tuple[Any, bool]]) -> None:
    _, ours, x = built()
    seen: list[Any] = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, i, y: seen.append(m))
    try:
        ours(x)
    finally:
        handle.remove()
    assert {m for m in ours.modules() if not isinstance(m, nn.ModuleList)} == set(seen)
    assert fused_norms == []


def test_a_sum_in_place_has_the_dtype_of_the_norm() -> None:
    norm, x, wide = nn.BatchNorm2d(C), image()[:, :1].repeat(1, C, 1, 1), image()[:, :1].double()
    x = x.bfloat16()
    with torch.autocast("cpu"):
        assert normed(norm, x, "relu", wide, None, True).dtype is torch.bfloat16
        assert normed(norm, x, "relu", wide, None, False).dtype is torch.float64


class Own(nn.BatchNorm2d):
    pass


class Acting(nn.BatchNorm2d):
    """A norm with a dropout and an activation of its own, as timm writes it."""

    def __init__(self, channels: int, act: nn.Module | None = None, more: float = 0.0) -> None:
        super().__init__(channels)
        self.drop, self.act, self.more = nn.Identity(), act or nn.ReLU(inplace=True), more

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x) + self.more))


LASTS = nn.ReLU, nn.ReLU6, nn.SiLU, nn.Hardswish


@pytest.mark.parametrize("kind", LASTS)
def test_a_norm_with_an_activation_of_its_own(
    fused_norms: list[tuple[Any, bool]], kind: Any
) -> None:
    torch.manual_seed(0)
    others = Acting(C, nn.GELU()), Acting(C, kind(), more=0.5)
    net = nn.Sequential(Acting(C, kind(inplace=True)), *others, nn.Conv2d(C, C, 1)).double()
    ours, report = lc.nn.fuse_batch_norms(net, inplace=False, return_report=True)
    assert report.fused == ("0",)
    assert report.left["1"] == "Acting is no BatchNorm1d to 3d of torch"
    x = image()[:, :1].repeat(1, C, 1, 1)
    expected = step(deepcopy(net), x)
    for copied in deepcopy(ours), pickle.loads(pickle.dumps(ours)):
        fused_norms.clear()
        assert all(map(torch.equal, step(copied, x), expected))
        assert fused_norms == [(copied[0], False)]
        assert isinstance(copied[0], Acting)
    fused_norms.clear()
    ours[0].act = nn.GELU()
    net[0].act = nn.GELU()
    assert all(map(torch.equal, step(deepcopy(ours), x), step(deepcopy(net), x)))
    assert torch.equal(ours.eval()(x), net.eval()(x))
    assert fused_norms == []
    assert type(lc.nn.revert(ours)[0]) is Acting


def test_norms_of_other_kinds_are_left() -> None:
    def made(norm: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv2d(C, C, 1), norm, nn.ReLU())

    hooked = nn.BatchNorm2d(C)
    hooked.register_forward_hook(lambda *_: None)
    for norm, reason in (
        (Own(C), "Own is no BatchNorm1d to 3d of torch"),
        (nn.SyncBatchNorm(C), "SyncBatchNorm is no BatchNorm1d to 3d of torch"),
        (hooked, "it has hooks"), (lc.nn.BatchNorm2d(C, activation="silu"), "`silu` is part of it"),
        (nn.BatchNorm1d(C), "rows of a sparse tensor may come"),
    ):  # fmt: skip
        net, report = lc.nn.fuse_batch_norms(made(norm), return_report=True)
        assert type(net) is nn.Sequential
        assert reason in report.left["1"]
    _, report = lc.nn.fuse_batch_norms(made(lc.nn.BatchNorm2d(C)), return_report=True)
    assert report.fused == ("1",)


def test_networks_of_sparse_layers_are_left() -> None:
    body = lc.nn.Sequential(lc.nn.SubmConv2d(C, C, 3), nn.BatchNorm1d(C))
    net = lc.nn.Sequential(
        lc.nn.SubmConv2d(C, C, 3), nn.BatchNorm1d(C), nn.ReLU(), lc.nn.Residual(body),
        nn.Sequential(nn.BatchNorm1d(C), nn.ReLU()),
    )  # fmt: skip
    before = [type(m) for m in net.modules()]
    x = lc.SparseTensor.from_dense(torch.randn(2, 5, 5, C).relu())
    expected = deepcopy(net)(x).features
    _, report = lc.nn.fuse_batch_norms(net, return_report=True)
    assert report.fused == ()
    assert [type(m) for m in net.modules()] == before
    assert torch.equal(net(x).features, expected)


def test_parts_of_a_container_can_be_taken() -> None:
    net = lc.nn.fuse_batch_norms(
        nn.Sequential(nn.Conv2d(C, C, 1), nn.BatchNorm2d(C), nn.ReLU(), nn.Flatten())
    )
    x = image()[:, :1].repeat(1, C, 1, 1).float()
    assert net[:2](x).min() < 0
    assert torch.equal(net[:3](x), net[:2](x).relu())
    net.append(nn.Tanh())
    assert net(x).max() <= 1


def test_calls_with_other_than_tensors_run_as_they_are_written() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(2 * C)

        def forward(self, given: Any) -> Tensor:
            x = given if isinstance(given, Tensor) else torch.cat(given, 1)
            return torch.relu(self.norm(x))

    net, x = Joined(), image()[:, :1].repeat(1, C, 1, 1).float()
    ours, report = lc.nn.fuse_batch_norms(net, inplace=False, return_report=True)
    assert report.fused == ("norm",)
    assert torch.equal(ours([x, x]), net([x, x]))
    assert torch.equal(ours(torch.cat([x, x], 1)), net([x, x]))
    assert torch.equal(ours(given=[x, x]), net([x, x]))


def test_what_is_no_module() -> None:
    with pytest.raises(ArgumentTypeError, match=r"`module`: expected a torch\.nn\.Module, got int"):
        lc.nn.fuse_batch_norms(3)  # type: ignore[type-var]
