"""Guards: may a call bypass torch's dispatcher, and do its tensors match an earlier call's?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from ..base.torch_internals import (
    TENSOR_GUARDS,
    function_modes,
    functions_that_look,
    is_any_autocast_enabled,
    is_batch_of_transform,
    is_batched,
    is_gradient_tracked,
    is_tracing,
    levels,
    operators_that_look,
    transform_on_top,
    transforms_look,
    unwrapped,
)
from ..errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

is_dynamo_compiling = torch.compiler.is_dynamo_compiling
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})  # exact types, without subclasses

Guard = Callable[..., bool]


def is_plain(*tensors: Any) -> bool:
    """Return whether it is safe to bypass the dispatcher: nothing but autograd sees the call.

    That is so outside ``torch.compile`` and tracers, fake tensors and other modes, transforms such
    as ``vmap``, autocast and forward-mode differentiation; and for tensors that are of no subclass
    and not lazily negated. A Python function then returns what the operator registered with it
    returns, and takes tens of microseconds less.

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


def is_bare(tensor: Tensor) -> bool:
    """Return whether a tensor has torch's own type, and is neither lazily negated nor batched.

    >>> is_bare(torch.ones(2)), is_bare(torch._neg_view(torch.ones(2)))
    (True, False)
    """
    return type(tensor) in PLAIN and not (tensor.is_neg() or is_batched(tensor))


def is_watched() -> bool:
    """Return whether a mode or transform intercepts all calls, whatever their tensors.

    >>> with torch.device("cpu"):
    ...     is_watched()
    True
    """
    # Inlined is_watched_unseen: backward passes ask for each layer, and a call takes as long as its
    # answers. Tracers other than torch.compile are modes.
    return bool(
        is_dynamo_compiling()
        or functions_that_look()
        or operators_that_look()
        or levels._current_level >= 0
        or is_tracing()
        or transform_on_top() is not None
        or is_any_autocast_enabled()
    )


def is_watched_unseen() -> bool:
    """Return whether something intercepts calls without changing the tensors' dispatch keys.

    The other conditions of ``is_watched`` change the thread's dispatch keys; function modes,
    forward mode, and modes such as that of fake tensors do not.

    >>> with torch.device("cpu"):
    ...     is_watched_unseen()
    True
    """
    # Of tracers, only torch.compile must be asked for: others are modes, or have own tensors.
    return bool(
        is_dynamo_compiling()
        or (functions_that_look() and not all(map(_misses_nothing, function_modes())))
        or operators_that_look()
        or levels._current_level >= 0
    )


def _misses_nothing(mode: Any) -> bool:
    """Return whether a mode that intercepts functions need not see those inside a launch.

    Our own modes say so by an attribute: launches do themselves what the mode does to functions.
    """
    return getattr(mode, "misses_nothing", False) is True


def wants_gradient(*tensors: Any) -> bool:
    """Return whether autograd would record a computation on tensors, some of which may be None.

    >>> x = torch.ones(2, requires_grad=True)
    >>> wants_gradient(None, x), wants_gradient(x.detach())
    (True, False)
    """
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def may_want_gradient(tensor: Tensor) -> bool:
    """Return :func:`wants_gradient` of a tensor, or of the tensor that ``torch.vmap`` batched.

    An operator is called with the latter, and autograd then checks all that its gradient needs.

    >>> x, asked = torch.ones(2, 3, requires_grad=True), []
    >>> _ = torch.vmap(lambda row: asked.append(may_want_gradient(row)) or row)(x)
    >>> asked, may_want_gradient(x.detach())
    ([True], False)
    """
    if transforms_look():
        while is_batch_of_transform(tensor) and not tensor.requires_grad:
            tensor = unwrapped(tensor)
    return wants_gradient(tensor)


def is_constant(scale: Any) -> bool:
    """Return whether the scale is None, or a tensor that needs no gradient.

    >>> is_constant(None), is_constant(torch.ones(2)), is_constant(0.5)
    (True, True, False)
    """
    return scale is None or (isinstance(scale, torch.Tensor) and not scale.requires_grad)


def refuse_transforms(**tensors: Any) -> None:
    """Raise ``ArgumentError`` for a tensor through which a transform differentiates an operator.

    Operators that have only a backward pass, those of sparse layers, support neither ``grad``,
    ``vjp`` and ``jvp`` of ``torch.func`` nor forward-mode differentiation. Forward mode would not
    even fail: its derivatives would be zero.

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
    transformed = transform_on_top() is not None
    if not transformed and levels._current_level < 0:
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
    """Describe the derivative that a transform wants of a tensor, below any ``vmap``."""
    while isinstance(tensor, torch.Tensor):
        if is_gradient_tracked(tensor):
            return "one of torch.func.grad, vjp or jvp"
        if not is_batch_of_transform(tensor):
            if levels._current_level < 0:
                break
            dual = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
            if dual.tangent is None:
                break
            return "one with a tangent"
        tensor = unwrapped(tensor)
    return ""


def guard_of(*tensors: Tensor, rows: bool = False) -> Guard:
    """Return a function of as many tensors: whether kernels and torch would treat them like these.

    With ``rows``, matrices may have any number of rows: clouds differ in nothing else.

    It compares types, dtypes, devices, shapes, strides, whether tensors require a gradient, and
    dispatch keys: those of lazy negation and inference mode, and the thread's, of autocast, tracers
    and transforms. A value that is no tensor does not match. ``is_watched_unseen`` checks the rest.
    The function keeps no tensor alive.

    >>> x = torch.ones(2, 3)
    >>> alike = guard_of(x)
    >>> alike(x + 1), alike(x.T), alike(x.double()), alike(2.0)
    (True, False, False, False)
    >>> guard_of(x, rows=True)(torch.ones(5, 3)), guard_of(x, rows=True)(torch.ones(2, 5))
    (True, False)
    """
    if not guards_of_torch_hold(*tensors):
        return _guard_in_python(*tensors, rows=rows)
    sizes: Any = None
    strides: Any = None
    if rows:
        sizes = [[*_shape(tensor, rows)] for tensor in tensors]
        strides = [[*tensor.stride()] for tensor in tensors]
    made = TENSOR_GUARDS(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    alike: Guard = made.check
    return alike


def guards_of_torch_hold(*tensors: Any) -> bool:
    """Return whether torch's own guards can be used; only they may hold under autocast.

    They fail if a tensor is given twice.

    >>> x, y = torch.ones(2), torch.ones(2)
    >>> guards_of_torch_hold(x, y), guards_of_torch_hold(x, x)
    (True, False)
    """
    return TENSOR_GUARDS is not None and len(set(map(id, tensors))) == len(tensors)


def _shape(tensor: Tensor, rows: bool) -> tuple[int | None, ...]:
    """Return the extents to compare, None for any."""
    if rows and tensor.dim() == 2:
        return None, tensor.shape[1]
    return tuple(tensor.shape)


def _guard_in_python(*tensors: Tensor, rows: bool = False) -> Guard:
    """Do as :func:`guard_of` without torch's help: a microsecond per tensor, not a tenth."""
    known = [_properties(tensor, rows) for tensor in tensors]

    def alike(*others: Any) -> bool:
        return is_plain(*others) and [_properties(tensor, rows) for tensor in others] == known

    return alike


def _properties(tensor: Tensor, rows: bool) -> tuple[Any, ...]:
    return (
        type(tensor), tensor.dtype, tensor.device, _shape(tensor, rows), tensor.stride(),
        tensor.requires_grad, tensor.is_inference(), torch.is_inference_mode_enabled(),
    )  # fmt: skip
