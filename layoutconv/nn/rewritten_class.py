"""Subclasses whose forward pass is rewritten, in one mode, for modules of an existing class."""

from __future__ import annotations

from functools import partial, wraps
from typing import Any

import torch
import torch.fx
from torch.nn.utils.parametrize import is_parametrized

from ..base.caches import remembered
from .forward_code import Code, compiled
from .fused_batch_norm import is_container, may_be_fused
from .made_class import subclass
from .residual import Residual
from .scripting import refuse_scripting
from .sequences import SEQUENCES

_KIND = "_fused_from"  # the attribute of a class made here that holds the original class
# Attributes that torch sets; no forward pass depends on them.
_OF_TORCH = frozenset(
    {"training", "_is_full_backward_hook", "_is_torch_compile", "_compiled_call_impl"}
)


def restore_class(module: Any) -> None:
    """Restore the class that a module had before its forward pass was rewritten.

    >>> module = torch.nn.ReLU()
    >>> module.__class__ = type("Other", (torch.nn.ReLU,), methods_of(torch.nn.ReLU))
    >>> restore_class(module)
    >>> type(module) is torch.nn.ReLU
    True
    """
    kind: Any = getattr(type(module), _KIND, None)
    if kind is not None:
        object.__setattr__(module, "__class__", kind)


def methods_of(kind: Any) -> dict[str, Any]:
    """Return the attributes that mark a class made from ``kind`` here."""
    return {_KIND: kind, "__prepare_scriptable__": refuse_scripting}


def restoring_methods(kind: Any, read: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return methods that restore the class ``kind`` when an attribute is set or deleted, except
    those in ``read``, which the rewritten pass reads at every call.

    >>> module = torch.nn.ReLU()
    >>> methods = {**methods_of(torch.nn.ReLU), **restoring_methods(torch.nn.ReLU)}
    >>> module.__class__ = type("Other", (torch.nn.ReLU,), methods)
    >>> module.inplace = True
    >>> type(module) is torch.nn.ReLU
    True
    """
    kept = _OF_TORCH | read

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if name not in kept:
            restore_class(self)
        kind.__setattr__(self, name, value)

    def delete_attribute(self: Any, name: str) -> None:
        restore_class(self)
        kind.__delattr__(self, name)

    return {"__setattr__": set_attribute, "__delattr__": delete_attribute}


def why_not_changed(part: Any) -> str | None:
    """Return the reason not to change the class of a module; None if there is none.

    >>> print(why_not_changed(torch.nn.Sequential(torch.nn.ReLU())))
    None
    >>> why_not_changed(Residual(torch.nn.ReLU()))
    'it takes sparse tensors, and fuses norms by itself'
    """
    kind: Any = type(part)
    of_voxels = isinstance(part, Residual) or kind.__module__.startswith("layoutconv.compat.")
    if of_voxels or (kind.forward in SEQUENCES and not is_container(part)):
        return "it takes sparse tensors, and fuses norms by itself"
    if "forward" in part.__dict__:
        return "forward was replaced in the module"
    if isinstance(part, torch.fx.GraphModule | torch.jit.ScriptModule) or is_parametrized(part):
        return "its class is its own already"
    if hasattr(kind.__init_subclass__, "__func__"):
        return "it defines __init_subclass__, and would get a subclass"
    return None


@remembered(1024)
def rewritten_class(kind: Any, code: Code, training: bool) -> Any:
    """Make a subclass whose forward pass is ``code``, in training or in evaluation, for tensors
    that nothing traces. Setting an attribute of a module restores its class.
    """
    run = compiled(code)
    count = run.__code__.co_argcount - 1

    @wraps(kind.forward)
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        if named or len(args) != count or not may_be_fused(self, args, training=training):
            return kind.forward(self, *args, **named)
        return run(self, *args)

    methods = {"forward": forward, **restoring_methods(kind), **methods_of(kind)}
    return subclass(kind, (kind,), partial(_new, code, training), methods)


def _new(code: Code, training: bool, kind: type, *arguments: Any) -> Any:
    """Create a module of such a class, without its state."""
    made = rewritten_class(kind, code, training)
    return made.__new__(made, *arguments)
