"""TMA tiled: the boxes of B's memory that a TMA descriptor (``CUtensorMap``) describes.

A filter has no index buffer. Its TMA descriptor holds the extents and strides of up to five modes.
One instruction names a corner, in bounds or not; the hardware copies the box from there to shared
memory, with zeros out of bounds (``kernels/gemm/tma.py``). So taps that some columns lack, as with
concatenated stride phases, need no masks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from layoutconv.algebra.composed import ComposedLayout
from layoutconv.algebra.int_tuple import crd2idx, flatten, map_leaves, paired_leaves
from layoutconv.algebra.layout import Layout
from layoutconv.algebra.stride import ArithmeticTuple, E
from layoutconv.algebra.symint import is_runtime

from ..view.gemm_view import GemmView, Stage, gathers, stages
from .kernel_spec import BYTES, VECTOR_BYTES, KernelSpec
from .tile import line_bytes

# With CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, TMA rounds fp32 data to nearest.
MAPS_ROUND = True
MOST_MODES = 5
MOST_EXTENT = 1 << 32
MOST_STRIDE = 1 << 40  # bytes
MOST_ALONG = 256  # elements of a box along a mode


def has_map(dtype: str) -> bool:
    """Return whether TMA copies elements in the form ``wgmma`` needs: tf32 rounded to nearest.

    >>> has_map("float16"), has_map("tfloat32"), has_map("float64")
    (True, True, False)
    """
    return BYTES[dtype] <= 2 or (dtype == "tfloat32" and MAPS_ROUND)


@dataclass(frozen=True)
class Boxes:
    """B as ``memory o start o domain``, and the ``box`` of one copy: elements by mode.

    The TMA descriptor describes ``memory``, flat and contiguous along its first mode; ``domain``
    maps (n, k), or (n, k, l), to its coordinates. Rows of B past the last may hold anything;
    columns past the last are out of bounds.
    """

    layout: ComposedLayout
    box: tuple[int, ...]

    @property
    def rows(self) -> int:
        """The number of lines of a box: the product of all its extents but the first."""
        return prod(self.box[1:])

    def corner(self, *crd: Any, divisor: Callable[[Any], Any] = int) -> tuple[Any, ...]:
        """Return the coordinate in memory of an element of B, where the box of a tile starts.

        ``divisor`` turns an extent into what ``crd`` is divided by.
        """
        domain = self.layout.inner
        moved = crd2idx(crd, map_leaves(divisor, domain.shape), domain.stride)
        return tuple(ArithmeticTuple(self.layout.offset) + moved)


def memory_of_b(view: GemmView, spec: KernelSpec) -> Boxes | None:
    """Return B's tiles as boxes of its memory; None if producers must copy B with ``cp.async``.

    A descriptor must hold for every call of a kernel, so extents and strides are constants. Each
    side of a tile covers the first digits of its GEMM mode, each with unit step along a mode of
    memory. A line covers a single digit, so it ends where the digit does, or past all digits.
    Contiguous modes of memory are merged, such as channels and the taps beside them. A mode that
    may leave its bounds can only be the slowest of a merged mode: an element out of its bounds is
    then out of the merged mode's bounds, too.

    >>> from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
    >>> from .tile import specialized
    >>> def example(view, k=64):
    ...     tile = specialized((128, 64, k), (8, 1), 4)
    ...     found = memory_of_b(view, KernelSpec.of(view, "float16", "float16", tile, "sm_90a"))
    ...     return found and (str(found.layout), found.box)
    >>> example(fprop_view(ConvProblem((1, 8, 8, 64), (40, 3, 3))))
    ('(576,40):(1,576) o (0,0) o (40,576):(1@1,1@0)', (64, 64))
    >>> example(wgrad_view(ConvProblem((1, 8, 8, 64), (40, 3, 3))))  # whose B is the input
    >>> problem = ConvProblem((1, 9, 8, 32), (32, 3, 3), stride=2, padding=1)
    >>> view = dgrad_views(problem)[1]
    >>> example(view), example(view, k=32)  # a k-tile of two taps, and of one
    (None, ('(288,32):(1,288) o (96,0) o (32,(32,2)):(1@0,(1@1,64@0))', (64, 32)))
    >>> beside = dgrad_views(problem, side_by_side=(1,))[0]  # taps -1 to 2 of three
    >>> example(beside, k=32)
    ('(96,32,3):(1,288,96) o (-32,0,1) o (64,(32,2)):(1@0,(1@1,64@0))', (64, 32, 1))
    """
    tile, size, along = spec.tile, BYTES[spec.dtype], spec.along[1]
    if (
        not tile.warp_specialized
        or not has_map(spec.dtype)
        or spec.vectors[1] * size != VECTOR_BYTES
    ):
        return None
    if size > 2 and along != 1:  # producers transpose it: wgmma does not transpose 32 bits
        return None
    chain = stages(view.b)
    if len(chain) != 2 or any(map(gathers, chain)) or not all(map(_constant, chain)):
        return None
    sides = [tile.n, tile.k]
    sides[along] = line_bytes(sides[along] * size) // size
    b = _OperandDigits.of(*chain).merged(1 - along, sides)
    lines, rows = (_covered(b.sides[mode], sides[mode]) for mode in (along, 1 - along))
    if len(lines) != 1 or not rows or not b.ends_with_k(tile.k):
        return None
    covered = [*lines, *rows]
    order = [digit.mode for digit, _ in covered]
    order += [mode for mode in range(len(b.memory)) if mode not in order]
    box = [count for _, count in covered] + [1] * (len(b.memory) - len(covered))
    whole = len(set(order)) == len(order) and all(digit.step == 1 for digit, _ in covered)
    found = Boxes(b.layout(order), tuple(box))
    return found if whole and _fits(found, along, VECTOR_BYTES // size) else None


def _constant(stage: Stage) -> bool:
    parts = stage.layout.shape, stage.layout.stride, stage.offset or ()
    return not any(is_runtime(getattr(d, "value", d)) for part in parts for d in flatten(part))


class _Digit(NamedTuple):
    """A digit of n, k or l, and its step in a mode of the coordinate."""

    extent: int
    mode: int
    step: int


class _OperandDigits(NamedTuple):
    """B as the digits of n, k and l, their start, and memory's modes as (extent, stride)."""

    sides: list[list[_Digit]]
    start: list[int]
    memory: list[tuple[int, int]]

    @classmethod
    def of(cls, domain: Stage, storage: Stage) -> _OperandDigits:
        layout, memory = domain.layout, storage.layout
        modes = zip(layout.shape, layout.stride, strict=True)
        sides = [
            [
                _Digit(int(extent), d.path[0], int(d.value))
                for extent, d in paired_leaves(shape, stride)
            ]
            for shape, stride in modes
        ]
        start = flatten(domain.offset) if domain.offset else (0,) * len(memory.shape)
        extents, strides = map_leaves(int, memory.shape), map_leaves(int, memory.stride)
        pairs = zip(extents, strides, strict=True)
        return cls(list(map(_joined, sides)), list(map(int, start)), list(pairs))

    def merged(self, rows: int, sides: list[int]) -> _OperandDigits:
        """Return this with contiguous modes of memory merged, except modes along a box's rows.

        ``rows`` is the mode of (n, k) that numbers the rows of shared memory.
        """
        apart = {digit.mode for digit, _ in _covered(self.sides[rows], sides[rows])}
        moved = {digit.mode for side in self.sides for digit in side}
        every = enumerate(self.memory)
        used = [i for i, (e, _) in every if e > 1 or i in moved or not self._stays(i)]
        found: list[tuple[int, int]] = []
        ended: set[int] = set()  # merged modes that no further mode may extend
        place: dict[int, tuple[int, int]] = {}  # of each old mode: its merged mode, and step there
        for i in sorted(used, key=lambda i: self.memory[i][::-1]):
            extent, stride = self.memory[i]
            at = [j for j, (e, s) in enumerate(found) if e * s == stride and j not in ended]
            if not at or i in apart:
                at = [len(found)]
                found.append((1, stride))
            before, first = found[at[0]]
            place[i], found[at[0]] = (at[0], before), (before * extent, first)
            if not self._stays(i):
                ended.add(at[0])
        start = [0] * len(found)
        for i, (mode, step) in place.items():
            start[mode] += self.start[i] * step
        moved_sides = [
            _joined([_Digit(e, place[i][0], step * place[i][1]) for e, i, step in side])
            for side in self.sides
        ]
        return _OperandDigits(moved_sides, start, found)

    def _stays(self, mode: int) -> bool:
        """Return whether a mode of the coordinate never leaves its bounds."""
        reach = [
            (digit.extent - 1) * digit.step
            for side in self.sides
            for digit in side
            if digit.mode == mode
        ]
        low = self.start[mode] + sum(min(0, d) for d in reach)
        return low >= 0 and self.start[mode] + sum(max(0, d) for d in reach) < self.memory[mode][0]

    def ends_with_k(self, k_tile: int) -> bool:
        """Return whether the last k-tile's columns past the last are out of bounds, hence zeros."""
        n, (digit, *others), *l = self.sides
        if prod(d.extent for d in (digit, *others)) % k_tile == 0:
            return True
        alone = all(d.mode != digit.mode for side in (n, *l) for d in side)
        ends = self.start[digit.mode] + digit.extent == self.memory[digit.mode][0]
        return not others and alone and ends

    def layout(self, order: list[int]) -> ComposedLayout:
        """Return the operand, over memory with its modes in ``order``."""
        shape = tuple(_mode([d.extent for d in side]) for side in self.sides)
        steps = tuple(_mode([d.step * E(order.index(d.mode)) for d in s]) for s in self.sides)
        extents, strides = zip(*(self.memory[mode] for mode in order), strict=True)
        start = tuple(self.start[mode] for mode in order)
        return ComposedLayout(Layout(extents, strides), start, Layout(shape, steps))


