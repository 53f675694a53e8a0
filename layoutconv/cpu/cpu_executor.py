"""Any GEMM view on the CPU: vectors are gathered by its layouts, and multiplied.

It does not know about convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algebra.int_tuple import flatten
from ..tensors.epilogue_in_torch import Finish, accumulator_dtype
from ..tensors.tensor_checks import allocate
from ..view.epilogue import Epilogue
from ..view.gemm_view import GemmView
from .panels import MatrixPlace, PanelOperand
from .products import Batch, Dots, Listed, Product, ProductTiling
from .view_tables import Tables

_WORKSPACE = 64 << 20  # bytes, about: of all temporary tensors together
_PANEL = 4 << 20  # bytes of A that one product multiplies: still in the cache then
_SPARSE = 0.8  # share of rows with a tap below which its product leaves out the other rows


class Blocking(NamedTuple):
    """Block sizes of products."""

    columns: int = 128  # vectors of A per product, at most
    rows: int = 32768  # at once, at most: fewer cost more calls, more do not fit in the caches
    depth: int = 32  # numbers in a row of a product: with fewer, calls take longer than products
    products: int = 16 << 20  # bytes of products of listed rows before they are summed
    terms: int = 2 << 20  # bytes of the rows in which terms of a batch are gathered
    small: int = 1 << 19  # numbers whose product takes less time than a call for each tap


BLOCKING = Blocking()


class _Given(NamedTuple):
    """Operands, the target of their product, the dtype of the sums, and the epilogue."""

    tables: Tables
    a: Tensor
    b: Tensor
    out: Tensor
    kind: torch.dtype
    finish: Finish

    def in_place(self) -> bool:
        """Return whether sums are stored unchanged, so that they can be computed in D."""
        if not self.finish.nothing or self.out.dtype != self.kind:
            return False
        a, b, out = (each.untyped_storage().data_ptr() for each in (self.a, self.b, self.out))
        return out not in (a, b)


def execute_cpu(
    view: GemmView,
    a: Tensor,
    b: Tensor,
    out: Tensor | None = None,
    epilogue: Epilogue | None = None,
    statistics: Tensor | None = None,
) -> Tensor:
    """Compute ``D = A B^T`` of a GEMM view, for tensors that :func:`~layoutconv.execute` checked.

    Sums are in fp64 for fp64, exact for int8 and in fp32 otherwise. ``statistics`` is fp64 (2,
    columns); those of an epilogue are added to it. Memory beyond the operands is bounded by about
    64 MB plus a copy of ``b``; tables of at most 16 MB are kept with the view. Elements of ``out``
    that the view does not write keep their values.
    """
    given = view, a, b, out, epilogue, statistics
    with torch.no_grad():
        if torch.empty(0).is_cpu:  # 3 us less than torch.get_default_device
            return _execute(*given)
        with torch.device("cpu"):  # tables, which the view keeps, are made here, too
            return _execute(*given)


def _execute(
    view: GemmView,
    a: Tensor,
    b: Tensor,
    out: Tensor | None,
    epilogue: Epilogue | None,
    statistics: Tensor | None,
) -> Tensor:
    if out is None:
        out = allocate(view, a)
    finish = Finish(epilogue, a.dtype, out.dtype, statistics)
    kind = accumulator_dtype(a.dtype, view.k)
    tables = Tables.of(view)
    given = _Given(tables, a, b, out, kind, finish)

    def product(l: int | None = None) -> Product:
        def make() -> Product:
            one = view if l is None else view.at(l)
            return Product(one, key, lambda v, o: _tile(v, o, kind.itemsize))

        key = l, kind.itemsize
        made: Product = tables.structure(key, make)
        return made

    if len(view.a.shape) == 2:
        _multiply(product(), given, _columns(view, 0))
    elif view.m == view.n == 1 and view.l:
        _dot(view, given)
    else:
        batch = tables.structure(("batch", kind.itemsize), lambda: _batch(view, kind))
        if batch.suits(tables) and given.in_place():
            _multiply_batch(batch, given)
            return out
        for l in range(view.l):
            _multiply(product(l), given, _columns(view, l))
    return out


def _multiply(product: Product, given: _Given, columns: Any) -> None:
    """Compute one matrix product; ``columns`` are its columns' numbers, as for ``Finish``."""
    tables, a, b, out, kind, finish = given
    left, right, n = product.left, product.right, product.n
    x, w, y = left.memory(a), right.memory(b), product.target.memory(out)

    def weight(block: int) -> Tensor:
        found = product.right_place(tables, block).read(w, b.dtype)
        return (found.T if right.along == 1 else found).to(kind)

    weights: Sequence[Tensor] | None = None
    if n * product.k <= b.numel():  # else each element of B is read several times
        weights = product.right_places(tables, w) if kind == b.dtype else None
        weights = weights or [weight(i) for i in range(len(product.blocks))]
    in_place = given.in_place()
    for first in product.chunks:
        place = product.target_place(tables, first)
        acc = place.view(y) if in_place else None
        stored = acc is not None
        if acc is None:
            acc = torch.empty(place.rows, n, dtype=kind)
        begun: set[int] = set()  # parts of the rows, by first row, that have a sum
        parts = range(0, place.rows, product.tile.block)
        for piece in product.pieces(tables, first):
            if isinstance(piece, Listed):
                sums = _listed(piece, x, a.dtype, weights or weight, n, kind)
                if not begun:
                    acc.copy_(sums)
                else:
                    _begin(acc, parts, begun, product.tile.block)
                    acc.add_(sums)
                begun.update(parts)
                continue
            found = piece.place.read(x, a.dtype)
            if left.along == 0:
                found = found.T
            factor = weights[piece.block] if weights is not None else weight(piece.block)
            beta = int(piece.part.start in begun)
            acc[piece.part].addmm_(found.to(kind), factor, beta=beta)
            begun.add(piece.part.start)
        _begin(acc, parts, begun, product.tile.block)
        if not stored:
            rows = product.rows(first) if finish.counts_rows else None
            _store(acc, place, product.target, y, finish, columns, rows)


