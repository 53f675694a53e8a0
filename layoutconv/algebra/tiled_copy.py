"""``TiledCopy``: a copy atom repeated over threads and values, and each thread's part of a tile.

A tiled copy is a layout (thread, value) -> position in a tile, divided by the threads and values of
its atom. The atom's source and destination layouts say which elements a thread reads and writes.
CUTLASS: cute/atom/copy_atom.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .atoms import CopyAtom
from .casts import upcast
from .checks import plain_shape
from .coalesce import coalesce, filter
from .composition import composition
from .construct import with_shape
from .display import Pictured
from .divide import zipped_divide
from .entries import prepend, product_each
from .errors import LayoutTypeError, LayoutValueError, expect, whole, wrong_argument
from .int_tuple import IntTuple, flatten, product
from .inverse import left_inverse, right_inverse
from .layout import Layout, as_layout, as_like, make_layout
from .like import LayoutLike, symbolically
from .operands import INTS, TILERS, expect_fields, of_class
from .products import logical_product, raked_product
from .slices import slice_
from .tiled_mma import TiledMma


@dataclass(frozen=True)
class CopyUnit:
    """A copy instruction in units of elements: which threads read and write which elements.

    ``source``, ``destination`` and ``reference`` map (thread, value) to the elements that one
    instruction moves; a tiled copy's layout refers to ``reference``.

    >>> unit = universal_copy(8)
    >>> unit.threads, unit.values
    (1, 8)
    """

    source: Layout
    destination: Layout
    reference: Layout

    def __post_init__(self) -> None:
        expect_fields(self, _OF_UNIT)

    @property
    def threads(self) -> int:
        """The number of threads of one instruction."""
        return int(self.reference[0].size())

    @property
    def values(self) -> int:
        """The number of elements per thread."""
        return int(self.reference[1].size())


def universal_copy(values: int = 1) -> CopyUnit:
    """Make a copy of one thread that moves ``values`` elements at once, like a load or store.

    >>> print(universal_copy(8).source)
    (1,8):(0,1)
    """
    if type(values) is not int or values < 1:
        raise LayoutValueError(f"universal_copy: expected values >= 1, got {values!r}")
    layout = Layout((1, values), (0, 1))
    return CopyUnit(layout, layout, layout)


def copy_unit(atom: CopyAtom, element_bits: int = 16) -> CopyUnit:
    """Convert a copy atom, whose layouts count bits, to units of elements.

    Raises :class:`LayoutTypeError` if the element size is not an integer >= 1, and for a swizzled
    TMA box: tile its shared memory with :func:`smem_atom` instead, and take the box without its
    swizzle.

    >>> from .atoms import copy_atom
    >>> print(copy_unit(copy_atom("ldmatrix.x4")).destination)
    (32,(2,4)):(2,(1,64))
    """
    expect("copy_unit", CopyAtom, "a copy atom, as copy_atom(name) gives one", atom)
    if type(element_bits) is not int or element_bits < 1:
        raise wrong_argument("copy_unit", "element_bits", "an int >= 1", element_bits)
    source = upcast(atom.source, element_bits)
    destination = upcast(atom.destination, element_bits)
    if not isinstance(destination, Layout):
        raise LayoutTypeError(f"copy_unit: the destination of {atom.name}, {destination}, swizzles")
    of_source = atom.name.startswith(("stmatrix", "tcgen05.ld"))  # else the destination
    return CopyUnit(source, destination, source if of_source else destination)


@dataclass(frozen=True)
class TiledCopy(Pictured):
    """A copy unit, (thread, value) -> position in a tile, and the tiler of that tile.

    Make it with :func:`make_tiled_copy`, :func:`make_tiled_copy_tv` and similar functions.

    >>> copy = make_tiled_copy_tv(universal_copy(8), Layout((16, 8), (8, 1)), (1, 8))
    >>> print(copy.size, copy.tiler, copy.layout_tv)
    128 (16, 64) ((8,16),8):((128,1),16)
    """

    unit: CopyUnit
    layout_tv: Layout
    tiler: tuple[Any, ...]
    fragment: tuple[int, ...] | None = None  # an mma thread's part of a tile: values, rest, rest

    def __post_init__(self) -> None:
        expect_fields(self, _OF_COPY)

    @property
    def size(self) -> int:
        """The number of threads."""
        return int(self.layout_tv[0].size())

    def thrfrg(self, tensor: Any, target: Layout) -> Any:
        """Divide ``tensor`` into ``((threads, (values, repeats)), (rest, ...))`` by ``target``."""
        like = as_like("TiledCopy", tensor)
        if like.rank < len(self.tiler):
            raise LayoutTypeError(f"TiledCopy: {like} has fewer modes than the tiler {self.tiler}")
        return self._of_tiles(zipped_divide(like, self.tiler), target)

    def _of_tiles(self, tiles: Any, target: Layout) -> Any:
        """Arrange ``(tile, rest)`` as in :meth:`thrfrg`."""
        by_atom = zipped_divide(self.layout_tv, (self.unit.threads, self.unit.values))
        moved = composition(right_inverse(self.unit.reference), target)
        moved = with_shape(moved, target.shape) if moved.shape != target.shape else moved
        of_atom = composition(by_atom[0], moved)
        rests = by_atom[1]
        values = make_layout(of_atom[1], rests[1])
        positions = make_layout(
            coalesce(make_layout(of_atom[0], rests[0])),
            make_layout(coalesce(values[0]), coalesce(values[1])),
        )
        return composition(tiles, (positions, None))

    @property
    def layout_src_tv(self) -> Layout:
        """The layout (thread, value) -> position in the tile that it reads."""
        return self._whole(self.unit.source)

    @property
    def layout_dst_tv(self) -> Layout:
        """The layout (thread, value) -> position in the tile that it writes.

        >>> from .atoms import copy_atom
        >>> unit = copy_unit(copy_atom("ldmatrix.x1"))
        >>> copy = make_tiled_copy(unit, unit.reference, (8, 8))
        >>> print(copy.layout_src_tv, copy.layout_dst_tv)
        ((8,4),(8,1)):((8,0),(1,0)) (32,(2,1)):(2,(1,0))
        """
        return self._whole(self.unit.destination)

    def _whole(self, target: Layout) -> Layout:
        tile = make_layout(Layout(_extents(self.tiler)), Layout(1, 0))
        (threads, values), _ = self._of_tiles(tile, target)
        return make_layout(threads, values)

    def get_slice(self, thread: int) -> ThrCopy:
        """Return one thread's part of source and destination."""
        thread = plain_shape(thread)
        if type(thread) is not int or not 0 <= thread < self.size:
            raise LayoutValueError(f"TiledCopy: {thread!r} is not one of its {self.size} threads")
        return ThrCopy(self, thread)

    def retile(self, tensor: Any) -> Any:
        """Arrange an mma thread's fragment ``(values, rest, rest)`` in the modes of this copy.

        A copy made for an mma knows how its values run through the fragment: retiling gives the
        elements of ``partition_S`` or ``partition_D``, in their order. Any other copy assumes that
        the rests of the fragment run through the tile in order, as CuTe always does.

        >>> from .atoms import mma_atom
        >>> from .makers import make_identity_tensor
        >>> from .tiled_mma import make_tiled_mma
        >>> mma = make_tiled_mma(mma_atom("m16n8k16.f16"), (2, 2, 1), (32, 32, 16))
        >>> copy = make_tiled_copy_C(universal_copy(2), mma)
        >>> print(copy.retile(mma.get_slice(0).partition_C(make_identity_tensor((128, 64)))).layout)
        ((2,(2,2)),4,2):((1@1,(8@0,16@1)),32@0,32@1)
        """
        like = as_like("TiledCopy.retile", tensor)
        held = int(like.on_domain(lambda x: x[0]).size())
        if self.fragment is not None and self.fragment[0] == held:
            by_value = zipped_divide(Layout(product(self.fragment)), self.unit.values)
            return _retiled(like, self.fragment, by_value)
        inverse = with_shape(right_inverse(self.layout_tv), _extents(self.tiler))
        of_fragment = upcast(inverse, self.size * held)
        places = logical_product(Layout(held), right_inverse(of_fragment))
        by_value = zipped_divide(places, Layout(self.unit.values))
        return _retiled(like, prepend(product_each(of_fragment.shape), held), by_value)


