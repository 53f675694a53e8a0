"""Key of a view's kernel: the view's structure as text, and its runtime arguments."""

from __future__ import annotations

from typing import Any

from layoutconv.algebra.int_tuple import flatten, map_leaves
from layoutconv.algebra.stride import CustomStride, ScaledBasis
from layoutconv.algebra.symint import SymInt, is_runtime

from ..view.gemm_view import GemmView, OperandLayout, operands, stages
from ..view.vectors import is_open_run
from .tma_im2col import pixels_of


def signature(view: GemmView, along: tuple[int, int] = (1, 1), epilogue: str = "") -> str:
    """Return the structure as text, equal for views that one kernel serves.

    Static integers appear by value, runtime ones by name. Extents that the kernel unrolls always
    appear by value: columns of D, rows of B and, if they are contiguous, rows of A (``along`` is
    the contiguous mode of A and of B). So does k, unless both operands are contiguous in the other
    mode, or k is a single run whose length is an argument. The view's ``columns`` matter if there
    is an ``epilogue``, given by its structure.

    >>> from layoutconv.algebra import Layout, SymInt
    >>> M, K = SymInt(7, "M"), SymInt(4, "K", runtime=False)
    >>> plain = Layout((M, K), (K, 1))
    >>> signature(GemmView(plain, plain, Layout((M, M), (M, 1)))).splitlines()[0]
    'a [M,4]:[4,1]+0'
    """
    runs = along == (1, 1) and is_open_run(view.a, 1) and is_open_run(view.b, 1)
    static_k = along != (0, 0) and not (runs and view.k)  # empty sums need a kernel of their own
    by_value = {"a": (along[0] == 0, static_k), "b": (True, static_k), "d": (False, True)}
    lines = []
    for name, layout in operands(view):
        for at, stage in enumerate(stages(layout)):
            shape = stage.layout.shape
            if at == 0:
                values = (*by_value[name], False)
                shape = tuple(
                    _values(mode) if value else mode
                    for mode, value in zip(shape, values, strict=False)
                )
            parts = (shape, stage.layout.stride)
            lines.append(f"{name} {':'.join(map(_text, parts))}+{_text(stage.offset)}")
    if view.columns is not None and epilogue:
        lines.append(f"columns {_values(view.columns.shape)}:{_values(view.columns.stride)}")
    for name, pixels in zip("ab", pixels_of(view, along), strict=True):
        if pixels and not pixels.fits:  # rare: TMA cannot encode the runtime sizes
            lines.append(f"{name} without a TMA descriptor")
    return "\n".join(lines)


def runtime_integers(view: GemmView) -> dict[str, int]:
    """Return a kernel's integer arguments by name, in the order in which it takes them."""
    found: dict[str, int] = {}

    def note(leaf: Any) -> Any:
        while isinstance(leaf, ScaledBasis | CustomStride):
            leaf = leaf.value if isinstance(leaf, ScaledBasis) else leaf.stride
        if isinstance(leaf, SymInt) and leaf.runtime:
            found.setdefault(str(leaf), int(leaf))
        return leaf

    for _, layout in operands(view):
        for stage in stages(layout):
            for leaves in (stage.layout.shape, stage.layout.stride, stage.offset):
                map_leaves(note, leaves)
    return found


def divisors(view: GemmView) -> list[str]:
    """Return the runtime divisors of coordinates: all extents of a mode but its last."""
    modes = [mode for _, layout in operands(view) for mode in stages(layout)[0].layout.shape]
    leaves = [leaf for mode in modes for leaf in flatten(mode)[:-1] if is_runtime(leaf)]
    return sorted({str(leaf) for leaf in leaves})


def index_buffer(layout: OperandLayout) -> Any:
    """Return the index buffer of an operand, or None."""
    leaves = [d for stage in stages(layout) for d in flatten(stage.layout.stride)]
    return next((d.func.index for d in leaves if isinstance(d, CustomStride)), None)


def _values(t: Any) -> Any:
    return map_leaves(int, t)


def _text(t: Any) -> str:
    if isinstance(t, tuple):
        return "[" + ",".join(map(_text, t)) + "]"
    if isinstance(t, ScaledBasis):
        return f"{_text(t.value)}@{'@'.join(map(str, t.path))}"
    if isinstance(t, CustomStride):
        return f"{type(t.func).__name__}*{_text(t.stride)}"
    return str(t) if is_runtime(t) else str(int(t))
