"""Group and instance norms of dense images in ``channels_last`` memory, by kernels on a GPU.

torch computes these norms on channels-first memory: between two ``channels_last`` convolutions it
copies images back and forth, and reads them several times besides. Kernels read them in place,
twice forward, and apply an activation as they write. torch's own norm serves all other cases: other
memory, a CPU, running statistics, ``torch.compile`` and transforms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.nn import functional

from ..base.torch_internals import is_gradient_tracked, is_tracing, transform_on_top
from ..gpu import group_norm
from ..gpu.group_norm import GroupNormArgs as Norm
from ..ops.autocast import LOWERED
from ..ops.guard import PLAIN, is_bare, is_watched_unseen, wants_gradient
from ..ops.transforms import is_transformed
from ..tensors.epilogue_in_torch import activate
from .convolved_in_graph import is_dynamo_compiling, is_exporting
from .modules import Activated


def by_kernels(input: Tensor, norm: Norm) -> Tensor | None:
    """Normalise images (N, C, ...), then activate; None if kernels cannot compute it."""
    if not are_read(input, norm.weight, norm.bias):
        return None
    last = norm.activation
    fused = norm if last in group_norm.ACTIVATIONS else norm.alone()
    if not group_norm.takes(input, fused):
        return None
    found = on_kernels(input, fused)
    return found if fused.activation is last else activate(found, str(last), norm.slope)


def may_launch(input: Any) -> bool:
    """Return whether kernels may serve an input: a cheap check before all others."""
    return (
        type(input) in PLAIN
        and not torch.compiler.is_compiling()
        and input.is_cuda
        and not is_tracing()
    )


def are_read(*tensors: Tensor | None) -> bool:
    """Return whether kernels may read tensors (or None): only autograd sees the call."""
    if is_watched_unseen() or is_tracing() or transform_on_top() is not None:
        return False
    for tensor in tensors:  # a transform that has ended may have left a tracked tensor
        if tensor is not None and not (is_bare(tensor) and not is_gradient_tracked(tensor)):
            return False
    return True


def on_kernels(input: Tensor, norm: Norm) -> Tensor:
    """Normalise images that ``group_norm.takes``, and record it if a gradient is wanted."""
    if not wants_gradient(input, norm.weight, norm.bias):
        return group_norm.normalised(input, norm)[0]
    found: Tensor = _record(input, norm.weight, norm.bias, norm)
    return found


def in_torch(x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm) -> Tensor:
    """Compute the norm and its activation by operations of torch, with gradients of any order.

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


class _GroupNormOnKernels(torch.autograd.Function):
    """The norm and its gradients by kernels; second derivatives by operations of torch."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, input: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm
    ) -> Tensor:
        out, statistics = group_norm.normalised(input, norm)
        ctx.save_for_backward(input, weight, bias, statistics)
        ctx.norm = norm.of(None, None)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        input, weight, bias, statistics = ctx.saved_tensors
        norm = ctx.norm
        if torch.is_grad_enabled() or not are_read(grad):  # one of a batch of gradients, say
            leaves = input, weight, bias
            return *gradients_in_torch(lambda x, w, b: in_torch(x, w, b, norm), leaves, grad), None
        norm = norm.of(weight, bias)
        dx, (db, dw) = group_norm.gradients(input, norm, statistics, grad)
        if weight is None:
            return dx, None, None, None
        return dx, dw.to(weight.dtype), db.to(weight.dtype), None


def gradients_in_torch(
    function: Callable[..., Tensor], leaves: tuple[Any, ...], grad: Tensor
) -> list[Tensor | None]:
    """Return the gradients of a function of leaves by operations of torch; a leaf may be None.

    They are recorded if gradients of them may be wanted.

    >>> gradients_in_torch(lambda x, _: x * x, (torch.ones(1, requires_grad=True), None),
    ...     torch.ones(1))
    [tensor([2.], grad_fn=<AddBackward0>), None]
    """
    again = torch.is_grad_enabled()
    wanted = [t for t in leaves if t is not None and t.requires_grad]
    if not wanted:  # as for what is added to features of a frozen network
        return [None] * len(leaves)

    def of_wanted(*values: Tensor) -> Tensor:
        rest = iter(values)
        return function(*(next(rest) if t is not None and t.requires_grad else t for t in leaves))

    found: Any
    if again:
        found = torch.autograd.grad(of_wanted(*wanted), wanted, grad, create_graph=True)
    elif transform_on_top() is not None:  # under which nothing can require a gradient
        found = torch.func.vjp(of_wanted, *wanted)[1](grad)
    else:
        values = [t.detach().requires_grad_() for t in wanted]
        with torch.enable_grad():
            y = of_wanted(*values)
        found = torch.autograd.grad(y, values, grad)
    found = iter(found)
    return [next(found) if t is not None and t.requires_grad else None for t in leaves]


# Skips the questions of ``apply`` about transforms, which :func:`by_kernels` has asked.
_record: Any = super(torch.autograd.Function, _GroupNormOnKernels).apply


def _safe(input: Any, *parameters: Any) -> Any:
    """Return an image that torch's group norm can take.

    For ``channels_last`` images torch has no forward mode and no ``vmap``. On a CPU its backward
    pass crashes the process (torch 2.13) if the gradient of a parameter is asked for, but not the
    image's; nobody knows here what ``torch.autograd.grad`` will be asked for.
    """
    if type(input) not in PLAIN:
        return input
    if not is_transformed() and (
        input.device.type != "cpu"
        or not torch.is_grad_enabled()
        or not any(p is not None and p.requires_grad for p in parameters)
        or _is_kept()
    ):
        return input
    return input.reshape(-1).view(input.shape)  # contiguous() skips one channel


def _is_kept() -> bool:
    """Return whether the call is recorded for later, as torch has it. Graphs of ``torch.compile``
    have gradients, for which some of its backends call torch's kernels.
    """
    if torch.compiler.is_compiling():
        return not is_dynamo_compiling() or bool(is_exporting())
    return is_tracing()


def _is_one_image(input: Any) -> bool:
    """Return whether torch's gradients of an instance norm may be wrong: on a CPU, for one image
    with two or three spatial modes, if the result's gradient is ``channels_last`` (torch 2.13).
    """
    return (
        type(input) in PLAIN
        and input.device.type == "cpu"
        and torch.is_grad_enabled()
        and not _is_kept()
        and input.dim() > 3
        and len(input) == 1
    )


class GroupNorm(Activated, torch.nn.GroupNorm):
    """torch's group norm (Wu and He, "Group Normalization", 2018), with an activation after it.

    Args:
        bias: whether an ``affine`` norm has a bias; False needs torch 2.13 or later.
        activation, slope: as of :class:`~layoutconv.nn.Conv3d`.

    The other arguments, the state, the errors and the results are those of ``torch.nn.GroupNorm``:
    it maps images (N, C, ...) to the same shape, float32 under autocast. Kernels compute it for
    ``channels_last`` images of float16, bfloat16 or float32 on a GPU, and round once, at the end.

    Raises :class:`~layoutconv.errors.ArgumentError` for ``activation`` or ``slope``.

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
        more = {} if bias else {"bias": False}  # supported since torch 2.13
        super().__init__(num_groups, num_channels, eps, affine, device, dtype, **more)
        self._activate(activation, slope)

    def forward(self, input: Tensor) -> Tensor:
        if may_launch(input) and input.dim() > 2:
            lowered = torch.is_autocast_enabled("cuda") and input.dtype in LOWERED
            norm = Norm(
                self.num_groups, self.weight, self.bias, self.eps, self.activation, self.slope,
                torch.float32 if lowered else input.dtype,  # like torch's
            )  # fmt: skip
            # With one value per group, torch raises the error.
            fits = input.shape[1] == self.num_channels and input.numel() > self.num_groups
            found = by_kernels(input, norm) if fits else None
            if found is not None:
                return found
        return self._activated(super().forward(_safe(input, self.weight, self.bias)))