@dataclass(frozen=True)
class ThrCopy:
    """One thread's part of a :class:`TiledCopy`.

    >>> copy = make_tiled_copy_tv(universal_copy(), Layout((16, 8), (8, 1)), (1, 8))
    >>> print(copy.get_slice(3).partition_D(Layout((32, 64), (64, 1))))
    ((1,8),2,1):((0,1),1024,0)
    """

    copy: TiledCopy
    thread: int

    def __post_init__(self) -> None:
        expect_fields(self, _OF_THREAD)

    def partition_S(self, tensor: Any) -> Any:
        """Return the part of ``tensor`` that the thread reads: ``((values, repeats), rest, ...)``.

        A tensor gives a tensor at the thread's offset. A layout gives the layout of the part alone,
        without that offset.

        >>> from .makers import make_identity_tensor
        >>> copy = make_tiled_copy_tv(universal_copy(), Layout((16, 8), (8, 1)), (1, 8))
        >>> part = copy.get_slice(3).partition_S(make_identity_tensor((32, 64)))
        >>> part.shape, part[(0, 0), 0, 0]
        (((1, 8), 2, 1), (0, 24))
        """
        return self._partition(tensor, self.copy.unit.source)

    def partition_D(self, tensor: Any) -> Any:
        """Return the part of ``tensor`` that the thread writes, as :meth:`partition_S`."""
        return self._partition(tensor, self.copy.unit.destination)

    def _partition(self, tensor: Any, target: Layout) -> Any:
        divided = self.copy.thrfrg(tensor, target)
        return slice_(((self.thread, None), (None,) * len(divided.shape[1])), divided)


