"""``TiledMma``: an mma atom repeated over threads and a tile, and each thread's part of it.

Each operand is divided by the tile, each tile by the atom, and the atom's positions are composed
with its fragment: the result is the tensor with the modes (thread, value). CUTLASS:
cute/atom/mma_atom.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .atoms import MmaAtom
from .checks import plain_shape
from .composition import composition
from .display import Pictured
from .divide import logical_divide, zipped_divide
from .errors import LayoutTypeError, LayoutValueError, expect, text, whole
from .int_tuple import IntTuple, product
from .inverse import right_inverse
from .layout import Layout, as_layout, as_like, make_layout
from .like import LayoutLike
from .makers import make_fragment_like
from .operands import TILERS, expect_fields, of_class
from .products import tiled_product
from .slices import slice_

_MODES = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}  # the modes of (M, N, K) that an operand has


@dataclass(frozen=True)
class TiledMma(Pictured):
    """An mma atom, the layout of atoms over (M, N, K), and a permutation of the tile.

    ``atom_layout`` places the threads of each atom: its size is the number of atoms side by side.
    ``permutation`` has a tiler for each of M, N and K, or None for the extent of the atoms. Make it
    with :func:`make_tiled_mma`.

    >>> from .atoms import mma_atom
    >>> mma = make_tiled_mma(mma_atom("m16n8k16.f16"), (2, 2, 1))
    >>> mma.size, mma.shape_mnk, mma.get_tile_size(0)
    (128, (16, 8, 16), 32)
    """

    atom: MmaAtom
    atom_layout: Layout
    permutation: tuple[Any, Any, Any]

    def __post_init__(self) -> None:
        expect_fields(self, _OF_MMA)

    @property
    def thr_layout_vmnk(self) -> Layout:
        """The layout (thread of an atom, atom in M, in N, in K) -> thread index."""
        result: Layout = tiled_product(self.atom.thr_id, self.atom_layout)
        return result

    @property
    def size(self) -> int:
        """The number of threads."""
        return int(self.thr_layout_vmnk.size())

    @property
    def shape_mnk(self) -> tuple[int, int, int]:
        """The shape of the atom."""
        return self.atom.shape

    def get_tile_size(self, mode: int) -> int:
        """Return the extent in M (0), N (1) or K (2) of the tile that all threads compute together.

        >>> from .atoms import mma_atom
        >>> make_tiled_mma(mma_atom("m16n8k16.f16"), (2, 2, 1)).get_tile_size(0)
        32
        """
        tiler = self.permutation[mode]
        if tiler is None:
            return self.atom.shape[mode] * whole("TiledMma", self.atom_layout[mode].size())
        return whole("TiledMma", tiler.size() if isinstance(tiler, Layout) else product(tiler))

    def thrfrg(self, operand: str, tensor: Any) -> Any:
        """Divide ``tensor`` into ``((thread of an atom, (atom, atom)), (value, (rest, rest)))``.

        ``operand`` is "A", "B" or "C"; the first modes of its tensor are (M, K), (N, K) or (M, N).
        """
        i, j = _modes(operand)
        like = as_like(f"TiledMma: {operand}", tensor)
        if like.rank < 2:
            raise LayoutTypeError(f"TiledMma: {operand} is {like}, which has no two modes")
        rows, columns = self.atom.extents(operand)
        permuted = logical_divide(like, (self.permutation[i], self.permutation[j]))
        atoms = zipped_divide(permuted, (Layout(rows), Layout(columns)))
        fragments = composition(atoms, (self.atom.fragment(operand), None))
        vmnk = self.thr_layout_vmnk
        tile = (Layout(vmnk[1 + i].size()), Layout(vmnk[1 + j].size()))
        return _by_threads(fragments, tile)

    def layout_tv(self, operand: str) -> Layout:
        """Return the layout (thread, value) -> colexicographic position in the operand's tile.

        ``operand`` is "A" (M, K), "B" (N, K) or "C" (M, N). CuTe: ``get_layoutA_TV``,
        ``tv_layout_A_tiled``.

        >>> from .atoms import mma_atom
        >>> print(make_tiled_mma(mma_atom("m16n8k16.f16"), (2, 2, 1)).layout_tv("C"))
        ((4,8,2,2),((2,2),(1,1))):((64,1,16,256),((32,8),(0,0)))
        """
        i, j = _modes(operand)
        stored = self.atom.shape[j] // self.atom.extents(operand)[1]  # 2 for a sparse A, else 1
        whole = Layout((self.get_tile_size(i), self.get_tile_size(j) // stored))
        threads, values = self.thrfrg(operand, whole)
        result = make_layout(self._of_thread(threads, i, j), values)
        return result

    def _of_thread(self, threads: Layout, i: int, j: int) -> Layout:
        """Return the thread modes ``(V, (atom, atom))`` of an operand as a layout of indices."""
        vmnk = self.thr_layout_vmnk
        modes: list[Any] = [threads[0], Layout(vmnk[1].shape, 0), Layout(vmnk[2].shape, 0)]
        modes.append(Layout(vmnk[3].shape, 0))
        modes[1 + i], modes[1 + j] = threads[1][0], threads[1][1]
        over_vmnk = make_layout(modes)
        found: Layout = composition(over_vmnk, right_inverse(vmnk))
        return found

    def get_slice(self, thread: int) -> ThrMma:
        """Return one thread's part of the operands.

        Threads are numbered by :attr:`thr_layout_vmnk`: 0 to 3 and 16 to 19 for a quad pair.
        """
        thread = plain_shape(thread)
        if type(thread) is not int or _digits(self.thr_layout_vmnk, thread) is None:
            raise LayoutValueError(f"TiledMma: {thread!r} is not one of its {self.size} threads")
        return ThrMma(self, thread)

    def partition_shape(self, operand: str, tile: IntTuple) -> IntTuple:
        """Return the shape of a partition of an operand of shape ``tile``: (values, rest, rest).

        >>> from .atoms import mma_atom
        >>> make_tiled_mma(mma_atom("m16n8k16.f16"), (2, 2, 1)).partition_shape("C", (32, 32))
        ((2, 2), 1, 2)
        """
        found = self.get_slice(0).partition(operand, Layout(tile))
        return found.shape if isinstance(found, LayoutLike) else found[0].shape

    def partition_fragment(self, operand: str, tile: IntTuple) -> Layout:
        """Return one thread's compact registers for an operand of shape ``tile``.

        >>> from .atoms import mma_atom
        >>> mma = make_tiled_mma(mma_atom("m16n8k16.f16"), (2, 2, 1))
        >>> print(mma.partition_fragment("C", (32, 32)))
        ((2,2),1,2):((1,2),4,4)
        """
        return Layout(self.partition_shape(operand, tile))

    def __str__(self) -> str:
        return f"TiledMma({self.atom.name}, {self.atom_layout})"


@dataclass(frozen=True)
class ThrMma:
    """One thread's part of a :class:`TiledMma`.

    >>> from .atoms import mma_atom
    >>> mma = make_tiled_mma(mma_atom("m16n8k16.f16"), (2, 2, 1))
    >>> print(mma.get_slice(5).partition_C(Layout((64, 32), (32, 1))))
    ((2,2),2,2):((1,256),1024,16)
    """

    mma: TiledMma
    thread: int

    def __post_init__(self) -> None:
        expect_fields(self, _OF_THREAD)

    def partition(self, operand: str, tensor: Any) -> Any:
        """Return the elements of ``tensor`` that this thread has: ``(values, rest, rest, ...)``.

        A tensor gives a tensor, a composed layout a composed one. A plain layout has no place for
        an offset, and gives the modes alone.
        """
        i, j = _modes(operand)
        divided = self.mma.thrfrg(operand, tensor)
        digits = _digits(self.mma.thr_layout_vmnk, self.thread)
        if digits is None:
            raise LayoutValueError(
                f"TiledMma: {self.thread} is not one of its {self.mma.size} threads"
            )
        v, *mnk = digits
        rest = divided.shape[1][1]
        open_rest = (None,) * (len(rest) if isinstance(rest, tuple) else 1)
        return slice_(((v, (mnk[i], mnk[j])), (None, open_rest)), divided)

    def partition_A(self, tensor: Any) -> Any:
        """Return the :meth:`partition` of an (M, K) tensor.

        >>> from .atoms import mma_atom
        >>> from .makers import make_identity_tensor
        >>> thread = make_tiled_mma(mma_atom("m16n8k16.f16"), (2, 2, 1)).get_slice(5)
        >>> part = thread.partition_A(make_identity_tensor((32, 16)))
        >>> print(part.layout, part[0, 0, 0])
        ((2,2,2),1,1):((1@1,8@0,8@1),0,0) (1, 2)
        """
        return self.partition("A", tensor)

    def partition_B(self, tensor: Any) -> Any:
        """Return the :meth:`partition` of an (N, K) tensor."""
        return self.partition("B", tensor)

    def partition_C(self, tensor: Any) -> Any:
        """Return the :meth:`partition` of an (M, N) tensor."""
        return self.partition("C", tensor)

    def partition_fragment_A(self, tensor: Any) -> Layout:
        """Return registers for the result of :meth:`partition_A`, in the order of its strides."""
        return make_fragment_like(self.partition_A(tensor))

    def partition_fragment_B(self, tensor: Any) -> Layout:
        """Return registers for the result of :meth:`partition_B`, in the order of its strides."""
        return make_fragment_like(self.partition_B(tensor))

    def partition_fragment_C(self, tensor: Any) -> Layout:
        """Return compact accumulator registers for the result of :meth:`partition_C`.

        >>> from .atoms import mma_atom
        >>> thread = make_tiled_mma(mma_atom("m16n8k16.f16"), (2, 2, 1)).get_slice(5)
        >>> print(thread.partition_fragment_C(Layout((32, 32), (32, 1))))
        ((2,2),1,2):((1,2),4,4)
        """
        return Layout(self.partition_C(tensor).shape)


_OF_MMA = {"atom": of_class(MmaAtom), "atom_layout": of_class(Layout), "permutation": TILERS}
_OF_THREAD = {"mma": of_class(TiledMma), "thread": of_class(int)}


def make_tiled_mma(
    atom: MmaAtom, atom_layout: Any = (1, 1, 1), permutation: Any = (None, None, None)
) -> TiledMma:
    """Repeat an mma atom over threads by ``atom_layout`` (M, N, K), with a permutation of tiles.

    Raises :class:`LayoutTypeError` if the atom layout is not a layout of at most three modes, and
    :class:`LayoutValueError` for an atom of several blocks.

    >>> from .atoms import mma_atom
    >>> mma = make_tiled_mma(mma_atom("m16n8k16.f16"), (2, 2, 1))
    >>> print(mma.thr_layout_vmnk, mma.size)
    (32,2,2,1):(1,32,64,0) 128
    """
    expect("make_tiled_mma", MmaAtom, "an mma atom, as mma_atom(name) gives one", atom)
    if atom.blocks > 1:
        why = f"{atom.name} multiplies {atom.blocks} blocks; expected an atom of one block"
        raise LayoutValueError(f"make_tiled_mma: {why}")
    layout = as_layout("make_tiled_mma", atom_layout)
    modes = list(layout) if isinstance(layout.shape, tuple) else [layout]
    if len(modes) > 3 or not isinstance(permutation, tuple) or len(permutation) != 3:
        raise LayoutTypeError(
            f"make_tiled_mma: expected modes M, N, K, got {layout} and {text(permutation)}"
        )
    whole("make_tiled_mma", layout.size())
    modes += [Layout(1, 0)] * (3 - len(modes))
    modes = [Layout(1, 0) if mode.size() == 1 else mode for mode in modes]
    return TiledMma(atom, make_layout(modes), tuple(permutation))


def _modes(operand: str) -> tuple[int, int]:
    if operand not in _MODES:
        raise LayoutValueError(f"TiledMma: expected the operand A, B or C, got {operand!r}")
    return _MODES[operand]


def _by_threads(fragments: Any, tile: tuple[Layout, Layout]) -> Any:
    """Regroup ``((V, values), (rest, ...))`` to ``((V, (atom, atom)), (values, (rest, ...)))``."""

    def regrouped(inner: Any) -> Any:
        if not isinstance(inner, Layout):  # a tensor over a composed layout
            return inner.on_domain(regrouped)
        (thread, values), rests = inner[0], zipped_divide(inner[1], tile)
        return make_layout(make_layout(thread, rests[0]), make_layout(values, rests[1]))

    return fragments.on_domain(regrouped)


def _digits(layout: Layout, index: int) -> list[int] | None:
    """Return the coordinate of a thread index in a layout of threads, or None: one int per mode."""
    for i in range(int(layout.size())):
        if layout(i) == index:
            digits = []
            for mode in layout:
                digits.append(i % int(mode.size()))
                i //= int(mode.size())
            return digits
    return None