def _columns(view: GemmView, l: int) -> Any:
    """Return the numbers of problem ``l``'s columns, with which they read per-column tensors."""
    if view.columns is None:
        return slice(l * view.n, (l + 1) * view.n)
    return view.columns(torch.arange(view.n), *((l,) if len(view.a.shape) > 2 else ()))


def _begin(acc: Tensor, parts: range, begun: set[int], rows: int) -> None:
    """Zero the parts that have no sum yet."""
    if len(begun) < len(parts):
        for start in parts:
            if start not in begun:
                acc[start : start + rows].zero_()


def _listed(
    piece: Listed, x: Tensor, dtype: torch.dtype, weights: Any, n: int, kind: torch.dtype
) -> Tensor:
    """Return the sums (rows, n) of blocks over their listed rows; ``weights``: a list, or a call.

    Products are summed row by row, in the order of the blocks.
    """
    products = torch.empty(sum(piece.sizes), n, dtype=kind)
    for (block, place), part in zip(
        piece.places, products.split_with_sizes(piece.sizes), strict=True
    ):
        weight = weights[block] if isinstance(weights, Sequence) else weights(block)
        torch.mm(place.read(x, dtype).to(kind), weight, out=part)
    bags = torch.embedding_bag(
        products, piece.order, piece.starts, mode=0, include_last_offset=True
    )
    return bags[0]


def _multiply_batch(batch: Batch, given: _Given) -> None:
    """Compute all problems of a batch, whose sums are stored unchanged."""
    tables, a, b, out, kind, _ = given
    x, w, y = batch.left.memory(a), batch.right.memory(b), batch.target.memory(out)
    problems = batch.rows_of_d(tables, y).unbind()
    last = -1  # the problem of the previous terms
    for terms in batch.terms(tables):
        left, right = terms.a.read(x, a.dtype).to(kind), terms.b.read(w, b.dtype).to(kind)
        first, sizes = terms.first, terms.sizes
        if len(sizes) == 1:
            problems[first].addmm_(left.T, right, beta=int(first == last))
        else:
            for l, (p, q) in enumerate(
                zip(left.split_with_sizes(sizes), right.split_with_sizes(sizes), strict=True),
                first,
            ):
                problems[l].addmm_(p.T, q, beta=int(l == last))
        last = first + len(sizes) - 1


def _batch(view: GemmView, kind: torch.dtype) -> Batch:
    limit = BLOCKING.terms // (kind.itemsize * (view.m + view.n))
    return Batch(view, max(1, min(BLOCKING.rows, limit)))


def _dot(view: GemmView, given: _Given) -> None:
    """Compute products of one row and column each, all problems at once, by element-wise sums."""
    tables, a, b, out, kind, finish = given
    dots: Dots = tables.structure("dots", lambda: Dots(view, BLOCKING.columns, _WORKSPACE))
    x, w, y = dots.left.memory(a), dots.right.memory(b), dots.target.memory(out)
    for first in dots.tiles:
        acc = torch.zeros(1, min(dots.width, dots.l - first), dtype=kind)
        for terms in dots.terms(tables, first):
            p, q = terms.a.read(x, a.dtype).to(kind), terms.b.read(w, b.dtype).to(kind)
            acc += (p * q).sum(0)
        numbers = torch.arange(first, first + acc.shape[1])
        numbers = numbers % dots.channels if view.columns is None else view.columns(0, numbers)
        row = torch.zeros(1, dtype=torch.int64)
        _store(acc, dots.target_place(tables, first), dots.target, y, finish, numbers, row)


def _store(
    acc: Tensor,
    place: MatrixPlace,
    target: PanelOperand,
    memory: Tensor,
    finish: Finish,
    columns: Any,
    rows: Tensor | None,
) -> None:
    """Apply the epilogue to the accumulators of some rows and columns, given by number."""
    sources = [place.read(target.memory(source), source.dtype) for source in finish.sources]
    written = place.there() if finish.statistics is not None else True
    place.write(memory, finish(acc, columns, sources, written, rows))


def _tile(view: GemmView, a: PanelOperand, itemsize: int) -> ProductTiling:
    """Return how a product is cut into tiles.

    Wide if A is dense: few calls, and the product sums in registers. One tap at a time if A goes
    through an index, which most rows may lack, unless it is so small that calls take longer. If A
    runs along its rows, vectors have one column each, and one product reads A and B of a panel's
    size.
    """
    most, along_rows = BLOCKING, a.along == 0
    small = view.m * view.k * (view.n + 8) <= most.small
    if along_rows:
        width = min(most.rows, max(most.columns, _PANEL // (itemsize * (view.m + view.n))))
    elif a.rest and not small:
        width = min(-(-most.depth // a.vector), flatten(a.column_shape)[0])
    else:
        width = most.columns
    vector = 1 if along_rows else a.vector
    width = max(1, min(width, view.k // vector))
    per_row = width * vector * itemsize
    chunk = max(1, min(most.rows, _WORKSPACE // 2 // (per_row + 2 * view.n * itemsize)))
    if along_rows:
        chunk = max(a.vector, chunk - chunk % a.vector)
    block = chunk if a.rest else min(chunk, max(256, _PANEL // per_row))
    products = most.products // (view.n * itemsize)
    return ProductTiling(chunk, block, width, products, 0.0 if small else _SPARSE)
