"""Training with convolutions and pooling: checkpoints, transforms, copies, modes."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import layoutconv as lc
from layoutconv.errors import ArgumentError
from layoutconv.nn import (
    sparse_avg_pool,
    sparse_depthwise,
    sparse_global_pool,
    sparse_max_pool,
    sparse_unpool,
)
from layoutconv.ops import dense_calls
from layoutconv.ops import sparse_operators as executor
from layoutconv.sparse import KernelMap, SparseTensor, strided_map, submanifold_map

from .clouds import cloud, numbers

FILTER, DOWN = numbers(4, 3, 3, 4), numbers(4, 2, 2, 4)


def strided_and_back(x: SparseTensor, w: torch.Tensor) -> SparseTensor:
    y = lc.sparse_conv(x, w[:, :2, :2], stride=2)
    return lc.sparse_inverse_conv(y, w[:, 1:, 1:], activation="relu")


# Functions of a sparse tensor and a filter (4, 3, 3, 4).
CALLS = {
    "dense": lambda x, w: lc.conv2d(x.dense().movedim(-1, 1), w.movedim(-1, 1), padding=1),
    "subm": lambda x, w: lc.subm_conv(x, w, activation="relu"),
    "gelu": lambda x, w: lc.subm_conv(x, w, activation="gelu"),
    "ending": lambda x, w: lc.subm_conv(x, w, residual=x, scale=torch.ones(4).double()),
    "strided and back": strided_and_back,
    "depthwise": lambda x, w: lc.subm_conv(x, w[..., :1], groups=4),
    "max": lambda x, w: sparse_max_pool(x, 2),
    "mean": lambda x, w: sparse_avg_pool(x, 2),
    "unpool": lambda x, w: sparse_unpool(sparse_max_pool(x, 2)),
    "global": lambda x, w: sparse_global_pool(x, "max"),
}


def result(name: str, x: SparseTensor, w: torch.Tensor) -> torch.Tensor:
    y = CALLS[name](x, w)
    return y if isinstance(y, torch.Tensor) else y.features


def gradients(y: torch.Tensor, *of: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return torch.autograd.grad(y.square().sum(), of, allow_unused=True)


def equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_checkpoints_have_the_gradients_of_what_they_stand_for(name, reentrant):
    x = cloud(2, 4)
    f, w = x.features.clone().requires_grad_(), FILTER.clone().requires_grad_()
    expected = gradients(result(name, x.replace(f), w), f, w)
    assert expected[0].any()
    for _ in range(2):  # what the first call kept, the second takes
        for leaf in (f, w):
            leaf.grad = None
        y = checkpoint(lambda f, w: result(name, x.replace(f), w), f, w, use_reentrant=reentrant)
        y.square().sum().backward()
        assert all(equal(leaf.grad, g) for leaf, g in zip((f, w), expected, strict=True))


@pytest.mark.parametrize("name", [name for name in CALLS if name != "dense"])
def test_transforms_of_sparse_layers_are_refused_by_name(name):
    """A derivative of forward mode would be zero, which nobody would notice."""
    x = cloud(2, 4)

    def function(f: torch.Tensor) -> torch.Tensor:
        return result(name, x.replace(f), FILTER)

    for transformed in (
        lambda: torch.func.jvp(function, (x.features,), (x.features,)),
        lambda: torch.func.grad(lambda f: function(f).sum())(x.features),
    ):
        with pytest.raises(ArgumentError, match=r"torch\.func and forward mode differentiate"):
            transformed()


@pytest.mark.parametrize("name", CALLS)
def test_what_inference_mode_left_behind_trains(name):
    x = cloud(2, 4)
    with torch.inference_mode():
        expected = result(name, x, FILTER).clone()
    f, w = x.features.clone().requires_grad_(), FILTER.clone().requires_grad_()
    for _ in range(2):
        y = result(name, x.replace(f), w)
        assert torch.equal(y, expected)
        assert gradients(y, f)[0].any()


def test_a_map_of_inference_mode_compiles_for_training():
    torch._dynamo.reset()
    x = cloud(2, 4)
    with torch.inference_mode():
        found, strided = submanifold_map(x.coordinates, 3), strided_map(x.coordinates, 2, 2)
        for kernel_map in (found, strided):
            executor.tables(kernel_map, (4, 4), gradients=True)
    w = FILTER.clone().requires_grad_()

    def run(w: torch.Tensor) -> torch.Tensor:
        y = lc.subm_conv(x, w, kernel_map=found)
        y = sparse_max_pool(lc.sparse_conv(y, DOWN, kernel_map=strided), kernel_map=strided.inverse)
        return sparse_depthwise(y.features, w[..., :1], found)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled(w), w), gradients(run(w), w))


def test_a_map_that_has_been_used_is_copied_and_pickled():
    """Copies do not take along what executors keep with the index tensors."""
    x = cloud(2, 4)
    f = x.features.clone().requires_grad_()
    y = strided_and_back(lc.subm_conv(x.replace(f), FILTER.clone().requires_grad_()), FILTER)
    y.features.sum().backward()
    for found in (submanifold_map(x.coordinates, 3), strided_map(x.coordinates, 2, 2)):
        file = io.BytesIO()
        torch.save({"map": found, "index": found.index}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        others = pickle.loads(pickle.dumps(found)), copy.deepcopy(found), loaded["map"]
        for other in others:
            assert isinstance(other, KernelMap)
            assert torch.equal(other.index, found.index)
            assert torch.equal(other.inverse.index, found.inverse.index)
        assert torch.equal(loaded["index"], found.index)
        assert torch.equal(copy.deepcopy(found.index), found.index)


def test_clouds_that_are_gone_leave_nothing():
    """A loop over clouds holds one at a time, also with the garbage collector off."""
    w = FILTER.float().requires_grad_()
    alive = []
    gc.collect()
    gc.disable()
    try:
        for seed in range(12):
            x = cloud(2, 4, dtype=torch.float32, seed=seed)
            x = x.replace(x.features.clone().requires_grad_())
            for name in CALLS:
                if name != "ending":  # of float64
                    y = result(name, x, w)
                    y.square().sum().backward()
                    alive.append(weakref.ref(y))
            y = lc.sparse_conv(x, w, outputs=sparse_max_pool(x, 2, stride=1).coordinates)
            y = lc.sparse_conv_transpose(y, w, stride=2)
            y.features.sum().backward()
            found = submanifold_map(x.coordinates, 3), strided_map(x.coordinates, 2, 2)
            kept = x.coords, *(i.index for m in found for i in (m, m.inverse)), y.coords, y.features
            alive += map(weakref.ref, kept)
            del x, y, found, kept
            assert not any(reference() is not None for reference in alive)
    finally:
        gc.enable()


def test_clouds_of_as_many_rows_keep_their_maps_apart():
    clouds = [cloud(2, 4, seed=seed) for seed in range(2)]
    rows = min(map(len, clouds))
    clouds = [SparseTensor(x.features[:rows], x.coords[:rows], x.spatial_shape, 2) for x in clouds]
    w = FILTER.clone()
    for _ in range(3):
        for name in CALLS:
            for x in clouds:
                fresh = SparseTensor(x.features, x.coords.clone(), x.spatial_shape, 2)
                assert torch.equal(result(name, x, w), result(name, fresh, w))
        w *= 2  # as an optimizer does
    first, second = clouds
    for call in (
        lambda found: lc.subm_conv(second, w, kernel_map=found),
        lambda found: lc.subm_conv(second, w[..., :1], groups=4, kernel_map=found),
        lambda found: sparse_max_pool(second, kernel_map=found),
    ):
        call(submanifold_map(second.coordinates, 3))
        with pytest.raises(ArgumentError, match="`kernel_map`: expected a map whose inputs are"):
            call(submanifold_map(first.coordinates, 3))
    for x in clouds:
        y = lc.sparse_conv(x, w[:, :2, :2], stride=2)
        found = strided_map(x.coordinates, 2, 2)
        assert len(lc.sparse_inverse_conv(y, w[:, 1:, 1:], kernel_map=found)) == rows
        with pytest.raises(ArgumentError, match="`kernel_map`: expected a map whose outputs are"):
            lc.sparse_inverse_conv(x, w[:, 1:, 1:], kernel_map=found)


def test_cells_that_were_written_to_are_refused():
    x = cloud(2, 4)
    x.coords.copy_(x.coords.clone())  # before anybody looked
    y = lc.sparse_conv(lc.subm_conv(x, FILTER), DOWN, stride=2)
    y.coords.copy_(y.coords.clone())
    written = "`coords`: expected cells that are not written to"
    for call in (lambda: lc.subm_conv(y, FILTER), lambda: lc.sparse_inverse_conv(y, DOWN), y.dense):
        with pytest.raises(ArgumentError, match=written):
            call()
    again = lc.sparse_conv(x, DOWN, stride=2)  # has cells that nobody wrote to
    assert again.coordinates is not y.coordinates
    assert lc.sparse_conv(x, DOWN, stride=2).coordinates is again.coordinates
    fresh = SparseTensor(x.features, x.coords.clone(), x.spatial_shape, 2)
    assert torch.equal(again.features, lc.sparse_conv(fresh, DOWN, stride=2).features)
    x.coords[0, 1] = 0
    for call in (lambda: lc.subm_conv(x, FILTER), lambda: lc.sparse_conv(x, DOWN, stride=2)):
        with pytest.raises(ArgumentError, match=written):
            call()


FIRST_CALLS = {
    "2d": lambda: torch.nn.Sequential(lc.nn.Conv2d(3, 4, 3, padding=1), lc.nn.Conv2d(4, 2, 1)),
    "3d": lambda: lc.nn.Conv3d(3, 4, 3, stride=2, bias=False),
    "near and far": lambda: lc.nn.Conv2d(3, 4, 2, padding=((0, 1), (1, 0))),
    "padded": lambda: lc.nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
    "activated": lambda: lc.nn.Conv2d(3, 4, 3, activation="relu"),
    "transposed": lambda: lc.nn.ConvTranspose2d(3, 4, 2, 2),
    "one mode": lambda: lc.nn.Conv1d(3, 4, 3, groups=1),
    "converted": lambda: lc.nn.convert(torch.nn.Sequential(torch.nn.Conv3d(3, 4, 3))),
}


@pytest.mark.parametrize("of_input", [False, True])
@pytest.mark.parametrize("name", FIRST_CALLS)
def test_a_first_call_saves_as_much_as_later_ones(name, of_input):
    """Else its checkpoint cannot be repeated: torch counts what is saved."""
    net = FIRST_CALLS[name]()
    x = torch.randn(2, 3, *[6] * (next(net.parameters()).dim() - 2), requires_grad=of_input)
    dense_calls.forget()
    checkpoint(net, x, use_reentrant=False).square().sum().backward()
    expected = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
    assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), expected, strict=True))
