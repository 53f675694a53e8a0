"""The hook by which tuning hands in its chooser: tuning imports plans, not the reverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..planning.tile import TileConfig


def _nothing(*_: Any, **__: Any) -> None:
    return None


# What a race of tiles for a view and a dtype chooses, with the options of ``choose_kernel``: a tile
# and how many parts sums are cut into; None where none could be held.
tune_at_need: Callable[..., tuple[TileConfig, int] | None] = _nothing
