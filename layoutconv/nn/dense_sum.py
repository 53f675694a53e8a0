"""Dense convolutions in evaluation that add a tensor, and apply a ReLU, in the same launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..base.torch_internals import has_global_hooks
from ..ops.autocast import autocast_dtype
from ..ops.guard import PLAIN
from ..tensors.epilogue_in_torch import activate
from .modules import Conv1d, Conv2d, Conv3d, weight_and_bias
from .own_padding import OWN_PADDING
from .residual import working
from .trained_norm import are_bare

_OURS = Conv1d, Conv2d, Conv3d


def is_open(module: Any) -> bool:
    """Return whether a module is a convolution of this package that adds no more than a bias.

    >>> is_open(Conv2d(4, 4, 3)), is_open(Conv2d(4, 4, 3, activation="relu"))
    (True, False)
    """
    ours: Any = next((kind for kind in _OURS if isinstance(module, kind)), None)
    return (
        ours is not None
        and module.activation is None
        and module.padding_mode == "zeros"
        and OWN_PADDING not in module.__dict__
        and type(module)._conv_forward is ours._conv_forward
        and (type(module) is ours or type(module).forward is ours.forward)
    )


def split(module: Any) -> tuple[list[Any], Any]:
    """Return the last working module of a ``torch.nn.Sequential``, nested ones included, and the
    modules before it; for another module, none and itself.

    >>> relu, conv = torch.nn.ReLU(), Conv2d(4, 4, 3)
    >>> split(torch.nn.Sequential(relu, torch.nn.Sequential(conv, torch.nn.Identity())))
    ([ReLU()], Conv2d(4, 4, kernel_size=(3, 3), stride=(1, 1)))
    """
    before: list[Any] = []
    while type(module).forward is torch.nn.Sequential.forward and are_bare(module):
        parts = working(module)
        if not parts:
            break
        before += parts[:-1]
        module = parts[-1]
    return before, module


def up_to_conv(module: Any, input: Any) -> tuple[Any, Any]:
    """Run a container up to its last module, as :func:`split` finds it; return that module and its
    input.

    >>> net = torch.nn.Sequential(torch.nn.ReLU(), Conv2d(1, 1, 1))
    >>> found, x = up_to_conv(net, torch.tensor(-1.0))
    >>> found, x
    (Conv2d(1, 1, kernel_size=(1, 1), stride=(1, 1)), tensor(0.))
    """
    if has_global_hooks():
        return module, input
    before, last = split(module)
    for part in before:
        input = part(input)
    return last, input


def summed(
    conv: Any,
    input: Any,
    last: Any,
    past: Any,
    between: Sequence[Any] = (),
    in_place: bool = False,
    first: bool = False,
) -> Tensor:
    """Compute ``last(between(conv(input)) + past)``, of modules and tensors.

    ``between`` were identities when the forward pass was rewritten; ``last`` is a
    ``torch.nn.ReLU``, "relu" for a function, or None. ``in_place`` says that the sum is ``+=``,
    ``first`` that ``past`` is its first operand.

    >>> conv, x = Conv2d(2, 2, 1), torch.randn(1, 2, 4, 4)
    >>> y = torch.relu(conv(x) + x)
    >>> torch.allclose(summed(conv, x, torch.nn.ReLU(), x), y, atol=1e-6)
    True
    """
    if _is_one_launch(conv, input, last, past, between):
        modes = conv.stride, conv.padding, conv.dilation, conv.groups
        weight, bias = weight_and_bias(conv)
        follows = {"activation": None if last is None else "relu", "residual": past}
        found: Tensor = conv._function(input, weight, bias, *modes, **follows)
        return found
    y = conv(input)
    for module in between:
        y = module(y)
    return followed(y, last, past, in_place, first)


def followed(y: Any, last: Any, past: Any, in_place: bool, first: bool = False) -> Tensor:
    """Compute ``last(y + past)`` like a forward pass; ``past`` may be None, ``last`` None, a module
    or the name of a function. The ``first`` operand of a sum decides on the memory order.

    >>> followed(torch.tensor([-1.0, 1.0]), "relu", torch.ones(2), False)
    tensor([0., 2.])
    """
    if past is not None:
        if in_place:
            y += past
        else:
            y = past + y if first else y + past
    if last is None:
        return y  # type: ignore[no-any-return]
    return activate(y, last) if isinstance(last, str) else last(y)  # type: ignore[no-any-return]


def _is_one_launch(conv: Any, input: Any, last: Any, past: Any, between: Sequence[Any]) -> bool:
    """Return whether all modules are as they were at the rewriting, and the tensors fit."""
    return (
        type(input) in PLAIN
        and type(past) in PLAIN
        and is_open(conv)
        and (last is None or last == "relu" or type(last) is torch.nn.ReLU)
        and all(type(module) is torch.nn.Identity for module in between)
        and are_bare(conv, None if last == "relu" else last, *between)
        and not has_global_hooks()
        and past.dtype is (autocast_dtype(input, conv.weight) or input.dtype)
        and past.shape == _shape_of(conv, input)
    )


def _shape_of(conv: Any, input: Tensor) -> tuple[int, ...] | None:
    """Return the shape of a result; None if it is not known here."""
    if input.dim() != len(conv.kernel_size) + 2:
        return None
    if conv.padding == "same":
        return (input.shape[0], conv.out_channels, *input.shape[2:])
    padding = (0,) * len(conv.kernel_size) if conv.padding == "valid" else conv.padding
    if not all(type(side) is int for side in padding):
        return None
    modes = zip(input.shape[2:], conv.kernel_size, conv.stride, padding, conv.dilation, strict=True)
    spatial = [(e + 2 * p - d * (t - 1) - 1) // s + 1 for e, t, s, p, d in modes]
    return (input.shape[0], conv.out_channels, *spatial)
