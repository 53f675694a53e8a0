"""Convolutions of video that read no later frame, whole or a few frames at a time.

A frame of the result reads frames up to its own: all padding along D is before the first one. Of a
video that comes in pieces a layer has to know the last frames of the piece before. Here these and
the new frames are one piece of memory, the cache's: a new frame is written there once, behind the
last, and nothing is joined. What writes the frames, a norm or an activation, may write them there.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
from torch import Tensor

from ..conv.problem import per_mode
from ..errors import ArgumentError, ArgumentTypeError
from . import functional
from .modules import Conv3d, weight_and_bias
from .own_padding import after_frames

FRAMES = 16  # that a cache has room for, before those that it keeps are moved to its beginning


class FrameCache:
    """The frames of a stream that the next call of one :class:`CausalConv3d` reads again.

    They begin as frames of zeros, which is what stands before the first one. A stream has a cache
    for each layer; :meth:`clear` begins another one.

    Args:
        frames: so many frames are written behind each other before those that are kept move to the
            beginning of the memory. A call with more frames makes more memory.

    >>> layer, cache = CausalConv3d(4, 8, 3, padding=1), FrameCache()
    >>> video = torch.randn(1, 4, 5, 6, 6)
    >>> with torch.no_grad():
    ...     parts = [layer(part, cache) for part in video.split([1, 2, 2], dim=2)]
    ...     whole = layer(video)
    >>> torch.allclose(torch.cat(parts, 2), whole, atol=1e-5)
    True
    """

    def __init__(self, frames: int = FRAMES) -> None:
        if type(frames) is not int or frames < 1:
            raise ArgumentError("frames", "an int >= 1", repr(frames))
        self._frames = frames
        self.clear()

    def clear(self) -> None:
        """Forget all frames, and their memory."""
        self._memory: Tensor | None = None  # (N, D, H, W, C)
        self._first = self._end = 0  # of the frames in memory that are kept
        self._passed = 0  # frames to come that nothing reads, of a stride beyond the window
        self._layer: ref[CausalConv3d] | None = None  # whose frames these are, from its first call

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has: the frames. Its next call says which layer it is for."""
        return {**self.__dict__, "_layer": None}

    @property
    def kept(self) -> int:
        """The number of frames that are kept, zeros before the first one included."""
        return self._end - self._first

    def room(self, like: Tensor, frames: int | None = None) -> Tensor:
        """Memory for the next frames, (N, C, frames, H, W), whose shape and dtype are ``like``'s.

        Frames that were written there are the layer's next ``input``: they are not copied. Only
        behind a call, as that is what begins a stream. Of several clips, N > 1, frames of a clip
        are side by side, and a convolution copies the window.

        Raises :class:`~layoutconv.errors.ArgumentError` before the first call, and for frames of
        another kind.

        >>> layer, cache = CausalConv3d(4, 8, (2, 1, 1)), FrameCache()
        >>> frames = torch.randn(1, 4, 2, 3, 3)
        >>> with torch.no_grad():
        ...     first = layer(frames, cache)
        ...     room = cache.room(frames)
        ...     torch.nn.functional.silu(torch.mul(frames, 2, out=room), inplace=True).shape
        torch.Size([1, 4, 2, 3, 3])
        """
        if self._memory is None:
            raise ArgumentError("like", "a cache that a layer has been called with", "a new one")
        return self._room(like, like.shape[2] if frames is None else frames)

    def extended(self, input: Tensor, layer: CausalConv3d) -> Tensor:
        """The kept frames and those of ``input`` behind them, (N, C, kept + D, H, W).

        As many frames of zeros as ``layer`` reaches back are kept where there is none yet. Raises
        :class:`~layoutconv.errors.ArgumentError` for a layer that is not the cache's.
        """
        if self._layer is None:
            self._layer = ref(layer)
        elif self._layer() is not layer:
            expected = "a FrameCache for each layer, or one that was cleared"
            raise ArgumentError("cache", expected, "one with the frames of another layer")
        if self._memory is None:
            self._begin(input, layer.reach)
        self._passed, passed = max(0, self._passed - input.shape[2]), self._passed
        input = input[:, :, passed:]
        room = self._room(input, input.shape[2])
        if (input.data_ptr(), input.stride()) != (room.data_ptr(), room.stride()):
            room.copy_(input)
        self._end += input.shape[2]
        assert self._memory is not None
        return _in_torchs_order(self._memory[:, self._first : self._end])

    def keep_from(self, frame: int) -> None:
        """Keep the frames from one on, that many behind the first of :meth:`extended`."""
        self._passed += max(0, frame - self.kept)
        self._first = min(self._end, self._first + frame)

    def _begin(self, input: Tensor, reach: int) -> None:
        N, C, frames, H, W = input.shape
        length = reach + max(frames, self._frames)
        self._memory = input.new_zeros((N, length, H, W, C))
        self._end = reach

    def _room(self, like: Tensor, frames: int) -> Tensor:
        """Memory behind the last frame; before, what is kept is moved where there is not enough."""
        memory = self._memory
        assert memory is not None
        N, length, H, W, C = memory.shape
        got = tuple(like.shape[:2]), tuple(like.shape[3:]), like.dtype, like.device
        want = (N, C), (H, W), memory.dtype, memory.device
        if got != want:
            shape = f"(N, C, frames, H, W) = ({N}, {C}, any, {H}, {W})"
            expected = f"{shape}, {memory.dtype} on {memory.device}, as the frames before"
            raise ArgumentError("input", expected, f"{tuple(like.shape)}, {got[2]} on {got[3]}")
        if self._end + frames > length:
            kept = memory[:, self._first : self._end]
            if self.kept + frames > length:
                self._memory = memory.new_empty((N, self.kept + frames + self._frames, H, W, C))
            assert self._memory is not None
            self._memory[:, : self.kept] = kept.clone()
            self._first, self._end = 0, self.kept
        return _in_torchs_order(self._memory[:, self._end : self._end + frames])  # type: ignore[index]


