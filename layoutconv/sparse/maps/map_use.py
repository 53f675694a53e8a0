"""The use of a kernel map: which parts of it were asked for."""

from __future__ import annotations


class Use:
    """The use of a map since it was made. It outlives the map.

    Attributes:
        asked: whether the map was asked for.
        read: whether the sorted indices of it and of its inverse were read.
        counted: the ways whose pairs were counted, a bit each.
    """

    asked = False
    read = False, False
    counted = 0

    def note(self, way: int, is_sorted: bool) -> None:
        """Note a request for a way, which is sorted then, or is not."""
        self.asked = True
        if is_sorted:
            there, back = self.read
            self.read = (there, True) if way else (True, back)
