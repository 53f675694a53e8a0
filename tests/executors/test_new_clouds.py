"""Sparse convolutions over clouds that are new: what is known of others serves them, bit for bit.

A call of a known signature past the operator is compared with the operator's, which every call
takes while nothing is known.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.gpu.launch import BoundLaunch, MapPassLaunch
from layoutconv.gpu.map_views import MapPass
from layoutconv.nn import sparse
from layoutconv.nn.sparse import sparse_conv, sparse_inverse_conv, subm_conv
from layoutconv.ops import call_cache, sparse_calls
from layoutconv.sparse import Coordinates, KernelMap, SparseTensor, strided_map, submanifold_map

C, K = 3, 4


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    sparse_calls.forget()
    yield
    sparse_calls.forget()


def cloud(rows: int, seed: int, channels: int = C) -> SparseTensor:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randperm(6**3, generator=generator)[:rows]
    features = torch.randn(rows, channels, generator=generator)
    return SparseTensor(features, Coordinates.of_keys(keys, (6,) * 3, 1))


def submanifold(x: SparseTensor, features: Tensor, w: Tensor, **ending: Any) -> SparseTensor:
    return subm_conv(x.replace(features), w, **ending)


def strided(x: SparseTensor, features: Tensor, w: Tensor, **ending: Any) -> SparseTensor:
    return sparse_conv(x.replace(features), w, stride=2, padding=1, **ending)


def inverse(x: SparseTensor, features: Tensor, w: Tensor, **ending: Any) -> SparseTensor:
    found = strided_map(x.coordinates, 3, 2, 1)
    coarse = features[: len(found.outputs)]
    return sparse_inverse_conv(SparseTensor(coarse, found.outputs), w, **ending)


CONVOLUTIONS = [submanifold, strided, inverse]
FILTER = torch.randn(K, 3, 3, 3, C, generator=torch.Generator().manual_seed(0))
BIAS = torch.linspace(-1, 1, K)


def results(convolution: Any, x: SparseTensor, order: int) -> list[Tensor]:
    """A convolution with its gradients up to an order, of tensors of its own."""
    features, w, bias = (t.clone().requires_grad_(order > 0) for t in (x.features, FILTER, BIAS))
    y = convolution(x, features, w, bias=bias, activation="relu").features
    every = [y]
    if order:
        pulled = torch.linspace(-1, 2, y.numel()).view_as(y).requires_grad_()
        every += torch.autograd.grad(y, (features, w, bias), pulled, create_graph=order > 1)
    if order > 1:
        every += torch.autograd.grad(every[1].square().sum() + every[2].sum(), (w, pulled))
    return every


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_a_cloud_that_is_new_has_the_bits_of_the_first(convolution, order, watched):
    want = {}
    for rows, seed in ((40, 1), (61, 2), (40, 3)):
        sparse_calls.forget()
        want[seed] = results(convolution, cloud(rows, seed), order)
    sparse_calls.forget()
    results(convolution, cloud(50, 0), order)

    checked = watched("check_operands", sparse)
    for rows, seed in ((40, 1), (61, 2), (40, 3)):
        x = cloud(rows, seed)
        for _ in range(2):
            got = results(convolution, x, order)
            assert all(map(torch.equal, got, want[seed]))
    assert not checked  # again, as a call that is known


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_under_autocast_a_call_is_known_too(convolution, watched):
    """It has the bits of the first, and leaves autocast on, also where it is refused."""

    def lowered(x: SparseTensor) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            found = results(convolution, x, 1)
            assert torch.is_autocast_enabled("cpu")
        return found

    x, y = cloud(40, 1), cloud(61, 2)
    want = lowered(y)
    assert [t.dtype for t in want] == [torch.bfloat16, *[torch.float32] * 3]
    sparse_calls.forget()
    lowered(x)
    checked = watched("check_operands", sparse)
    got = lowered(cloud(61, 2))
    assert all(map(torch.equal, got, want))
    assert not checked
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(lc.errors.ArgumentError, match="weight"):
            subm_conv(x, FILTER[..., :2])
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_under_autocast_gradients_of_gradients_are_known_too(convolution):
    """They go back to the filter itself, which the call lowered where autograd saw none of it."""

    def lowered(x: SparseTensor) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return results(convolution, x, 2)

    want = lowered(cloud(61, 2))
    sparse_calls.forget()
    lowered(cloud(40, 1))
    got = lowered(cloud(61, 2))
    assert all(map(torch.equal, got, want))
    assert got[-2].abs().sum() > 0


def test_a_call_that_is_known_lowers_to_what_autocast_does_now():
    x, w = cloud(40, 1), FILTER.clone().requires_grad_()
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        for _ in range(3):
            with torch.autocast("cpu", dtype):
                # Features that are low already: nothing but the dtype of autocast says to what.
                y = subm_conv(x.replace(x.features.bfloat16()), w).features
            assert y.dtype is dtype
            (grad,) = torch.autograd.grad(y.float().sum(), w)
            assert grad.dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        assert subm_conv(x, w).features.dtype is torch.float32


def test_a_filter_that_was_written_to_gives_no_gradients_of_gradients():
    """As autograd has it; the gradients themselves are of what the call lowered."""
    x, w = cloud(40, 1), FILTER.clone().requires_grad_()
    features = x.features.clone().requires_grad_()
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            y = subm_conv(x.replace(features), w).features
    want = torch.autograd.grad(y.float().sum(), features, retain_graph=True)[0]
    with torch.no_grad():
        w.add_(1)
    got = torch.autograd.grad(y.float().sum(), features, retain_graph=True)[0]
    assert torch.equal(got, want)
    with pytest.raises(RuntimeError, match="written to"):
        torch.autograd.grad(y.float().sum(), (features, w), create_graph=True)


def test_what_is_kept_for_all_clouds_holds_none_of_them():
    x = cloud(30, 1)
    alive = [weakref.ref(x.features), weakref.ref(x.coordinates.cells)]
    results(submanifold, x, 1)
    results(submanifold, x, 1)
    alive.append(weakref.ref(submanifold_map(x.coordinates).index))
    kinds = [entry[-1] for entries in call_cache.sparse.values() for entry in entries]
    assert kinds
    for kind in kinds:
        passes = kind.fprop, kind.dgrad, kind.wgrad
        held = [*vars(kind).values()]
        held += [part for of in passes for part in (*of.args, *of.keywords.values())]
        assert not any(isinstance(value, Tensor | KernelMap) for value in held)
    gc.disable()  # no circle either
    try:
        del x
        assert [reference() for reference in alive] == [None] * 3
    finally:
        gc.enable()


def test_a_launch_that_is_kept_has_no_views_of_those_it_was_used_over():
    of = BoundLaunch(tuple, torch.empty(1), torch.float16, None)
    view: Any = object()
    over = MapPass("unusual", lambda: view, (), {"M": 3}, None)
    made = MapPassLaunch(of, over, (3, 2), (2, 1), torch.device("cpu"))
    assert made.views() == (view,)
    assert of.views() == ()
    assert made._launchers is not of._launchers


def test_a_known_call_is_refused_what_does_not_fit():
    x, y = cloud(30, 1), cloud(31, 2)
    for _ in range(2):
        subm_conv(x, FILTER, residual=torch.ones(30, K))
    with pytest.raises(lc.errors.ArgumentError, match="residual"):
        subm_conv(y, FILTER, residual=torch.ones(30, K))
    with pytest.raises(lc.errors.ArgumentError, match="weight"):
        subm_conv(y, FILTER[..., :2], residual=torch.ones(31, K))


def test_entries_of_a_new_map_are_looked_at_where_they_can_be():
    """A CPU reads them out of memory that there may not be."""
    x = cloud(20, 1)
    index = submanifold_map(x.coordinates).index
    maps = [
        KernelMap(x.coordinates, x.coordinates, (3, 3, 3), index.where(index < last, 20))
        for last in (20, 19)
    ]
    for _ in range(2):
        subm_conv(x, FILTER, kernel_map=maps[0])
    with pytest.raises(lc.errors.ArgumentError, match="20"):
        subm_conv(x, FILTER, kernel_map=maps[1])


def test_rows_of_other_strides_are_another_signature():
    wide = torch.randn(50, C + 2, generator=torch.Generator().manual_seed(5))
    x, y = cloud(30, 1), cloud(50, 2)
    want = subm_conv(y.replace(wide[:, :C].contiguous()), FILTER).features
    sparse_calls.forget()
    for _ in range(2):
        subm_conv(x, FILTER)
        got = subm_conv(y.replace(wide[:, :C]), FILTER).features
        assert torch.equal(got, want)
