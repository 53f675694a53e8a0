"""Views over kernel maps, made for a new cloud at the cost of only its new parts.

Two clouds differ in numbers of rows and in index buffers. Otherwise their layouts are the same, and
so are the checks, the kernel and the tile of a plan. Redoing these takes milliseconds of Python per
layer of a network, a hundred times as long as its launch. So views of one *kind* share them, and
make their layouts only on access.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from math import floor, log2, prod
from operator import itemgetter
from typing import Any, NamedTuple

from torch import Tensor

from ..algebra.int_tuple import flatten
from ..algebra.stride import IndexedGather
from ..algebra.symint import is_runtime
from ..base.caches import BoundedCache, footprint, put_few, remembered
from ..planning.kernel_key import runtime_integers
from ..planning.view_rules import MAX_GROUPS
from ..tensors.expected_tensors import Expected, Index, expected
from ..view.gemm_view import GemmView, operands, stages
from ..view.view_cache import ViewCache

Buffers = tuple[Tensor | None, Tensor | None, Tensor | None]  # of A, B and D
Numbers = Mapping[str, int]  # the integers that a kernel takes, by name

CLASSES = 8  # size classes per octave
PLANS = 64  # per kind: eight octaves of sizes
LAST = 2**31 - 1  # the greatest number that a kernel takes
_new: Any = tuple.__new__  # a NamedTuple's own takes a call of Python

# False for views without a kind.
_kinds: BoundedCache[Hashable, MapViewKind | bool] = BoundedCache(
    "kinds of views over maps", entries=1024, nbytes=8 << 20
)


class MapPass(NamedTuple):
    """A pass over one kernel map.

    Args:
        key: everything besides ``numbers`` that its layouts depend on.
        make: returns its view, given ``tables``.
        tables: the kernel map (rows, taps) and its row order, or the pairs of a wgrad.
        numbers: the kernels' integer arguments, by name.
        buffers: the index buffers of A, B and D, each dense in memory, with every entry exactly
            once; None if their memory is not laid out as maps have it, so the pass has no kind.
    """

    key: Hashable
    make: Callable[..., GemmView]
    tables: tuple[Any, ...]
    numbers: Numbers
    buffers: Buffers | None

    def view(self) -> GemmView:
        """Return the view with all its layouts."""
        return self.make(*self.tables)


class ViewSizes(NamedTuple):
    """The sizes of a view: rows, columns, problems, and the stored shape of D."""

    m: int
    n: int
    l: int
    stored: tuple[int, ...]


class MapView(GemmView):
    """A view of a kind, which makes ``a``, ``b`` and ``d`` on first access.

    A copy by ``dataclasses.replace`` has them, and has no kind.
    """

    kind: MapViewKind | None = None
    over: MapPass

    def __getattr__(self, name: str) -> Any:
        over = self.__dict__.get("over") if name in ("a", "b", "d") else None
        if over is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        made = over.view()
        self.__dict__.update(a=made.a, b=made.b, d=made.d)
        return self.__dict__[name]


class MapViewKind:
    """The common part of views over kernel maps, derived from the first of them.

    Attributes:
        plans: GPU plans without index buffers, by their key and size class.
    """

    def __init__(self, key: Hashable, view: GemmView, names: tuple[str, ...]) -> None:
        self.key, self.names, self.plans = key, names, dict[Hashable, Any]()
        self._integers = itemgetter(*names) if len(names) > 1 else None
        self.empty_sums = view.empty_sums
        self.extents = [_product(view.a.shape[0]), _product(view.b.shape[0])]
        self.extents += [_product(mode) for mode in (view.a.shape[1], view.a.shape[2:])]
        want = expected(view)
        self.stored = [
            (stored, _product(stages(layout)[-1].layout.shape[0]))
            for stored, (_, layout) in zip((want.a, want.b, want.d), operands(view), strict=True)
        ]
        self.places = [("view.a", "view.b", "view.d").index(i.name) for i in want.indices]
        nothing = IndexedGather(())
        self.indices = [Index(i.name, nothing, None, 0, i.written) for i in want.indices]
        a, b, d = (of for of, _ in self.stored)
        self.expected = Expected(a, b, d, (), None, want.writes_all)

    def view(self, over: MapPass) -> MapView:
        """Return the view of a pass, whose layouts are made on access."""
        numbers, buffers = over.numbers, over.buffers
        assert buffers is not None
        m, n, k, l = [_value(extent, numbers) for extent in self.extents]
        # A new cloud needs dozens of these, and constructing a frozen dataclass takes microseconds.
        a, b, d = stored = [
            _like(of, shape=(_value(rows, numbers), *of.shape[1:])) for of, rows in self.stored
        ]
        indices = []
        for place, of in zip(self.places, self.indices, strict=True):
            buffer = buffers[place]
            assert buffer is not None
            gather = IndexedGather(buffer.as_strided((buffer.numel(),), (1,)))
            indices.append(_like(of, gather=gather, rows=stored[place].shape[0]))
        kept = ViewCache()
        kept["expected"] = _like(
            self.expected, a=a, b=b, d=d, indices=tuple(indices), device=indices[0].buffer.device
        )
        found = object.__new__(MapView)
        found.__dict__.update(
            kind=self, over=over, m=m, n=n, k=k, l=l, empty_sums=self.empty_sums, kept=kept
        )
        return found

    def sizes(self, view: MapView) -> tuple[int, int]:
        """Return the rows and problems that a view's tile is chosen for: the middle of the size
        class if they vary from cloud to cloud, the exact value if they depend on the filter.
        """
        (_, of_m), _, _, (_, of_l) = self.extents
        return (
            representative(view.m) if of_m else view.m,
            representative(view.l) if of_l else view.l,
        )

    def integers(self, numbers: Numbers) -> tuple[int, ...]:
        """Return the integer arguments of a kernel, in its order."""
        if self._integers is None:
            return tuple(numbers[name] for name in self.names)
        found: tuple[int, ...] = self._integers(numbers)
        return found

    def sizes_of(self, numbers: Numbers) -> tuple[ViewSizes, tuple[int, int], tuple[int, ...]]:
        """Return the sizes of the view with these numbers, its ``sizes`` and its ``integers``,
        without making the view.
        """
        (m, m_names), (n, n_names), _, (l, l_names) = self.extents
        stored, (rows, row_names) = self.stored[2]
        # Inlined ``_value``: calls would take half of the time here.
        for name in m_names:
            m *= numbers[name]
        for name in n_names:
            n *= numbers[name]
        for name in l_names:
            l *= numbers[name]
        for name in row_names:
            rows *= numbers[name]
        of_class = representative(m) if m_names else m, representative(l) if l_names else l
        found: ViewSizes = _new(ViewSizes, (m, n, l, (rows, *stored.shape[1:])))
        given = self._integers
        return found, of_class, self.integers(numbers) if given is None else given(numbers)


def map_view(over: MapPass) -> GemmView:
    """Return the view of a pass: with its layouts if it has no kind, else made on access."""
    kind = kind_of_pass(over)
    return over.view() if kind is None else kind.view(over)


def kind_of_pass(over: MapPass) -> MapViewKind | None:
    """Return the kind of a pass; None if a kernel may specialise for one of its extents or refuse
    it."""
    key, numbers, buffers = over.key, over.numbers, over.buffers
    every = numbers.values()
    if buffers is None or min(every) < 2 or max(every) > LAST:
        return None
    kind = _kinds.young.get(key)
    if kind is None:
        kind = _kinds.renewed(key)
    if kind is None:
        kind = _kind_of(key, over.view(), numbers, buffers) or False
        _kinds.put(key, kind, footprint(key, kind))
    if isinstance(kind, bool):
        return None
    problems, names = kind.extents[3]
    for name in names:
        problems *= numbers[name]
    return kind if problems <= MAX_GROUPS else None


def keep_plan(kind: MapViewKind, key: Hashable, plan: Any) -> None:
    """Keep a plan with its kind, and update the kind's footprint in the cache."""
    put_few(kind.plans, key, plan, PLANS)
    _kinds.put(kind.key, kind, footprint(kind))


