"""Subclasses whose forward pass calls torch's convolution functions itself.

A convolution that standardizes its weight, masks it, or pads its input is often a subclass of
``torch.nn.Conv2d`` whose ``forward`` ends in ``torch.nn.functional.conv2d``. It runs unchanged,
within :class:`Redirect`. A trial on the meta device shows whether it calls such a function.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode

from . import functional
from .scripting import refuse_scripting

_NAMES = [f"{kind}{rank}d" for kind in ("conv", "conv_transpose") for rank in (1, 2, 3)]
_FUNCTIONS: dict[Any, Any] = {getattr(torch, name): getattr(functional, name) for name in _NAMES}
_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


class Redirect(TorchFunctionMode):
    """A mode that replaces torch's convolution functions by this package's.

    >>> x, weight = torch.ones(1, 2, 5), torch.ones(4, 2, 3)
    >>> with Redirect():
    ...     y = torch.nn.functional.conv1d(x, weight)
    >>> y.stride()  # channels_last memory
    (12, 1, 4)
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _FUNCTIONS.get(func, func)(*args, **(kwargs or {}))


class Redirected:
    """A mixin in front of a convolution that runs its forward pass within :class:`Redirect`."""

    __prepare_scriptable__ = refuse_scripting

    def forward(self, *args: Any, **named: Any) -> Any:
        with Redirect():
            return super().forward(*args, **named)  # type: ignore[misc]


class _Counter(TorchFunctionMode):
    """Count calls of torch's convolution functions."""

    calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.calls += func in _FUNCTIONS
        return func(*args, **(kwargs or {}))


def why_not_redirected(layer: Any) -> str | None:
    """Return why the forward pass of a convolution cannot be redirected, or None if it can.

    The pass runs once, for a copy of the layer on the meta device without hooks. The layer itself
    does not run, and stays as it is.

    >>> print(why_not_redirected(torch.nn.Conv2d(4, 4, 1)))
    None
    >>> class Pointwise(torch.nn.Conv2d):
    ...     def forward(self, x):
    ...         return torch.einsum("kcrs,nchw->nkhw", self.weight, x)
    >>> why_not_redirected(Pointwise(4, 4, 1))
    'calls neither that of super() nor a convolution of torch.nn.functional'
    """
    counter = _Counter()
    try:
        with torch.no_grad(), counter:
            on_meta(layer).forward(_example(layer))
    except Exception as error:  # anything that another's code raises on meta tensors
        return f"fails when it is tried on the meta device: {type(error).__name__}: {error}"
    if counter.calls:
        return None
    return "calls neither that of super() nor a convolution of torch.nn.functional"


def on_meta(layer: Any) -> Any:
    """Copy a module with meta tensors, parametrized ones included.

    >>> on_meta(torch.nn.Conv2d(4, 8, 3)).weight.device
    device(type='meta')
    """
    known: dict[int, Any] = {}
    for tensor in chain(layer.parameters(), layer.buffers()):
        shape: Any = torch.empty_like(tensor, device="meta")
        if isinstance(tensor, torch.nn.Parameter):
            shape = torch.nn.Parameter(shape, tensor.requires_grad)
        known[id(tensor)] = shape
    copied = deepcopy(layer, known)
    for module in copied.modules():
        for name in _HOOKS:
            getattr(module, name).clear()
        if is_parametrized(module):
            _compute(module)
    return copied


def _compute(module: Any) -> None:
    """Set parametrized tensors as attributes, in place of their properties: within
    ``parametrize.cached()`` the properties cache values under the id of the copied module.
    """
    kind: Any = type(module)
    module.__class__ = kind.__bases__[0]
    for name, of in module.parametrizations.items():
        setattr(module, name, of())


def _example(layer: Any) -> Tensor:
    """Make an input of two images, larger than the filter's window."""
    sizes = zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    extents = (dilation * (taps - 1) + 1 + 2 * stride for taps, stride, dilation in sizes)
    shape = 2, layer.in_channels, *extents
    first = next(layer.parameters())
    return torch.empty(shape, dtype=first.dtype, device="meta")
