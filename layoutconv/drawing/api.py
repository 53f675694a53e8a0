"""``draw``: the figure of any object that has one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..algebra import (
    ComposedLayout,
    CopyAtom,
    Layout,
    MmaAtom,
    Swizzle,
    Tensor,
    TiledCopy,
    TiledMma,
)
from ..algebra.layout import as_like
from ..algebra.notation import visible_lines
from ..errors import ArgumentError, ArgumentTypeError
from ..view.gemm_view import GemmView
from .figure import Figure
from .layouts import composed_figure, layout_figure, swizzle_figure, tensor_figure
from .threads import (
    copy_figure,
    mma_figure,
    thread_value_figure,
    tiled_copy_figure,
    tiled_mma_figure,
)
from .views import view_figure

# For each class that can be drawn: the function that draws it, and the options that it accepts.
_FIGURES: dict[type, tuple[Callable[..., Figure], tuple[str, ...]]] = {
    Layout: (layout_figure, ("tv", "element_bits")),
    ComposedLayout: (composed_figure, ("tv", "element_bits")),
    Swizzle: (swizzle_figure, ("element_bits",)),
    Tensor: (tensor_figure, ()),
    MmaAtom: (mma_figure, ()),
    CopyAtom: (copy_figure, ()),
    TiledMma: (tiled_mma_figure, ()),
    TiledCopy: (tiled_copy_figure, ("tv", "element_bits")),
    GemmView: (view_figure, ("row",)),
}


def draw(
    obj: Any,
    path: str | Path | None = None,
    *,
    format: str | None = None,
    tv: Any = None,
    row: int | None = None,
    element_bits: int | None = None,
    limit: int = 64,
    title: str | None = None,
) -> Figure:
    """Draw a layout, a swizzle, a tensor, an atom of tensor cores or a GEMM view.

    The result shows itself: as SVG in a notebook, as text when printed.

    Args:
        obj: ``Layout``, ``ComposedLayout``, ``Swizzle``, ``Tensor``, ``MmaAtom``, ``CopyAtom``,
            ``TiledMma``, ``TiledCopy`` or ``GemmView``; or the notation of a layout, or a shape,
            whose compact layout is drawn. Modes 0 and 1 are rows and columns, further modes
            panels.
        path: where to write the picture as well: ``.svg``, ``.html``, ``.tex`` (TikZ) or ``.txt``.
        format: ``"svg"``, ``"html"``, ``"tikz"`` or ``"text"``, for a path with another suffix.
        tv: the extents (M, N) of a tile, if ``obj`` is its thread-value layout; or a layout with
            these extents, that of the tile in shared memory.
        row: the row of a GEMM view whose cells are marked.
        element_bits: the size of an element, to colour offsets by their bank of shared memory; for
            a thread-value layout or ``TiledCopy``, each cell names the bank of its access.
        limit: how many rows and columns to show; of more, the first and the last.
        title: the line above the picture, by default the notation of ``obj``.

    Raises :class:`~layoutconv.errors.ArgumentError` for an option that ``obj`` does not use, and
    a :class:`~layoutconv.LayoutError` for a layout without integers to draw.

    >>> from layoutconv import Layout
    >>> draw(Layout((2, 4), (4, 1)))
    (2,4):(4,1)
    <BLANKLINE>
          0  1  2  3    4:1
        ┌────────────┐
      0 │ 0  1  2  3 │
      1 │ 4  5  6  7 │
        └────────────┘
    2:4
    """
    if isinstance(obj, (str, tuple)) or type(obj) is int:
        obj = as_like("draw", obj)
    make, accepted = _maker(obj)
    given: dict[str, Any] = {"tv": tv, "row": row, "element_bits": element_bits}
    options = {name: value for name, value in given.items() if value is not None}
    for name, value in options.items():
        if name not in accepted:
            raise ArgumentError(name, f"None for a {type(obj).__name__}", value)
    if not isinstance(limit, int) or limit < 4:
        raise ArgumentError("limit", "an int >= 4", repr(limit))
    if format is not None and path is None:
        raise ArgumentError(
            "path", f"where to write {format}; or draw(...).render({format!r})", None
        )
    if "tv" in options and not isinstance(obj, TiledCopy):
        make = thread_value_figure
    figure = make(obj, limit=limit, **options)
    if title is not None:
        figure = Figure(visible_lines(str(title)), figure.grids, figure.legend)
    if path is not None:
        figure.save(path, format)
    return figure


def _maker(obj: Any) -> tuple[Callable[..., Figure], tuple[str, ...]]:
    for kind, maker in _FIGURES.items():
        if isinstance(obj, kind):
            return maker
    known = ", ".join(kind.__name__ for kind in _FIGURES)
    raise ArgumentTypeError("obj", f"one of {known}, a notation or a shape", type(obj).__name__)
