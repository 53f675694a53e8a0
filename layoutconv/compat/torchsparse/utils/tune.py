"""TorchSparse's tuner, which has nothing to do here."""

from __future__ import annotations

from typing import Any

__all__ = ["tune"]


def tune(*args: Any, **options: Any) -> None:
    """Accepted, without effect: a cost model chooses the tile of a kernel, and ``lc.tune``
    measures."""