class _InstanceNorm(Activated):
    """The forward pass of instance norms: group norms with one channel per group."""

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
        if isinstance(input, torch.fx.Proxy):  # torch would count its modes
            return self._activated(self._apply_instance_norm(input))
        if (
            may_launch(input)
            and self.running_mean is None
            and input.dim() == self._get_no_batch_dim() + 1
            and input.shape[1] == self.num_features
            # With one voxel, torch raises the error.
            and input.numel() > len(input) * self.num_features
        ):
            found = by_kernels(input, Norm(
                self.num_features, self.weight, self.bias, self.eps, self.activation, self.slope,
                input.dtype,
            ))  # fmt: skip
            if found is not None:
                return found
        if _is_one_image(input) and input.shape[1] == self.num_features:
            self._check_input_dim(input)
            found = self._apply_instance_norm(input.flatten(2)).view(input.shape)
        else:
            found = super().forward(input)  # type: ignore[misc]
        return self._activated(found)


class InstanceNorm1d(_InstanceNorm, torch.nn.InstanceNorm1d):
    """torch's instance norm of images (N, C, L); see :class:`InstanceNorm3d` for the rest.

    >>> InstanceNorm1d(2, eps=0.0)(torch.tensor([[[1.0, 3.0], [2.0, 6.0]]]))
    tensor([[[-1.,  1.],
             [-1.,  1.]]])
    """


class InstanceNorm2d(_InstanceNorm, torch.nn.InstanceNorm2d):
    """torch's instance norm of images (N, C, H, W); see :class:`InstanceNorm3d` for the rest.

    >>> InstanceNorm2d(1, eps=0.0, activation="relu")(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[[[0., 1.]]]])
    """


class InstanceNorm3d(_InstanceNorm, torch.nn.InstanceNorm3d):
    """torch's instance norm of images (N, C, D, H, W) (Ulyanov et al., "Instance Normalization",
    2016), with an activation after it.

    Args:
        bias, activation, slope: as of :class:`GroupNorm`.

    The other arguments, the state, the errors and the results are torch's. Kernels compute it for
    ``channels_last`` images of float16, bfloat16 or float32 on a GPU, and round once; torch
    computes it with running statistics.

    Raises :class:`~layoutconv.errors.ArgumentError` for ``activation`` or ``slope``.

    >>> norm = InstanceNorm3d(8, affine=True, activation="leaky_relu")
    >>> x = torch.randn(2, 8, 3, 4, 5)
    >>> y = torch.nn.InstanceNorm3d(8, affine=True)(x)
    >>> torch.allclose(norm(x), torch.nn.functional.leaky_relu(y))
    True
    """


# This package's class for each of torch's norms.
NORMS: dict[type, type] = {
    getattr(torch.nn, kind.__name__): kind
    for kind in (GroupNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d)
}
