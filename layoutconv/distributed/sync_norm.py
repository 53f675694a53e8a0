"""Batch norms with statistics over the rows of all ranks, with clouds of any size on each.

In the forward pass, each rank sends the others one message: the mean and the sum of squared
deviations of each channel, and the number of rows. In the backward pass they add up two sums per
channel. Messages stay on the device: with NCCL the host does not wait. The variance is no
difference of squares, so means far above the deviations cost no digits.

On a GPU each pass is two launches with the message between, and the second includes a ReLU or a sum
after the norm, as for batch norms (``nn.trained_norm``). Elsewhere, and for inputs that these
kernels do not take, passes are torch operations, and messages are float64.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ..base.ranks import Ranks, ranks_of
from ..errors import ArgumentError, ArgumentTypeError
from ..gpu.row_norm import Norm
from ..nn import trained_norm
from ..nn.dense_batch_norm import BatchNorm1d
from ..nn.fused_norm import NORMS
from ..nn.modules import Activated
from ..nn.padded_norm import remember
from ..nn.row_norm import by_kernels
from ..sparse import SparseTensor
from .group import place_in


class SyncBatchNorm(_BatchNorm):
    """Batch norm over the active voxels of all ranks, as in one process with all voxels.

    Args:
        num_features, eps, momentum, affine, track_running_stats, device, dtype: as for
            ``torch.nn.BatchNorm1d``, whose state it has.
        process_group: the ranks, by default all processes. Without ``init_process_group`` the
            process is alone.

    It takes a ``SparseTensor``, features (rows, C), or (N, C, ...). In a padded tensor, rows
    without a cell do not count, and their results are zeros. A rank may have no rows. In evaluation
    it is torch's norm. Gradients of ``weight`` and ``bias`` are those of a rank's own rows, which
    ``DistributedDataParallel`` averages; the input's gradient is exact.

    A training call is a collective, forward and backward, on gloo and on NCCL. Unlike in other
    calls of this package, ranks do not compare their calls first, as the host would have to wait:
    if one is missing, the others wait for the group's timeout.

    Raises :class:`~layoutconv.errors.ArgumentError` for another number of channels.

    >>> norm = SyncBatchNorm(1, eps=0)
    >>> norm(torch.tensor([[1.0], [3.0]])).T
    tensor([[-1.,  1.]], grad_fn=<PermuteBackward0>)
    """

    # Applies a function of features to what the norm in whose place it is takes; see ``compat``.
    of_features: Any = None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.process_group = process_group

    @classmethod
    def convert(
        cls, module: torch.nn.Module, process_group: dist.ProcessGroup | None = None
    ) -> torch.nn.Module:
        """Replace every batch norm in a module by a ``SyncBatchNorm`` with its parameters.

        Returns the module, or its replacement if it is a batch norm itself. Those of
        :mod:`layoutconv.nn` keep their activation, and the sum before it; those of
        ``layoutconv.compat`` take the tensors that they took. Lazy norms, norms over clouds that
        keep statistics per image, and classes with another forward pass are left alone.

        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        >>> type(SyncBatchNorm.convert(net)[1]).__name__
        'SyncBatchNorm'
        """
        if not isinstance(module, torch.nn.Module):
            raise ArgumentTypeError("module", "a torch.nn.Module", type(module).__name__)
        if isinstance(module, torch.nn.SyncBatchNorm) or (
            isinstance(module, _BatchNorm)
            and (type(module).forward in _FORWARDS or _of_features(module) is not None)
        ):
            return cls._of(module, process_group)
        for name, child in list(module._modules.items()):  # a shared norm under each of its names
            found = None if child is None else cls.convert(child, process_group)
            if found is not child:
                setattr(module, name, found)
        return module

    @classmethod
    def _of(cls, norm: Any, group: Any) -> SyncBatchNorm:
        numbers = norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
        kind = cls if type(norm).forward is not BatchNorm1d.forward else ActivatedSyncBatchNorm
        made: Any = kind(*numbers, group, "meta")
        if isinstance(norm, Activated):
            made.activation, made.slope = norm.activation, norm.slope
        made.of_features = _of_features(norm)
        for name, value in (*norm._parameters.items(), *norm._buffers.items()):  # some are None
            held = made._parameters if name in made._parameters else made._buffers
            held[name] = value
        return made.train(norm.training)  # type: ignore[no-any-return]

    def forward(self, input: Any) -> Any:
        """Normalize a sparse tensor, or features; return the same type."""
        if not isinstance(input, SparseTensor):
            apply = self.of_features
            return self._of_tensor(input) if apply is None else apply(self._of_tensor, input)
        there = input.coords[:, 0] >= 0 if input.coordinates.padded else None
        return input.replace(self.of_rows(input.features, there))

    def of_rows(self, features: Tensor, there: Tensor | None = None) -> Tensor:
        """Normalize features (rows, C); rows that are not ``there``, bool (rows,), become zeros."""
        return self._normalized(features, there)

    def _normalized(self, features: Tensor, there: Tensor | None = None) -> Tensor:
        if not self._counts():
            found: Tensor = super().forward(features)
            return found if there is None else found.where(there[:, None], 0)
        if features.dim() != 2 or features.shape[1] != self.num_features:
            expected = f"features of {self.num_features} channels"
            raise ArgumentError("input", expected, tuple(features.shape))
        place_in(self.process_group)  # raises for a group without this process
        norm = self._as_kernels_take_it(there)
        made = by_kernels(features, norm)
        if made is not None:
            return made
        of = there, self.weight, self.bias, self.eps, norm.ranks or Ranks(None, 1)
        y, mean, variance, count = _NormOverRanks.apply(features, *of)
        if self.training and self.running_mean is not None:
            with torch.no_grad():
                remember(self, mean, variance, count)
        out: Tensor = y
        return out

    def _as_kernels_take_it(self, there: Tensor | None) -> Norm:
        running = counted = None
        if self.training and self.running_mean is not None:
            assert self.running_var is not None
            running, counted = (self.running_mean, self.running_var), self.num_batches_tracked
        momentum: Any = 0.0 if running is None else self.momentum
        return Norm(
            self.weight, self.bias, running, momentum, self.eps, there,
            counted=counted, ranks=ranks_of(self),
        )  # fmt: skip

    def _counts(self) -> bool:
        return self.training or self.running_mean is None

    def _of_tensor(self, input: Any) -> Tensor:
        if not isinstance(input, torch.Tensor):
            expected = "a torch tensor, or a sparse tensor"
            raise ArgumentTypeError("input", expected, type(input).__name__)
        self._check_input_dim(input)
        if input.dim() == 2 or not self._counts():
            return self._normalized(input) if input.dim() == 2 else super().forward(input)
        rows = input.movedim(1, -1)
        return self._normalized(rows.flatten(0, -2)).view(rows.shape).movedim(-1, 1)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ArgumentError("input", "at least two modes, (rows, C)", tuple(input.shape))


class ActivatedSyncBatchNorm(Activated, SyncBatchNorm):
    """In the place of a batch norm of :mod:`layoutconv.nn`: ``activation(norm(input) + residual)``.

    No kernel fuses it with what follows.
    """

    def forward(self, input: Any, residual: Tensor | None = None) -> Any:
        if isinstance(input, SparseTensor) and residual is None:
            return super().forward(input)
        y = self._of_tensor(input)
        return self._activated(y if residual is None else y + residual)

    def of_rows(self, features: Tensor, there: Tensor | None = None) -> Tensor:
        found = self._activated(self._normalized(features, there))
        return found if there is None else found.where(there[:, None], 0)


def _of_features(norm: Any) -> Any:
    return getattr(type(norm), "of_features", None)


_FORWARDS = _BatchNorm.forward, BatchNorm1d.forward
NORMS.add(SyncBatchNorm)  # in evaluation fused into the launch before it
trained_norm.NORMS.add(SyncBatchNorm)  # in training fused with the layers after it


class _NormOverRanks(torch.autograd.Function):
    """The norm with statistics of all ranks; also returns mean, variance and count."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, there: Tensor | None, weight: Any, bias: Any, eps: float, of: Ranks
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        exact = torch.promote_types(x.dtype, torch.float32)
        own = x.to(exact)
        if there is not None:
            own = own.where(there[:, None], 0)
        mean, variance, count = _over(of.gathered(_statistics(own, there)))
        inverse = (variance + eps).rsqrt()
        y = _normal(own, mean, inverse, weight, bias)
        y = y if there is None else y.where(there[:, None], 0)
        ctx.save_for_backward(x, there, weight, mean, inverse, count)
        ctx.of, ctx.biased = of, bias is not None
        ctx.mark_non_differentiable(mean, variance, count)
        return y.to(x.dtype), mean, variance, count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
        x, there, weight, mean, inverse, count = ctx.saved_tensors
        exact = torch.promote_types(x.dtype, torch.float32)
        grad, normal = grad.to(exact), _normal(x.to(exact), mean, inverse)
        if there is not None:
            grad, normal = grad.where(there[:, None], 0), normal.where(there[:, None], 0)
        inverse = inverse.to(exact)
        own = torch.stack((grad.sum(0), (grad * normal).sum(0)))
        dw = db = None
        if weight is not None:
            dw = own[1].to(weight.dtype)
            db = own[0].to(weight.dtype) if ctx.biased else None
        dx = None
        if ctx.needs_input_grad[0]:
            # A collective: networks are the same on all ranks, so all of them need dx or none does.
            told = own.to(torch.float64, copy=True)  # a copy, as dw and db are views of ``own``
            both = (ctx.of.summed(told) / count.clamp(min=1)).to(exact)
            dx = inverse * (grad - both[0] - normal * both[1])
            if weight is not None:
                dx = (inverse * weight) * (grad - both[0] - normal * both[1])
            dx = (dx if there is None else dx.where(there[:, None], 0)).to(x.dtype)
        return dx, None, dw, db, None, None


