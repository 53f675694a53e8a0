"""``GemmView``, which every executor takes: ``D[m, n] = sum_k A[m, k] * B[n, k]`` in three layouts.

A batch of such products is one view, too: with a third mode in each layout it is ``D[m, n, l] =
sum_k A[m, k, l] * B[n, k, l]``, CUTLASS's (M, K, L), (N, K, L) and (M, N, L).

An operand's layout is a chain of bounded maps, composed right to left:

    storage  o  [gather]  o  [fold]  o  (offset + im2col)

The first maps the logical ``(m, k)`` to a coordinate such as ``(n, d, h, w, c)``; an index buffer
is one more map, from a position to the coordinate that is stored there; the last maps a coordinate
to an offset in memory. *A coordinate outside the shape of the next map reads zero and is not
written*: this rule implements padding, and an index of -1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from ..algebra.budget import Budget
from ..algebra.composed import ComposedLayout
from ..algebra.display import Pictured
from ..algebra.errors import LayoutBudgetError, text
from ..algebra.int_tuple import IntTuple, flatten, idx2crd, product, unflatten
from ..algebra.layout import Layout
from ..algebra.stride import ArithmeticTuple, CustomStride, E, ScaledBasis
from ..algebra.sums import collision
from ..algebra.symint import SymInt, is_runtime
from ..errors import ArgumentError, ArgumentTypeError, shown
from .view_cache import ViewCache

OperandLayout = Layout | ComposedLayout


@dataclass(frozen=True)
class Stage:
    """One map of a chain: ``c -> layout(c) + offset`` for ``c`` inside ``layout.shape``."""

    layout: Layout
    offset: Any = 0


def stages(layout: OperandLayout) -> tuple[Stage, ...]:
    """Return the chain of maps of an operand's layout, in the order a coordinate passes them.

    >>> from ..algebra import E
    >>> im2col = Layout((4, 3), (E(0), E(0)))
    >>> padded = ComposedLayout(Layout((6,), (10,)), (-1,), im2col)
    >>> [f"{s.layout} + {s.offset}" for s in stages(padded)]
    ['(4,3):(1@0,1@0) + (-1,)', '(6):(10) + 0']
    """
    if isinstance(layout, Layout):
        return (Stage(layout),)
    if not isinstance(layout, ComposedLayout):
        expected = "a Layout or a ComposedLayout of such"
        raise ArgumentTypeError("layout", expected, type(layout).__name__)
    *first, last = stages(layout.inner)
    joined = Stage(last.layout, last.offset + layout.offset if last.offset else layout.offset)
    return (*first, joined, *stages(layout.outer))


def inside(crd: IntTuple, shape: IntTuple) -> Any:
    """Return whether ``crd`` is a coordinate of ``shape``: a bool, or an array of bools for arrays.

    >>> inside((1, -1), (4, 4)), inside((3, 0), (4, (2, 2))), inside((3,), (4, 4))
    (False, True, True)
    """
    if isinstance(crd, tuple):
        if not isinstance(shape, tuple) or len(crd) > len(shape):
            raise ArgumentError("crd", f"a coordinate of the shape {text(shape)}", repr(crd))
        result: Any = True
        if len(crd) < len(shape):
            crd = (*crd, *[0] * (len(shape) - len(crd)))  # a coordinate ends before its zeros
        for c, s in zip(crd, shape, strict=True):
            result = both(inside(c, s), result)
        return result
    try:
        return (crd >= 0) & (crd < product(shape))
    except TypeError:
        raise ArgumentTypeError("crd", "integers, or integer arrays", shown(crd)) from None


def both(a: Any, b: Any) -> Any:
    """Return ``a & b``, without a pass over an array if the other is simply True."""
    return b if a is True else a if b is True else a & b


def locate(layout: OperandLayout, *crd: Any) -> tuple[Any, Any]:
    """Return ``(offset, valid)`` of ``crd``: where it is stored, and whether; else offset 0.

    Executors are tested against this definition; it works on ints and on integer arrays.

    >>> from ..algebra import E
    >>> padded = ComposedLayout(Layout((6,), (10,)), (-1,), Layout((4, 3), (E(0), E(0))))
    >>> locate(padded, 0, 0), locate(padded, 2, 1)
    ((0, False), (20, True))
    """
    c: Any = crd[0] if len(crd) == 1 else crd
    chain = stages(layout)
    offset, valid = follow(chain, c, inside(c, chain[0].layout.shape))
    return _masked(offset, valid), valid


def follow(chain: tuple[Stage, ...], crd: Any, valid: Any) -> tuple[Any, Any]:
    """Map ``crd`` through the rest of a chain; return its image, and whether it has one.

    ``valid`` says whether ``crd`` is inside the first map. If the result is not valid, its first
    part is meaningless.
    """
    for at, stage in enumerate(chain):
        if gathers(stage):
            crd = _masked(stage.layout(_masked(crd, valid)), valid)
        else:
            crd = stage.layout(crd)
        crd = _moved(crd, stage.offset) if stage.offset else crd
        if at + 1 < len(chain):
            valid = both(inside(crd, chain[at + 1].layout.shape), valid)
    return crd, valid


def _moved(crd: Any, offset: Any) -> Any:
    """Add an offset to a coordinate; strides of 0 may give a plain 0 for it."""
    if isinstance(offset, tuple) and not isinstance(crd, tuple):
        return ArithmeticTuple(crd + o for o in offset)
    return crd + offset


def gathers(stage: Stage) -> bool:
    """Return whether a map of the chain reads an index buffer, or applies another function."""
    return any(map(_is_function, flatten(stage.layout.stride)))


def _is_function(stride: Any) -> bool:
    return isinstance(stride, CustomStride)


def _masked(crd: IntTuple, valid: Any) -> IntTuple:
    """Return ``crd`` where valid, 0 elsewhere, so that index buffers are read only within bounds.

    The product with an integer, not a bool, also widens an index buffer's int32 to the 64 bits that
    offsets need.
    """
    if valid is True:
        return crd
    if isinstance(crd, tuple):
        return ArithmeticTuple([_masked(c, valid) for c in crd])
    return crd * (valid * 1)


@dataclass(frozen=True)
class GemmView(Pictured):
    """A problem as three layouts over ``(m, k)``, ``(n, k)`` and ``(m, n)``.

    ``a`` and ``b`` are read; ``d`` is written. The last map of each chain, the storage map, has the
    shape and the strides of the tensor that the executor expects for that operand.

    All three may have one more mode, ``(m, k, l)``, ``(n, k, l)`` and ``(m, n, l)``: a problem for
    every ``l``, with sums over ``k`` alone. Groups of a convolution are such problems.

    ``columns`` maps column ``n`` to its entry in an epilogue's per-column tensors, such as a bias:
    a layout of one mode, or of two, ``(n, l)``, with static strides. By default each column has its
    own entry, those of a problem adjacent. If several columns are one channel, as with stride
    phases, it has strides of 0.

    ``empty_sums`` says that problems of a gathered ``a`` may be empty: if the index buffer lacks
    the first element of a problem's sums, it lacks all of them. Nothing reads such a problem's
    results, and kernels may leave them unwritten.

    ``place`` is that of the view, from 0, among the views of a pass, which write different parts of
    one result and are run in this order: their kernels run at the same time. A view with a place is
    not run without those before it.

    ``kept`` caches values derived from the view: it is no part of its value.

    Raises :class:`~layoutconv.errors.ArgumentTypeError` for an operand that is no chain of layouts,
    and :class:`~layoutconv.errors.ArgumentError` for extents that do not fit together, for a ``d``
    that writes several results to one place, and for ``columns`` that do not fit.

    >>> GemmView(Layout((4, 8), (8, 1)), Layout((2, 8), (8, 1)), Layout((4, 2), (0, 1)))
    Traceback (most recent call last):
    layoutconv.errors.ArgumentError: argument `d`: expected a place of its own for each of \
