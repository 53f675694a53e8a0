"""Tensors that outlive the call that makes them, in any mode of torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch

# torch.export without dynamo traces these contexts as they are.
is_dynamo_compiling = torch.compiler.is_dynamo_compiling
is_inference_mode_enabled = torch.is_inference_mode_enabled
Made = TypeVar("Made")

_NO_CONTEXT = nullcontext()  # has no state


def to_be_kept() -> AbstractContextManager[Any]:
    """Make tensors inside it outlive a call: autograd refuses inference-mode tensors.

    >>> import torch
    >>> with torch.inference_mode(), to_be_kept():
    ...     torch.ones(2).is_inference()
    False
    """
    if is_dynamo_compiling():
        return nullcontext()
    return torch.inference_mode(False) if is_inference_mode_enabled() else _NO_CONTEXT


def keeping(make: Callable[..., Made], *of: Any) -> Made:
    """Return ``make(*of)`` within :func:`to_be_kept`, which takes as long as three Python calls.

    >>> import torch
    >>> with torch.inference_mode():
    ...     keeping(torch.ones, 2).is_inference()
    False
    """
    if is_dynamo_compiling() or not is_inference_mode_enabled():
        return make(*of)
    with torch.inference_mode(False):
        return make(*of)
