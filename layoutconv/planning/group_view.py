"""Views of many groups as block-diagonal products: contiguous channels, one tile of A.

A view with groups has a third mode, one product per group. Where the channels of all groups are
contiguous in A and in D, the group is a digit of the channel, and a tile of several groups reads A
once: ``D[m, (n, g)] = sum_k A[m, (k, g)] * B[(n, g), k]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ..algebra import ComposedLayout, Layout
from ..algebra.int_tuple import flatten, paired_leaves
from ..algebra.stride import ScaledBasis
from ..algebra.symint import is_runtime
from ..view.gemm_view import GemmView, OperandLayout, gathers, stages
from ..view.operands import arranged

MOST_TAPS = 32  # kernels unroll the taps


@dataclass(frozen=True)
class Digit:
    """A digit of a mode: its extent, and the mode of A's coordinate that it moves, by ``step``."""

    extent: Any
    mode: int
    step: int


@dataclass(frozen=True)
class GroupView:
    """A view whose groups are contiguous.

    Attributes:
        a, b, d: its operands, with the group as the slowest digit of the channels in A's columns,
            of B's rows and of D's columns.
        rows, taps: the digits of m, and those of k after the channels.
        groups, channels, columns: the number of groups, and each group's channels of A and columns
            of D.
    """

    a: OperandLayout
    b: OperandLayout
    d: OperandLayout
    rows: tuple[Digit, ...]
    taps: tuple[Digit, ...]
    groups: int
    channels: int
    columns: int

    @classmethod
    def of(cls, view: GemmView) -> GroupView | None:
        """Return the groups of a view; None if they are not contiguous.

        >>> from ..conv import ConvProblem, fprop_view
        >>> found = GroupView.of(fprop_view(ConvProblem((2, 9, 24), (48, 3), groups=3)))
        >>> found.groups, found.channels, found.columns
        (3, 8, 16)
        >>> print(found.b.inner)
        ((Kg,G),(Cg,S)):((1@0,Kg@0),(1@2,1@1))
        """
        if not are_plain(view):
            return None
        if view.columns is not None:  # concatenated stride phases
            return None
        alone = len(flatten(view.d.shape[1])) == len(flatten(view.b.shape[0])) == 1
        a, d, modes = side_by_side(view.a), side_by_side(view.d), modes_of(view.a)
        if not alone or a is None or d is None or modes is None:
            return None
        rows, channels, taps = modes
        return cls(a, nested(view.b), d, rows, taps, view.l, channels, view.n)

    def patch(self, box: tuple[int, ...]) -> tuple[int, ...]:
        """Return the extents of the patch that the taps of a box of rows reach, by row digit.

        >>> from ..conv import ConvProblem, fprop_view
        >>> problem = ConvProblem((2, 9, 9, 24), (48, 3, 3), stride=2, groups=3)
        >>> GroupView.of(fprop_view(problem)).patch((8, 4, 1))
        (17, 9, 1)
        """
        return tuple(
            (extent - 1) * row.step + 1 + high - low
            for extent, row in zip(box, self.rows, strict=True)
            for low, high in (self.reach(row.mode),)
        )

    def tap_cells(self, patch: tuple[int, ...]) -> list[int]:
        """Return each tap's offset from the first, in cells of a patch, in the order of k.

        >>> from ..conv import ConvProblem, fprop_view
        >>> view = fprop_view(ConvProblem((2, 9, 9, 24), (48, 2, 3), groups=3))
        >>> GroupView.of(view).tap_cells((10, 5, 1))
        [0, 1, 2, 10, 11, 12]
        """
        found, apart = [0], self.cells_apart(patch)
        for tap in self.taps:
            step = tap.step * apart[tap.mode]
            found = [cell + i * step for i in range(int(tap.extent)) for cell in found]
        return found

    def cells_apart(self, patch: tuple[int, ...]) -> dict[int, int]:
        """Return the stride of each mode of A's coordinate, in cells of a patch."""
        found, apart = {}, 1
        for row, extent in zip(self.rows, patch, strict=True):
            found[row.mode], apart = apart, apart * extent
        return found

    def reach(self, mode: int) -> tuple[int, int]:
        """Return the least and the greatest offset that taps add to a mode of A's coordinate."""
        ends = [tap.step * (int(tap.extent) - 1) for tap in self.taps if tap.mode == mode]
        return sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends)

    @property
    def tap_count(self) -> int:
        return prod(int(tap.extent) for tap in self.taps)


def are_plain(view: GemmView) -> bool:
    """Return whether a view has a third mode, and operands of two maps without index buffers."""
    chains = [stages(x) for x in (view.a, view.b, view.d)]
    plain = all(len(chain) == 2 and not any(map(gathers, chain)) for chain in chains)
    return plain and len(view.a.shape) == 3


def modes_of(layout: OperandLayout) -> tuple[tuple[Digit, ...], int, tuple[Digit, ...]] | None:
    """Return the digits of rows, the channels per group and the digits of taps; None for others."""
    rows, columns = digits_of(layout, 0), digits_of(layout, 1)
    if not rows or not columns:
        return None
    channels, *taps = columns
    moved = [digit.mode for digit in rows]
    static = not any(is_runtime(tap.extent) for tap in (channels, *taps))
    apart = len(set(moved)) == len(moved) and channels.mode not in moved
    if not (static and apart) or any(tap.mode not in moved for tap in taps):
        return None
    if any(row.step < 1 for row in rows) or prod(int(t.extent) for t in taps) > MOST_TAPS:
        return None
    return tuple(rows), int(channels.extent), tuple(taps)


def digits_of(layout: OperandLayout, mode: int) -> list[Digit]:
    """Return the digits of a mode; [] unless each moves one mode by a constant integer step."""
    domain = stages(layout)[0].layout
    found = []
    for extent, step in paired_leaves(domain.shape[mode], domain.stride[mode]):
        if not isinstance(step, ScaledBasis) or is_runtime(step.value):
            return []
        found.append(Digit(extent, step.path[0], int(step.value)))
    return found


def side_by_side(layout: OperandLayout) -> OperandLayout | None:
    """Return an operand whose channels in mode 1 span all groups; None if groups lie elsewhere."""
    columns, groups = digits_of(layout, 1), digits_of(layout, 2)
    if not columns or len(groups) != 1:
        return None
    first, group = columns[0], groups[0]
    if (first.step, group.mode, group.step) != (1, first.mode, int(first.extent)):
        return None
    domain = stages(layout)[0].layout
    shape, stride = flatten(domain.shape[1]), flatten(domain.stride[1])
    every = (int(first.extent) * int(group.extent), *shape[1:])
    mode = (every, tuple(stride)) if len(every) > 1 else (every[0], stride[0])
    assert isinstance(layout, ComposedLayout)
    inner = Layout((domain.shape[0], mode[0]), (domain.stride[0], mode[1]))
    return ComposedLayout(layout.outer, layout.offset, inner)


def nested(layout: OperandLayout) -> OperandLayout:
    """Return an operand with the group as the slowest digit of its rows."""
    return arranged(layout, lambda n, k, g: ((*flatten(n), *flatten(g)), k))
