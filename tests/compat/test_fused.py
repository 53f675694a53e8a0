"""Norms, activations and sums as part of convolutions' launches: equal to module after module.

A CPU stands in for the GPU: it runs the same epilogue, traced, as operations of torch.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.compat.spconv.pytorch import blocks
from layoutconv.nn import unfused
from layoutconv.nn.fused_norm import fused
from layoutconv.ops import sparse_calls

from .blocks import PLANNED, REFUSED, SEEN, C, Conditional, Detecting, Other, Segmenting, shortcut

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from spconv_networks import residual_backbone, segmentation_unet

from ..watched import Watch

sys.path.pop(0)

SHAPE = [41, 24, 16]
sums: list[str] = []  # of each convolution that something could be fused into: whether it was


@pytest.fixture(autouse=True)
def kernels(watched: Watch) -> Iterator[None]:
    """A CPU that runs kernels; the call cache and plans are empty."""
    sparse_calls.forget()
    blocks._plans.clear()
    sums.clear()
    note = lambda call: sums.append("" if call.result is None else "fused")  # noqa: E731
    watched("with_following", spconv.conv.SparseConvolution, note=note)
    with fused():
        yield
    sparse_calls.forget()


def cloud(
    seed: int = 0, channels: int = C, dtype: torch.dtype = torch.float32, rows: int = 120
) -> spconv.SparseConvTensor:
    generator = torch.Generator().manual_seed(seed)
    extents = torch.tensor([2, *SHAPE])
    low = torch.rand(rows, 4, generator=generator) * torch.tensor([1.0, 0.3, 1.0, 1.0])
    cells = (low * extents).int().unique(dim=0)
    rows = len(cells)
    features = torch.randn(rows, channels, generator=generator).to(dtype)
    return spconv.SparseConvTensor(features, cells, SHAPE, 2)


def drawn(net: nn.Module, seed: int = 0) -> nn.Module:
    """The network with norms that are not at their beginnings, for inference."""
    generator = torch.Generator().manual_seed(seed)
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for tensor in (module.running_mean, module.weight, module.bias):
                if tensor is not None:
                    tensor.data.copy_(torch.randn(tensor.shape, generator=generator))
            if module.running_var is not None:
                module.running_var.copy_(torch.rand(module.num_features, generator=generator) + 0.1)
    return net.eval()


def layers(K: int = 12) -> nn.Module:
    return spconv.SparseSequential(
        spconv.SubMConv3d(C, K, 3, indice_key="a"), nn.BatchNorm1d(K), nn.LeakyReLU(0.2),
        spconv.SparseConv3d(K, K, 3, 2, 1, bias=False, indice_key="b"), nn.BatchNorm1d(K, 1e-3),
        spconv.SparseInverseConv3d(K, C, 3, indice_key="b"), nn.ReLU(inplace=True),
        spconv.SubMConv3d(C, C, 3, indice_key="a"), nn.BatchNorm1d(C, affine=False), nn.SiLU(),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "layers": (layers, C, 4),
    "detecting": (lambda: spconv.SparseSequential(Detecting(), Detecting(shortcut())), C, 4),
    "segmenting": (lambda: spconv.SparseSequential(Segmenting(shortcut()), Segmenting()), C, 4),
    "backbone": (lambda: residual_backbone(spconv, C, 0.5), C, 21),
    "U-Net": (lambda: segmentation_unet(spconv, C, 5, 0.25), C, 55),
}
# Of the greatest result: what is fused is rounded once, and a network has fifty layers.
CLOSE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def agree(a: Any, b: Any, limit: float = 1e-4) -> None:
    x, y = a.features.float(), b.features.float()
    assert a.features.dtype is b.features.dtype
    assert torch.equal(a.indices, b.indices)
    assert a.spatial_shape == b.spatial_shape
    assert a.indice_dict.keys() == b.indice_dict.keys()
    assert float((x - y).abs().max()) <= limit * max(1.0, float(y.abs().max()))


def both(net: nn.Module, x: Any, limit: float = 1e-4, count: int | None = None) -> None:
    """Fused and not: two tensors of the same cells, which know no map."""
    with torch.no_grad():
        with unfused():
            want = net(x.replace_feature(x.features.clone()))
        sums.clear()
        agree(net(x.replace_feature(x.features.clone())), want, limit)
    if count is not None:
        assert sums.count("fused") == count


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_what_they_are_module_after_module(name: str, dtype: torch.dtype) -> None:
    make, channels, count = NETWORKS[name]
    if name == "U-Net" and dtype is not torch.float16:
        pytest.skip("it takes seconds")
    net = drawn(make()).to(dtype)
    for seed in (1, 2) if dtype is torch.float32 else (1,):
        both(net, cloud(seed, channels, dtype), CLOSE[dtype], count)


def small() -> nn.Module:
    return drawn(spconv.SparseSequential(layers(), Detecting(shortcut()), Segmenting()), 3)


def half(net: nn.Module) -> None:
    net.half()
    net.float()  # in the memory that was let go of, perhaps


def data(net: nn.Module) -> None:
    """Change values through ``data``, which no version counter sees."""
    for tensor in (*net.parameters(), *net.buffers()):
        if tensor.is_floating_point():
            tensor.data.mul_(0.9).abs_()


def replaced(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean = torch.randn(module.num_features)
            if module.affine:
                module.weight = nn.Parameter(torch.randn(module.num_features))


def epsilon(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eps *= 30


def another_norm(net: nn.Module) -> None:
    net[1].bn1, net[1].relu = nn.BatchNorm1d(C, affine=False).eval(), nn.LeakyReLU(0.5)


def another_shortcut(net: nn.Module) -> None:
    net[1].downsample, net[2].downsample = None, shortcut().eval()


def optimized(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    net.train()
    net(cloud()).features.square().mean().backward()
    optimizer.step()
    net.eval()


def loaded(net: nn.Module) -> None:
    net.load_state_dict(drawn(copy.deepcopy(net), 5).state_dict())


CHANGES = [half, data, replaced, epsilon, another_norm, another_shortcut, optimized, loaded]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_whatever_was_done_to_modules_between_calls(change: Callable[[nn.Module], None]) -> None:
    net, x = small(), cloud(4)
    for _ in range(2):
        both(net, x, count=8)
    change(net)
    for _ in range(2):
        both(net, x, count=8)


def test_what_trains_is_trained() -> None:
    """Norms of batches, running statistics and gradients, and a norm that alone trains."""
    net = small()
    other = copy.deepcopy(net)
    for training in (True, False, True):
        for one in (net, other):
            one.train(training)
            one.zero_grad()
        net[2].eval()
        other[2].eval()
        x = cloud(5)
        net(x).features.square().mean().backward()
        with unfused():
            other(x.shadow_copy()).features.square().mean().backward()
        for a, b in zip(net.parameters(), other.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
        for name, tensor in net.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[name])
    assert "fused" not in sums
    with torch.no_grad():  # norms of batches among others that are fused
        net(cloud(6))
        with unfused():
            other(cloud(6))
    assert sums.count("fused") > 0
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(tensor, other.state_dict()[name])


def test_hooks_see_what_they_see_without() -> None:
    net, x = small(), cloud(7)
    both(net, x, count=8)
    modules = dict(net.named_modules())
    for name in ("0.0", "0.1", "0.2", "1", "1.conv2", "1.bn2", "1.relu"):
        module = modules[name]
        seen: list[Any] = []

        def note(*given: Any, seen: list[Any] = seen) -> None:
            seen.append(given)

        handle = module.register_forward_hook(note)
        with torch.no_grad():
            net(x.shadow_copy())
        assert len(seen) in (1, 2), name  # a block's activation is called twice
        before = module.register_forward_pre_hook(note)
        with torch.no_grad():
            net(x.shadow_copy())
        assert len(seen) in (3, 6), name
        both(net, x)
        handle.remove()
        before.remove()
    both(net, x, count=8)


def test_hooks_of_all_modules_and_other_forwards_are_called() -> None:
    net, x = small(), cloud(7)
    seen: list[Any] = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(type(m)))
    with torch.no_grad():
        net(x)
    handle.remove()
    assert seen.count(nn.BatchNorm1d) == 8
    norm = net[1].bn2
    forward = norm.forward
    norm.forward = lambda features: seen.append("own") or forward(features)
    with torch.no_grad():
        net(x)
    assert seen[-1] == "own"
    net[1].forward = lambda x: seen.append("block") or x
    with torch.no_grad():
        net(x)
    assert seen[-1] == "block"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_under_autocast(dtype: torch.dtype) -> None:
    """As in fp32 but for what both round; a shortcut of another dtype is added by torch."""
    net, x = small(), cloud(8)
    with torch.autocast("cpu", dtype):
        both(net, x, 5 * CLOSE[dtype])
    assert sums.count("fused") >= 7
    both(net, x, count=8)


def test_cells_that_are_there_twice() -> None:
    net, x = small(), cloud(9)
    cells = torch.cat([x.indices, x.indices[:20]])
    features = torch.cat([x.features, torch.randn(20, C)])
    both(net, spconv.SparseConvTensor(features, cells, SHAPE, 2), count=8)


def test_norms_take_no_rows() -> None:
    net = drawn(layers(), 1)
    none = torch.zeros(0, 4, dtype=torch.int32)
    x = spconv.SparseConvTensor(torch.zeros(0, C), none, SHAPE, 2)
    with torch.no_grad():
        assert net(x).features.shape == (0, C)


def test_a_norm_that_does_not_fit_is_torchs_error() -> None:
    for norm in (nn.BatchNorm1d(C + 1), nn.BatchNorm1d(C).double()):
        net = spconv.SparseSequential(spconv.SubMConv3d(C, C, 3), norm).eval()
        for _ in range(2):
            with torch.no_grad(), pytest.raises(RuntimeError):
                net(cloud())


def test_largest_counts_are_counted() -> None:
    net = spconv.SparseSequential(
        spconv.SparseConv3d(C, C, 3, 2, 1, record_voxel_count=True), nn.BatchNorm1d(C)
    ).eval()
    with torch.no_grad():
        y = net(cloud())
    assert net[0].get_max_num_voxels() == len(y.indices)


def test_no_operator_of_torch_runs_between_convolutions(
    monkeypatch: pytest.MonkeyPatch, ungathered: Callable[[], None]
) -> None:
    """A backbone over known maps runs nothing but launches."""
    net, x = drawn(residual_backbone(spconv, C, 0.5)).half(), cloud(1, C, torch.float16)
    launches = []

    def launch(self: Any, *_: Any) -> Tensor:
        launches.append(self)
        return self.allocate()

    with torch.no_grad():
        net(x)
        ungathered()
        monkeypatch.setattr(sparse_calls.PassOnCPU, "result", launch)
        sparse_calls.forget()
        for _ in range(3):
            net(x.shadow_copy())
        launches.clear()
        with torch.autograd.profiler.profile() as seen:
            net(x.shadow_copy())
    assert [event.name for event in seen.function_events] == []
    assert len(launches) == 21


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_a_block_that_does_something_else_is_called(kind: type) -> None:
    """Its function is not called with stand-ins if it could be noticed."""
    net = drawn(spconv.SparseSequential(kind()))
    SEEN.clear()
    both(net, cloud(2), count=0)
    assert blocks.plan_of(net[0]) is None
    assert len(SEEN) == 2 * (kind.__name__ in ("Notes", "Appends"))


@pytest.mark.parametrize("kind", PLANNED, ids=lambda kind: kind.__name__)
def test_what_is_fused_of_a_block(kind: type) -> None:
    net = drawn(spconv.SparseSequential(kind()))
    both(net, cloud(2), count=PLANNED[kind])


def test_a_plan_is_of_the_block_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes of a block and of its class, and functions that it calls."""

    class Changing(Conditional):
        deep: object

    net, x = drawn(spconv.SparseSequential(Changing())), cloud(3)
    block: Any = net[0]
    for times, deep, downsample, count in (
        (1, True, None, 1), (2, True, None, 1), (2, False, None, 1), (2, True, shortcut(), 1),
        (1, True, None, 1), (2.0, True, None, 1), (1, 0, None, 1),
    ):  # fmt: skip
        block.times, block.downsample, Changing.deep = times, downsample, deep
        both(net, x, count=count)

    class Replaced(Other):
        pass

    other = spconv.SparseSequential(Replaced()).eval()
    both(other, x, count=1)
    Replaced.between = lambda self, out: self.conv2(out)
    both(other, x)
    detecting = spconv.SparseSequential(Detecting()).eval()
    both(detecting, x, count=2)
    monkeypatch.setattr(
        sys.modules[Detecting.__module__], "replace", lambda out, f: out.replace_feature(f * 2)
    )
    both(detecting, x, count=0)


def test_a_replica_for_one_of_several_gpus() -> None:
    """Its parameters are attributes and no parameters."""
    net, x = drawn(spconv.SparseSequential(spconv.SubMConv3d(C, C, 3), nn.BatchNorm1d(C))), cloud()
    replica = net[1]._replicate_for_data_parallel()
    for name, parameter in net[1].named_parameters():
        setattr(replica, name, parameter.detach())
    assert not replica._parameters
    net._modules["1"] = replica
    both(net, x, count=0)


def test_in_inference_mode() -> None:
    net, x = small(), cloud(6)
    with torch.no_grad(), unfused():
        want = net(x.shadow_copy())
    with torch.inference_mode():
        for _ in range(2):
            agree(net(x.shadow_copy()), want)
    assert sums.count("fused") == 16
