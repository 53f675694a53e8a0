"""Submanifold convolution of a cloud that is split over ranks: function and modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import nn
from ..conv.problem import Ints
from ..errors import ArgumentError, ArgumentTypeError
from ..nn.arguments import check_activation
from ..nn.sparse import subm_conv as whole_subm_conv
from ..nn.sparse_checks import check_features, check_operands
from ..ops.epilogue_args import EpilogueArgs
from ..sparse import SparseTensor
from ..sparse.maps.taps import Taps
from ..tensors.epilogue_in_torch import activate
from .agreement import Agreement, tensor_term
from .border import border_of
from .cloud import Cloud, cloud_of
from .route import SumOfRanks, arrive, depart


def subm_conv(
    input: SparseTensor,
    weight: Tensor,
    bias: Tensor | None = None,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    offsets: Sequence[Sequence[int]] | None = None,
    activation: str | None = None,
    slope: float = 0.01,
) -> SparseTensor:
    """Submanifold convolution of a cloud that is split over ranks.

    It computes :func:`layoutconv.subm_conv` of the whole cloud. It sums over neighbours on this
    rank while the features of the other neighbours, the halo, arrive; then it adds the sums over
    these to the few rows that have them, and applies the activation.

    Args:
        input: this rank's part, from :func:`partition` or an earlier layer.
        weight, bias, dilation, groups, offsets, activation, slope: as for
            :func:`layoutconv.subm_conv`, and the same on every rank.

    Returns this rank's part of the result, on the coordinates of ``input``. In fp16 and bf16, a row
    with neighbours on another rank is rounded three times, not once.

    Gradients of features return through the exchange. Those of ``weight`` and ``bias`` are sums
    over all ranks, on every rank: as if one process had computed the sum of all ranks' losses.
    Differentiable once. Autocast lowers it.

    The halo follows from the taps, and is found once per cloud and set of taps. The call is a
    collective: every rank of the group calls it, and if gradients are needed every rank runs the
    backward pass. Ranks compare their arguments first.

    Raises :class:`~layoutconv.errors.ArgumentError`, a ``ValueError``, that names the argument: on
    every rank, if it differs between ranks or is invalid on one. Raises
    :class:`~layoutconv.errors.RankError` if ranks are in different calls, or one has ended.

    >>> import layoutconv as lc
    >>> cells = torch.tensor([[0, 1, 1], [0, 1, 2], [0, 3, 0]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[1.0], [10.0], [100.0]]), cells, (4, 4), batch_size=1)
    >>> y = subm_conv(lc.distributed.partition(x), torch.ones(1, 3, 3, 1))
    >>> lc.distributed.restore(y).T
    tensor([[ 11.,  11., 100.]])
    """
    with Agreement.of("subm_conv", getattr(input, "coordinates", None), Cloud) as same:
        cloud = cloud_of(input)
        if not isinstance(weight, torch.Tensor):
            raise ArgumentTypeError("weight", "a torch tensor", type(weight).__name__)
        x = input.features
        check_activation(activation, slope, x)
        kind = x.device.type
        if torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
            lower = torch.get_autocast_dtype(kind)
            x, weight = x.to(lower), weight.to(lower)
        extents = tuple(weight.shape[1:-1])
        if len(extents) != (cloud.rank if offsets is None else 1):
            expected = (
                f"(K, *taps, C / groups) for {cloud.rank} spatial modes, or (K, taps, C / groups)"
            )
            raise ArgumentError("weight", expected, f"shape {tuple(weight.shape)}")
        taps = Taps.centred(cloud.rank, extents, dilation, offsets)
        check_features(x)
        check_operands(x, weight, taps.extents, len(cloud), groups, EpilogueArgs(bias))
        same.terms |= {
            "input": tensor_term(x, split=0), "cloud": cloud.label, "weight": tensor_term(weight),
            "bias": tensor_term(bias), "taps": (taps.offsets, taps.stride), "groups": groups,
            "activation": activation, "slope": slope,
        }  # fmt: skip
        same.wish = taps not in cloud.borders
    if same.wish:  # set on some rank, maybe another
        cloud.borders.pop(taps, None)
    border = border_of(cloud, extents, dilation, offsets)
    if bias is None:
        (weight,) = SumOfRanks.apply(cloud.group, same.label, weight)
    else:
        weight, bias = SumOfRanks.apply(cloud.group, same.label, weight, bias)
    with torch.autocast(kind, enabled=False):
        here, token, trip = depart(x, border.route, same.label)
        inside = SparseTensor(here, border.inside.inputs)
        y = whole_subm_conv(inside, weight, bias, groups=groups, kernel_map=border.inside).features
        halo = SparseTensor(arrive(token, trip), border.halo.inputs)
        more = whole_subm_conv(halo, weight, groups=groups, kernel_map=border.halo).features
        y = y.index_add_(0, border.rows, more)
        if activation is not None:
            y = activate(y, activation, slope)
    return input.replace(y)


class _SplitSubmConv:
    """Mixin whose forward pass replaces that of the unsplit module."""

    def forward(self: Any, input: SparseTensor) -> SparseTensor:
        """Convolve this rank's part."""
        return subm_conv(
            input, self.weight, self.bias, self.dilation, self.groups,
            offsets=self.offsets, activation=self.activation, slope=self.slope,
        )  # fmt: skip


class SubmConv1d(_SplitSubmConv, nn.SubmConv1d):  # type: ignore[misc]
    """:class:`layoutconv.nn.SubmConv1d` of a split cloud. As :class:`SubmConv3d`."""


class SubmConv2d(_SplitSubmConv, nn.SubmConv2d):  # type: ignore[misc]
    """:class:`layoutconv.nn.SubmConv2d` of a split cloud. As :class:`SubmConv3d`."""


class SubmConv3d(_SplitSubmConv, nn.SubmConv3d):  # type: ignore[misc]
    """:class:`layoutconv.nn.SubmConv3d` of a split cloud, by :func:`subm_conv`.

    It has the limits of that function, and the arguments and state of the unsplit module. Ranks
    must start from the same weights: from one seed, one checkpoint, or a broadcast.

    >>> import layoutconv as lc
    >>> cells = torch.tensor([[0, 1, 1, 1], [0, 1, 2, 1]], dtype=torch.int32)
    >>> x = lc.distributed.partition(SparseTensor(torch.ones(2, 4), cells, (4, 4, 4), 1))
    >>> net = lc.nn.Sequential(SubmConv3d(4, 8, 3), torch.nn.ReLU(), SubmConv3d(8, 2, 3))
    >>> net(x)
    SparseTensor(2 rows, 2 channels, torch.float32, spatial_shape=(4, 4, 4), batch_size=1)
    """


class SubmConv4d(_SplitSubmConv, nn.SubmConv4d):  # type: ignore[misc]
    """:class:`layoutconv.nn.SubmConv4d` of a split cloud. As :class:`SubmConv3d`."""
