"""Rows by coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from ...errors import ArgumentError, ArgumentTypeError, are_several, shown
from .coordinates import Coordinates

if TYPE_CHECKING:
    from torch import Tensor


def lookup(
    coordinates: Coordinates,
    coords: Tensor,
    offsets: Sequence[Sequence[int]] | None = None,
    stride: Sequence[int] | int = 1,
) -> Tensor:
    """Return the rows of ``coordinates`` that have some coordinates: int64 (rows,), -1 for none.

    Args:
        coordinates: with bounds or without, no cell twice.
        coords: int32 (rows, 1 + rank), columns ``(batch, z, y, x)``, any integers, repeated or not.
        offsets: instead of the coordinates themselves, cells ``(dz, dy, dx)`` to add to each: the
            result is (rows, offsets).
        stride: a number, or one per mode, by which coordinates are multiplied first.

    Raises :class:`~layoutconv.errors.ArgumentTypeError` for strides and offsets that are not
    integers, and :class:`~layoutconv.errors.ArgumentError` for a number of them that is not that of
    the modes, and for integers beyond 32 bits. It waits for the device.

    >>> import torch
    >>> cells = Coordinates.unbounded(torch.tensor([[0, -3], [0, 5]]).int())
    >>> lookup(cells, torch.tensor([[0, 5], [0, -4], [1, 5]]).int()).tolist()
    [1, -1, -1]
    >>> lookup(cells, torch.tensor([[0, -2]]).int(), offsets=[(-1,), (0,)], stride=1).tolist()
    [[0, -1]]
    """
    if not isinstance(coordinates, Coordinates):
        raise ArgumentTypeError("coordinates", "Coordinates", type(coordinates).__name__)
    rank = coordinates.rank
    asked = Coordinates.unbounded(coords, repeated=True, padded=True)
    if asked.rank != rank:
        expected = f"(rows, {1 + rank}), as the coordinates have"
        raise ArgumentError("coords", expected, tuple(coords.shape))
    each = stride if are_several(stride) else (stride,) * rank
    steps = _integers("stride", each, rank, f"one, or {rank}")
    if offsets is not None:
        if not are_several(offsets):
            raise ArgumentTypeError("offsets", f"a list of {rank} integers each", shown(offsets))
        offsets = [_integers("offsets", one, rank, f"a list of {rank}") for one in offsets]
    corner = (0,) * rank if coordinates.corner is None else coordinates.corner
    low = asked.corner or (0,) * rank
    moves = [a * s - b for a, b, s in zip(low, corner, steps, strict=True)]
    own = [(0,) * rank] if offsets is None else offsets
    cells = asked.cells
    centres = cells.masked_fill(cells[:, :1] >= coordinates.batch_size, -1)
    taps = [tuple(map(sum, zip(offset, moves, strict=True))) for offset in own]
    found = coordinates.check_distinct().table.search(centres, steps, taps).long()
    return found[:, 0] if offsets is None else found


def _integers(name: str, values: Any, rank: int, count: str) -> tuple[int, ...]:
    """Return a 32-bit integer for each mode, or raise the argument's error."""
    expected = f"{count} integers"
    try:
        found = tuple([index(value) for value in values])
    except (TypeError, RuntimeError):  # RuntimeError: a tensor of several numbers
        raise ArgumentTypeError(name, expected, shown(values)) from None
    if len(found) != rank or not all(-(1 << 31) <= value < 1 << 31 for value in found):
        raise ArgumentError(name, f"{expected} of 32 bits", shown(values))
    return found
