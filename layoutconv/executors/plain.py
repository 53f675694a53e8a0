"""When a call of torch is nothing but a call."""

from __future__ import annotations

from typing import Any

import torch
from torch import _C
from torch.autograd import forward_ad

_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})


def is_plain(*tensors: Any) -> bool:
    """Whether nothing looks at, records or changes what is done with tensors, but for autograd.

    That is so outside of ``torch.compile`` and tracers, fake tensors and other modes, transforms
    such as ``vmap``, autocast and forward-mode differentiation; and for tensors that are no
    subclass's, and not lazily negated. Then a Python function gives what an operator of torch that
    is registered with it gives, and takes tens of microseconds less.

    >>> x = torch.ones(2)
    >>> is_plain(x), is_plain(torch.nn.Parameter(x)), is_plain(x, 2.0)
    (True, True, False)
    >>> with torch.autocast("cpu"):
    ...     is_plain(x)
    False
    """
    if (
        torch.compiler.is_compiling()
        or _C._is_tracing()
        or _C._len_torch_dispatch_stack()
        or _C._len_torch_function_stack()
        or _C._functorch.peek_interpreter_stack() is not None
        or _C._is_any_autocast_enabled()
        or forward_ad._current_level >= 0
    ):
        return False
    for tensor in tensors:  # noqa: SIM110, a generator takes longer than what it yields
        if type(tensor) not in _TYPES or tensor.is_neg():
            return False
    return True


def wants_gradient(*tensors: Any) -> bool:
    """Whether autograd would record what is computed from tensors, of which some may be None.

    >>> x = torch.ones(2, requires_grad=True)
    >>> wants_gradient(None, x), wants_gradient(x.detach())
    (True, False)
    """
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False