4 x 2 results, got (4,2):(0,1), which gives (0, 0) and (1, 0) the same
    >>> GemmView(Layout((4, 8)), Layout((2, 8)), Layout((4, 2)), place=-1)
    Traceback (most recent call last):
    layoutconv.errors.ArgumentError: argument `place`: expected an integer from 0 on, or None, \
got -1

    ``view.draw()`` draws it; ``view.draw("view.svg", row=4)`` saves a drawing that marks the cells
    that row 4 reads: :func:`layoutconv.drawing.draw`.
    """

    a: OperandLayout
    b: OperandLayout
    d: OperandLayout
    columns: Layout | None = field(default=None, kw_only=True)
    empty_sums: bool = field(default=False, kw_only=True)
    place: int | None = field(default=None, kw_only=True)
    kept: ViewCache = field(init=False, repr=False, compare=False, default_factory=ViewCache)

    def __post_init__(self) -> None:
        for name in ("a", "b", "d"):
            _check_chain(name, getattr(self, name))
        _check_extents(self.a.shape, self.b.shape, self.d.shape)
        if isinstance(self.d, Layout):
            _check_places(self.d)
        if self.columns is not None:
            _check_columns(self.columns, self)
        if self.place is not None and not (type(self.place) is int and self.place >= 0):
            raise ArgumentError("place", "an integer from 0 on, or None", self.place)

    @cached_property
    def m(self) -> int:
        """The number of rows of the GEMM."""
        return int(_count(self.a.shape[0]))

    @cached_property
    def n(self) -> int:
        """The number of columns of the GEMM."""
        return int(_count(self.b.shape[0]))

    @cached_property
    def k(self) -> int:
        """The length of the sums."""
        return int(_count(self.a.shape[1]))

    @cached_property
    def l(self) -> int:  # noqa: E743
        """The number of problems: 1 if the layouts have no third mode."""
        return int(_count(self.a.shape[2])) if len(self.a.shape) > 2 else 1

    def at(self, l: int) -> GemmView:
        """Return problem ``l`` as a view of two modes over the same tensors.

        Its contribution to the first coordinate becomes part of the offset. Raises
        :class:`~layoutconv.errors.ArgumentError` unless ``0 <= l < self.l``.

        >>> a, d = Layout((4, 8, 3), (24, 1, 8)), Layout((4, 2, 3), (6, 1, 2))
        >>> print(GemmView(a, Layout((2, 8, 3), (8, 1, 16)), d).at(2))
        A: (4,8,3):(24,1,8) o (0,0,2) o (4,8):(1@0,1@1)
        B: (2,8,3):(8,1,16) o (0,0,2) o (2,8):(1@0,1@1)
        D: (4,2,3):(6,1,2) o (0,0,2) o (4,2):(1@0,1@1)
        """
        if not 0 <= l < self.l:
            raise ArgumentError("l", f"a problem of the view, 0 <= l < {self.l}", l)
        columns = self.columns if self.columns is None else Layout(*_first_mode(self.columns))
        return GemmView(_at(self.a, l), _at(self.b, l), _at(self.d, l), columns=columns)

    def __str__(self) -> str:
        columns = "" if self.columns is None else f"\ncolumns: {self.columns}"
        return f"A: {self.a}\nB: {self.b}\nD: {self.d}{columns}"

    def describe(self) -> str:
        """Return the layouts, and the values of their letters: arguments and constants of a kernel.

        >>> from ..algebra import SymInt
        >>> M, K = SymInt(9, "M"), SymInt(8, "K", runtime=False)
        >>> a, b, d = Layout((M, K), (K, 1)), Layout((4, K), (K, 1)), Layout((M, 4), (4, 1))
        >>> print(GemmView(a, b, d).describe())
        A: (M,K):(K,1)
        B: (4,K):(K,1)
        D: (M,4):(4,1)
        runtime: M=9
        static: K=8
        """
        lines = [str(self)]
        letters = self._letters()
        for title, as_argument in (("runtime", True), ("static", False)):
            kind = [f"{s}={int(s)}" for s in letters if s.runtime is as_argument]
            if kind:
                lines.append(f"{title}: {' '.join(kind)}")
        return "\n".join(lines)

    def _letters(self) -> list[SymInt]:
        """Return the named numbers that are no expressions of others; the tensors' come first."""
        found: dict[str, SymInt] = {}
        chains = [stages(operand) for operand in (self.a, self.b, self.d)]
        memory = [chain[-1].layout for chain in chains]
        maps = [stage.layout for chain in chains for stage in reversed(chain[:-1])]
        for layout in (*memory, *maps):
            for leaf in (*flatten(layout.shape), *flatten(layout.stride)):
                while isinstance(leaf, ScaledBasis | CustomStride):
                    leaf = leaf.value if isinstance(leaf, ScaledBasis) else leaf.stride
                if isinstance(leaf, SymInt) and leaf.expr.isidentifier():
                    found.setdefault(leaf.expr, leaf)
        return list(found.values())


