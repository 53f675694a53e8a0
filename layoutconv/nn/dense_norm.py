"""Group and instance norms of dense images in ``channels_last`` memory, by kernels on a GPU.

torch computes these norms of channels-first memory: between two convolutions that are
``channels_last`` it copies images back and forth, and reads them several times besides. Kernels
read them as they are, twice forward, and apply an activation as they write. Everything else, other
memory, a CPU, running statistics, ``torch.compile`` and transforms, is torch's own norm.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.nn import functional

from ..base.torch_internals import is_gradient_tracked, is_tracing, transform_on_top
from ..gpu import group_norm
from ..gpu.group_norm import GroupNorm as Norm
from ..ops.autocast import LOWERED
from ..ops.guard import PLAIN, is_watched_unseen, wants_gradient
from ..tensors.epilogue_in_torch import activate
from .modules import Activated

_PLAIN_OR_NONE = PLAIN | {type(None)}


def by_kernels(input: Tensor, norm: Norm) -> Tensor | None:
    """The norm of images (N, C, ...) and its activation; None where kernels do not compute it."""
    weight, bias = norm.weight, norm.bias
    if not (
        type(input) in PLAIN
        and input.is_cuda
        and input.dim() > 2
        and _PLAIN_OR_NONE.issuperset((type(weight), type(bias)))
        and not is_watched_unseen()
        and not is_tracing()
        and transform_on_top() is None
        and not is_gradient_tracked(input)  # nor one that a transform left
    ):
        return None
    last = norm.activation
    fused = norm if last in group_norm.ACTIVATIONS else norm._replace(activation=None)
    if not group_norm.takes(input, fused):
        return None
    found = on_kernels(input, fused)
    return found if fused.activation is last else activate(found, str(last), norm.slope)


def on_kernels(input: Tensor, norm: Norm) -> Tensor:
    """The norm of images that ``group_norm.takes``, recorded where a gradient is wanted."""
    if not wants_gradient(input, norm.weight, norm.bias):
        return group_norm.normalised(input, norm)[0]
    found: Tensor = _record(input, norm.weight, norm.bias, norm)
    return found


def in_torch(x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm) -> Tensor:
    """The same by operations of torch, which any gradient goes through.

    >>> norm = Norm(2, None, None, 0.0, "relu", 0.0, torch.float32)
    >>> in_torch(torch.tensor([[[1.0, 3.0], [2.0, 6.0]]]), None, None, norm)
    tensor([[[0., 1.],
             [0., 1.]]])
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    scale, offset = (None if t is None else t.to(exact) for t in (weight, bias))
    y = functional.group_norm(x.to(exact), norm.groups, scale, offset, norm.eps)
    y = y if norm.activation is None else activate(y, norm.activation, norm.slope)
    return y.to(norm.dtype)


