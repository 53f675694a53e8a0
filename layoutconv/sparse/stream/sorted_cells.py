"""Cells on the host, of any number, sorted along a curve on a device, and cut into chunks."""

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

_SORTED_AT_ONCE = 12  # chunks whose keys are sorted in about the memory of one chunk's rows


class SortedCells(NamedTuple):
    """The places of a cloud's rows. A chunk is a range of the curve, all of one length but the
    last, with its rows in the given order.

    All tensors are on the host. ``keys``, int64 (rows,), are those of the cells along the curve.
    ``order`` is the row at each place: chunk after chunk, ascending within each. ``place``, int32
    (rows,), is the position in its chunk of each key's cell. Without these two, each place is its
    row.
    """

    keys: Tensor
    order: Tensor | None = None
    place: Tensor | None = None


def sorted_cells(
    cells: Tensor, curve: Curve, length: int, move: Staging, at_once: int = _SORTED_AT_ONCE
) -> SortedCells:
    """Sort cells, int32 (rows, 1 + rank), into chunks of ``length`` rows, and check them. The keys
    of ``at_once`` chunks are sorted together."""
    rows, most = len(cells), at_once * length
    runs = [slice(first, min(first + most, rows)) for first in range(0, rows, most)]
    chunks = [slice(first, min(first + length, rows)) for first in range(0, rows, length)]
    # Pages that are never written take no memory: cells may be in order.
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
        # NumPy's stable sort finds existing runs, and merges them.
        merged = torch.from_numpy(np.argsort(keys.numpy(), kind="stable"))
        keys, order = keys.index_select(0, merged), order.index_select(0, merged)
        _refuse_repeated(keys, order, cells)
        for chunk in chunks:
            finish(_as_given(move.bring(order, chunk).here(), chunk, order, place, move))
    return SortedCells(keys, order, place)


def check_inside(cells: Tensor, curve: Curve, first: int = 0) -> None:
    """Raise ``ArgumentError`` if a cell is outside the grids; the first has row ``first``."""
    limits = cells.new_tensor((curve.batch_size, *curve.shape))
    if not len(cells) or (cells.amin(0) >= 0).logical_and(cells.amax(0) < limits).all():
        return
    row = int(((cells < 0) | (cells >= limits)).any(1).nonzero()[0])
    expected = f"cells in {curve.batch_size} grids of shape {curve.shape}"
    raise ArgumentError("coords", expected, f"{cells[row].tolist()} in row {first + row}")


def _keys(cells: Tensor, run: slice, curve: Curve, length: int, move: Staging) -> Tensor:
    """Compute the keys of a run of cells on the device, which need not hold all cells at once."""
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
    """Write a chunk's part of ``order`` and ``place``; ``which`` is its rows along the curve.

    Ascending rows are gathered and scattered in at most half the time of rows along a curve, which
    are many short runs.
    """
    given, along = which.sort()
    numbers = torch.arange(len(which), dtype=torch.int32, device=which.device)
    where = torch.empty_like(numbers).scatter_(0, along, numbers)
    return move.to_host(given, order, chunk) + move.to_host(where, place, chunk)


def _refuse_repeated(keys: Tensor, which: Tensor, cells: Tensor) -> None:
    """Raise ``ArgumentError`` if a key, in sorted order, is there twice."""
    again = keys[1:] == keys[:-1]
    if again.any():
        twice = int(again.nonzero()[0])
        one, other = sorted(which[twice : twice + 2].tolist())
        raise repeated("coords", cells[one].tolist(), one, other)


def _rising(keys: Tensor) -> bool:
    return bool((keys[1:] > keys[:-1]).all())
