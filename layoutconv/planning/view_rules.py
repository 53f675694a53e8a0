"""Rules of views: the template's requirements, checked before it compiles, with a reason.

The kernel checks the bounds that rows can leave, and the entries of index buffers. All else must be
in bounds by construction; this file decides that with interval arithmetic.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any, NoReturn

from layoutconv.algebra.int_tuple import flatten, paired_leaves
from layoutconv.algebra.stride import CustomStride, ScaledBasis

from ..view.gemm_view import GemmView, OperandLayout, Stage, gathers, operands, stages

Interval = tuple[int, int]  # least and greatest
MAX_GROUPS = 65535  # the third extent of a grid
END = 2**31  # of a coordinate, which the kernel keeps in 32 bits


class UnsupportedViewError(ValueError):
    """A view is well formed, but this kernel template cannot run it; the CPU executor can."""


def check_view(view: GemmView, along: tuple[int, int] = (1, 1)) -> None:
    """Refuse views that the template cannot run; ``along`` is the contiguous mode of A and of B.

    Raises ``UnsupportedViewError``, which names the operand, what was expected, and what came.

    >>> from layoutconv.algebra import Layout
    >>> plain = Layout((4, 8), (8, 1))
    >>> try:
    ...     check_view(GemmView(plain, plain, Layout((4, 4), (4, 1))))
    ... except UnsupportedViewError as error:
    ...     print(error)
    operand `a` of the view: expected a map to coordinates and a map to memory, got (4,8):(8,1)
    """
    check_maps(view)
    check_bounds(view, along)


def check_bounds(view: GemmView, along: tuple[int, int]) -> None:
    """Run ``check_view`` without ``check_maps``, for callers that ran that with ``vectors_of``."""
    if view.l > MAX_GROUPS:
        _refuse("a", f"at most {MAX_GROUPS} groups", view.l)
    for (name, layout), columns in zip(operands(view), (*along, 1), strict=True):
        for mode in stages(layout)[0].layout.shape[:2]:
            size = prod(map(int, flatten(mode)))
            if size >= END:
                _refuse(name, "fewer than 2^31 rows and columns", size)
        left = mode_left(layout, 1 - columns)
        if left is not None:
            _refuse(name, *left)


def check_maps(view: GemmView) -> None:
    """Refuse operands that are not the chains of maps that the template supports."""
    for name, layout in operands(view):
        _check_maps(name, stages(layout))


def _check_maps(name: str, chain: tuple[Stage, ...]) -> None:
    """Check for two or more maps, flat coordinates, and at most one index buffer, before memory.

    The kernel uses a buffer's entry as mode 0 of memory, and the other modes unchanged.
    """
    if len(chain) < 2:
        _refuse(name, "a map to coordinates and a map to memory", chain[0].layout)
    for stage in chain[1:]:
        if not isinstance(stage.layout.shape, tuple) or any(
            isinstance(extent, tuple) for extent in stage.layout.shape
        ):
            _refuse(name, "flat coordinates behind the first map", stage.layout)
    for stage in chain[:-1]:
        for d in flatten(stage.layout.stride):
            if len(_path(d)) != 1:
                _refuse(name, "scaled-basis strides before memory", stage.layout)
    for stage, following in pairwise(chain):
        modes = len(following.layout.shape)
        if any(_path(d)[0] >= modes for d in flatten(stage.layout.stride)):
            _refuse(name, f"strides in the {modes} modes of the next map", stage.layout)
        if stage.offset and (not isinstance(stage.offset, tuple) or len(stage.offset) != modes):
            _refuse(name, f"an offset 0, or one for each of {modes} modes", stage.offset)
    at = [i for i, stage in enumerate(chain) if gathers(stage)]
    if at and (at != [len(chain) - 2] or at == [0]):
        _refuse(
            name, "at most one index buffer, between a first map and memory", chain[at[0]].layout
        )
    if at:
        if chain[at[0]].layout.shape[0] >= END:
            _refuse(name, "fewer than 2^31 index entries", int(chain[at[0]].layout.shape[0]))
        first, *rest = chain[at[0]].layout.stride
        if not isinstance(first, CustomStride) or first.stride.path != (0,):
            _refuse(name, "an index buffer that is read at mode 0 for mode 0", first)
        if any(isinstance(d, CustomStride) for d in rest):
            _refuse(name, "one index buffer", chain[at[0]].layout)
        modes = len(chain[-1].layout.shape)
        others = [(d.value, d.path) for d in rest] == [(1, (i,)) for i in range(1, modes)]
        if first.stride.value != 1 or not others or any(flatten(chain[at[0]].offset)):
            got = f"{chain[at[0]].layout} + {chain[at[0]].offset}"
            expected = f"an index buffer for mode 0 of {modes}, and all others as they are"
            _refuse(name, expected, got)


def _path(stride: Any) -> tuple[int, ...]:
    """Return the mode that a stride moves, () for an offset into memory."""
    basis = stride.stride if isinstance(stride, CustomStride) else stride
    return basis.path if isinstance(basis, ScaledBasis) else ()


def mode_left(layout: OperandLayout, row_mode: int) -> tuple[str, Interval] | None:
    """Return bounds that a coordinate can leave without a check in the kernel, and its interval.

    None if there are none. The kernel checks the modes that rows move, and index-buffer entries;
    all of these in 32 bits.
    Rows are mode ``row_mode`` of the layout, 0 or 1; the maps have passed ``check_maps``.

    >>> from layoutconv.algebra import ComposedLayout, E, Layout
    >>> shifted = ComposedLayout(Layout((4, 8), (1, 4)), (0, -3), Layout((4, 8), (E(0), E(1))))
    >>> mode_left(shifted, 0)
    ('mode 1 inside [0, 8) of (4,8):(1,4)', (-3, 4))
    >>> mode_left(shifted, 1) is None
    True
    """
    chain = stages(layout)
    domain = chain[0].layout
    leaves = paired_leaves(domain.shape, domain.stride)
    rows = {d.path[0] for d in flatten(domain.stride[row_mode])}
    intervals = _images(
        [((0, max(int(s) - 1, 0)), d) for s, d in leaves], chain[0].offset, chain[1]
    )
    for at, stage in enumerate(chain[1:], start=1):
        for mode, (low, high) in enumerate(intervals):
            extent = int(stage.layout.shape[mode])
            if low < -END or high >= END:
                return f"mode {mode} inside [-2^31, 2^31) of {stage.layout}", (low, high)
            checked = (at == 1 and mode in rows) or (mode == 0 and gathers(chain[at - 1]))
            if not checked and (low < 0 or high >= max(extent, 1)):
                return f"mode {mode} inside [0, {extent}) of {stage.layout}", (low, high)
        if at + 1 < len(chain):
            inside = [(0, max(int(s) - 1, 0)) for s in stage.layout.shape]
            moved = list(zip(inside, stage.layout.stride, strict=True))
            intervals = _images(moved, stage.offset, chain[at + 1])
    return None


def _images(moved: list[tuple[Interval, Any]], offset: Any, following: Stage) -> list[Interval]:
    """Return the interval of each mode of the next map, from the interval of each coordinate."""
    count = len(following.layout.shape)
    found = [(int(o), int(o)) for o in (offset if isinstance(offset, tuple) else (0,) * count)]
    for (low, high), d in moved:
        if isinstance(d, CustomStride):
            continue  # the kernel checks index-buffer entries
        mode, step = d.path[0], int(d.value)
        ends = sorted((low * step, high * step))
        found[mode] = found[mode][0] + ends[0], found[mode][1] + ends[1]
    return found


def _refuse(name: str, expected: str, got: Any) -> NoReturn:
    raise UnsupportedViewError(f"operand `{name}` of the view: expected {expected}, got {got}")
