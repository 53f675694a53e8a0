"""Find the contiguous elements of an operand, from its layout."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise
from math import gcd
from typing import Any

from ..algebra.int_tuple import IntTuple, flatten, paired_leaves
from ..algebra.layout import Layout
from ..algebra.stride import ArithmeticTuple, CustomStride, ScaledBasis
from ..algebra.symint import is_runtime
from .gemm_view import OperandLayout, Stage, gathers, stages

_LONGEST = 2048  # elements of a vector: a row of a matrix product that still fits the caches

Path = tuple[int, ...]


def vector_extent(layout: OperandLayout, mode: int) -> int:
    """Return how many elements of ``mode``, from any multiple on, are contiguous in memory.

    They are stored together or not at all, at an offset that is a multiple of their number. The
    first leaf of the mode is followed through the chain of maps to the unit stride of memory. On
    the way it has to stay a unit vector that nothing else pushes out of bounds; otherwise the
    result is 1.

    >>> from ..conv import ConvProblem, fprop_view
    >>> view = fprop_view(ConvProblem((1, 8, 8, 24), (16, 3, 3), padding=1))
    >>> vector_extent(view.a, 1), vector_extent(view.a, 0), vector_extent(view.d, 1)
    (24, 1, 16)

    At most 2048: a divisor of :func:`contiguous_extent`.
    """
    return _divisor(contiguous_extent(layout, mode))


def contiguous_extent(layout: OperandLayout, mode: int) -> int:
    """Return the same as ``vector_extent``, which is a divisor of it, without the limit.

    >>> from ..algebra import Layout
    >>> rows = Layout((3, 6884), (6884, 1))
    >>> contiguous_extent(rows, 1), vector_extent(rows, 1)
    (6884, 1721)
    """
    chain = stages(layout)
    path = _first_leaf(chain, mode)
    extent = int(_at(chain[0].layout.shape, path))
    divisors = [extent]
    for stage, following in pairwise(chain):
        stride = _at(stage.layout.stride, path)
        if not isinstance(stride, ScaledBasis) or stride.value != 1:
            return 1
        others = _others(stage, path, stride.path)
        bound = _at(following.layout.shape, stride.path)
        if others is None or isinstance(bound, tuple):
            return 1
        reach = sum(r for r, _ in others)
        if sum(min(r, 0) for r, _ in others) < 0 or (reach and reach + extent > bound):
            return 1
        if extent > bound:  # beyond the bound it leaves the shape, so divide by it
            divisors.append(int(bound))
        divisors += (step for _, step in others)
        path = stride.path
    memory = chain[-1]
    others = _others(memory, path, ())
    if others is None or _at(memory.layout.stride, path) != 1:
        return 1
    return gcd(*divisors, *(step for _, step in others))


def is_open_run(layout: OperandLayout, mode: int) -> bool:
    """Return whether a mode is one run of a coordinate, whose length is a runtime argument, or a
    runtime number of runs, along a coordinate of their own.

    The last leaf of the mode holds that extent. Then a kernel is not unrolled over the run: it
    divides no coordinate by its length, and compares none with a bound.

    >>> from ..algebra import ComposedLayout, E, SymInt
    >>> J = SymInt(5, "J")
    >>> memory, run = Layout((4, 8 * J), (8 * J, 1)), Layout((4, (8, J)), (E(0), (E(1), 8 * E(1))))
    >>> is_open_run(ComposedLayout(memory, 0, run), 1), is_open_run(memory, 0)
    (True, False)
    >>> memory, runs = Layout((J, 4, 8), (32, 8, 1)), Layout((4, (8, J)), (E(1), (E(2), E(0))))
    >>> is_open_run(ComposedLayout(memory, 0, runs), 1)
    True
    """
    first, *others = stages(layout)
    if not others or any(map(gathers, (first, *others))):
        return False
    shape, stride = first.layout.shape, first.layout.stride
    *leaves, (last, step) = paired_leaves(shape[mode], stride[mode])
    moved = [*flatten(stride[:mode]), *flatten(stride[mode + 1 :])]
    if not leaves or not is_runtime(last) or any(is_runtime(extent) for extent, _ in leaves):
        return False
    if not all(isinstance(unit, ScaledBasis) for unit in (step, *(unit for _, unit in leaves))):
        return False
    path, reach = leaves[0][1].path, 1
    for extent, unit in leaves:
        if (unit.path, unit.value) != (path, reach):
            return False
        reach *= int(extent)
    goes_on = (step.path, step.value) == (path, reach)
    of_runs = step.path != path and step.value == 1
    return (goes_on or of_runs) and all(d.path not in (path, step.path) for d in moved)


def rows_adjoin(layout: OperandLayout) -> bool:
    """Return whether memory holds an operand row after row, complete and without gaps.

    Letters decide this, not numbers: so it holds for every size that a kernel serves.

    >>> from ..conv import ConvProblem, dgrad_views, fprop_view
    >>> rows_adjoin(fprop_view(ConvProblem((1, 8, 8, 24), (3, 3, 3))).d)
    True
    >>> rows_adjoin(dgrad_views(ConvProblem((1, 8, 8, 24), (3, 3, 3), stride=2))[0].d)
    False
    """
    chain = stages(layout)
    if len(chain) != 2 or any(map(gathers, chain)) or len(chain[0].layout.shape) != 2:
        return False
    domain, memory = chain[0].layout, chain[1].layout
    if any(any(flatten(stage.offset)) for stage in chain if stage.offset):
        return False
    reach: Any = 1
    for mode in (1, 0):
        for extent, step in paired_leaves(domain.shape[mode], domain.stride[mode]):
            if not isinstance(step, ScaledBasis) or step.value != 1:
                return False
            there = str(_at(memory.shape, step.path)), str(_at(memory.stride, step.path))
            if there != (str(extent), str(reach)):
                return False
            reach = extent * reach
    return True


def recast(layout: OperandLayout, mode: int, vector: int) -> tuple[Stage, ...]:
    """Return the chain of maps over vectors, each of ``vector`` elements along ``mode``.

    ``vector`` divides ``vector_extent(layout, mode)``. Like CuTe's ``recast`` of one layout, this
    divides everything that runs along the vectors: extents, steps and offsets in memory.

    >>> from ..algebra import Layout
    >>> [stage] = recast(Layout((4, (6, 2)), (12, (1, 48))), 1, 3)
    >>> print(stage.layout)
    (4,(2,2)):(4,(1,16))
    """
    chain = stages(layout)
    if vector == 1:
        return chain
    path = _first_leaf(chain, mode)
    result = []
    for stage in chain:
        last = stage is chain[-1]
        target = () if last else _at(stage.layout.stride, path).path
        shape, stride = stage.layout.shape, stage.layout.stride
        offset = ArithmeticTuple(stage.offset) if isinstance(stage.offset, tuple) else stage.offset
        for where, extent, step in _leaves(shape, stride):
            if where == path:
                shape = _put(shape, where, extent // vector)
            elif last or getattr(step, "path", None) == target:
                stride = _put(stride, where, _divided(step, vector))
        if last or isinstance(offset, tuple):
            offset = _put(offset, target, _at(offset, target) // vector)
        result.append(Stage(Layout(shape, stride), offset))
        path = target
    return tuple(result)


def _first_leaf(chain: tuple[Stage, ...], mode: int) -> Path:
    path: Path = (mode,)
    while isinstance(_at(chain[0].layout.shape, path), tuple):
        path = (*path, 0)
    return path


def _divided(step: Any, by: int) -> Any:
    if isinstance(step, CustomStride):
        return CustomStride(step.func, _divided(step.stride, by))
    if isinstance(step, ScaledBasis):
        return ScaledBasis(step.value // by, step.path)
    return step // by


def _others(stage: Stage, path: Path, target: Path) -> list[tuple[int, int]] | None:
    """Return the (reach, step) that each leaf but ``path`` adds to mode ``target``.

    ``target`` is () for an offset in memory. None if a function decides, or nested modes overlap.
    """
    offset = int(_at(stage.offset, target) if isinstance(stage.offset, tuple) else stage.offset)
    found = [(offset, offset)]
    for where, extent, stride in _leaves(stage.layout.shape, stage.layout.stride):
        function = isinstance(stride, CustomStride)
        step = stride.stride if isinstance(stride, CustomStride) else stride
        basis = step.path if isinstance(step, ScaledBasis) else ()
        if where == path or (basis and target and basis[: len(target)] != target[: len(basis)]):
            continue
        value = step.value if isinstance(step, ScaledBasis) else step
        if not isinstance(value, int) or basis != target or (function and target):
            return None
        if extent > 1:
            found.append(((int(extent) - 1) * int(value), int(value)))
    return found


def _leaves(shape: IntTuple, stride: IntTuple, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    if not isinstance(shape, tuple):
        yield path, shape, stride
        return
    for mode, (s, d) in enumerate(zip(shape, stride, strict=True)):
        yield from _leaves(s, d, (*path, mode))


def _at(t: IntTuple, path: Path) -> Any:
    for mode in path:
        t = t[mode]
    return t


def _put(t: IntTuple, path: Path, value: Any) -> IntTuple:
    """Return ``t`` with ``value`` at ``path``."""
    if not path:
        return value
    head, *rest = path
    return type(t)([*t[:head], _put(t[head], tuple(rest), value), *t[head + 1 :]])


def _divisor(extent: int) -> int:
    """Return the greatest divisor of ``extent`` that is at most the longest vector."""
    return next(extent // d for d in count(-(-extent // _LONGEST)) if extent % d == 0)
