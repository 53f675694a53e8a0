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
        counted: the ways whose pairs somebody had counted, a bit each.
    """

    asked = False
    read = False, False
    counted = 0

    def note(self, way: int, is_sorted: bool) -> None:
        """Note that somebody asks for a way, which is sorted then, or is not."""
        self.asked = True
        if is_sorted:
            there, back = self.read
            self.read = (there, True) if way else (True, back)


def watched(ways: TwoWay) -> Use:
    """Return what notes the use of a map, which nobody asked for so far, from now on."""
    use = ways.use = Use()
    own = ways.ways[0]
    if own is not None and not own.read[0]:
        own.note_sorted = partial(use.note, 0, True)
    return use