_OF_UNIT = dict.fromkeys(("source", "destination", "reference"), of_class(Layout))
_OF_COPY = {
    "unit": of_class(CopyUnit),
    "layout_tv": of_class(Layout),
    "tiler": TILERS,
    "fragment": (lambda x: x is None or INTS[0](x), "a tuple of ints, or None"),
}
_OF_THREAD = {"copy": of_class(TiledCopy), "thread": of_class(int)}


def _retiled(fragment: Any, tiler: Any, by_value: Layout) -> Any:
    """Compose the tiles of a fragment with the values of a copy; one tile has all first modes."""
    modes = composition(zipped_divide(fragment, tiler), (by_value, None))
    return slice_((None, (0, *[None] * (len(modes.shape[1]) - 1))), modes)


def make_tiled_copy_tv(unit: CopyUnit, threads: Any, values: Any = 1) -> TiledCopy:
    """Make a tiled copy from a layout of ``threads``, each with a block of ``values``.

    >>> print(make_tiled_copy_tv(universal_copy(), Layout((16, 8), (8, 1)), (1, 8)).layout_tv)
    ((8,16),8):((128,1),16)
    """
    tiler, layout = make_layout_tv(threads, values)
    return make_tiled_copy(unit, layout, tiler)


def make_layout_tv(threads: Any, values: Any) -> tuple[IntTuple, Layout]:
    """Return the tile of threads with blocks of values: its tiler, and (thread, value) -> position.

    Raises :class:`LayoutValueError` if numbers of threads or of values are missing or repeated:
    some (thread, value) then has no place in the tile.

    >>> tiler, layout = make_layout_tv(Layout((4, 8), (8, 1)), Layout((2, 2), (2, 1)))
    >>> print(tiler, layout)
    (8, 16) ((8,4),(2,2)):((16,2),(8,1))
    """
    threads, values = as_layout("make_layout_tv", threads), as_layout("make_layout_tv", values)
    found: tuple[IntTuple, Layout] = symbolically(
        _make_layout_tv, threads, values, name="make_layout_tv"
    )
    return found


