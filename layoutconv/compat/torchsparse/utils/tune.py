"""TorchSparse's tuner, of which there is nothing to do."""

from __future__ import annotations

from typing import Any

__all__ = ["tune"]


def tune(*args: Any, **options: Any) -> None:
    """Accepted, without effect: a model chooses the tile of a kernel, and ``lc.tune`` measures."""
