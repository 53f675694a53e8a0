"""Autocast: convolutions run in the lower precision, like torch's own.

Operators lower their operands by themselves. Bound calls lower them first, and switch autocast off
below: the call cache describes calls on tensors that autocast leaves alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ..base.torch_internals import is_any_autocast_enabled

if TYPE_CHECKING:
    from torch import Tensor

LOWERED = frozenset({torch.float16, torch.bfloat16, torch.float32})  # dtypes that autocast changes
AUTOCAST = frozenset({"cpu", "cuda"})  # devices whose autocast lowers convolutions


def lower(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast an operand as autocast to ``dtype`` does."""
    return tensor.to(dtype) if tensor.dtype in LOWERED else tensor


def autocast_dtype(x: Tensor, weight: Tensor) -> torch.dtype | None:
    """Return the dtype to which autocast lowers both; None if it is off or leaves them alone.

    >>> x = torch.ones(1)
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocast_dtype(x, x), autocast_dtype(x.double(), x)
    (torch.bfloat16, None)
    """
    if not is_any_autocast_enabled():
        return None
    if not (isinstance(x, torch.Tensor) and isinstance(weight, torch.Tensor)):
        return None  # left to the checks of arguments
    kind = x.device.type
    if kind not in AUTOCAST or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind) if {x.dtype, weight.dtype} <= LOWERED else None


@contextmanager
def without_autocast(kind: str) -> Iterator[None]:
    """Switch autocast, which is on, off for a kind of devices: like ``torch.autocast(kind,
    enabled=False)``, but faster.

    >>> with torch.autocast("cpu", torch.bfloat16), without_autocast("cpu"):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.float32
    """
    torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(kind, True)


def register_autocast(*operators: Any) -> None:
    """Let autocast lower the first two tensors of operators, as it does for torch's own."""
    for op in operators:
        for device, kind in ("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA"):
            torch.library.impl(op.name(), kind, _lowered(op, device))


def _lowered(op: Any, device: str) -> Any:
    def call(a: Tensor, b: Tensor, *others: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            return op(lower(a, dtype), lower(b, dtype), *others, **options)

    return call