def _make_layout_tv(threads: Layout, values: Layout) -> tuple[IntTuple, Layout]:
    tile = raked_product(threads, values)
    inverse = right_inverse(tile)
    if inverse.size() != tile.size():
        raise LayoutValueError(
            f"make_layout_tv: the threads {threads} or the values {values} are not numbered from 0 "
            "on, each once"
        )
    layout = composition(inverse, Layout((threads.size(), values.size())))
    return product_each(tile.shape), layout


def make_tiled_copy(unit: CopyUnit, layout_tv: Any, tiler: Any) -> TiledCopy:
    """Make a tiled copy from (thread, value) -> colexicographic position in a tile.

    Raises :class:`LayoutValueError` if the atom does not divide the threads and values, and
    :class:`LayoutTypeError` for an atom that :func:`copy_unit` has not converted to elements.

    >>> print(make_tiled_copy(universal_copy(), Layout((128, 8), (8, 1)), (16, 64)).layout_tv)
    (128,8):(8,1)
    """
    _check_unit("make_tiled_copy", unit)
    layout = as_layout("make_tiled_copy", layout_tv)
    if not isinstance(layout.shape, tuple) or layout.rank != 2:
        raise LayoutTypeError(f"make_tiled_copy: expected modes (thread, value), got {layout}")
    tiler = plain_shape(tiler if isinstance(tiler, tuple) else (tiler,))
    threads, values = (whole("make_tiled_copy", mode.size()) for mode in layout)
    if threads % unit.threads or values % unit.values:
        raise LayoutValueError(
            f"make_tiled_copy: {layout} has {threads} threads of {values} values, which an atom "
            f"of {unit.threads} threads of {unit.values} values does not divide"
        )
    return TiledCopy(unit, layout, tiler)


def _check_unit(name: str, unit: Any) -> None:
    if not isinstance(unit, CopyUnit):
        expected = "a CopyUnit, as copy_unit(atom, element_bits) makes one"
        raise LayoutTypeError(f"{name}: expected {expected}, got {type(unit).__name__}")


def make_cotiled_copy(unit: CopyUnit, layout_tv: Any, data: Any) -> TiledCopy:
    """Make a tiled copy from (thread, value) -> *offset* in the layout of the data.

    >>> data = Layout((16, 16), (16, 1))
    >>> print(make_cotiled_copy(universal_copy(), Layout((32, 8), (8, 1)), data).layout_tv)
    ((2,16),8):((16,1),32)
    """
    _check_unit("make_cotiled_copy", unit)
    layout, data = as_layout("make_cotiled_copy", layout_tv), as_layout("make_cotiled_copy", data)
    positions = composition(left_inverse(data), layout)
    return _of_active(unit, flatten(product_each(data.shape)), positions)


def _of_active(unit: CopyUnit, extents: tuple[int, ...], positions: Layout) -> TiledCopy:
    """Make a tiled copy of exactly the positions of a tile that (thread, value) reaches."""
    tiler = []
    for i in range(len(extents)):
        only = Layout(extents, tuple([int(j == i) for j in range(len(extents))]))
        tiler.append(filter(composition(only, positions)))
    in_tile = composition(Layout(extents), tuple(tiler))
    layout = composition(left_inverse(in_tile), positions)
    return make_tiled_copy(unit, layout, tuple(tiler))


def make_tiled_copy_C_atom(unit: CopyUnit, mma: TiledMma) -> TiledCopy:
    """Make the smallest copy that retiles accumulators, for an epilogue that stores in parts.

    Each thread has the first values of its fragment, as many as one instruction moves.

    Raises :class:`LayoutValueError` if an instruction moves more values than a thread has.

    >>> from .atoms import mma_atom
    >>> from .tiled_mma import make_tiled_mma
    >>> copy = make_tiled_copy_C_atom(universal_copy(2), make_tiled_mma(mma_atom("m16n8k16.f16")))
    >>> print(copy.layout_tv, *copy.tiler)
    ((4,8),2):((8,1),32) 8:1 (4,2):(2,1)
    """
    _check_unit("make_tiled_copy_C_atom", unit)
    expect("make_tiled_copy_C_atom", TiledMma, "a TiledMma", mma)
    layout = mma.layout_tv("C")
    threads, values = (int(mode.size()) for mode in layout)
    if unit.source[1].size() > values:
        raise LayoutValueError(
            f"make_tiled_copy_C_atom: {unit.source} moves more than the {values} values of {layout}"
        )
    first = composition(layout, Layout((threads, unit.source[1].size())))
    return _of_active(unit, (mma.get_tile_size(0), mma.get_tile_size(1)), first)


