"""What a kernel depends on in a view, and what the template asks of one. Needs no compiler."""

from __future__ import annotations

from typing import Any

from layoutconv.algebra.int_tuple import flatten, map_leaves, product
from layoutconv.algebra.stride import CustomStride, ScaledBasis
from layoutconv.algebra.symint import SymInt, is_runtime
from layoutconv.gemm_view import GemmView, OperandLayout, gathers, stages


class UnsupportedViewError(ValueError):
    """A view is well formed, but this kernel template cannot run it; the CPU executor can."""


def signature(view: GemmView) -> str:
    """The structure as text, equal for views that one kernel serves.

    Static integers appear by value, runtime ones by name.

    >>> from layoutconv.algebra import Layout, SymInt
    >>> M, K = SymInt(7, "M"), SymInt(4, "K", runtime=False)
    >>> plain = Layout((M, K), (K, 1))
    >>> signature(GemmView(plain, plain, plain)).splitlines()[0]
    'a [M,4]:[4,1]+0'
    """
    lines = []
    for name, layout in _operands(view):
        for stage in stages(layout):
            parts = (stage.layout.shape, stage.layout.stride)
            lines.append(f"{name} {':'.join(map(_text, parts))}+{_text(stage.offset)}")
    return "\n".join(lines)


def runtime_integers(view: GemmView) -> dict[str, int]:
    """The integers that a kernel takes as arguments, by name, in the order that it takes them."""
    found: dict[str, int] = {}

    def note(leaf: Any) -> Any:
        while isinstance(leaf, ScaledBasis | CustomStride):
            leaf = leaf.value if isinstance(leaf, ScaledBasis) else leaf.stride
        if isinstance(leaf, SymInt) and leaf.runtime:
            found.setdefault(str(leaf), int(leaf))
        return leaf

    for _, layout in _operands(view):
        for stage in stages(layout):
            for leaves in (stage.layout.shape, stage.layout.stride, stage.offset):
                map_leaves(note, leaves)
    return found


def divisors(view: GemmView) -> list[str]:
    """The runtime integers that coordinates are divided by: all extents of a mode but its last."""
    modes = [mode for _, layout in _operands(view) for mode in stages(layout)[0].layout.shape]
    leaves = [leaf for mode in modes for leaf in flatten(mode)[:-1] if is_runtime(leaf)]
    return sorted({str(leaf) for leaf in leaves})


def index_buffer(layout: OperandLayout) -> Any:
    """The index buffer of an operand, or None."""
    leaves = [d for stage in stages(layout) for d in flatten(stage.layout.stride)]
    return next((d.func.index for d in leaves if isinstance(d, CustomStride)), None)


def check_view(view: GemmView, vector: int, out_vector: int) -> None:
    """Refuse what the template cannot run: ``vector`` elements are read or written at once.

    Raises ``UnsupportedViewError``, which names the operand, what is asked of it, and what came.
    """
    for (name, layout), size in zip(_operands(view), (vector, vector, out_vector), strict=True):
        chain = stages(layout)
        if len(chain) < 2 or sum(map(gathers, chain)) > 1 or any(map(gathers, chain[:-2])):
            _refuse(
                name, "a chain of maps with at most one index buffer, right before memory", layout
            )
        row, col = chain[0].layout.stride
        mode, extent = _first(col), _first(chain[0].layout.shape[1])
        if any(d.path == mode.path for d in flatten((row, *_rest(col)))) or mode.value != 1:
            _refuse(name, "a contiguous mode that rows and taps leave alone", layout)
        if extent % size:
            _refuse(name, f"a multiple of {size} channels (16 bytes)", int(extent))
        path = mode.path
        for stage in chain[1:]:
            stride = stage.layout.stride
            (at,) = path
            if stage is not chain[-1]:
                path = stride[at].path
                continue
            others = [d for i, d in enumerate(stride) if i != at]
            if stride[at] != 1 or any(d % size for d in others):
                _refuse(name, f"strides of 1, then multiples of {size} (16 bytes)", stride)
        if product(chain[0].layout.shape[0]) >= 2**31:
            _refuse(name, "fewer than 2^31 rows", int(product(chain[0].layout.shape[0])))


def _refuse(name: str, expected: str, got: Any) -> None:
    raise UnsupportedViewError(f"operand `{name}` of the view: expected {expected}, got {got}")


def _operands(view: GemmView) -> tuple[tuple[str, OperandLayout], ...]:
    return ("a", view.a), ("b", view.b), ("d", view.d)


def _first(mode: Any) -> Any:
    return flatten(mode)[0]


def _rest(mode: Any) -> tuple[Any, ...]:
    return flatten(mode)[1:]


def _text(t: Any) -> str:
    if isinstance(t, tuple):
        return "[" + ",".join(map(_text, t)) + "]"
    if isinstance(t, ScaledBasis):
        return f"{_text(t.value)}@{'@'.join(map(str, t.path))}"
    if isinstance(t, CustomStride):
        return f"{type(t.func).__name__}*{_text(t.stride)}"
    return str(t) if is_runtime(t) else str(int(t))