def forget() -> None:
    """Drop all kinds of views, with their plans."""
    _kinds.clear()


@remembered(4096)
def representative(size: int) -> int:
    """Return the middle of a size's class, an eighth of an octave; tiles are chosen for it.

    So the choice does not depend on earlier clouds, and sums have the same bits every time. Classes
    do not cross those of measured choices, which round to powers of two.

    >>> [representative(size) for size in (1, 2000, 2048, 2200, 89511)]
    [1, 1961, 2139, 2139, 88752]
    """
    return round(2 ** ((floor(CLASSES * log2(size)) + 0.5) / CLASSES)) if size > 1 else 1


def _kind_of(
    key: Hashable, view: GemmView, numbers: Numbers, buffers: Buffers
) -> MapViewKind | None:
    """Return the kind of a view; None if its numbers or buffers differ from the given ones."""
    found, want = runtime_integers(view), expected(view)
    if any(numbers.get(name) != value for name, value in found.items()):
        return None
    every = dict(zip(("view.a", "view.b", "view.d"), buffers, strict=True))
    given = {name for name, buffer in every.items() if buffer is not None}
    if [i.name for i in want.indices] != sorted(given) or not all(
        every[i.name].data_ptr() == i.buffer.data_ptr()  # type: ignore[union-attr]
        and every[i.name].numel() == i.buffer.numel() == i.entries.numel()  # type: ignore[union-attr]
        for i in want.indices
    ):
        return None
    for _, layout in operands(view):
        memory = stages(layout)[-1].layout
        if any(map(is_runtime, (*flatten(memory.shape)[1:], *flatten(memory.stride)))):
            return None
    return MapViewKind(key, view, tuple(found))


def _like(frozen: Any, **fields: Any) -> Any:
    """Return a copy of a frozen dataclass object with other values of some fields."""
    made = object.__new__(type(frozen))
    own = made.__dict__
    own.update(frozen.__dict__)
    own.update(fields)
    return made


def _product(mode: Any) -> tuple[int, tuple[str, ...]]:
    """Return an extent as a constant factor, and the names of its runtime factors."""
    leaves = flatten(mode)
    constant = prod(int(leaf) for leaf in leaves if not is_runtime(leaf))
    return constant, tuple(str(leaf) for leaf in leaves if is_runtime(leaf))


def _value(extent: tuple[int, tuple[str, ...]], numbers: Numbers) -> int:
    constant, names = extent
    for name in names:
        constant *= numbers[name]
    return constant
