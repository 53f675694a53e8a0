"""torch's norms over images, taken over the voxels that a sparse image has.

``InstanceNorm1d`` to ``3d`` take statistics per image and channel, ``GroupNorm`` per image and
group of channels, as over a dense image whose other voxels do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.instancenorm import _InstanceNorm

from ..errors import ArgumentError, ArgumentTypeError
from ..ops import gathered_operators as ops
from ..sparse import SparseTensor
from ..tensors.epilogue_in_torch import activate
from .dense_norm import GroupNorm, InstanceNorm3d
from .modules import Activated

KINDS = (torch.nn.GroupNorm, _InstanceNorm)
# Forward passes of modules that may be or contain such norms: one lookup rules out others.
FORWARDS = frozenset(
    kind.forward for kind in (*KINDS, GroupNorm, InstanceNorm3d, torch.nn.Sequential)
)


def counts_images(module: Any) -> bool:
    """Return whether a module is such a norm, or contains one.

    >>> norms = torch.nn.InstanceNorm3d(4), torch.nn.BatchNorm1d(4)
    >>> [counts_images(module) for module in (*norms, torch.nn.Sequential(*norms))]
    [True, False, True]
    """
    if isinstance(module, torch.nn.Sequential):
        return any(map(counts_images, module))
    return isinstance(module, KINDS)


def per_image(module: Any, input: SparseTensor) -> Tensor:
    """Normalise features (rows, C) over the rows of each image of ``input``.

    Statistics are torch's over a dense image: variances are biased, except running ones. An image
    without rows has none. Rows without a cell get zeros. Hooks see features.

    Raises :class:`~layoutconv.errors.ArgumentError` for another number of channels, and for
    features that are no floating-point numbers.

    >>> from ..sparse import SparseTensor
    >>> x = SparseTensor.from_dense(torch.tensor([[[1.0], [3.0]], [[7.0], [0.0]]]))
    >>> per_image(torch.nn.InstanceNorm1d(1, eps=0.0001), x).T
    tensor([[-1.0000,  1.0000,  0.0000]])
    """
    return with_hooks(module, input.features, lambda features: _normed(module, features, input))


def with_hooks(module: Any, features: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Call ``function(features)`` between the hooks of a module, as if it were its ``forward``.

    >>> norm = torch.nn.GroupNorm(1, 4)
    >>> handle = norm.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    >>> with_hooks(norm, torch.zeros(1), lambda features: features * 10)
    tensor([10.])
    """
    args: tuple[Any, ...] = (features,)
    for key, hook in module._forward_pre_hooks.items():
        if key in module._forward_pre_hooks_with_kwargs:
            result = hook(module, args, {})
            args = args if result is None else result[0]
        else:
            result = hook(module, args)
            if result is not None:
                args = result if isinstance(result, tuple) else (result,)
    y = function(args[0])
    for key, hook in module._forward_hooks.items():
        if key in module._forward_hooks_with_kwargs:
            result = hook(module, args, {}, y)
        else:
            result = hook(module, args, y)
        y = y if result is None else result
    return y


def _normed(module: Any, features: Tensor, input: SparseTensor) -> Tensor:
    if not features.is_floating_point():
        raise ArgumentTypeError("input", "features of floating-point numbers", features.dtype)
    channels = features.shape[1]
    of_instances = isinstance(module, _InstanceNorm)
    wanted = module.num_features if of_instances else module.num_channels
    if channels != wanted:
        raise ArgumentError(
            "input", f"{wanted} channels, as the {type(module).__name__} has", channels
        )
    groups = channels if of_instances else module.num_groups
    images = _Images(input)
    x = features.to(torch.promote_types(features.dtype, torch.float32))
    if of_instances and not module.training and module.running_mean is not None:
        centred = x - module.running_mean
        variance = module.running_var.expand_as(x)
    else:
        mean = _of_groups(images.mean(x), groups)
        centred = x - images.on_rows(mean)
        of_images = _of_groups(images.mean(centred.square()), groups)
        variance = images.on_rows(of_images)
        if of_instances and module.training and module.running_mean is not None:
            _remember(module, mean.detach(), of_images.detach(), images.counts)
    y = centred * (variance + module.eps).rsqrt()
    if module.affine:
        y = y * module.weight
        y = y if module.bias is None else y + module.bias
    if isinstance(module, Activated) and module.activation is not None:
        y = activate(y, module.activation, module.slope)
    if input.coordinates.padded:
        y = y.where(images.batch[:, None] >= 0, 0)
    return y.to(features.dtype)


def _of_groups(values: Tensor, groups: int) -> Tensor:
    """Return (N, C) from (N, C): each channel gets the mean of its group."""
    images, channels = values.shape
    if groups == channels:
        return values
    return values.view(images, groups, channels // groups).mean(2, keepdim=True).expand(
        -1, -1, channels // groups
    ).reshape(images, channels)  # fmt: skip


@torch.no_grad()
def _remember(module: Any, mean: Tensor, variance: Tensor, counts: Tensor) -> None:
    """Update running statistics like torch, with means over the images of two rows or more."""
    share = (counts > 1).to(mean.dtype)
    images = share.sum()
    unbiased = variance * (counts / (counts - 1).clamp(min=1))
    share = share / images.clamp(min=1)
    momentum = (module.momentum or 0.0) * (images > 0)
    for running, now in (module.running_mean, mean), (module.running_var, unbiased):
        running.copy_(running + momentum * ((share * now).sum(0) - running))


class _Images:
    """The rows of each image: takes means over them, and spreads values to them."""

    def __init__(self, input: SparseTensor) -> None:
        self._order, self._starts, self.batch = input.coordinates.by_image

    @property
    def counts(self) -> Tensor:
        """The rows of each image, int64 (N, 1)."""
        return self._starts.diff()[:, None]

    def mean(self, x: Tensor) -> Tensor:
        """Return means (N, C) of (rows, C)."""
        return ops.sparse_global_pool(x, self._order, self._starts, self.batch, "mean")[0]

    def on_rows(self, values: Tensor) -> Tensor:
        """Spread (N, C) to (rows, C): each row gets its image's values."""
        return _OnRows.apply(values, self._order, self._starts, self.batch)  # type: ignore[no-untyped-call, no-any-return]


class _OnRows(torch.autograd.Function):
    """Spread each image's values to its rows; the gradient is a sum in the order of the rows."""

    generate_vmap_rule = True

    @staticmethod
    # Without gradients, dynamo tells by the number of parameters that there is no ctx.
    def forward(values: Tensor, order: Tensor, starts: Tensor, batch: Tensor) -> Tensor:
        batch = batch.long()
        if not len(values):
            return values.new_zeros(len(batch), values.shape[1])
        return values.index_select(0, batch.clamp(min=0)).masked_fill_((batch < 0)[:, None], 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.rows = inputs[1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        order, starts, batch = ctx.rows
        return ops.sparse_global_pool(grad, order, starts, batch, "sum")[0], None, None, None
