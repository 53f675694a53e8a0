"""The products of a view on the CPU, without tensors: their blocks and where operands lie.

A product is cut into pieces, each of which says where its operands lie; :mod:`tables` keeps them
with the view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as cartesian
from math import gcd
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..algebra.int_tuple import IntTuple, compact_stride, crd2idx, flatten, map_leaves
from ..tensors.tensor_checks import columns_of
from ..view.gemm_view import GemmView, OperandLayout
from ..view.operands import arranged
from ..view.vectors import vector_extent
from .panels import CoordinatePart, MatrixPanel, MatrixPlace, PanelOperand

if TYPE_CHECKING:
    from .view_tables import Tables

_APART = 256  # terms per problem above which each problem is read separately


@dataclass
class Whole:
    """A block of GEMM-K at all rows of a part: ``acc[part] += A @ B``."""

    block: int
    part: slice
    place: MatrixPlace

    def kept(self) -> Whole:
        self.place.kept()
        return self

    @property
    def nbytes(self) -> int:
        return self.place.nbytes


@dataclass
class Listed:
    """Blocks of GEMM-K at the rows that have them, and the rows of D that the products belong to.

    ``order`` and ``starts`` list the products by row of D, for ``torch.embedding_bag``: it sums
    44,000 rows of 32 in 0.1 ms, where ``index_add_`` of every block takes 1 ms.
    """

    places: list[tuple[int, MatrixPlace]]
    sizes: list[int]
    order: Tensor
    starts: Tensor

    @classmethod
    def of(cls, found: list[tuple[int, Tensor, MatrixPlace]], rows: int) -> Listed:
        """Make one from (block, the rows that have it, where A lies there), for ``rows`` rows of
        D.
        """
        row = torch.cat([present for _, present, _ in found])
        starts = torch.zeros(rows + 1, dtype=torch.int32)
        torch.cumsum(torch.bincount(row, minlength=rows), 0, out=starts[1:])
        order = torch.sort(row, stable=True).indices.int()
        sizes = [len(present) for _, present, _ in found]
        return cls([(block, place) for block, _, place in found], sizes, order, starts)

    def kept(self) -> Listed:
        for _, place in self.places:
            place.kept()
        return self

    @property
    def nbytes(self) -> int:
        own = 4 * (len(self.order) + len(self.starts))
        return own + sum(place.nbytes for _, place in self.places)


@dataclass
class ProductTiling:
    """A tiling of a product: rows of D at once, rows and vectors of A that one call multiplies."""

    chunk: int
    block: int
    width: int
    products: int  # rows of products of listed blocks, at most, before they are summed
    sparse: float  # share of rows that a block has, below which it is listed


class Product:
    """One matrix product of a view, without its tensors.

    GEMM-K is cut into blocks, each a coordinate of ranges, see :func:`_blocks`. They count vectors
    of the operand that runs along K, if one does, A before B.
    """

    def __init__(self, view: GemmView, key: Any, tile: Any) -> None:
        self.key = key
        self.m, self.n, self.k = view.m, view.n, view.k
        self.left = PanelOperand(view.a, *along_memory(view.a))
        within = self.left.vector if self.left.along == 1 else 0
        self.right = PanelOperand(view.b, *along_memory(view.b, within))
        self.target = PanelOperand(view.d, 1, vector_extent(view.d, 1))
        self.tile: ProductTiling = tile(view, self.left)
        operand = next((o for o in (self.left, self.right) if o.along == 1), None)
        self.vector = operand.vector if operand else 1
        self.shape = operand.column_shape if operand else map_leaves(int, view.a.shape[1])
        self.blocks = list(_blocks(self.shape, self.tile.width)) if self.k else []
        self.chunks = range(0, self.m, self.tile.chunk)

    def rows(self, first: int) -> Tensor:
        """Return the numbers of a chunk's rows."""
        return torch.arange(first, min(first + self.tile.chunk, self.m))

    def pieces(self, tables: Tables, first: int) -> Iterator[Whole | Listed]:
        """Iterate over the pieces of A at a chunk of rows."""
        return tables.pieces((self.key, "a", first), lambda: self._pieces(self.rows(first)))

    def right_place(self, tables: Tables, block: int) -> MatrixPlace:
        """Return where all of B lies at a block: (n, k), or (k, n) if B runs along its rows."""
        return tables.place((self.key, "b", block), lambda: self._right(self.blocks[block]))

    def right_places(self, tables: Tables, memory: Tensor) -> Sequence[Tensor] | None:
        """Return B at all blocks, each (k, n), if they are alike and equidistant: in one call."""

        def make() -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
            places = [self.right_place(tables, block) for block in range(len(self.blocks))]
            steps = [place.steps for place in places]
            shapes = {(place.rows, place.columns) for place in places}
            if len(shapes) != 1 or None in steps:
                return None
            firsts = [first for first, _ in steps]  # type: ignore[misc]
            apart = firsts[1] - firsts[0] if len(firsts) > 1 else 1
            if apart < 0 or len({step for _, step in steps}) > 1:  # type: ignore[misc]
                return None
            if any(first != firsts[0] + i * apart for i, first in enumerate(firsts)):
                return None
            [(rows, columns)], vector = shapes, self.right.vector
            shape = len(places), rows, columns * vector
            stride = apart * vector, steps[0][1] * vector, 1  # type: ignore[index]
            return shape, stride, firsts[0] * vector

        found = tables.table((self.key, "b"), make)
        if found is None:
            return None
        shape, stride, first = found
        matrices = memory.as_strided(shape, stride, memory.storage_offset() + first)
        return (matrices.mT if self.right.along == 1 else matrices).unbind()

    def target_place(self, tables: Tables, first: int) -> MatrixPlace:
        """Return where a chunk of rows of D lies."""

        def make() -> MatrixPlace:
            columns = self.target.columns(torch.arange(self.n // self.target.vector))
            return MatrixPanel(
                self.target, self.target.rows(self.rows(first)[:, None]), columns
            ).place()

        return tables.place((self.key, "d", first), make)

    def _pieces(self, m: Tensor) -> Iterator[Whole | Listed]:
        a = self.left
        if a.along == 0:
            columns = a.columns(m[:: a.vector] // a.vector)
            for i, k in enumerate(self.blocks):
                panel = MatrixPanel(a, a.rows(self._numbers(k, 1)[:, None]), columns)
                yield Whole(i, slice(0, len(m)), panel.place())
            return
        rows = a.rows(m.view(-1, *[1] * len(flatten(a.column_shape))))
        listed: list[tuple[int, Tensor, MatrixPlace]] = []
        pairs = 0
        for i, k in enumerate(self.blocks):
            panel = MatrixPanel(a, rows, a.columns(k))
            for start in range(0, len(m), self.tile.block):
                part = slice(start, min(start + self.tile.block, len(m)))
                offset, valid = panel.locate(part)
                present = _present(valid, self.tile.sparse) if a.rest else None
                if present is None:
                    yield Whole(i, part, MatrixPlace(offset, valid))
                    continue
                if not len(present):
                    continue
                if pairs + len(present) > self.tile.products and pairs:
                    yield Listed.of(listed, len(m))
                    listed, pairs = [], 0
                valid = True if offset.shape[1] == 1 else valid.index_select(0, present)
                place = MatrixPlace(offset.index_select(0, present), valid)
                listed.append((i, present + start, place))
                pairs += len(present)
        if listed:
            yield Listed.of(listed, len(m))

    def _right(self, k: IntTuple) -> MatrixPlace:
        b, n = self.right, torch.arange(self.n)
        if b.along == 1:
            columns = b.columns(self._numbers(k, b.vector))
            return MatrixPanel(b, b.rows(n[:, None]), columns).place()
        columns = b.columns(n[:: b.vector] // b.vector)
        return MatrixPanel(b, b.rows(self._numbers(k, 1)[:, None]), columns).place()

    def _numbers(self, k: IntTuple, vector: int) -> Tensor:
        """Return the numbers of a block's vectors of ``vector`` elements, in its order."""
        ratio = self.vector // vector
        first = torch.as_tensor(crd2idx(k, self.shape, compact_stride(self.shape))).reshape(-1, 1)
        return (first * ratio + torch.arange(ratio)).reshape(-1)


def _present(valid: Any, share: float) -> Tensor | None:
    """Return the rows with any valid vector, if they are fewer than a share of all."""
    if valid is True:
        return None
    there = valid[:, 0] if valid.shape[1] == 1 else valid.any(1)
    rows = there.nonzero().squeeze(1)
    return rows if len(rows) < share * len(there) else None


@dataclass
class Factors:
    """Where the operands of a product lie."""

    a: MatrixPlace
    b: MatrixPlace

    def kept(self) -> Factors:
        self.a.kept()
        self.b.kept()
        return self

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes


@dataclass
class Terms(Factors):
    """Some terms of the sums of a batch: ``sizes`` of them for each problem from ``first`` on."""

    first: int
    sizes: list[int]

    @property
    def nbytes(self) -> int:
        return super().nbytes + 32 * len(self.sizes)


class Batch:
    """Products whose terms are gathered rows of memory: all problems share one list of terms.

    The filter gradient over pairs of rows is one. Terms that either side lacks are left out.
    """

    def __init__(self, view: GemmView, limit: int) -> None:
        self.limit = limit
        self.m, self.n, self.k, self.l = view.m, view.n, view.k, view.l
        # (m, (k, l)), (n, (k, l)) and ((m, l), n): one list of terms, and one of rows.
        a, b = (arranged(x, lambda m, k, l: (m, (k, l))) for x in (view.a, view.b))
        self.left, self.right = (PanelOperand(o, *along_memory(o)) for o in (a, b))
        d = arranged(view.d, lambda m, n, l: ((m, l), n))
        self.target = PanelOperand(d, 1, vector_extent(d, 1))

    def suits(self, tables: Tables) -> bool:
        """Return whether both operands suit a batch, and D's rows are equidistant."""
        by_row = self.left.along == self.right.along == 0
        gathered = bool(self.left.rest or self.right.rest) and not self.target.rest
        return by_row and gathered and self._place(tables).steps is not None

    def rows_of_d(self, tables: Tables, memory: Tensor) -> Tensor:
        """Return D in place, (l, m, n)."""
        rows = self._place(tables).view(memory)
        assert rows is not None  # or it does not suit
        return torch.unflatten(rows, 0, (self.l, self.m))

    def terms(self, tables: Tables) -> Iterator[Terms]:
        """Iterate over the terms of all problems, in order."""
        return tables.pieces("terms", self._terms)

    def _place(self, tables: Tables) -> MatrixPlace:
        """Return where D lies, the rows of one problem after those of another."""

        def make() -> MatrixPlace:
            rows = self.target.rows(torch.arange(self.m * self.l)[:, None])
            columns = self.target.columns(torch.arange(self.n // self.target.vector))
            return MatrixPanel(self.target, rows, columns).place()

        return tables.place("batch", make)

    def _terms(self) -> Iterator[Terms]:
        columns = [
            o.columns(torch.arange(extent // o.vector))
            for o, extent in ((self.left, self.m), (self.right, self.n))
        ]
        done = -1  # the last problem that has a term, or none
        for number in torch.split(torch.arange(self.k * self.l), self.limit):
            first, last = int(number[0]) // self.k, int(number[-1]) // self.k
            found = [
                MatrixPanel(o, o.rows(number[:, None]), part).locate()
                for o, part in zip((self.left, self.right), columns, strict=True)
            ]
            there = torch.ones(len(number), dtype=torch.bool)
            for _, valid in found:
                if valid is not True:
                    there &= valid.any(1)
            present = there.nonzero().squeeze(1)
            if not len(present) and last == done:
                continue
            sizes = torch.bincount(number[present] // self.k - first, minlength=last - first + 1)
            # Few terms of many problems are read at once; many, maybe contiguous, by problem.
            apart = len(present) > _APART * len(sizes)
            for l, own in enumerate(
                present.split_with_sizes(sizes.tolist()) if apart else (present,), first
            ):
                a, b = (
                    MatrixPlace(offset[own], valid if valid is True else valid[own])
                    for offset, valid in found
                )
                yield Terms(a, b, l, [len(own)] if apart else sizes.tolist())
            done = last


class Dots:
    """Products of one row and one column each, all problems side by side.

    Problems run along memory if possible, like the channels of a depthwise convolution; they are
    the columns of an epilogue.
    """

    def __init__(self, view: GemmView, depth: int, workspace: int) -> None:
        # Problems become one mode: (l, k), with a row per problem.
        a, b, d = (arranged(x, lambda _, k, l: (l, k)) for x in (view.a, view.b, view.d))
        vector = gcd(vector_extent(a, 0), vector_extent(d, 0))
        self.left, self.target = PanelOperand(a, 0, vector), PanelOperand(d, 0, vector)
        self.right = PanelOperand(b, 0, gcd(vector, vector_extent(b, 0)))
        self.k, self.l, self.channels = view.k, view.l, columns_of(view)
        self.depth = max(1, min(view.k, depth))
        # Per element: two numbers, their product, two offsets and the parts that these add up.
        self.width = max(1, workspace // (8 * 8 * self.depth) // vector) * vector
        self.tiles = range(0, self.l, self.width)

    def terms(self, tables: Tables, first: int) -> Iterator[Factors]:
        """Iterate over the places of both operands, (terms, problems), some terms at a time."""
        return tables.pieces(("terms", first), lambda: self._terms(first))

    def target_place(self, tables: Tables, first: int) -> MatrixPlace:
        """Return where D lies, (1, problems)."""

        def make() -> MatrixPlace:
            here = self.target.rows(torch.zeros(1, 1, dtype=torch.long))
            return MatrixPanel(self.target, here, self._columns(self.target, first)).place()

        return tables.place(("d", first), make)

    def _terms(self, first: int) -> Iterator[Factors]:
        operands = self.left, self.right
        columns = [self._columns(operand, first) for operand in operands]
        for k in torch.split(torch.arange(self.k), self.depth) if self.k else ():
            a, b = (
                MatrixPanel(operand, operand.rows(k[:, None]), part).place()
                for operand, part in zip(operands, columns, strict=True)
            )
            yield Factors(a, b)

    def _columns(self, operand: PanelOperand, first: int) -> CoordinatePart:
        vector = operand.vector
        return operand.columns(
            torch.arange(first // vector, min(first + self.width, self.l) // vector)
        )


def along_memory(layout: OperandLayout, columns: int = 0) -> tuple[int, int]:
    """Return the mode of an operand that runs along memory, and the elements of its vectors.

    A vector along GEMM-K divides ``columns``, the number that the other operand reads at once.
    """
    rows, along_k = vector_extent(layout, 0), vector_extent(layout, 1)
    return (0, rows) if rows > along_k else (1, gcd(along_k, columns))


def _blocks(shape: IntTuple, limit: int) -> Iterator[IntTuple]:
    """Cut the coordinates of ``shape`` into blocks of at most ``limit``.

    A block is a coordinate whose leaves are ranges, each along its own axis, with the first leaf
    last: flattened, it follows the order of the coordinates. A range of one is an int.
    """
    ranges: list[list[Any]] = []
    for leaf, extent in enumerate(flatten(shape)):
        step = max(1, min(limit, extent))
        limit //= step
        starts = torch.split(torch.arange(extent).view(-1, *[1] * leaf), step)
        ranges.append([start if len(start) > 1 else int(start) for start in starts])
    for block in cartesian(*ranges):
        leaves = iter(block)
        yield map_leaves(lambda _, leaves=leaves: next(leaves), shape)
