"""Dense convolutions on a CPU by torch, which uses oneDNN where it can.

    TorchConvolution(problem)
        .fprop(x, w)    (N, C, D, H, W), (K, C / groups, T, R, S)  ->  (N, K, Z, P, Q)
        .dgrad(y, w)                                               ->  (N, C, D, H, W)
        .wgrad(y, x)                                               ->  (K, C / groups, T, R, S)

Tensors have torch's shapes, for 1 to 3 spatial modes, and results are ``channels_last`` in memory.
No layout is evaluated here; :mod:`~layoutconv.cpu.cpu_executor` does that for any view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..conv.problem import ConvProblem
from ..tensors.channels_last import channels_last_stride, in_channels_last, with_packed_strides
from ..tensors.epilogue_in_torch import Finish, accumulator_dtype
from ..view.epilogue import Bias, Epilogue
from .finished_rows import finish_rows

_DTYPES = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
CONTIGUOUS = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_torchs(a: Tensor, b: Tensor) -> bool:
    """Return whether torch convolves two tensors on a CPU, with sums as exact as a view's.

    >>> x, w = torch.ones(1, 1, 4), torch.ones(1, 1, 3)
    >>> is_torchs(x, w), is_torchs(x.to(torch.int8), w.to(torch.int8)), is_torchs(x[:0], w)
    (True, False, False)
    """
    return a.is_cpu and a.dtype in _DTYPES and a.numel() > 0 and b.numel() > 0


class TorchConvolution:
    """The three passes of a problem without extents of 0, as calls of torch.

    Torch pads both sides of a mode alike: the rest is padded before, or cut off after. The class
    also works around oneDNN's wrong cases: depths that it pads wrongly are padded before; lines
    that it strides along wrongly are sliced first; if it strides over single channels wrongly,
    their memory gets the strides of torch's own order; if it strides along a column of windows
    wrongly, the column becomes a line.

    >>> problem = ConvProblem((1, 4, 1), (1, 3), padding=[(2, 0)])
    >>> TorchConvolution(problem).fprop(torch.ones(1, 1, 4), torch.ones(1, 1, 3))
    tensor([[[1., 2., 3., 3.]]])
    """

    def __init__(self, problem: ConvProblem) -> None:
        lines = [1] * (2 - problem.rank)  # extra modes that make lines planes
        both = [max(0, min(sides)) for sides in problem.padding]
        # Cells that no window reaches lie at the far side: fewer than a stride.
        reach = zip(problem.output_spatial, problem.stride, problem.spans, strict=True)
        reached = [(z - 1) * step + span for z, step, span in reach]
        over = [e - r for e, r in zip(problem.padded, reached, strict=True)]
        self.unreached = [0 for _ in lines] + over
        self.steps = problem.stride if _steps_beyond(problem, over) else ()
        if self.steps:
            both = [0] * problem.rank
        elif _overruns(problem, both[0]):
            both[0] = 0
        self.near = [near - least for (near, _), least in zip(problem.padding, both, strict=True)]
        self.far = [far - least for (_, far), least in zip(problem.padding, both, strict=True)]
        self.padded = last_first(self.near, [max(0, far) for far in self.far])
        self.numbers = (
            [*lines, *problem.stride],
            [0 for _ in lines] + both,
            [*lines, *problem.dilation],
        )
        self.read = ([1, 1], *self.numbers[1:]) if self.steps else self.numbers
        columns = problem.output_spatial[-1] == 1
        skips = any(
            step > taps for step, taps in zip(self.read[0], (*lines, *problem.taps), strict=True)
        )
        self.single = problem.C == 1 and (skips or (columns and max(self.read[0]) > 1))
        self.turned = columns and self.read[0][-2] > 1 and not self.single
        self.groups, self.none = problem.groups, [0] * max(2, problem.rank)
        self.taps = (*lines, *problem.taps)
        self.x, self.w, self.y = (
            (shape, channels_last_stride(shape))
            for shape in map(
                _in_torchs_order, (problem.activation, problem.stored_filter, problem.output)
            )
        )
        self.spatial = problem.spatial

    def fprop(self, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        """Convolve; ``bias`` (K,) has the dtype of ``x``."""
        return in_channels_last(self._sums(in_planes(self._pad(x)), w, bias), *self.y)

    def recorded(self, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        """Run :meth:`fprop` recorded by autograd as torch's own, for two or three spatial modes.

        >>> convolution = TorchConvolution(ConvProblem((1, 4, 4, 1), (1, 3, 3)))
        >>> x, w = (torch.ones(1, 1, n, n, requires_grad=True) for n in (4, 3))
        >>> convolution.recorded(x, w).sum().backward()
        >>> w.grad.flatten()
        tensor([4., 4., 4., 4., 4., 4., 4., 4., 4.])
        """
        sums = self._sums(with_packed_strides(self._pad(x)), w, bias)
        shape, stride = self.y
        if sums.stride() == stride and not self.turned:
            return sums
        return sums.new_empty_strided(shape, stride).copy_(sums)

    def dgrad(self, y: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the gradient of ``x``, or the transposed convolution, with a ``bias`` (C,).

        >>> problem = ConvProblem((1, 4, 1), (1, 3), stride=2, padding=[(0, 1)])
        >>> y, w = torch.tensor([[[1.0, 2]]]), torch.tensor([[[1.0, 10, 100]]])
        >>> TorchConvolution(problem).dgrad(y, w)
        tensor([[[  1.,  10., 102.,  20.]]])
        """
        y, w = in_planes(y), filter_in_planes(w)
        sums = torch.convolution(y, w, bias, *self.numbers, True, self.unreached, self.groups)
        if self.padded or min(self.far) < 0:
            for mode, first in enumerate(self.near, -len(self.near)):
                read = max(0, self.spatial[mode] + min(0, self.far[mode]))
                sums = sums.narrow(mode, first if read else 0, read)
            sums = self._with_unread_cells(sums, bias)
        return in_channels_last(sums, *self.x)

    def _with_unread_cells(self, sums: Tensor, bias: Tensor | None) -> Tensor:
        """Extend sums by cells at the far side that nothing reads, if that padding is negative."""
        if min(self.far) >= 0:
            return sums
        shape = *sums.shape[: -len(self.spatial)], *self.spatial
        if bias is None:
            every = sums.new_zeros(shape)
        else:
            every = bias.view(-1, *[1] * (sums.dim() - 2)).expand(shape).contiguous()
        read = every
        for mode in range(-len(self.spatial), 0):
            read = read.narrow(mode, 0, sums.shape[mode])
        read.copy_(sums)
        return every

    def wgrad(self, y: Tensor, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the gradient of the filter; no bias follows it.

        >>> problem = ConvProblem((1, 3, 1), (1, 2))
        >>> TorchConvolution(problem).wgrad(torch.ones(1, 1, 2), torch.tensor([[[1.0, 2, 3]]]))
        tensor([[[3., 5.]]])
        """
        shape = *self.w[0][:2], *self.taps  # only shape and memory order of the filter are used
        filter = x.new_empty_strided(shape, channels_last_stride(shape))
        x, filter = self._ordered(in_planes(self._pad(x)), filter)
        _, found, _ = torch.ops.aten.convolution_backward(
            in_planes(y), x, filter, None, *self.read,
            False, self.none, self.groups, [False, True, False],
        )  # fmt: skip
        return in_channels_last(found, *self.w)

    def _sums(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve the cells that are read, in any memory order.

        If a line has one window and H a stride, torch 2.13 writes up to 240 kB outside its memory.
        With H and W swapped, 1,000 such problems were right.
        """
        numbers = self.read
        if self.turned:
            stride, padding, dilation = ([*n[:-2], n[-1], n[-2]] for n in numbers)
            x, w, numbers = x.mT, w.mT, (stride, padding, dilation)
        x, w = self._ordered(with_packed_strides(x), filter_in_planes(w))
        sums = torch.convolution(x, w, bias, *numbers, False, self.none, self.groups)
        return sums.mT if self.turned else sums

    def _ordered(self, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return both operands in the memory order in which torch should convolve them.

        With ``channels_last`` strides of one channel, torch 2.13 computes wrong sums if a line has
        one window and W a stride, and writes 16 kB and more outside its memory if another stride is
        larger than the taps. In its own order, 10,000 random problems were right. Other cases stay
        unchanged, since a stem of 3x3 taps takes up to ten times as long in that order.
        """
        if not self.single:
            return x, w
        return x.squeeze(1).unsqueeze(1), w.squeeze(1).unsqueeze(1)

    def _pad(self, x: Tensor) -> Tensor:
        x = torch.nn.functional.pad(x, self.padded) if self.padded else x
        for mode, far in enumerate(self.far, -len(self.far)):
            if far < 0:  # this may cut off more than the input had before the near padding
                x = x.narrow(mode, 0, x.shape[mode] + far)
        if self.steps:
            picked = [slice(None, None, step) for step in (1, 1, *self.steps)]
            x = x[tuple(picked)]
        return x


def is_right_of_any_extents(
    channels: int,
    taps: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> bool:
    """Return whether torch is right in all passes as it is, except if a line has one window.

    It takes no extents, as a compiler's are symbols. ``padding`` is for both sides, and
    ``channels`` are those of the input, or of a transposed convolution's result.

    >>> is_right_of_any_extents(64, (3, 3), (2, 2), (1, 1), (1, 1), 1)
    True
    >>> is_right_of_any_extents(1, (3, 3), (2, 2), (1, 1), (1, 1), 1)
    False
    """
    if max(stride) == 1:
        return True
    wrong = (
        channels == 1
        or _overruns_if_few(taps, stride, padding[0], dilation)
        or _steps_beyond_if_any(channels, taps, groups)
    )
    return not wrong


def _overruns(problem: ConvProblem, padding: int) -> bool:
    """Return True if oneDNN's filter gradient may write outside its memory.

    Found by trying 15,000 float32 problems with torch 2.13: all that were wrong, or ended the
    process, had three modes, windows at the near side of D that a stride above 1 leaves entirely in
    the padding, and so few cells that windows reach over both sides.
    """
    few = problem.spatial[0] < problem.taps[0] + problem.stride[0]
    return few and _overruns_if_few(problem.taps, problem.stride, padding, problem.dilation)


def _overruns_if_few(
    taps: Sequence[int], stride: Sequence[int], padding: int, dilation: Sequence[int]
) -> bool:
    return len(taps) == 3 and padding > stride[0] > 1 == dilation[0]


def _steps_beyond(problem: ConvProblem, unreached: Sequence[int]) -> bool:
    """Return True if oneDNN's filter gradient of one tap writes outside its memory.

    If a stride leaves cells at the far side, it writes as far as these would be, up to 130 kB.
    Found by guards around 12,000 float32 passes with torch 2.13: all had one or two modes, no
    groups and fewer channels than the 16 lanes of a vector.
    """
    return _steps_beyond_if_any(problem.C, problem.taps, problem.groups) and any(unreached)


def _steps_beyond_if_any(channels: int, taps: Sequence[int], groups: int) -> bool:
    one_tap = all(tap == 1 for tap in taps)
    return one_tap and groups == 1 and len(taps) < 3 and channels < 16


def last_first(near: Sequence[int], far: Sequence[int]) -> list[int]:
    """Return padding of each mode as for ``torch.nn.functional.pad``; [] if there is none."""
    pairs = list(zip(near, far, strict=True))[::-1]
    return [side for pair in pairs for side in pair] if any((*near, *far)) else []


def with_epilogue(
    sums_of: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    a: Tensor,
    b: Tensor,
    epilogue: Epilogue | None = None,
    out_dtype: torch.dtype | None = None,
    statistics: Tensor | None = None,
) -> Tensor:
    """Run a pass and apply its epilogue, rounding once, as views do.

    Args:
        sums_of: a pass, called with two tensors and the bias that torch adds, or None.
        epilogue: the steps; residuals are in memory order, (N, Z, P, Q, K).
        out_dtype: the dtype of the result, by default that of ``a``.
        statistics: fp64 (2, K), to which the result's statistics are added.

    >>> from layoutconv.view.epilogue import Scale
    >>> convolution = TorchConvolution(ConvProblem((1, 4, 1), (1, 3)))
    >>> x, w = torch.ones(1, 1, 4), torch.ones(1, 1, 3)
    >>> with_epilogue(convolution.fprop, x, w, Epilogue((Scale(2),)))
    tensor([[[6., 6.]]])
    """
    # Not in 16 bits: with AMX, torch 2.13 computes wrong sums of bfloat16 (64 channels, a filter
    # (1, 3, 2), strides of 4, a dilation of 2), and without float16 instructions it rounds parts of
    # a gradient's sums.
    out, kind = out_dtype or a.dtype, accumulator_dtype(a.dtype, 1)
    if epilogue is None and out == a.dtype == kind:
        return sums_of(a, b, None)
    rest, bias = _without_bias(epilogue, kind)
    sums = sums_of(a.to(kind), b.to(kind), bias)
    finish = Finish(rest, a.dtype, out, statistics)
    if finish.nothing and sums.dtype == out:
        return sums
    stored = sums if sums.dtype == out else torch.empty_like(sums, dtype=out)
    values, target = (t.movedim(1, -1).flatten(0, -2) for t in (sums, stored))
    sources = [source.reshape(values.shape) for source in finish.sources]
    finish_rows(finish, values, target, sources)
    return stored


def _without_bias(
    epilogue: Epilogue | None, dtype: torch.dtype
) -> tuple[Epilogue | None, Tensor | None]:
    """Split off a first bias that torch adds itself: return the other steps, and it or None."""
    first, *rest = epilogue.steps if epilogue is not None and epilogue.steps else (None,)
    if epilogue is None or not isinstance(first, Bias) or first.by.dtype != dtype:
        return epilogue, None
    return Epilogue(tuple(rest), epilogue.statistics), first.by


def _in_torchs_order(shape: Sequence[int]) -> tuple[int, ...]:
    """Reorder (N, D, H, W, C) to (N, C, D, H, W)."""
    return shape[0], shape[-1], *shape[1:-1]


def in_planes(tensor: Tensor) -> Tensor:
    """View lines as planes of one row, since torch has no other fast path for them.

    The memory of a filter decides the order in which torch convolves: it copies an operand in
    another order.
    """
    return with_packed_strides(tensor.unsqueeze(2) if tensor.dim() == 3 else tensor)


def filter_in_planes(tensor: Tensor) -> Tensor:
    """View a filter's lines as planes of one row, in ``channels_last`` memory."""
    tensor = tensor.unsqueeze(2) if tensor.dim() == 3 else tensor
    return with_packed_strides(tensor.contiguous(memory_format=CONTIGUOUS[tensor.dim()]))
