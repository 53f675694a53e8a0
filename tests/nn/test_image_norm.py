"""Norms of an image over the voxels that are there; and modules of torch that got no features."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.errors import ArgumentError
from layoutconv.sparse import SparseTensor

from .clouds import cloud

NORMS = {
    "instance": lambda: nn.InstanceNorm3d(6),
    "affine": lambda: nn.InstanceNorm1d(6, affine=True, eps=0.1),
    "running": lambda: nn.InstanceNorm2d(6, affine=True, track_running_stats=True, momentum=0.3),
    "groups": lambda: nn.GroupNorm(3, 6),
    "one group": lambda: nn.GroupNorm(1, 6, affine=False),
    "own groups": lambda: nn.GroupNorm(6, 6),
}
each = pytest.mark.parametrize("name", sorted(NORMS))


def make(name: str) -> Any:
    torch.manual_seed(0)
    norm = NORMS[name]().double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    return norm


def through(norm: Any, x: SparseTensor) -> SparseTensor:
    return lc.nn.Sequential(norm)(x)


def by_image(norm: Any, x: SparseTensor) -> Tensor:
    """Return what torch's module makes of the voxels of each image, as of a row of pixels."""
    y = torch.zeros_like(x.features)
    for image in range(x.batch_size):
        rows = (x.coords[:, 0] == image).nonzero()[:, 0]
        pixels = x.features[rows].T[None]
        extra = {nn.InstanceNorm2d: (1,), nn.InstanceNorm3d: (1, 1)}.get(type(norm), ())
        shape = *pixels.shape[:2], *extra, pixels.shape[2]
        y = y.index_copy(0, rows, norm(pixels.reshape(shape)).reshape(pixels.shape)[0].T)
    return y


@each
def test_a_grid_that_is_full_is_torchs(name: str) -> None:
    """Values, gradients and running statistics, over several steps and in evaluation."""
    grid = torch.randn(3, 4, 5, 2, 6, dtype=torch.float64)
    ours, theirs = make(name), make(name)
    kinds = {nn.InstanceNorm1d: nn.InstanceNorm3d, nn.InstanceNorm2d: nn.InstanceNorm3d}
    theirs.__class__ = kinds.get(type(theirs), type(theirs))
    for step in range(4):
        if step == 3:
            ours.eval(), theirs.eval()
        x = SparseTensor.from_dense(grid + step)
        x = x.replace(x.features.requires_grad_())
        y = through(ours, x)
        assert y.coordinates is x.coordinates
        dense = x.dense().movedim(-1, 1).detach().requires_grad_()
        wanted = theirs(dense)
        torch.testing.assert_close(y.dense().movedim(-1, 1), wanted)
        grad = torch.randn_like(wanted)
        (found,) = torch.autograd.grad(y.dense().movedim(-1, 1), x.features, grad)
        torch.testing.assert_close(x.replace(found).dense().movedim(-1, 1),
                                   torch.autograd.grad(wanted, dense, grad)[0])  # fmt: skip
        for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b)


@each
@pytest.mark.parametrize("rank", [1, 3, 4])
def test_voxels_that_are_there(name: str, rank: int) -> None:
    x = cloud(rank, 6)
    x = x.replace(x.features.requires_grad_())
    ours, theirs = make(name), make(name)
    y, wanted = through(ours, x).features, by_image(theirs, x)
    torch.testing.assert_close(y, wanted)
    grad = torch.randn_like(wanted)
    to = [x.features, *ours.parameters()], [x.features, *theirs.parameters()]
    for a, b in zip(
        torch.autograd.grad(y, to[0], grad), torch.autograd.grad(wanted, to[1], grad), strict=True
    ):
        torch.testing.assert_close(a, b)
    assert not torch.allclose(wanted, torch.nn.functional.layer_norm(x.features, (6,)))


@each
def test_padding_takes_no_part(name: str) -> None:
    x = cloud(3, 6)
    wanted = through(make(name), x).features
    padded = x.padded(len(x) + 7)
    filled = padded.features.clone()
    filled[len(x) :] = 100
    for norm in (make(name), nn.Sequential(make(name), nn.Identity())):
        y = through(norm, padded.replace(filled)).features
        torch.testing.assert_close(y[: len(x)], wanted)
        assert not y[len(x) :].any()


