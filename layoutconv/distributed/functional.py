"""Convolutions, with torch's arguments, of a volume that is split over a process group.

Every rank calls the function with its slab and gets its slab of the result. Weights and biases are
the same on every rank, and so are their gradients, which are sums over all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..conv import ConvProblem
from ..conv.problem import Ints, Padding, per_mode
from ..errors import ArgumentError, ArgumentTypeError
from ..nn.arguments import check_dense_operands, check_fits, check_groups, near_and_far
from ..ops.epilogue_args import EpilogueArgs
from .agreement import Agreement, tensor_term
from .convolution import SplitConv
from .exchange import Exchange
from .halo import Split, fprop_plan, output_bounds
from .slab import Slab, checked_slab


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    slab: Slab,
) -> Tensor:
    """Convolve this rank's part of (N, C, W), over one spatial mode. As :func:`conv3d`.

    >>> x = torch.tensor([[[1.0, 2, 3, 4]]])
    >>> conv1d(x, torch.tensor([[[1.0, 10, 100]]]), padding=1, slab=Slab(4))
    tensor([[[210., 321., 432.,  43.]]])
    """
    return _convolution(1, input, weight, bias, stride, padding, dilation, groups, slab)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    slab: Slab,
) -> Tensor:
    """Convolve this rank's part of (N, C, H, W), over two spatial modes. As :func:`conv3d`.

    >>> x = torch.arange(9.0).view(1, 1, 3, 3)
    >>> conv2d(x, torch.ones(1, 1, 3, 3), padding="same", slab=Slab(3, mode=1))[0, 0]
    tensor([[ 8., 15., 12.],
            [21., 36., 27.],
            [20., 33., 24.]])
    """
    return _convolution(2, input, weight, bias, stride, padding, dilation, groups, slab)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    slab: Slab,
) -> Tensor:
    """Convolve a volume split into a slab per rank: :func:`layoutconv.conv3d`, distributed.

    Args:
        input: (N, C, D, H, W); the split mode has only this rank's rows. ``channels_last_3d``
            memory is not copied. float16, bfloat16, float32 or float64; without a gradient also
            int8, float8_e4m3fn and float8_e5m2. All other extents and the dtype are the same on
            every rank.
        weight, bias, stride, padding, dilation, groups: as in :func:`layoutconv.conv3d`, and the
            same on every rank; padding is that of the whole volume.
        slab: how the input is split, a :class:`Slab` for the whole input's extent.

    Returns this rank's rows of the result, ``slab.after(...)``: the rows whose window has its
    middle on this rank. The halo that a rank needs follows from the forward view, and for the
    input's gradient from that pass's views; it may span several ranks with thin slabs. It is
    exchanged while all rows that need no halo are computed. With one volume and ``mode`` 0 only
    halos are copied.

    The gradients of ``weight`` and ``bias`` are sums over all ranks, on every rank: as if one
    process had computed the sum of all ranks' losses. Differentiable once. Autocast lowers it.

    It is a collective: every rank of the group calls it, and if gradients are needed every rank
    runs the backward pass. Ranks compare their arguments first.

    Raises :class:`~layoutconv.errors.ArgumentError`, a ``ValueError``, that names the argument: on
    every rank, if it differs between ranks or is invalid on one. Raises
    :class:`~layoutconv.errors.RankError` if ranks are in different calls, or one has ended.

    >>> import layoutconv as lc
    >>> x, w = torch.randn(1, 3, 6, 8, 8), torch.randn(5, 3, 3, 3, 3)
    >>> y = conv3d(x, w, stride=2, padding=1, slab=Slab(6))  # one process holds all
    >>> torch.allclose(y, lc.conv3d(x, w, stride=2, padding=1), atol=1e-4)
    True
    """
    return _convolution(3, input, weight, bias, stride, padding, dilation, groups, slab)


def exchange_halo(
    input: Tensor,
    kernel_size: int,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int = 1,
    *,
    slab: Slab,
) -> tuple[Tensor, Tensor]:
    """Return the rows of other ranks that a convolution reads: before and after this rank's rows.

    For layers of your own, and to time an exchange; :func:`conv3d` exchanges halos by itself.

    Args:
        input: ``(N, C, *spatial)``, this rank's rows; any dtype.
        kernel_size, stride, padding, dilation: of the convolution, in the mode that is split.

    Returns two tensors like ``input`` with the needed rows, none at the volume's ends. It has no
    gradient. It is a collective with the errors of :func:`conv3d`.

    >>> near, far = exchange_halo(torch.ones(1, 2, 6, 4), 3, padding=1, slab=Slab(6))
    >>> near.shape, far.shape
    (torch.Size([1, 2, 0, 4]), torch.Size([1, 2, 0, 4]))
    """
    with Agreement.of("exchange_halo", slab, Slab) as same:
        axis = checked_slab(slab).check("input", input)
        window = (1, slab.extent, 1), (1, kernel_size), stride, (padding,), dilation
        problem = ConvProblem(*window)
        after = output_bounds(problem, 0, slab.bounds)
        plan = fprop_plan(problem, Split(0, slab.bounds, after, slab.rank))
        same.terms |= {
            "input": tensor_term(input, axis), "slab": slab.cut, "kernel_size": kernel_size,
            "stride": stride, "padding": padding, "dilation": dilation,
        }  # fmt: skip
    held = input.detach().movedim(1, -1).contiguous()
    rows = Exchange(held, slab.mode, plan, slab.group).wait()
    return rows.near.movedim(-1, 1), rows.far.movedim(-1, 1)


def _convolution(
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: Padding | str,
    dilation: Ints,
    groups: int,
    slab: Slab,
) -> Tensor:
    with Agreement.of(f"conv{rank}d", slab, Slab) as same:
        checked_slab(slab)
        groups, ending = check_groups(groups), EpilogueArgs(bias)
        check_dense_operands(rank, input, weight, ending, groups, transposed=False, part=True)
        if input.dim() != rank + 2:
            expected = f"(N, C) and {rank} spatial modes"
            raise ArgumentError("input", expected, f"shape {tuple(input.shape)}")
        if input.is_complex():
            raise ArgumentTypeError("input", "real numbers", str(input.dtype))
        if slab.mode >= rank:
            raise ArgumentError("slab", f"a slab of one of {rank} spatial modes", slab)
        axis = slab.check("input", input)
        shapes = input.shape, weight.shape
        problem = problem_of(*shapes, stride, padding, dilation, groups, slab, axis)
        after = slab.of_output(problem)
        kind = input.device.type
        if torch.is_autocast_enabled(kind) and input.dtype != torch.float64:
            lower = torch.get_autocast_dtype(kind)
            input, weight = input.to(lower), weight.to(lower)
        same.terms |= {
            "input": tensor_term(input, axis), "weight": tensor_term(weight),
            "bias": tensor_term(bias), "slab": slab.cut, "stride": problem.stride,
            "padding": problem.padding, "dilation": problem.dilation, "groups": groups,
        }  # fmt: skip
    x, w = input.movedim(1, -1), weight.movedim(1, -1)
    with torch.autocast(kind, enabled=False):
        y = SplitConv.apply(x, w, bias, problem, slab, after, same.label)
    return y.movedim(-1, 1)


def problem_of(
    input: Sequence[int],
    weight: Sequence[int],
    stride: Ints,
    padding: Padding | str,
    dilation: Ints,
    groups: int,
    slab: Slab,
    axis: int,
) -> ConvProblem:
    """Return the problem of the whole volume, from a rank's shapes."""
    shape: list[Any] = list(input)
    shape[axis] = slab.extent
    N, C, *spatial = shape
    K, _, *taps = weight
    steps, apart = per_mode("stride", stride, len(taps)), per_mode("dilation", dilation, len(taps))
    pairs = near_and_far(padding, steps, apart, taps)
    check_fits(spatial, taps, pairs, apart)
    return ConvProblem((N, *spatial, C), (K, *taps), steps, pairs, apart, groups)
