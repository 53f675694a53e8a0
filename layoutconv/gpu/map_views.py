"""Views over kernel maps, made for a new cloud at the cost of only what is new.

Two clouds differ in numbers of rows and in index buffers. Their layouts are the same but for these,
and so are the checks, the kernel and the tile that a plan comes to: milliseconds of Python for each
layer of a network, a hundred times what its launch takes. So views of one *kind* share all that,
and have their layouts made only where somebody looks at them.
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
from ..tensors.tensor_checks import Expected, Index, expected
from ..view.gemm_view import GemmView, operands, stages
from ..view.view_cache import ViewCache

Buffers = tuple[Tensor | None, Tensor | None, Tensor | None]  # of A, B and D
Numbers = Mapping[str, int]  # the integers that a kernel takes, by name

CLASSES = 8  # of sizes, to an octave
PLANS = 64  # of a kind: eight octaves of sizes
LAST = 2**31 - 1  # the greatest number that a kernel takes
_new: Any = tuple.__new__  # a NamedTuple's own takes a call of Python

# False where views are of no kind.
_kinds: BoundedCache[Hashable, Kind | bool] = BoundedCache(
    "kinds of views over maps", entries=1024, nbytes=8 << 20
)


class Over(NamedTuple):
    """A pass over one kernel map.

    Args:
        key: what its layouts depend on beside ``numbers``.
        make: makes its view of ``tables``.
        tables: the index and its order, or pairs.
        numbers: which kernels take as arguments.
        buffers: the index buffers of A, B and D, each all entries of it and each once, one behind
            the other from where it starts; None where memory is not as maps have it, so that its
            kind is no other's.
    """

    key: Hashable
    make: Callable[..., GemmView]
    tables: tuple[Any, ...]
    numbers: Numbers
    buffers: Buffers | None

    def view(self) -> GemmView:
        """The view with all its layouts."""
        return self.make(*self.tables)


class Sizes(NamedTuple):
    """The sizes of a view: rows, columns and problems, and the shape that D is stored in."""

    m: int
    n: int
    l: int
    stored: tuple[int, ...]


class MapView(GemmView):
    """A view of a kind: ``a``, ``b`` and ``d`` are made when they are asked for.

    A copy that ``dataclasses.replace`` makes has them, and is of no kind.
    """

    kind: Kind | None = None
    over: Over

    def __getattr__(self, name: str) -> Any:
        over = self.__dict__.get("over") if name in ("a", "b", "d") else None
        if over is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        made = over.view()
        self.__dict__.update(a=made.a, b=made.b, d=made.d)
        return self.__dict__[name]


class Kind:
    """The common part of views over kernel maps, read off the first of them.

    Attributes:
        plans: of a GPU, by what they were made for and the class of their sizes, without buffers.
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

    def view(self, over: Over) -> MapView:
        """Return that of a pass, whose layouts are made later."""
        numbers, buffers = over.numbers, over.buffers
        assert buffers is not None
        m, n, k, l = [_value(extent, numbers) for extent in self.extents]
        # A new cloud makes dozens of these: a frozen dataclass takes microseconds to be made.
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
        """The rows and the problems of a view that its tile is chosen for: those that differ from
        cloud to cloud as the middle of their class, those of the filter as they are.
        """
        (_, of_m), _, _, (_, of_l) = self.extents
        return (
            representative(view.m) if of_m else view.m,
            representative(view.l) if of_l else view.l,
        )

    def integers(self, numbers: Numbers) -> tuple[int, ...]:
        """The arguments of a kernel, in its order."""
        if self._integers is None:
            return tuple(numbers[name] for name in self.names)
        found: tuple[int, ...] = self._integers(numbers)
        return found

    def sizes_of(self, numbers: Numbers) -> tuple[Sizes, tuple[int, int], tuple[int, ...]]:
        """Return those of the view of these numbers, which nobody has made; with them ``sizes`` of
        it, and ``integers``.
        """
        (m, m_names), (n, n_names), _, (l, l_names) = self.extents
        stored, (rows, row_names) = self.stored[2]
        # Not by ``_value`` and the like: calls are half of what this takes.
        for name in m_names:
            m *= numbers[name]
        for name in n_names:
            n *= numbers[name]
        for name in l_names:
            l *= numbers[name]
        for name in row_names:
            rows *= numbers[name]
        of_class = representative(m) if m_names else m, representative(l) if l_names else l
        found: Sizes = _new(Sizes, (m, n, l, (rows, *stored.shape[1:])))
        given = self._integers
        return found, of_class, self.integers(numbers) if given is None else given(numbers)


def map_view(over: Over) -> GemmView:
    """The view of a pass, its layouts made at once or later.

    At once where it has no kind, or is the first of it.
    """
    kind = kind_over(over)
    return over.view() if kind is None else kind.view(over)


def kind_over(over: Over) -> Kind | None:
    """The kind of a pass; None where a kernel may be compiled for an extent of it, or refuse it."""
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


def keep_plan(kind: Kind, key: Hashable, plan: Any) -> None:
    """Keep a plan with its kind, which takes more from then on."""
    put_few(kind.plans, key, plan, PLANS)
    _kinds.put(kind.key, kind, footprint(kind))


def forget() -> None:
    """Drop what kinds of views have in common, plans above all."""
    _kinds.clear()


@remembered(4096)
def representative(size: int) -> int:
    """The middle of the class of a size, which tiles are chosen for: an eighth of an octave.

    The choice then depends on no cloud that came before, and sums have the same bits every time.
    Classes do not cross those of measured choices, which round to powers of two.

    >>> [representative(size) for size in (1, 2000, 2048, 2200, 89511)]
    [1, 1961, 2139, 2139, 88752]
    """
    return round(2 ** ((floor(CLASSES * log2(size)) + 0.5) / CLASSES)) if size > 1 else 1


def _kind_of(key: Hashable, view: GemmView, numbers: Numbers, buffers: Buffers) -> Kind | None:
    """The kind of a view, None if its numbers or buffers are not those that are given."""
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
    return Kind(key, view, tuple(found))


def _like(frozen: Any, **fields: Any) -> Any:
    """An object of a frozen dataclass with other values of some fields."""
    made = object.__new__(type(frozen))
    own = made.__dict__
    own.update(frozen.__dict__)
    own.update(fields)
    return made


def _product(mode: Any) -> tuple[int, tuple[str, ...]]:
    """An extent as a constant, and the names of the numbers that it is multiplied by."""
    leaves = flatten(mode)
    constant = prod(int(leaf) for leaf in leaves if not is_runtime(leaf))
    return constant, tuple(str(leaf) for leaf in leaves if is_runtime(leaf))


def _value(extent: tuple[int, tuple[str, ...]], numbers: Numbers) -> int:
    constant, names = extent
    for name in names:
        constant *= numbers[name]
    return constant