def _statistics(x: Tensor, there: Tensor | None) -> Tensor:
    """Return a rank's message, fp64 (2 C + 1,): means, sums of squared deviations, number of rows.
    Rows that are not ``there`` are zeros in ``x``.

    Deviations are from the mean rounded to the precision of ``x``, and are computed in it; float64
    corrects the sums for the rounding of the mean.
    """
    count = x.new_tensor(len(x), dtype=torch.float64) if there is None else there.sum().double()
    rows = count.clamp(min=1)
    rounded = (x.sum(0, dtype=torch.float64) / rows).to(x.dtype)
    centred = x - rounded
    if there is not None:
        centred = centred.where(there[:, None], 0)
    rest = centred.sum(0, dtype=torch.float64) / rows
    squares = centred.square().sum(0).double() - count * rest.square()
    return torch.cat((rounded.double() + rest, squares.clamp(min=0), count.view(1)))


def _over(told: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, variance and rows from all ranks' messages (ranks, 2 C + 1) (Chan et al., 1979).

    >>> mean, variance, count = _over(torch.tensor([[1.0, 2, 2], [4, 0, 1], [0, 0, 0]]))
    >>> mean, variance * count, count
    (tensor([2.]), tensor([8.]), tensor(3.))
    """
    C = told.shape[1] // 2
    means, squares, counts = told.split((C, C, 1), 1)
    count = counts.sum()
    rows = count.clamp(min=1)
    mean = (means * counts).sum(0) / rows
    return mean, (squares + counts * (means - mean).square()).sum(0) / rows, count


def _normal(
    x: Tensor, mean: Tensor, inverse: Tensor, weight: Any = None, bias: Any = None
) -> Tensor:
    """``(x - mean) * inverse * weight + bias`` in the precision of ``x``; mean and inverse fp64.

    The rounding error of the mean in that precision is corrected together with the bias.
    """
    rounded = mean.to(x.dtype)
    factor = inverse if weight is None else inverse * weight
    beyond = (rounded - mean) * factor
    beyond = beyond if bias is None else beyond + bias
    return torch.addcmul(beyond.to(x.dtype), x - rounded, factor.to(x.dtype))
