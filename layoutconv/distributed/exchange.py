"""Halo exchange: rows of a split tensor travel from ranks that hold them to ranks that read them.

One ``all_to_all_single`` carries them, which NCCL and gloo implement by sends and receives between
the ranks that have data to send. All ranks enter it, so that none is missing when a communicator is
set up, and slabs thinner than a halo need no special case.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .halo import HaloPart, HaloPlan


class Rows(NamedTuple):
    """The rows that a rank has of a tensor (N, *spatial, C), which is split along ``axis``."""

    plan: HaloPlan
    axis: int
    held: Tensor  # rows plan.own
    near: Tensor  # rows plan.near, and plan.far; empty until they arrive
    far: Tensor

    def read(self, part: HaloPart) -> Tensor:
        """Return the rows that a part of the result reads, contiguous, with its rows of zeros."""
        pieces = [
            self.held.new_zeros(shape_of(self.held, self.axis, part.zeros)),
            _cut(self.near, self.axis, self.plan.near, part.reads),
            _cut(self.held, self.axis, self.plan.own, part.reads),
            _cut(self.far, self.axis, self.plan.far, part.reads),
        ]
        filled = [piece for piece in pieces if piece.shape[self.axis]]
        return filled[0].contiguous() if len(filled) == 1 else torch.cat(filled, self.axis)


class Exchange:
    """An exchange of a plan's halos, which starts on construction and ends in :meth:`wait`.

    Args:
        held: this rank's rows, (N, *spatial, C).
        mode: the spatial mode that is split.
        group: the process group; not used by a plan without an exchange.
    """

    def __init__(self, held: Tensor, mode: int, plan: HaloPlan, group: Any) -> None:
        nothing = held.narrow(mode + 1, 0, 0)
        self.rows = Rows(plan, mode + 1, held, nothing, nothing)
        self.work = None
        if not plan.exchanged:
            return
        row = prod(shape_of(held, mode + 1, 1))
        sizes = [[len(rows) * row for rows in side] for side in (plan.send, plan.receive)]
        to, of = ([size * held.element_size() for size in side] for side in sizes)
        wanted = [rows for rows in plan.send if rows]
        pieces = [_flat(_cut(held, mode + 1, plan.own, rows)) for rows in wanted]
        # A single piece, of one volume cut along its first mode, is sent without a copy.
        self.sent = pieces[0] if len(pieces) == 1 else torch.cat([held.new_empty(0), *pieces])
        self.received = held.new_empty(sum(sizes[1]))
        self.sizes = sizes[1]
        self.work = dist.all_to_all_single(
            self.received.view(torch.uint8), self.sent.view(torch.uint8), of, to, group, True
        )

    def wait(self) -> Rows:
        """Return the rows with the halo. On a GPU, later launches wait for it, not the host."""
        if self.work is None:
            return self.rows
        self.work.wait()
        self.work = None
        _, axis, held, *empty = self.rows
        own = self.rows.plan.own
        sides: tuple[list[Tensor], list[Tensor]] = ([], [])
        pieces = self.received.split(self.sizes)
        for flat, rows in zip(pieces, self.rows.plan.receive, strict=True):
            if rows:
                piece = flat.view(shape_of(held, axis, len(rows)))
                sides[rows.start >= own.stop].append(piece)
        near, far = (
            torch.cat(side, axis) if len(side) > 1 else (*side, nothing)[0]
            for side, nothing in zip(sides, empty, strict=True)
        )
        self.rows = self.rows._replace(near=near, far=far)
        del self.sent, self.received
        return self.rows


def shape_of(tensor: Tensor, axis: int, rows: int) -> list[int]:
    """Return the shape of ``tensor`` with ``rows`` rows."""
    return [*tensor.shape[:axis], rows, *tensor.shape[axis + 1 :]]


def _flat(tensor: Tensor) -> Tensor:
    """Return the elements as a vector of stride 1; ``reshape`` may keep another if C is 1."""
    flat = tensor.reshape(-1)
    return flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)


def _cut(tensor: Tensor, axis: int, rows: range, wanted: range) -> Tensor:
    """Return the ``wanted`` rows of ``tensor``, which holds ``rows``."""
    start, stop = max(rows.start, wanted.start), min(rows.stop, wanted.stop)
    if start >= stop:
        return tensor.narrow(axis, 0, 0)
    return tensor.narrow(axis, start - rows.start, stop - start)
