"""Autocast: convolutions in the lower precision, as torch's own are.

Operators lower their operands by themselves. Calls that are bound to launches lower them before,
and switch autocast off below: what is known of a call is known of tensors that autocast lets be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ..base.torch_internals import is_any_autocast_enabled

if TYPE_CHECKING:
    from torch import Tensor

LOWERED = frozenset({torch.float16, torch.bfloat16, torch.float32})  # dtypes that it changes
AUTOCAST = frozenset({"cpu", "cuda"})  # devices whose autocast lowers convolutions


def lower(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what autocast to ``dtype`` makes of an operand."""
    return tensor.to(dtype) if tensor.dtype in LOWERED else tensor


def autocast_dtype(x: Tensor, weight: Tensor) -> torch.dtype | None:
    """The dtype that autocast wants both in; None where it is off, or wants nothing of them.

    >>> x = torch.ones(1)
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocast_dtype(x, x), autocast_dtype(x.double(), x)
    (torch.bfloat16, None)
    """
    if not is_any_autocast_enabled():
        return None
    if not (isinstance(x, torch.Tensor) and isinstance(weight, torch.Tensor)):
        return None  # as checks of arguments say
    kind = x.device.type
    if kind not in AUTOCAST or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind) if {x.dtype, weight.dtype} <= LOWERED else None


@contextmanager
def without_autocast(kind: str) -> Iterator[None]:
    """Autocast, which is on, off for a kind of devices: as ``torch.autocast(kind, enabled=False)``
    does it, in less time.

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
    """Let autocast lower the first two tensors of operators, as it does those of torch's own."""
    for op in operators:
        for device, kind in ("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA"):
            torch.library.impl(op.name(), kind, _lowered(op, device))


def _lowered(op: Any, device: str) -> Any:
    def call(a: Tensor, b: Tensor, *others: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            return op(lower(a, dtype), lower(b, dtype), *others, **options)

    return call
