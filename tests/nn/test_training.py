"""What training loops do with convolutions and pooling: checkpoints, transforms, copies, modes."""

from __future__ import annotations

import copy
import io
import pickle

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


@pytest.mark.parametrize("name", CALLS)
def test_transforms_are_refused_by_name(name):
    """A derivative of forward mode would be zero, which nobody would notice."""
    x = cloud(2, 4)

    def function(f: torch.Tensor) -> torch.Tensor:
        return result(name, x.replace(f), FILTER)

    for transformed in (
        lambda: torch.func.jvp(function, (x.features,), (x.features,)),
        lambda: torch.func.grad(lambda f: function(f).sum())(x.features),
    ):
        with pytest.raises(ArgumentError, match=r"torch.func and forward mode differentiate"):
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
        lc.subm_conv(x, FILTER)
        lc.sparse_conv(x, DOWN, stride=2)
    w = FILTER.clone().requires_grad_()

    def run(w: torch.Tensor) -> torch.Tensor:
        y = lc.subm_conv(x, w, kernel_map=found)
        y = sparse_max_pool(lc.sparse_conv(y, DOWN, kernel_map=strided), kernel_map=strided.inverse)
        return sparse_depthwise(y.features, w[..., :1], found)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled(w), w), gradients(run(w), w))


def test_a_map_that_has_been_used_is_copied_and_pickled():
    """What executors keep with its index tensors is not theirs to take along."""
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
