"""``Slab``: the split of a volume's rows over the ranks of a process group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import index as as_int
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..conv import ConvProblem
from ..errors import ArgumentError, ArgumentTypeError, are_several, shown
from .agreement import Agreement, tensor_term
from .group import place_in
from .halo import output_bounds


class Slab:
    """A spatial mode of a volume, cut into a slab of consecutive rows per rank.

    Args:
        extent: number of rows of the whole volume in that mode.
        mode: the spatial mode to cut: 0 is the first, D of (N, C, D, H, W).
        group: a process group of ``torch.distributed``, by default all processes. A process without
            ``init_process_group`` is a group of one.
        bounds: where slabs begin and the last one ends, ``(0, ..., extent)``, the same on every
            rank; a slab may be empty. By default slabs are as even as possible, longer ones first.

    Slabs are equal if they cut the same volume in the same places for the same group.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument.

    >>> slab = Slab(10, bounds=(0, 10))
    >>> slab
    Slab(10, mode=0, bounds=(0, 10), rank=0)
    >>> slab.rows
    range(0, 10)
    >>> slab.after(3, stride=2, padding=1)
    Slab(5, mode=0, bounds=(0, 5), rank=0)
    """

    def __init__(
        self,
        extent: int,
        mode: int = 0,
        group: dist.ProcessGroup | None = None,
        bounds: Sequence[int] | None = None,
    ) -> None:
        self.extent = _count("extent", extent, 1)
        self.mode = _count("mode", mode, 0)
        if self.mode > 2:
            raise ArgumentError("mode", "a spatial mode, 0 to 2", mode)
        self.group = group
        self.rank, self.size = place_in(group)
        self.bounds = _even(self.extent, self.size) if bounds is None else _bounds(bounds, self)

    @property
    def rows(self) -> range:
        """The rows of the whole volume that this rank holds."""
        return range(self.bounds[self.rank], self.bounds[self.rank + 1])

    def shard(self, tensor: Tensor) -> Tensor:
        """Return this rank's part of a whole tensor ``(N, C, *spatial)``: a view.

        >>> Slab(4).shard(torch.ones(1, 2, 4, 8, 8)).shape
        torch.Size([1, 2, 4, 8, 8])
        """
        axis = self._axis(tensor)
        if tensor.shape[axis] != self.extent:
            expected = f"{self.extent} rows in mode {axis}"
            raise ArgumentError("tensor", expected, f"shape {tuple(tensor.shape)}")
        return tensor.narrow(axis, self.rows.start, len(self.rows))

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the whole tensor, on every rank, from the ranks' parts. It has no gradient.

        It is a collective with the errors of :func:`conv3d`.

        >>> x = torch.randn(1, 2, 4, 8, 8)
        >>> slab = Slab(4)
        >>> torch.equal(slab.gather(slab.shard(x)), x)
        True
        """
        with Agreement("Slab.gather", self.group) as same:
            axis = self.check("tensor", tensor)
            tensor = tensor.detach()
            same.terms |= {"slab": self.cut, "tensor": tensor_term(tensor, axis)}
        if self.size == 1:
            return tensor
        longest = max(stop - start for start, stop in pairwise(self.bounds))
        shape = list(tensor.shape)
        shape[axis] = longest
        padded = tensor.new_zeros(shape)
        padded.narrow(axis, 0, len(self.rows)).copy_(tensor)
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded, group=self.group)
        ends = zip(parts, pairwise(self.bounds), strict=True)
        return torch.cat([part.narrow(axis, 0, stop - start) for part, (start, stop) in ends], axis)

    def after(
        self,
        kernel_size: int,
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int = 1,
    ) -> Slab:
        """Return the slab of a convolution's output; numbers are those of the split mode.

        A row of the output is on the rank that holds the middle of its window, by the forward view:
        with stride 1 and "same" padding, slabs keep their bounds.

        Raises :class:`~layoutconv.errors.ArgumentError` as :class:`~layoutconv.conv.ConvProblem`.
        """
        problem = ConvProblem((1, self.extent, 1), (1, kernel_size), stride, (padding,), dilation)
        return self.of_output(problem, 0)

    def of_output(self, problem: ConvProblem, mode: int | None = None) -> Slab:
        """Return the slab of a problem's output, if this is the slab of its activation.

        ``mode`` is the spatial mode of the problem that is cut, by default this slab's.

        >>> Slab(8, mode=1).of_output(ConvProblem((1, 4, 8, 3), (5, 3, 3))).extent
        6
        """
        mode = self.mode if mode is None else mode
        bounds = output_bounds(problem, mode, self.bounds)
        return Slab(bounds[-1], self.mode, self.group, bounds)

    def check(self, name: str, tensor: Tensor) -> int:
        """Return the split axis of ``(N, C, *spatial)``; raise unless the rows are this rank's."""
        axis = self._axis(tensor, name)
        if tensor.shape[axis] != len(self.rows):
            held = f"rows {self.rows.start} to {self.rows.stop} of {self.extent}"
            expected = f"{len(self.rows)} rows in mode {axis}, {held}, on rank {self.rank}"
            raise ArgumentError(name, expected, f"shape {tuple(tensor.shape)}")
        return axis

    @property
    def cut(self) -> str:
        """The cut of the volume as text, which is the same on every rank.

        >>> Slab(10).cut
        'Slab(10, mode=0, bounds=(0, 10))'
        """
        return f"Slab({self.extent}, mode={self.mode}, bounds={self.bounds})"

    def _axis(self, tensor: Tensor, name: str = "tensor") -> int:
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentTypeError(name, "a torch tensor", type(tensor).__name__)
        if not self.mode + 2 < tensor.dim() <= 5:
            expected = f"(N, C, *spatial) with spatial mode {self.mode}, of 3 modes at most"
            raise ArgumentError(name, expected, f"shape {tuple(tensor.shape)}")
        return self.mode + 2

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Slab):
            return NotImplemented
        mine, theirs = (
            (s.extent, s.mode, s.bounds, s.rank, s.size, s.group) for s in (self, other)
        )
        return mine == theirs

    def __hash__(self) -> int:
        return hash((self.extent, self.mode, self.bounds))

    def __repr__(self) -> str:
        return f"Slab({self.extent}, mode={self.mode}, bounds={self.bounds}, rank={self.rank})"


def checked_slab(slab: Any) -> Slab:
    """Return the slab; raise ``ArgumentTypeError`` for anything else."""
    if not isinstance(slab, Slab):
        raise ArgumentTypeError("slab", "a Slab", type(slab).__name__)
    return slab


def _even(extent: int, size: int) -> tuple[int, ...]:
    short, longer = divmod(extent, size)
    return tuple(rank * short + min(rank, longer) for rank in range(size + 1))


def _bounds(bounds: Any, slab: Slab) -> tuple[int, ...]:
    if not are_several(bounds):
        raise ArgumentTypeError("bounds", "a sequence of integers, or None", shown(bounds))
    found = tuple(_count("bounds", bound, 0) for bound in bounds)
    rising = all(a <= b for a, b in pairwise(found))
    if len(found) != slab.size + 1 or found[0] != 0 or found[-1] != slab.extent or not rising:
        expected = (
            f"{slab.size + 1} increasing numbers from 0 to {slab.extent}, for {slab.size} ranks"
        )
        raise ArgumentError("bounds", expected, found)
    return found


def _count(name: str, value: Any, least: int) -> int:
    try:
        number = as_int(value)
    except TypeError:
        raise ArgumentTypeError(name, "an int", repr(value)) from None
    if number < least:
        raise ArgumentError(name, f"an int >= {least}", number)
    return number