def _joined(digits: list[_Digit]) -> list[_Digit]:
    """Return the digits with contiguous ones merged, and those of extent 1 dropped if others exist.

    >>> _joined([_Digit(32, 0, 1), _Digit(1, 2, 7), _Digit(2, 0, 32), _Digit(2, 1, 1)])
    [_Digit(extent=64, mode=0, step=1), _Digit(extent=2, mode=1, step=1)]
    """
    found: list[_Digit] = []
    for digit in [d for d in digits if d.extent > 1] or digits[:1]:
        before = found[-1] if found else _Digit(0, -1, 0)
        if (digit.mode, digit.step) == (before.mode, before.extent * before.step):
            found[-1] = before._replace(extent=before.extent * digit.extent)
        else:
            found.append(digit)
    return found


def _covered(digits: list[_Digit], side: int) -> list[tuple[_Digit, int]]:
    """Return the digits that ``side`` numbers, aligned to ``side``, run through, and the extent of
    each.

    The last digit takes the rest. Empty if the numbers cross from one partial digit to the next.

    >>> [(d.mode, count) for d, count in _covered([_Digit(32, 0, 1), _Digit(4, 1, 1)], 64)]
    [(0, 32), (1, 2)]
    >>> _covered([_Digit(24, 0, 1), _Digit(4, 1, 1)], 64)
    []
    """
    found: list[tuple[_Digit, int]] = []
    for digit in digits[:-1]:
        if digit.extent % side == 0:
            return [*found, (digit, side)]
        if side % digit.extent:
            return []
        found.append((digit, digit.extent))
        side //= digit.extent
    return [*found, (digits[-1], side)]


def _mode(leaves: list[Any]) -> Any:
    return leaves[0] if len(leaves) == 1 else tuple(leaves)


def _fits(found: Boxes, along: int, vector: int) -> bool:
    """Return whether the descriptor can encode all numbers, and lines start at whole vectors."""
    memory, size = found.layout.outer, VECTOR_BYTES // vector
    steps = [list(flatten(mode)) for mode in found.layout.inner.stride]
    del steps[along][0]  # the digit that lines run along
    starts = [d.value for mode in steps for d in mode if d.path == (0,)]
    return (
        memory.stride[0] == 1
        and len(memory.shape) <= MOST_MODES
        and max(memory.shape) <= MOST_EXTENT
        and max(found.box) <= MOST_ALONG
        and all(0 < d * size < MOST_STRIDE and d % vector == 0 for d in memory.stride[1:])
        and all(d % vector == 0 for d in (found.layout.offset[0], *starts))
    )
