"""``ReductionView``: ``target[r] = reduce_s source[r, s]`` in two layouts.

It reduces m modes to n modes of any layout: rows or columns of a matrix, the batch and cells of a
tensor, overlapping windows, parts of a sum. ``layoutconv.reduce`` runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import index as as_int

from ..algebra.analysis import is_injective
from ..algebra.composed import ComposedLayout
from ..algebra.int_tuple import flatten, product
from ..algebra.layout import Layout
from ..algebra.stride import E
from ..errors import ArgumentError, ArgumentTypeError, are_several
from .gemm_view import OperandLayout
from .operands import row_major, runtime
from .view_cache import ViewCache


@dataclass(frozen=True)
class ReductionView:
    """A reduction as a layout over ``(r, s)``, kept and reduced, and one over ``r``.

    Either mode may nest. Layouts are plain, into the memory of a tensor, or chains of bounded maps
    like operands of :class:`~layoutconv.GemmView`: an element outside the bounds takes no part, and
    is not written.

    Raises :class:`~layoutconv.errors.ArgumentError` for a source without two modes, a target whose
    size is not ``r``, and a plain target that has two results in one place.

    >>> pooling = ReductionView(Layout((4, 3), (2, 1)), Layout(4))  # windows of 3, 2 apart
    >>> pooling.r, pooling.s
    (4, 3)
    """

    source: OperandLayout
    target: OperandLayout
    kept: ViewCache = field(init=False, repr=False, compare=False, default_factory=ViewCache)

    def __post_init__(self) -> None:
        for name, layout in (("source", self.source), ("target", self.target)):
            if not isinstance(layout, Layout | ComposedLayout):
                raise ArgumentTypeError(name, "a layout", repr(layout))
        if not isinstance(self.source.shape, tuple) or len(self.source.shape) != 2:
            raise ArgumentError("source", "a layout of two modes (r, s)", self.source)
        if product(self.target.shape) != self.r:
            raise ArgumentError("target", f"a layout of {self.r} elements", self.target)
        if isinstance(self.target, Layout) and not is_injective(self.target):
            raise ArgumentError(
                "target", "a layout with a place of its own for every result", self.target
            )

    @property
    def r(self) -> int:
        """The number of results."""
        return int(product(self.source.shape[0]))

    @property
    def s(self) -> int:
        """The number of elements that are reduced to each result."""
        return int(product(self.source.shape[1]))

    def __str__(self) -> str:
        return f"source: {self.source}\ntarget: {self.target}"


def reduction_view(
    shape_or_layout: Sequence[int] | Layout, modes: int | Sequence[int]
) -> ReductionView:
    """Return the reduction of some modes of a tensor, given its contiguous shape or its layout.

    Args:
        shape_or_layout: the shape of a contiguous tensor, or the layout of its modes in memory;
            the tensor has a mode for each leaf of a nested layout.
        modes: the modes to reduce, a layout's top-level ones; negative ones count from the end.

    The result is contiguous, in the order of the kept modes, like that of ``x.sum(modes)``.

    Raises :class:`~layoutconv.errors.ArgumentError` for a missing or repeated mode.

    >>> print(reduction_view((8, 3, 64), 1))  # of 8 matrices, each over its rows
    source: (8,3,64):(192,64,1) o 0 o ((64,8),3):((1@2,1@0),1@1)
    target: (8,64):(64,1) o 0 o (64,8):(1@1,1@0)
    >>> print(reduction_view(Layout((4, 6), (1, 4)), -1))  # of a column-major matrix
    source: (4,6):(1,4) o 0 o (4,6):(1@0,1@1)
    target: (4):(1) o 0 o 4:1@0
    """
    if isinstance(shape_or_layout, Layout):
        memory = Layout(flatten(shape_or_layout.shape), flatten(shape_or_layout.stride))
        tops = shape_or_layout.shape
        shape = tops if isinstance(tops, tuple) else (tops,)
    else:
        if not are_several(shape_or_layout):
            raise ArgumentTypeError("shape_or_layout", "a shape or a layout", repr(shape_or_layout))
        shape = tuple(_extent(e, i) for i, e in enumerate(shape_or_layout))
        memory = row_major(shape) if shape else Layout((), ())
    reduced = _modes(modes, len(shape))
    if not memory.shape:
        return ReductionView(Layout((1, 1), (0, 0)), memory)
    leaves: list[list[int]] = []  # of each mode of the tensor
    for mode in shape:
        first = leaves[-1][-1] + 1 if leaves else 0
        leaves.append(list(range(first, first + len(flatten(mode)))))
    of_kept = [leaf for i, at in enumerate(leaves) if i not in reduced for leaf in at]
    of_reduced = [leaf for i, at in enumerate(leaves) if i in reduced for leaf in at]
    r = _coordinates(memory, of_kept, of_kept)
    s = _coordinates(memory, of_reduced, of_reduced)
    source = ComposedLayout(memory, 0, Layout((r.shape, s.shape), (r.stride, s.stride)))
    if not of_kept:
        return ReductionView(source, Layout((), ()))
    stored = row_major([memory.shape[leaf] for leaf in of_kept])
    target = _coordinates(memory, of_kept, range(len(of_kept)))
    return ReductionView(source, ComposedLayout(stored, 0, target))


def _coordinates(memory: Layout, leaves: Sequence[int], to: Sequence[int]) -> Layout:
    """Map some modes of a tensor, the last one fastest, to modes ``to`` of a coordinate."""
    if not leaves:
        return Layout(1, 0 * E(0))
    shape = tuple(memory.shape[leaf] for leaf in reversed(leaves))
    stride = tuple(E(mode) for mode in reversed(to))
    return Layout(shape, stride) if len(leaves) > 1 else Layout(shape[0], stride[0])


def _extent(extent: int, mode: int) -> int:
    """Return an extent of a tensor. It may be 0, with a name: layouts allow no other zeros."""
    try:
        extent = as_int(extent)
    except TypeError:
        raise ArgumentTypeError("shape_or_layout", "integers", repr(extent)) from None
    if extent < 0:
        raise ArgumentError("shape_or_layout", "extents >= 0", extent)
    return extent or runtime(0, f"X{mode}")


def _modes(modes: int | Sequence[int], rank: int) -> set[int]:
    try:
        given = [as_int(mode) for mode in (modes if isinstance(modes, Iterable) else (modes,))]
    except TypeError:
        raise ArgumentTypeError("modes", "an integer, or several", repr(modes)) from None
    found = {mode + rank if mode < 0 else mode for mode in given}
    if len(found) < len(given) or not found <= set(range(rank)):
        raise ArgumentError("modes", f"different modes, of {rank} in all", modes)
    return found