def test_images_of_no_voxel_and_of_one() -> None:
    """None has no statistics, one is its own mean; neither moves running ones."""
    coords = torch.tensor([[0, 1], [2, 0], [2, 3], [2, 1]], dtype=torch.int32)
    features = torch.tensor([[5.0], [1.0], [2.0], [6.0]], requires_grad=True)
    x = SparseTensor(features, coords, (4,), batch_size=4)
    norm = nn.InstanceNorm1d(1, track_running_stats=True, momentum=1.0)
    y = through(norm, x).features
    (grad,) = torch.autograd.grad(y[:, 0] @ torch.tensor([1.0, 2.0, 3.0, 5.0]), features)
    assert y[0] == 0
    assert y.isfinite().all()
    assert grad.isfinite().all()
    torch.testing.assert_close(norm.running_mean, torch.tensor([3.0]))
    torch.testing.assert_close(norm.running_var, torch.tensor([7.0]))
    alone = SparseTensor(torch.ones(1, 1), coords[:1], (4,), 1)
    before = copy.deepcopy(norm.state_dict())
    assert through(norm, alone).features.item() == 0
    assert all(torch.equal(a, before[key]) for key, a in norm.state_dict().items())
    nothing = SparseTensor(torch.ones(0, 1), coords[:0], (4,), 2)
    assert through(norm, nothing).features.shape == (0, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_are_in_fp32(dtype: torch.dtype) -> None:
    """Statistics are in fp32: squares of numbers far from zero overflow fp16."""
    x = cloud(3, 6)
    large = x.replace((x.features + 300).to(dtype))
    y = through(nn.GroupNorm(2, 6).to(dtype), large).features
    assert y.dtype == dtype
    wanted = through(nn.GroupNorm(2, 6).double(), large.double()).features
    torch.testing.assert_close(y.double(), wanted, rtol=0.01, atol=0.01)


def test_gradients_of_any_order_and_the_same_bits() -> None:
    x = cloud(2, 4)
    features = x.features[:20].detach().requires_grad_()
    x = SparseTensor(features, x.coords[:20], x.spatial_shape, 2)
    norm = nn.GroupNorm(2, 4).double()
    torch.autograd.gradgradcheck(lambda f: through(norm, x.replace(f)).features, (features,))
    runs = [through(norm, x).features for _ in range(3)]
    grads = [torch.autograd.grad(y.square().sum(), features)[0] for y in runs]
    assert all(torch.equal(runs[0], y) for y in runs[1:])
    assert all(torch.equal(grads[0], g) for g in grads[1:])


def test_hooks_see_features() -> None:
    x, seen = cloud(3, 6), []
    norm = make("groups")
    handles = [
        norm.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
        norm.register_forward_pre_hook(lambda m, args, named: (args, named), with_kwargs=True),
        norm.register_forward_hook(lambda module, args, y: seen.append((args[0], y))),
        norm.register_forward_hook(lambda module, args, named, y: y + 1, with_kwargs=True),
    ]
    both = nn.Sequential(norm, nn.ReLU())
    both.register_forward_hook(lambda module, args, y: y - 1)
    y = lc.nn.Sequential(both)(x).features
    wanted = torch.relu(by_image(make("groups"), x.replace(x.features * 2)) + 1) - 1
    torch.testing.assert_close(y, wanted)
    assert torch.equal(seen[0][0], x.features * 2)
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(through(norm, x).features, by_image(norm, x))
    lazy = through(nn.LazyInstanceNorm1d(affine=True).double(), x).features
    torch.testing.assert_close(lazy, by_image(nn.InstanceNorm1d(6).double(), x))


def test_in_a_network_and_by_itself() -> None:
    net = lc.nn.Sequential(
        lc.nn.SubmConv3d(4, 6, 3), nn.InstanceNorm3d(6), nn.ReLU(), lc.nn.SubmConv3d(6, 6, 1)
    ).double()
    x = cloud(3, 4)
    hidden = by_image(net[1], net[0](x))
    wanted = net[3](x.replace(torch.relu(hidden))).features
    torch.testing.assert_close(net(x).features, wanted)
    torch.testing.assert_close(lc.nn.Features(net[1])(net[0](x)).features, hidden)
    with pytest.raises(ArgumentError, match=r"`input`: expected 6 channels, as the InstanceNorm3d"):
        through(net[1], x)


@pytest.mark.parametrize("gradients", [False, True])
def test_norms_of_images_compile_whole(gradients: bool) -> None:
    torch._dynamo.reset()
    norm, x = make("groups"), cloud(3, 6)
    x = x.replace(x.features.requires_grad_(gradients))

    def run(features: Tensor) -> Tensor:
        return through(norm, x.replace(features)).features

    with torch.set_grad_enabled(gradients):
        compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x.features), run(x.features))


@pytest.mark.parametrize(
    "module",
    [nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 3), nn.GroupNorm(2, 6), nn.Dropout(), nn.GELU()],
    ids=lambda module: type(module).__name__,
)
def test_modules_that_get_no_features_say_what_gives_them(module: Any) -> None:
    net = nn.Sequential(lc.nn.SubmConv3d(4, 6, 3), module).double()
    x = cloud(3, 4)
    with pytest.raises((TypeError, AttributeError), match=r"SparseTensor.*lc\.nn\.Sequential"):
        net(x)
    assert lc.nn.Sequential(*net)(x).features.shape[0] == len(x)


def test_functions_of_torch_take_features() -> None:
    x = cloud(3, 4)
    for refused in (
        lambda: torch.relu(x),
        lambda: torch.cat([x, x]),
        lambda: torch.nn.functional.softmax(x, dim=1),
    ):
        with pytest.raises(TypeError, match=r"takes tensors.*lc\.nn\.Sequential.*x\.replace"):
            refused()
    for name in ("dim", "shape", "view", "size"):
        assert not hasattr(x, name)
        with pytest.raises(AttributeError, match=rf"no {name!r}.*lc\.nn\.Sequential"):
            getattr(x, name)
    with pytest.raises(AttributeError, match="'SparseTensor' object has no attribute 'nothing'"):
        x.nothing  # noqa: B018
    assert torch.equal((torch.ones(len(x), 4).double() + x).features, x.features.double() + 1)
    assert torch.equal((x * 2).features, (2 * x).features)
