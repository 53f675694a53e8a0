"""The hook through which ``layoutconv.tuning`` hands its race of tiles to ``gpu``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..planning.tile import TileConfig


def _nothing(*_: Any, **__: Any) -> None:
    return None


# Races tiles for a view and a dtype, with the options of ``choose_kernel``. Returns the fastest
# tile and its number of split-K slices; None if no race was possible.
tune_at_need: Callable[..., tuple[TileConfig, int] | None] = _nothing
