"""Causal convolutions of video, on whole clips or a few frames at a time.

A frame of the result reads no later frame: all padding along D is before the first one. For a video
that arrives in pieces a layer needs the last frames of the previous piece. The cache keeps these
and the new frames in one buffer: each new frame is written once, behind the last, and nothing is
concatenated. The norm or activation that produces the frames may write them there directly.
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

FRAMES = 16  # that a cache has room for before it moves the kept frames to its start


class FrameCache:
    """The frames of a stream that the next call of one :class:`CausalConv3d` reads again.

    It starts with frames of zeros, the padding before the first frame. Each layer of a stream has a
    cache of its own; :meth:`clear` starts another stream.

    Args:
        frames: how many frames are appended before the kept ones move back to the start of the
            memory. A call with more frames allocates more memory.

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
        self._first = self._end = 0  # range of the frames in memory that are kept
        self._passed = 0  # coming frames that nothing reads, as the stride exceeds the window
        self._layer: ref[CausalConv3d] | None = None  # the owner, from its first call

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy: the frames. The layer of its next call becomes its owner."""
        return {**self.__dict__, "_layer": None}

    @property
    def kept(self) -> int:
        """The number of kept frames, zeros before the first one included."""
        return self._end - self._first

    def room(self, like: Tensor, frames: int | None = None) -> Tensor:
        """Return memory for the next frames, (N, C, frames, H, W): ``like`` gives shape and dtype.

        Frames written there are not copied if they are the layer's next ``input``. The layer's
        first call starts the stream, so call this after it. With several clips, N > 1, the window's
        frames are not packed in memory, and a convolution copies them.

        Raises :class:`~layoutconv.errors.ArgumentError` before the first call, and for frames of
        another shape, dtype or device.

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
        """Append the frames of ``input`` to the kept ones: (N, C, kept + D, H, W).

        An empty cache starts with ``layer.reach`` frames of zeros. Raises
        :class:`~layoutconv.errors.ArgumentError` if the cache belongs to another layer.
        """
        if self._layer is None:
            self._layer = ref(layer)
        elif self._layer() is not layer:
            expected = "a FrameCache of this layer alone, or one that was cleared"
            raise ArgumentError("cache", expected, "a cache with the frames of another layer")
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
        """Drop the first ``frame`` frames of :meth:`extended`, and keep the rest."""
        self._passed += max(0, frame - self.kept)
        self._first = min(self._end, self._first + frame)

    def _begin(self, input: Tensor, reach: int) -> None:
        N, C, frames, H, W = input.shape
        length = reach + max(frames, self._frames)
        self._memory = input.new_zeros((N, length, H, W, C))
        self._end = reach

    def _room(self, like: Tensor, frames: int) -> Tensor:
        """Return memory behind the last frame; if it is too small, move the kept frames first."""
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
    """A causal convolution over (D, H, W): with frames along D, no result reads a later frame.

    It is a :class:`Conv3d` with the same weights and fused ``activation``, but pads D with
    ``dilation * (T - 1)`` frames before the first frame, and none behind the last.

    Args:
        padding: of H and W: one int, or one for each.

    ``layer(input)`` takes (N, C, D, H, W) and is differentiable.

    ``layer(input, cache)`` with a :class:`FrameCache` takes the next frames of a stream, any
    number, and returns the frames of the result that they complete. All calls together return what
    ``layer`` returns for the whole video, bit for bit if the kernel is the same. Use
    ``torch.no_grad()``, as the cache overwrites its memory.

    ``layer(input, frames)`` with a tensor of the frames before, (N, C, any, H, W), reads the last
    ones, keeps nothing, and is differentiable: networks with lists of such frames need no change.

    ``residual``, of the result's shape, is added before the activation.

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
        """Return the frames of the result that ``input`` completes."""
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
            expected = "None where gradients are recorded, or a call under torch.no_grad()"
            raise ArgumentError("cache", expected, "a FrameCache")
        return cache.extended(input, self)

    def _frames(self, frames: Tensor, input: Any) -> Tensor:
        """Check that ``frames`` may stand before those of ``input``."""
        _check_video(input)
        N, C, _, H, W = input.shape
        like = (frames.dtype, frames.device) == (input.dtype, input.device)
        if not like or frames.dim() != 5 or (*frames.shape[:2], *frames.shape[3:]) != (N, C, H, W):
            expected = f"({N}, {C}, any, {H}, {W}), {input.dtype} on {input.device}, as the input"
            got = f"{tuple(frames.shape)}, {frames.dtype} on {frames.device}"
            raise ArgumentError("cache", expected, got)
        return frames

    def _none_of(self, input: Tensor, sides: Any) -> Tensor:
        """Return a result without frames."""
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
        raise ArgumentError("input", "(N, C, D, H, W) where a cache is given", shape)


def _in_torchs_order(memory: Tensor) -> Tensor:
    return memory.movedim(-1, 1)