class _OnKernels(torch.autograd.Function):
    """The norm by kernels, its gradients too; second derivatives by operations of torch."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, input: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm
    ) -> Tensor:
        out, statistics = group_norm.normalised(input, norm)
        ctx.save_for_backward(input, weight, bias, statistics)
        ctx.norm = norm._replace(weight=None, bias=None)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        input, weight, bias, statistics = ctx.saved_tensors
        leaves, norm = (input, weight, bias), ctx.norm
        if torch.is_grad_enabled():
            wanted = [t for t in leaves if t is not None and t.requires_grad]
            y = in_torch(*leaves, norm)
            found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True))
            return *(
                next(found) if t is not None and t.requires_grad else None for t in leaves
            ), None
        norm = norm._replace(weight=weight, bias=bias)
        dx, (db, dw) = group_norm.gradients(input, norm, statistics, grad)
        if weight is None:
            return dx, None, None, None
        return dx, dw.to(weight.dtype), db.to(weight.dtype), None


# Past what ``apply`` asks of transforms, which :func:`by_kernels` has asked.
_record: Any = super(torch.autograd.Function, _OnKernels).apply


class GroupNorm(Activated, torch.nn.GroupNorm):
    """torch's group norm, and an activation after it.

    Args:
        activation, slope: as of :class:`~layoutconv.nn.Conv3d`.

    The other arguments, the state and the results are those of ``torch.nn.GroupNorm``: images
    (N, C, ...) of float16, bfloat16 or float32 in, the same out, float32 under autocast. Kernels
    compute it of ``channels_last`` images on a GPU, and round once, at the end.

    >>> norm = GroupNorm(2, 4, activation="silu")
    >>> norm  # doctest: +ELLIPSIS
    GroupNorm(2, 4, eps=1e-05, affine=True, ...activation=silu)
    >>> x = torch.randn(1, 4, 5, 5)
    >>> torch.allclose(norm(x), torch.nn.functional.silu(torch.nn.GroupNorm(2, 4)(x)))
    True
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
        activation: str | None = None,
        slope: float = 0.01,
    ) -> None:
        more = {} if bias else {"bias": False}  # which torch has since 2.13
        super().__init__(num_groups, num_channels, eps, affine, device, dtype, **more)
        self._activate(activation, slope)

    def forward(self, input: Tensor) -> Tensor:
        if type(input) in PLAIN and not torch.compiler.is_compiling() and input.dim() > 1:
            lowered = torch.is_autocast_enabled("cuda") and input.dtype in LOWERED
            norm = Norm(
                self.num_groups, self.weight, self.bias, self.eps, self.activation, self.slope,
                torch.float32 if lowered else input.dtype,  # as torch's has it
            )  # fmt: skip
            fits = input.shape[1] == self.num_channels
            found = by_kernels(input, norm) if fits else None
            if found is not None:
                return found
        return self._activated(super().forward(input))


class _InstanceNorm(Activated):
    """The forward pass of instance norms: group norms of a channel to a group."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
        activation: str | None = None,
        slope: float = 0.01,
    ) -> None:
        numbers = num_features, eps, momentum, affine, track_running_stats
        more = {} if bias else {"bias": False}
        super().__init__(*numbers, device, dtype, **more)  # type: ignore[call-arg]
        self._activate(activation, slope)

    def forward(self: Any, input: Tensor) -> Tensor:
        if isinstance(input, torch.fx.Proxy):  # whose modes torch would count
            return self._activated(self._apply_instance_norm(input))
        if (
            type(input) in PLAIN
            and not torch.compiler.is_compiling()
            and self.running_mean is None
            and input.dim() == self._get_no_batch_dim() + 1
            and input.shape[1] == self.num_features
            and input[0, 0].numel() > 1  # of one voxel, torch says what is wrong
        ):
            found = by_kernels(input, Norm(
                self.num_features, self.weight, self.bias, self.eps, self.activation, self.slope,
                input.dtype,
            ))  # fmt: skip
            if found is not None:
                return found
        return self._activated(super().forward(input))  # type: ignore[misc, no-any-return]


class InstanceNorm1d(_InstanceNorm, torch.nn.InstanceNorm1d):
    """torch's instance norm of images (N, C, L); the rest is as of :class:`InstanceNorm3d`."""


class InstanceNorm2d(_InstanceNorm, torch.nn.InstanceNorm2d):
    """torch's instance norm of images (N, C, H, W); the rest is as of :class:`InstanceNorm3d`."""


class InstanceNorm3d(_InstanceNorm, torch.nn.InstanceNorm3d):
    """torch's instance norm of images (N, C, D, H, W), and an activation after it.

    Args:
        activation, slope: as of :class:`~layoutconv.nn.Conv3d`.

    The other arguments, the state and the results are torch's. Kernels compute it of
    ``channels_last`` images on a GPU, and round once; with running statistics, torch does.

    >>> norm = InstanceNorm3d(8, affine=True, activation="leaky_relu")
    >>> x = torch.randn(2, 8, 3, 4, 5)
    >>> y = torch.nn.InstanceNorm3d(8, affine=True)(x)
    >>> torch.allclose(norm(x), torch.nn.functional.leaky_relu(y))
    True
    """


# Of torch's norms, the classes here.
NORMS: dict[type, type] = {
    getattr(torch.nn, kind.__name__): kind
    for kind in (GroupNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d)
}