def make_tiled_copy_A(unit: CopyUnit, mma: TiledMma) -> TiledCopy:
    """Make a copy whose threads get the fragments of A of a tiled mma.

    >>> from .atoms import mma_atom
    >>> from .tiled_mma import make_tiled_mma
    >>> mma = make_tiled_mma(mma_atom("m16n8k16.f16"), (2, 2, 1))
    >>> print(make_tiled_copy_A(universal_copy(4), mma).layout_tv)
    ((4,8,2,2),((2,2,2),(1,1))):((64,1,16,0),((32,8,256),(0,0)))
    """
    return _for_operand(unit, mma, "A")


def make_tiled_copy_B(unit: CopyUnit, mma: TiledMma) -> TiledCopy:
    """Make a copy whose threads get the fragments of B of a tiled mma.

    >>> from .atoms import mma_atom
    >>> from .tiled_mma import make_tiled_mma
    >>> mma = make_tiled_mma(mma_atom("m16n8k16.f16"), (2, 2, 1))
    >>> make_tiled_copy_B(universal_copy(2), mma).tiler
    (16, 16)
    """
    return _for_operand(unit, mma, "B")


def make_tiled_copy_C(unit: CopyUnit, mma: TiledMma) -> TiledCopy:
    """Make a copy whose threads have the fragments of C, and D, of a tiled mma.

    >>> from .atoms import mma_atom
    >>> from .tiled_mma import make_tiled_mma
    >>> mma = make_tiled_mma(mma_atom("m16n8k16.f16"), (2, 2, 1))
    >>> make_tiled_copy_C(universal_copy(2), mma).tiler
    (32, 16)
    """
    return _for_operand(unit, mma, "C")


def make_tiled_copy_S(unit: CopyUnit, copy: TiledCopy) -> TiledCopy:
    """Make a copy whose threads have the elements that another copy's threads read.

    >>> copy = make_tiled_copy_tv(universal_copy(8), Layout((16, 8), (8, 1)), (1, 8))
    >>> print(make_tiled_copy_S(universal_copy(4), copy).layout_tv)
    ((8,16),(8,1)):((128,1),(16,0))
    """
    expect("make_tiled_copy_S", TiledCopy, "a TiledCopy", copy)
    return make_tiled_copy(unit, copy.layout_src_tv, copy.tiler)


def make_tiled_copy_D(unit: CopyUnit, copy: TiledCopy) -> TiledCopy:
    """Make a copy whose threads have the elements that another copy's threads write.

    >>> copy = make_tiled_copy_tv(universal_copy(8), Layout((16, 8), (8, 1)), (1, 8))
    >>> print(make_tiled_copy_D(universal_copy(4), copy).layout_tv)
    ((8,16),(8,1)):((128,1),(16,0))
    """
    expect("make_tiled_copy_D", TiledCopy, "a TiledCopy", copy)
    return make_tiled_copy(unit, copy.layout_dst_tv, copy.tiler)


def _for_operand(unit: CopyUnit, mma: TiledMma, operand: str) -> TiledCopy:
    expect(f"make_tiled_copy_{operand}", TiledMma, "a TiledMma", mma)
    i, j = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}[operand]
    tiler = (mma.get_tile_size(i), mma.get_tile_size(j))
    copy = make_tiled_copy(unit, mma.layout_tv(operand), tiler)
    values, rests = mma.thrfrg(operand, Layout(tiler))[1]
    fragment = (int(values.size()), *[int(rest.size()) for rest in rests])
    return TiledCopy(unit, copy.layout_tv, copy.tiler, fragment)


def _extents(tiler: tuple[Any, ...]) -> tuple[int, ...]:
    sizes = [t.size() if isinstance(t, LayoutLike) else product(t) for t in tiler]
    return tuple([whole("TiledCopy", size) for size in sizes])