class CausalConv3d(Conv3d):
    """A convolution over (D, H, W), D the frames, none of which reads a later one.

    As :class:`Conv3d`, with its weights, and fused ``activation``; but along D there are
    ``dilation * (T - 1)`` frames of padding before the first frame, and none behind the last.

    Args:
        padding: of H and W: an int, or one for each.

    ``layer(input)`` takes (N, C, D, H, W) and is differentiable. ``layer(input, cache)`` with a
    :class:`FrameCache` takes the next frames of a stream, any number, and returns the frames of the
    result that they complete: of all calls together what ``layer`` makes of the whole, to the last
    bit where the kernel is the same. It is for ``torch.no_grad()``: the cache's memory is written
    again. ``layer(input, frames)`` with a tensor of the frames before, (N, C, any, H, W), of which
    the last ones are read, keeps nothing, and is differentiable: a network that has lists of such
    frames goes on as it is. ``residual``, of the result's shape, is added before the activation.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument.

    >>> layer = CausalConv3d(4, 8, 3, padding=1, activation="silu")
    >>> video = torch.randn(1, 4, 5, 6, 6)
    >>> torch.allclose(layer(video)[:, :, :2], layer(video[:, :, :2]), atol=1e-5)
    True
    >>> layer
    CausalConv3d(4, 8, kernel_size=(3, 3, 3), stride=(1, 1, 1), padding=(1, 1), activation=silu)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
        slope: float = 0.01,
    ) -> None:
        taps, apart = (
            per_mode(*of, 3) for of in (("kernel_size", kernel_size), ("dilation", dilation))
        )
        self.reach: int = apart[0] * (taps[0] - 1)
        sides = per_mode("padding", padding, 2, 0)
        pairs = (self.reach, 0), *((side, side) for side in sides)
        super().__init__(
            in_channels, out_channels, taps, stride, pairs, apart, groups, bias, "zeros",
            device, dtype, activation=activation, slope=slope,
        )  # fmt: skip

    def forward(
        self,
        input: Tensor,
        cache: FrameCache | Tensor | None = None,
        *,
        residual: Tensor | None = None,
    ) -> Tensor:
        """The frames of the result that are complete with those of ``input``."""
        weight, bias = weight_and_bias(self)
        padding: Any = self.padding
        before, *sides = padding
        if isinstance(cache, torch.Tensor):
            input, missing = after_frames(self._frames(cache, input), input, self.reach)
            before, cache = (missing, 0), None
        elif cache is not None:
            input = self._with_cache(input, weight, cache)
            before = (0, 0)
            if input.shape[2] <= self.reach:  # no frame is complete
                return self._none_of(input, sides)
        result: Tensor = functional.conv3d(
            input, weight, bias, self.stride, (before, *sides), self.dilation, self.groups,
            activation=self.activation, slope=self.slope, residual=residual,
        )  # fmt: skip
        if cache is not None:
            cache.keep_from(result.shape[2] * self.stride[0])
        return result

    def _with_cache(self, input: Tensor, weight: Tensor, cache: Any) -> Tensor:
        if not isinstance(cache, FrameCache):
            expected = "a FrameCache, a tensor of frames or None"
            raise ArgumentTypeError("cache", expected, type(cache).__name__)
        _check_video(input)
        if input.shape[1] != self.in_channels:
            raise ArgumentError("input", f"{self.in_channels} channels", int(input.shape[1]))
        if torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad):
            expected = "None where a gradient is recorded, or torch.no_grad()"
            raise ArgumentError("cache", expected, "a FrameCache")
        return cache.extended(input, self)

    def _frames(self, frames: Tensor, input: Any) -> Tensor:
        """Frames that may stand before those of ``input``."""
        _check_video(input)
        N, C, _, H, W = input.shape
        like = (frames.dtype, frames.device) == (input.dtype, input.device)
        if not like or frames.dim() != 5 or (*frames.shape[:2], *frames.shape[3:]) != (N, C, H, W):
            expected = f"({N}, {C}, any, {H}, {W}), {input.dtype} on {input.device}, as the input"
            got = f"{tuple(frames.shape)}, {frames.dtype} on {frames.device}"
            raise ArgumentError("cache", expected, got)
        return frames

    def _none_of(self, input: Tensor, sides: Any) -> Tensor:
        """A result of no frame."""
        modes = zip(
            input.shape[3:],
            self.kernel_size[1:],
            self.dilation[1:],
            self.stride[1:],
            sides,
            strict=True,
        )
        cells = [(n + 2 * p[0] - d * (t - 1) - 1) // s + 1 for n, t, d, s, p in modes]
        return input.new_empty((input.shape[0], self.out_channels, 0, *cells))

    def extra_repr(self) -> str:
        padding: Any = self.padding
        sides = tuple(near for near, _ in padding[1:])
        return super().extra_repr().replace(f"padding={padding}", f"padding={sides}")


def _check_video(input: Any) -> None:
    if not isinstance(input, torch.Tensor) or input.dim() != 5:
        shape = tuple(getattr(input, "shape", ()))
        raise ArgumentError("input", "(N, C, D, H, W) where there is a cache", shape)


def _in_torchs_order(memory: Tensor) -> Tensor:
    return memory.movedim(-1, 1)