def operands(view: GemmView) -> tuple[tuple[str, OperandLayout], ...]:
    """Return the operands of a view with their names."""
    return ("a", view.a), ("b", view.b), ("d", view.d)


def through_coordinates(view: GemmView) -> GemmView:
    """Return a view whose operands all have a map to coordinates before the map to memory.

    A plain layout becomes its memory after the identity.

    >>> plain = Layout((4, (2, 4)), (8, (4, 1)))
    >>> print(through_coordinates(GemmView(plain, plain, Layout((4, 4), (4, 1)))).a)
    (4,2,4):(8,4,1) o 0 o (4,(2,4)):(1@0,(1@1,1@2))
    """
    operands = view.a, view.b, view.d
    if not any(isinstance(operand, Layout) for operand in operands):
        return view
    return GemmView(*map(_through_coordinates, operands), columns=view.columns)


def _through_coordinates(layout: OperandLayout) -> OperandLayout:
    if isinstance(layout, ComposedLayout):
        return layout
    modes = iter(map(E, range(len(flatten(layout.shape)))))
    identity = Layout(layout.shape, unflatten(modes, layout.shape))
    memory = Layout(flatten(layout.shape), flatten(layout.stride))
    return ComposedLayout(memory, 0, identity)


def _check_chain(name: str, operand: Any) -> None:
    """Refuse operands that are not layouts, or compositions of layouts."""
    if isinstance(operand, ComposedLayout):
        _check_chain(name, operand.inner)
        _check_chain(name, operand.outer)
    elif not isinstance(operand, Layout):
        kinds = "a Layout, or a ComposedLayout of layouts"
        raise ArgumentTypeError(name, kinds, f"{type(operand).__name__}: {operand}")


