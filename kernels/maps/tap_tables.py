"""Tables of a filter's taps, which kernels read: its geometry, then its lines, codes or taps.

So one kernel finds the maps of all filters whose taps lie alike, and loops over their taps. A table
begins with a record per list of numbers, one number per axis, behind a count:

    lines or taps, stride
    codes or taps, least offset
    taps of a line, span

A *line* is all taps that differ on the last axis alone. A *code* is one bit of a sort key: the mask
of the taps that set it, in two Int32, and its weight.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from ..common.cells import Cell, read_cell
from ..common.plain_types import AnyTuple
from .block_table import EDGES
from .tap_blocks import geometry
from .taps_like import Ints, TapOrderLike

LINES = 3  # that a thread looks up at once: in a vector of a table, with a last number unused
CODES = 4  # that a thread reads at once
VECTOR = 4  # Int32 of one load: every part of a table begins at a multiple

Offsets = tuple[Ints, ...]


def head_size(rank: int) -> int:
    """Return how many Int32 the geometry takes.

    >>> [head_size(rank) for rank in (1, 2, 3, 4)]
    [8, 12, 12, 16]
    """
    return _rounded(3 * (1 + rank), VECTOR)


def read_geometry(table: Any, rank: int) -> tuple[AnyTuple, Cell, Cell, Cell]:
    """Return the three counts of a table, and a filter's stride, least offset and span."""
    of_lines, *stride = read_cell(table, 0, rank)
    of_codes, *low = read_cell(table, 1, rank)
    width, *span = read_cell(table, 2, rank)
    return (of_lines, of_codes, width), stride, low, span


def table_of_lines(offsets: Offsets, stride: Ints, box: Offsets) -> Ints:
    """Return the table of taps that fill a grid: their lines, as packed offsets without the last
    axis. A vector has ``LINES`` of them, and the last line is repeated in what is left; one vector
    more can be read ahead.

    >>> table_of_lines(((-1,), (0,), (1,)), (1,), ((0,), (1,), (2,)))[8:]
    (0, 0, 0, 0, 0, 0, 0, 0)
    """
    lines = [packed_offset(tap) for tap in dict.fromkeys((*tap[:-1], 0) for tap in box)]
    width, rows = len(box) // len(lines), list[int]()
    for first in range(0, len(lines) + LINES, LINES):
        some = lines[first : first + LINES]
        rows += some + [lines[-1]] * (VECTOR - len(some))
    return _table(_head(offsets, stride, len(lines), len(box), width), rows)


def table_of_codes(offsets: Offsets, stride: Ints, bits: list[int], order: TapOrderLike) -> Ints:
    """Return the table of the bits of a key, of taps that set ``bits`` of a word. Codes without
    taps or weight, up to a multiple of ``CODES``, change nothing; ``CODES`` more can be read ahead.

    >>> class Order:
    ...     visits, weights = (2, 0, 1), (13107, 10922, 9362)
    >>> table_of_codes(((-1,), (0,), (1,)), (1,), [0, 1, 2], Order)[8:24]
    (4, 0, 13107, 0, 1, 0, 10922, 0, 2, 0, 9362, 0, 0, 0, 0, 0)
    """
    codes, mask = list[Ints](), 0
    for tap, weight in zip(order.visits, order.weights, strict=True):
        mask |= 1 << bits[tap]
        if weight:
            codes.append((_signed(mask), _signed(mask >> 32), weight, 0))
            mask = 0
    many = _rounded(len(codes), CODES)
    codes += [(0,) * VECTOR] * (many + CODES - len(codes))
    return _table(_head(offsets, stride, 0, many, 0), chain(*codes))


def table_of_taps(offsets: Offsets, stride: Ints, near: bool) -> Ints:
    """Return the table of any taps: for each its packed offset, 0 if not ``near``, and its own.

    >>> table_of_taps(((0,), (9,)), (1,), True)
    (2, 1, 2, 0, 1, 9, 0, 0, 0, 0, 9, 9)
    >>> table_of_taps(((-9,), (90,)), (1,), False)  # whose span no kernel reads
    (2, 1, 2, -9, 1, -9, 0, 0, 0, -9, 0, 90)
    """
    rows = [(packed, *tap) for packed, tap in zip(_packed(offsets, near), offsets, strict=True)]
    return _table(_head(offsets, stride, len(rows), len(rows), 1), chain(*rows))


def table_of_visits(offsets: Offsets, stride: Ints, near: bool, order: TapOrderLike) -> Ints:
    """Return the table of any taps in the order in which keys take them, each with its weight."""
    packed, pairs = _packed(offsets, near), zip(order.visits, order.weights, strict=True)
    rows = [(packed[tap], weight, *offsets[tap]) for tap, weight in pairs]
    return _table(_head(offsets, stride, len(rows), len(rows), 1), chain(*rows))


def steps_of(box: Offsets) -> Ints:
    """Return the positions of the taps of a line of a grid of taps.

    >>> steps_of(((0, 0), (0, 2), (2, 0), (2, 2)))
    (0, 2)
    """
    return tuple(dict.fromkeys(tap[-1] for tap in box))


def bits_in_block(taps: Offsets, rank: int) -> list[int] | None:
    """Return the bits of taps in a block that begins at the first cell; None if not all fit.

    >>> bits_in_block(((0, 0), (7, 2)), 2), bits_in_block(((0, 0), (8, 0)), 2)
    ([0, 58], None)
    """
    found = []
    for tap in taps:
        bit = 0
        for c, b in zip(tap, EDGES[rank], strict=True):
            if c >> b:
                return None
            bit = bit << b | c
        found.append(bit)
    return found


def packed_offset(tap: Ints) -> int:
    """Pack a tap's offset from the first cell, as ``Neighbours.packed`` packs cells.

    >>> hex(packed_offset((1, 2, 3)))
    '0x10203'
    """
    found = 0
    for c in tap:
        found = found << 8 | c
    return found


def _packed(offsets: Offsets, near: bool) -> list[int]:
    low, _, _ = geometry(offsets, len(offsets[0]) if offsets else 1)
    if not near:
        return [0] * len(offsets)
    return [packed_offset(tuple(map(int.__sub__, tap, low))) for tap in offsets]


def _head(offsets: Offsets, stride: Ints, lines: int, codes: int, width: int) -> Ints:
    low, span, near = geometry(offsets, len(stride))
    return lines, *stride, codes, *low, width, *(span if near else low)


def _table(head: Ints, rows: Any) -> Ints:
    found = list(head)
    found += [0] * (_rounded(len(found), VECTOR) - len(found))
    found += rows
    return tuple(found + [0] * (_rounded(len(found), VECTOR) - len(found)))


def _rounded(count: int, to: int) -> int:
    return -(-count // to) * to


def _signed(word: int) -> int:
    """Return the lower 32 bits of a word as an Int32."""
    return ((word + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
