"""TorchSparse's tuner, which has nothing to do here."""

from __future__ import annotations

from typing import Any

__all__ = ["tune"]


def tune(*args: Any, **options: Any) -> None:
    """Accepted, without effect: a cost model chooses a kernel's tile, and ``lc.tune`` measures."""
