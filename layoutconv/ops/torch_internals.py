"""When a call of torch is nothing but a call."""

from __future__ import annotations

from typing import Any

import torch
from torch import _C
from torch.autograd import forward_ad

from ..errors import ArgumentError

is_compiling = torch.compiler.is_compiling
is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # in a third of the time
functions_that_look = _C._len_torch_function_stack
operators_that_look = _C._len_torch_dispatch_stack
# Of torch.autograd.grad(is_grads_batched=True), which is no transform and no mode.
is_batched = _C._functorch.is_legacy_batchedtensor
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})  # types that are no other's


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
    if is_watched():
        return False
    for tensor in tensors:
        if type(tensor) not in PLAIN or tensor.is_neg() or is_batched(tensor):
            return False
    return True


def is_watched() -> bool:
    """Return whether something looks at calls, or changes them, whatever their tensors are.

    >>> with torch.device("cpu"):
    ...     is_watched()
    True
    """
    return bool(
        is_watched_unseen()
        or _C._is_tracing()
        or _C._functorch.peek_interpreter_stack() is not None
        or _C._is_any_autocast_enabled()
    )


def is_watched_unseen() -> bool:
    """Return whether something looks at calls that does not show in how tensors are dispatched.

    The rest of what ``is_watched`` asks for changes the dispatch keys of the thread: not so
    functions, forward mode, and modes such as that of fake tensors.

    >>> with torch.device("cpu"):
    ...     is_watched_unseen()
    True
    """
    return bool(
        is_compiling()
        or functions_that_look()
        or operators_that_look()
        or forward_ad._current_level >= 0
    )


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


def is_constant(scale: Any) -> bool:
    """Whether autograd can record what was scaled: by nothing, or by a tensor without a gradient.

    >>> is_constant(None), is_constant(torch.ones(2)), is_constant(0.5)
    (True, True, False)
    """
    return scale is None or (isinstance(scale, torch.Tensor) and not scale.requires_grad)


def refuse_transforms(**tensors: Any) -> None:
    """Raise ``ArgumentError`` for a tensor whose derivative a transform wants from an operator.

    ``torch.func``'s ``grad``, ``vjp`` and ``jvp``, and forward-mode differentiation, are what
    operators with a backward pass alone do not have: those of sparse layers. Forward mode would
    not even say so: its derivatives would be zero.

    >>> x = torch.ones(2)
    >>> refuse_transforms(input=x)
    >>> with forward_ad.dual_level():
    ...     refuse_transforms(input=forward_ad.make_dual(x, x))
    Traceback (most recent call last):
    layoutconv.errors.ArgumentError: argument `input`: expected a tensor that torch.func and\
 forward mode differentiate nothing through (torch.autograd.grad does), got one with a tangent
    """
    if torch.compiler.is_compiling():
        return
    transformed = _C._functorch.peek_interpreter_stack() is not None
    if not transformed and forward_ad._current_level < 0:
        return
    for name, tensor in tensors.items():
        got = _derivative(tensor)
        if got:
            expected = (
                "a tensor that torch.func and forward mode differentiate nothing through "
                "(torch.autograd.grad does)"
            )
            raise ArgumentError(name, expected, got)


def _derivative(tensor: Any) -> str:
    """Return what a transform wants of a tensor, inside of what ``vmap`` makes of it."""
    while isinstance(tensor, torch.Tensor):
        if _C._functorch.is_gradtrackingtensor(tensor):
            return "one of torch.func.grad, vjp or jvp"
        if not _C._functorch.is_batchedtensor(tensor):
            if forward_ad._current_level < 0 or forward_ad.unpack_dual(tensor).tangent is None:
                break
            return "one with a tangent"
        tensor = _C._functorch.get_unwrapped(tensor)
    return ""
