"""Subclasses whose forward pass calls torch's convolution functions itself.

A convolution that standardizes its weight, masks it, or pads its input is often written as a
subclass of ``torch.nn.Conv2d`` whose ``forward`` ends in ``torch.nn.functional.conv2d``. It runs as
it is written, within :class:`Redirect`. A trial on the meta device says if it calls such a function
at all.
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
    """Calls of torch's convolution functions, within this block, are calls of ours.

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
    """A mixin in front of a convolution, whose forward pass it runs within :class:`Redirect`."""

    __prepare_scriptable__ = refuse_scripting

    def forward(self, *args: Any, **named: Any) -> Any:
        with Redirect():
            return super().forward(*args, **named)  # type: ignore[misc]


class _Counter(TorchFunctionMode):
    """Counts calls of torch's convolution functions."""

    calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.calls += func in _FUNCTIONS
        return func(*args, **(kwargs or {}))


def why_not_redirected(layer: Any) -> str | None:
    """Return why the forward pass of a convolution calls none of torch's functions, or None.

    It is called once, for a copy of the layer on the meta device that has no hooks. The layer
    itself is not run, and stays as it is.

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
    except Exception as error:  # any that another's code raises, given what stands for a tensor
        return f"fails when it is tried on the meta device: {type(error).__name__}: {error}"
    if counter.calls:
        return None
    return "calls neither that of super() nor a convolution of torch.nn.functional"


def on_meta(layer: Any) -> Any:
    """A copy of a module whose tensors have shapes alone, those that are parametrized too.

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
    """Give a module what its parametrizations compute, in place of their properties: within
    ``parametrize.cached()`` these keep it under the name of the module that was copied.
    """
    kind: Any = type(module)
    module.__class__ = kind.__bases__[0]
    for name, of in module.parametrizations.items():
        setattr(module, name, of())


def _example(layer: Any) -> Tensor:
    """An input of two images, larger than the filter's window."""
    sizes = zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    extents = (dilation * (taps - 1) + 1 + 2 * stride for taps, stride, dilation in sizes)
    shape = 2, layer.in_channels, *extents
    first = next(layer.parameters())
    return torch.empty(shape, dtype=first.dtype, device="meta")
