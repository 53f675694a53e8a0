"""The use of a kernel map: which parts of it somebody asked for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .two_way import TwoWay


class Use:
    """The use of a map since it was made. It outlives the map.

    Attributes:
        asked: whether somebody asked for the map.
        read: whether it, and its inverse, were read as they are sorted by their taps.
    """

    def __init__(self) -> None:
        self.asked, self.read = False, [False, False]

    def ask(self, way: int, is_sorted: bool) -> None:
        """Note that a way is asked for, which is sorted already, or is not."""
        self.asked = True
        if is_sorted:
            self.read[way] = True


def watched(ways: TwoWay, *, made_ahead: bool) -> Use:
    """Return what notes the use of a map from now on; of one ``made_ahead`` there was none yet."""
    use = ways.use = Use()
    is_sorted = [own is not None and own.read[0] for own in ways.ways]
    if made_ahead:
        ways.coming = {way: partial(use.ask, way, there) for way, there in enumerate(is_sorted)}
    else:
        use.asked, use.read = True, is_sorted
    for way, own in enumerate(ways.ways):
        if own is not None:
            own.note_use = partial(use.ask, way)
    return use
