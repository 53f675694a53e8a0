"""Dense convolutions on a CPU by torch's own, which is oneDNN's where that runs.

    convolve(x, w, window) -> (N, K, Z, P, Q)
    convolve_transposed(y, w, spatial, window) -> (N, C, D, H, W)
    filter_gradient(y, x, taps, window) -> (K, C / groups, T, R, S)

Tensors have torch's shapes, for 1 to 3 spatial modes, and results the memory of ``channels_last``.
A layout is not evaluated here: :mod:`~layoutconv.cpu.cpu_executor` does that, of any view, and is
what these are tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from ..tensors.channels_last import in_channels_last
from ..tensors.epilogue_in_torch import Finish, accumulator_dtype
from ..view.epilogue import Activation, Bias, Epilogue

if TYPE_CHECKING:
    from torch import Tensor

Ints = Sequence[int]

_DTYPES = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
_CONTIGUOUS = {4: torch.channels_last, 5: torch.channels_last_3d}
_ROWS = 1 << 13  # of sums that are finished at once: their temporaries stay in a cache


class Window(NamedTuple):
    """The numbers of a convolution: ``padding`` is (near, far) of every spatial mode, flat."""

    stride: Ints
    padding: Ints
    dilation: Ints
    groups: int = 1


def is_torchs(dtype: torch.dtype) -> bool:
    """Return whether torch convolves tensors of a dtype on a CPU, with sums as exact as ours.

    >>> is_torchs(torch.bfloat16), is_torchs(torch.int8)
    (True, False)
    """
    return dtype in _DTYPES


def convolve(x: Tensor, w: Tensor, window: Window, bias: Tensor | None = None) -> Tensor:
    """The convolution of ``x`` (N, C, D, H, W) with ``w`` (K, C / groups, T, R, S).

    Returns (N, K, Z, P, Q) of the dtype of ``x``. ``bias`` (K,) has that dtype, too.

    >>> x, w = torch.ones(1, 1, 4), torch.ones(1, 1, 3)
    >>> convolve(x, w, Window([1], [2, 0], [1]))
    tensor([[[1., 2., 3., 3.]]])
    """
    both, near, far = _sides(window.padding)
    sums = torch.convolution(
        _in_memory_order(_padded(x, near, far)), _in_memory_order(w), bias,
        *_numbers(window, both), False, [0] * max(x.dim() - 2, 2), window.groups,
    )  # fmt: skip
    return _of_rank(sums, x.dim())


def convolve_transposed(
    y: Tensor, w: Tensor, spatial: Ints, window: Window, bias: Tensor | None = None
) -> Tensor:
    """The gradient of ``x``, of ``spatial`` cells, from ``y`` (N, K, Z, P, Q): :func:`convolve`'s.

    ``bias`` (C,) is added to every cell.

    >>> y, w = torch.tensor([[[1.0, 2]]]), torch.tensor([[[1.0, 10, 100]]])
    >>> convolve_transposed(y, w, [4], Window([2], [0, 1], [1]))
    tensor([[[  1.,  10., 102.,  20.]]])
    """
    both, near, far = _sides(window.padding)
    padded = [cells + n + f for cells, n, f in zip(spatial, near, far, strict=True)]
    modes = zip(padded, y.shape[2:], w.shape[2:], window.stride, both, window.dilation, strict=True)
    # Cells that no window reaches lie at the far side, fewer than a stride.
    unreached = [e - ((z - 1) * s - 2 * p + d * (t - 1) + 1) for e, z, t, s, p, d in modes]
    sums = torch.convolution(
        _in_memory_order(y), _in_memory_order(w), bias, *_numbers(window, both), True,
        [*[0] * (2 - len(near)), *unreached], window.groups,
    )  # fmt: skip
    for mode, (cells, first) in enumerate(zip(spatial, near, strict=True), -len(near)):
        sums = sums.narrow(mode, first, cells)
    return _of_rank(sums, y.dim())


def filter_gradient(y: Tensor, x: Tensor, taps: Ints, window: Window) -> Tensor:
    """The gradient of the filter, (K, C / groups, *taps), from ``y`` (N, K, Z, P, Q) and ``x``.

    >>> filter_gradient(torch.ones(1, 1, 2), torch.tensor([[[1.0, 2, 3]]]), [2],
    ...                 Window([1], [0, 0], [1]))
    tensor([[[3., 5.]]])
    """
    both, near, far = _sides(window.padding)
    shape = y.shape[1], x.shape[1] // window.groups, *[1] * (2 - len(near)), *taps
    filter = x.new_empty(shape)  # of which the shape alone is read
    _, found, _ = torch.ops.aten.convolution_backward(
        _in_memory_order(y), _in_memory_order(_padded(x, near, far)), filter, None,
        *_numbers(window, both), False, [0] * max(len(near), 2), window.groups,
        [False, True, False],
    )  # fmt: skip
    return _of_rank(found, y.dim())


def with_epilogue(
    pass_: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    a: Tensor,
    b: Tensor,
    epilogue: Epilogue | None = None,
    out_dtype: torch.dtype | None = None,
    statistics: Tensor | None = None,
) -> Tensor:
    """What follows the sums of a pass, rounded once as the views have it.

    Args:
        pass_: a function of two tensors and of the bias that torch adds, None without one.
        epilogue: the steps; residuals are in the order of memory, (N, Z, P, Q, K).
        out_dtype: the dtype of the result, by default that of ``a``.
        statistics: fp64 (2, K), to which those of the result are added.

    >>> x, w = torch.ones(1, 1, 4), torch.ones(1, 1, 3)
    >>> from layoutconv.view.epilogue import Scale
    >>> window = Window([1], [0, 0], [1])
    >>> with_epilogue(lambda x, w, bias: convolve(x, w, window, bias), x, w, Epilogue((Scale(2),)))
    tensor([[[6., 6.]]])
    """
    out = out_dtype or a.dtype
    rest, bias = _without_bias(epilogue, a.dtype)
    kind = _multiplied_in(a.dtype, out, rest)
    if kind != a.dtype:
        rest, bias = _without_bias(epilogue, kind)
    sums = pass_(a.to(kind), b.to(kind), bias)
    finish = Finish(rest, a.dtype, out, statistics)
    if finish.nothing and sums.dtype == out:
        return sums
    stored = sums if sums.dtype == out else torch.empty_like(sums, dtype=out)
    values, target = (t.movedim(1, -1).flatten(0, -2) for t in (sums, stored))
    sources = [source.reshape(values.shape) for source in finish.sources]
    for first in range(0, len(values), _ROWS):
        part = slice(first, first + _ROWS)
        target[part] = finish(values[part], slice(None), [source[part] for source in sources])
    return stored


def _multiplied_in(
    operand: torch.dtype, out: torch.dtype, epilogue: Epilogue | None
) -> torch.dtype:
    """The dtype in which operands go to torch so that a result is rounded once.

    Torch sums 16-bit numbers in fp32 and rounds. What follows a rounded sum has to commute with
    that, as relu does; else operands are fp32 before.
    """
    steps = epilogue.steps if epilogue is not None else ()
    commute = all(isinstance(step, Activation) and step.kind == "relu" for step in steps)
    return operand if out == operand and commute else accumulator_dtype(operand, 1)


def _without_bias(
    epilogue: Epilogue | None, dtype: torch.dtype
) -> tuple[Epilogue | None, Tensor | None]:
    """Return what follows a bias that torch adds itself, and that; None if there is none."""
    first, *rest = epilogue.steps if epilogue is not None and epilogue.steps else (None,)
    if epilogue is None or not isinstance(first, Bias) or first.by.dtype != dtype:
        return epilogue, None
    return Epilogue(tuple(rest), epilogue.statistics), first.by


def _sides(padding: Ints) -> tuple[list[int], list[int], list[int]]:
    """What is padded at both sides of every mode, and what is left for the near and the far one."""
    near, far = padding[::2], padding[1::2]
    both = [min(n, f) for n, f in zip(near, far, strict=True)]
    return both, [n - b for n, b in zip(near, both, strict=True)], [
        f - b for f, b in zip(far, both, strict=True)
    ]  # fmt: skip


def _padded(x: Tensor, near: Ints, far: Ints) -> Tensor:
    """A tensor with cells of zeros around; itself where there are none."""
    if not (any(near) or any(far)):
        return x
    pairs = reversed([*zip(near, far, strict=True)])  # the last mode first
    return torch.nn.functional.pad(x, [side for pair in pairs for side in pair])


def _numbers(window: Window, both: Ints) -> tuple[list[int], list[int], list[int]]:
    """Stride, padding and dilation, of two modes at least."""
    ahead = [1] * (2 - len(window.stride))
    return [*ahead, *window.stride], [*[0] * len(ahead), *both], [*ahead, *window.dilation]


def _in_memory_order(tensor: Tensor) -> Tensor:
    """A tensor in ``channels_last`` memory; lines as planes of one row, since torch has no other
    fast path for them.
    """
    tensor = tensor.unsqueeze(2) if tensor.dim() == 3 else tensor
    return tensor.contiguous(memory_format=_CONTIGUOUS[tensor.dim()])


def _of_rank(found: Tensor, modes: int) -> Tensor:
    """A result of so many modes, of ``channels_last`` memory."""
    shape = found.shape if found.dim() == modes else (*found.shape[:2], *found.shape[3:])
    return in_channels_last(found, shape)
