"""Causal convolutions: no later frame is read, and a stream's frames are those of the whole."""

from __future__ import annotations

import copy
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import layoutconv as lc
from layoutconv.errors import ArgumentError, ArgumentTypeError

from ..watched import Watch


def whole(*sizes: Any, **options: Any) -> lc.nn.CausalConv3d:
    """A layer of whole numbers in float64: results are exact, whatever computes them."""
    layer = lc.nn.CausalConv3d(*sizes, dtype=torch.float64, **options)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randint(-3, 4, parameter.shape))
    return layer


def video(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(-4, 5, shape).double()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_stream_is_the_whole(data: st.DataObject) -> None:
    draw = data.draw
    taps, step, apart = (draw(st.integers(1, most)) for most in (4, 4, 3))
    N, room = draw(st.integers(1, 2)), draw(st.integers(1, 9))
    layer = whole(3, 5, (taps, 2, 3), (step, 1, 2), (1, 0), (apart, 1, 1), activation="relu")
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    x = video(N, 3, sum(lengths), 4, 5)
    cache = lc.nn.FrameCache(room)
    ends = list(accumulate(lengths, initial=0))
    with torch.no_grad():
        parts = [layer(x[:, :, begin:end], cache) for begin, end in pairwise(ends)]
        expected = layer(x) if len(x[0, 0]) else torch.cat(parts, 2)
    assert torch.equal(torch.cat(parts, 2), expected)
    # Every frame is there as soon as all that it reads is.
    done = list(accumulate(part.shape[2] for part in parts))
    assert done == [-(-end // step) for end in ends[1:]]
    assert cache.kept <= max(layer.reach, 1) + step


@pytest.mark.parametrize("count", [0, 1, 3, 4, 6])
def test_frames_before_may_be_a_tensor(count: int) -> None:
    layer, x = whole(3, 5, (3, 2, 3), (1, 1, 2), (1, 0), (2, 1, 1)), video(2, 3, 11, 4, 5)
    frames, rest = x[:, :, 11 - 5 - count : 6], x[:, :, 6:].clone().requires_grad_()
    found = layer(rest, frames)
    assert torch.equal(found, layer(x[:, :, 11 - 5 - count :])[:, :, count:])
    (gradient,) = torch.autograd.grad(found.sum(), rest)
    assert gradient.shape == rest.shape
    want = video(*found.shape)
    assert torch.equal(layer(rest, frames, residual=want), found + want)


def test_padding_is_before_the_first_frame() -> None:
    layer, x = whole(3, 4, 3, 1, (1, 2), dilation=(2, 1, 1)), video(1, 3, 6, 5, 4)
    padded = functional.pad(x, (2, 2, 1, 1, 4, 0))
    want = functional.conv3d(padded, layer.weight, layer.bias, dilation=(2, 1, 1))
    assert torch.equal(layer(x), want)
    residual = video(*want.shape)
    fused = whole(3, 4, 3, 1, (1, 2), dilation=(2, 1, 1), activation="relu")
    assert torch.equal(fused(x, residual=residual), (want + residual).relu())
    with torch.no_grad():
        streamed = fused(x, lc.nn.FrameCache(), residual=residual)
    assert torch.equal(streamed, (want + residual).relu())
    later = x.clone()
    later[:, :, 4:] = 9
    assert torch.equal(layer(later)[:, :, :4], want[:, :, :4])
    theirs = torch.nn.Conv3d(3, 4, 3, dtype=torch.float64)
    assert theirs.load_state_dict(layer.state_dict())


def test_it_is_differentiable() -> None:
    layer, x = whole(2, 3, (3, 1, 1)), video(1, 2, 4, 2, 2).requires_grad_()
    padded = functional.pad(x, (0, 0, 0, 0, 2, 0))
    want = functional.conv3d(padded, layer.weight, layer.bias)
    gradient = video(*want.shape)
    operands = x, layer.weight, layer.bias
    found = torch.autograd.grad(layer(x), operands, gradient)
    for got, wanted in zip(found, torch.autograd.grad(want, operands, gradient), strict=True):
        assert torch.equal(got, wanted)


def test_frames_that_are_written_in_place_are_not_copied(watched: Watch) -> None:
    layer, cache, x = whole(3, 4, 3, 1, 1), lc.nn.FrameCache(8), video(1, 3, 7, 4, 4)
    with torch.no_grad():
        parts = [layer(x[:, :, :1], cache)]
        memory = cache._memory
        assert memory is not None
        start_of = lambda t: t.untyped_storage().data_ptr()  # noqa: E731
        copied = watched("copy_", torch.Tensor, note=lambda call: start_of(call.args[0]))
        for begin in (1, 3, 5):
            room = cache.room(x, 2)
            torch.add(x[:, :, begin : begin + 2], 0, out=room)
            parts.append(layer(room, cache))
        assert start_of(memory) not in copied
        assert cache._memory is memory
        assert torch.equal(torch.cat(parts, 2), layer(x))


def test_a_cleared_cache_begins_again() -> None:
    layer, cache, x = whole(3, 4, 3, 1, 1), lc.nn.FrameCache(), video(1, 3, 2, 4, 4)
    with torch.no_grad():
        first, second = layer(x, cache), layer(x, cache)
        cache.clear()
        assert torch.equal(layer(x, cache), first)
        assert not torch.equal(second, first)


def test_what_is_refused() -> None:
    layer, cache, x = whole(3, 4, 3), lc.nn.FrameCache(), video(1, 3, 2, 4, 4)
    with pytest.raises(ArgumentError, match="`cache`: expected None where gradients"):
        layer(x, cache)
    with pytest.raises(ArgumentError, match="`frames`: expected an int >= 1"):
        lc.nn.FrameCache(0)
    with pytest.raises(ArgumentError, match="`padding`"):
        lc.nn.CausalConv3d(3, 4, 3, padding=(1, 1, 1))
    with torch.no_grad():
        with pytest.raises(ArgumentError, match="a cache that a layer has been called with"):
            cache.room(x)
        with pytest.raises(ArgumentTypeError, match="`cache`: expected a FrameCache"):
            layer(x, [None])
        for frames in (x.float(), x[..., 1:], x[:1, :2], x[0]):
            with pytest.raises(ArgumentError, match=r"`cache`: expected \(1, 3, any, 4, 4\)"):
                layer(x, frames)
        with pytest.raises(ArgumentError, match=r"`input`: expected \(N, C, D, H, W\)"):
            layer(x[0], cache)
        layer(x, cache)
        for other in (x[..., 1:], x.float(), x.expand(2, -1, -1, -1, -1)):
            with pytest.raises(ArgumentError, match="as the frames before"):
                layer(other, cache)


def test_a_cache_is_that_of_one_layer() -> None:
    """Two layers of a network that share one would read each other's frames."""
    layer, other, cache = whole(3, 3, 3, 1, 1), whole(3, 3, 3, 1, 1), lc.nn.FrameCache()
    x = video(1, 3, 2, 4, 4)
    with torch.no_grad():
        first = layer(x, cache)
        with pytest.raises(
            ArgumentError, match="`cache`: expected a FrameCache of this layer alone"
        ):
            other(first, cache)
        fork = copy.deepcopy(cache)
        assert torch.equal(layer(x, fork), layer(x, cache))
        cache.clear()
        assert torch.equal(other(first, cache), other(first, lc.nn.FrameCache()))
