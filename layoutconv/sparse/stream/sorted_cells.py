"""Cells on the host, of any number, sorted on a device along a curve, and cut into chunks."""

from __future__ import annotations

from concurrent.futures import Future
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import ArgumentError
from ..coords.cell_errors import repeated
from ..coords.morton import Curve
from .host import new_on_host
from .staging import Staging, finish

_SORTED_AT_ONCE = 12  # rows of keys that are sorted in the memory of a row of a chunk, about


class SortedCells(NamedTuple):
    """Where the rows of a cloud are: a chunk is a range of the curve, as long as the others but for
    the last, with its rows in the order in which they were given.

    All are on the host. ``keys``, int64 (rows,), are those of the cells along the curve. ``order``
    is which row has each place: chunk after chunk, rising in each of them. ``place``, int32
    (rows,), is where in its chunk the cell of each key is. Without the two, each place is its row.
    """

    keys: Tensor
    order: Tensor | None = None
    place: Tensor | None = None


def sorted_cells(
    cells: Tensor, curve: Curve, length: int, move: Staging, at_once: int = _SORTED_AT_ONCE
) -> SortedCells:
    """Cells, int32 (rows, 1 + rank), in chunks of ``length`` rows; what is wrong with them is an
    error. The keys of ``at_once`` chunks are sorted together."""
    rows, most = len(cells), at_once * length
    runs = [slice(first, min(first + most, rows)) for first in range(0, rows, most)]
    chunks = [slice(first, min(first + length, rows)) for first in range(0, rows, length)]
    # Memory that nobody writes to is none yet: cells may be in order.
    keys = new_on_host((rows,), torch.int64)
    order = new_on_host((rows,), torch.int32 if rows < 2**31 else torch.int64)
    place = new_on_host((rows,), torch.int32)
    rising = []
    for run in runs:
        found = _keys(cells, run, curve, length, move)
        tasks: list[Future[None]] = []
        if _rising(found):
            rising.append(run)
        else:
            found, which = torch.sort(found)
            which = which.to(order.dtype).add_(run.start)
            if len(runs) > 1:
                tasks += move.to_host(which, order, run)
            else:
                _refuse_repeated(found, which, cells)
                for chunk in chunks:
                    tasks += _as_given(which[chunk], chunk, order, place, move)
        tasks += move.to_host(found, keys, run)
        finish(tasks)
    if len(rising) == len(runs) and (len(runs) < 2 or _rising(keys)):
        return SortedCells(keys)
    if len(runs) > 1:
        for run in rising:
            torch.arange(run.start, run.stop, out=order[run])
        # NumPy's stable sort finds the runs that there are, and merges them.
        merged = torch.from_numpy(np.argsort(keys.numpy(), kind="stable"))
        keys, order = keys.index_select(0, merged), order.index_select(0, merged)
        _refuse_repeated(keys, order, cells)
        for chunk in chunks:
            finish(_as_given(move.bring(order, chunk).here(), chunk, order, place, move))
    return SortedCells(keys, order, place)


def check_inside(cells: Tensor, curve: Curve, first: int = 0) -> None:
    """Raise ``ArgumentError`` if one of some cells, from row ``first`` on, is not of the grids."""
    limits = cells.new_tensor((curve.batch_size, *curve.shape))
    if not len(cells) or (cells.amin(0) >= 0).logical_and(cells.amax(0) < limits).all():
        return
    row = int(((cells < 0) | (cells >= limits)).any(1).nonzero()[0])
    expected = f"cells of {curve.batch_size} grids of {curve.shape}"
    raise ArgumentError("coords", expected, f"{cells[row].tolist()} in row {first + row}")


def _keys(cells: Tensor, run: slice, curve: Curve, length: int, move: Staging) -> Tensor:
    """The keys of a run of cells, on the device, where not all of these need be at once."""
    keys = torch.empty(run.stop - run.start, dtype=torch.int64, device=move.device)
    parts = [
        slice(first, min(first + length, run.stop)) for first in range(run.start, run.stop, length)
    ]
    coming = move.bring(cells, parts[0])
    for part, following in zip_longest(parts, parts[1:]):
        piece = coming.here()
        if following is not None:
            coming = move.bring(cells, following)
        check_inside(piece, curve, part.start)
        keys[part.start - run.start : part.stop - run.start] = curve.keys(piece)
    return keys


def _as_given(
    which: Tensor, chunk: slice, order: Tensor, place: Tensor, move: Staging
) -> list[Future[None]]:
    """Write a chunk's part of ``order`` and ``place``, of which row is where along the curve.

    Rows that rise are gathered and scattered in half the time that those of a curve take, or less:
    what is near along a curve are many runs of rows.
    """
    given, along = which.sort()
    numbers = torch.arange(len(which), dtype=torch.int32, device=which.device)
    where = torch.empty_like(numbers).scatter_(0, along, numbers)
    return move.to_host(given, order, chunk) + move.to_host(where, place, chunk)


def _refuse_repeated(keys: Tensor, which: Tensor, cells: Tensor) -> None:
    """Raise ``ArgumentError`` if a key, of those in order, is there twice."""
    again = keys[1:] == keys[:-1]
    if again.any():
        twice = int(again.nonzero()[0])
        one, other = sorted(which[twice : twice + 2].tolist())
        raise repeated("coords", cells[one].tolist(), one, other)


def _rising(keys: Tensor) -> bool:
    return bool((keys[1:] > keys[:-1]).all())