def _count(mode: IntTuple) -> Any:
    """Return the size of a mode; if its numbers are known, their product without names."""
    leaves = flatten(mode)
    known = all(isinstance(leaf, int) for leaf in leaves)
    return prod(map(int, leaves)) if known else product(mode)


def _check_extents(a: IntTuple, b: IntTuple, d: IntTuple) -> None:
    """Check that all operands have two modes, or three, and that their sizes fit together."""
    modes = [shape if isinstance(shape, tuple) else (shape,) for shape in (a, b, d)]
    ranks = [len(shape) for shape in modes]
    for name, rank in zip("abd", ranks, strict=True):
        if rank != ranks[0] or rank not in (2, 3):
            few = "2 modes in each of a, b and d, or 3 in each"
            raise ArgumentError(name, few, f"{ranks[0]}, {ranks[1]} and {ranks[2]} modes")
    (m, k, *_), (n, terms, *_), (rows, columns, *_) = (map(_count, shape) for shape in modes)
    if terms != k:
        raise ArgumentError("b", f"{product(modes[0][1])} columns, as a has", int(terms))
    if (rows, columns) != (m, n):
        m, n, rows, columns = map(product, (modes[0][0], modes[1][0], *modes[2][:2]))
        raise ArgumentError("d", f"{m} x {n}, the rows of a and b", f"{rows} x {columns}")
    for name, shape in zip("bd", modes[1:], strict=True):
        if ranks[0] == 3 and _count(shape[2]) != _count(modes[0][2]):
            problems = f"{product(modes[0][2])} problems in mode 2, as a has"
            raise ArgumentError(name, problems, int(product(shape[2])))


def _check_columns(columns: Layout, view: GemmView) -> None:
    """Refuse ``columns`` that are not a static map from all columns to entries."""
    if not isinstance(columns, Layout):
        raise ArgumentTypeError("columns", "a Layout or None", type(columns).__name__)
    want = (view.n, view.l)[: len(view.a.shape) - 1]
    strides = flatten(columns.stride)
    leaves = (*flatten(columns.shape), *strides)
    static = all(isinstance(leaf, int | SymInt) and not is_runtime(leaf) for leaf in leaves)
    if not static or any(stride < 0 for stride in strides):
        raise ArgumentError("columns", "static extents, and strides of 0 or more", columns)
    got = tuple(map(product, columns.shape)) if isinstance(columns.shape, tuple) else ()
    if got != want:
        raise ArgumentError("columns", f"modes of {' and '.join(map(str, want))}", columns)


def _first_mode(layout: Layout) -> tuple[Any, Any]:
    return layout.shape[:1], layout.stride[:1]


def _check_places(d: Layout) -> None:
    """Refuse results that share a place, where the last write would win.

    It searches within a budget, and only integer strides: others name coordinates.
    """
    extents, strides = flatten(d.shape), flatten(d.stride)
    if not all(isinstance(stride, int | SymInt) for stride in strides):
        return
    modes = [(int(s), int(step)) for s, step in zip(extents, strides, strict=True)]
    try:
        apart = collision(modes, Budget("GemmView", (d,)))
    except LayoutBudgetError:
        return
    if apart is not None:
        pair = ([max(0, sign * step) for step in apart] for sign in (-1, 1))
        places = [unflatten(iter(crd), d.shape) for crd in pair]
        results = " x ".join(str(product(mode)) for mode in d.shape)
        got = f"{d}, which gives {places[0]} and {places[1]} the same"
        raise ArgumentError("d", f"a place of its own for each of {results} results", got)


def _at(layout: OperandLayout, l: int) -> OperandLayout:
    """Return an operand of two modes: a third one is fixed at ``l``."""
    if len(layout.shape) == 2:
        return layout
    if isinstance(layout, ComposedLayout):
        return layout.sliced((None, None, l))
    # A plain layout stays the whole tensor; a map before it picks the l-th matrix.
    modes = iter(map(E, range(len(flatten(layout.shape)))))
    matrix = layout.shape[:2]
    pick = Layout(matrix, unflatten(modes, matrix))
    digits = flatten(idx2crd(l, layout.shape[2]))
    memory = Layout(flatten(layout.shape), flatten(layout.stride))
    return ComposedLayout(memory, (*(0 for _ in flatten(matrix)), *digits), pick)
