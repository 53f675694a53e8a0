"""Batch norms of rows in training, with the operations behind: two kernels forward, two backward.

A row is a voxel or a point, a column a channel. Padding rows of a cloud, which have no cell, do not
count, whatever they hold, and their results are zeros. In both passes the first kernel writes
partial sums, and the second begins by merging those of its own columns: nothing waits for a last
CTA, and nothing is atomic, so results are the same in every run.

::

    statistics   rows of a part -> count, mean, squares about it
    normalise    all parts -> mean, inverse deviation; y = act((x - mean) * inverse * w + b + past)
    sums         rows of a part -> sums of g and of g * x^, g being the gradient in front of act
    gradient     all parts -> dw, db; dx = w * inverse * (g - sum(g) / n - x^ * sum(g * x^) / n)

If several ranks share the rows, a kernel in between merges the parts of a rank into the message to
the others, ``MergeMoments`` and ``MergeSums``; the kernels behind treat ranks as parts. The
messages are those of ``torch.nn.SyncBatchNorm``: mean, inverse deviation and count; sums of g and
of g * (x - mean). So they are compatible with a rank that calls torch's own, say for no rows.

The second kernel of a pass takes the rows of its parts in reverse order: of images that are larger
than L2, the rows that the first kernel read last are still there.

A thread sums the differences of values from its first one; threads, then parts, are merged as in
Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
(1979): a mean much larger than the deviation costs no digits.

``row_parts.py`` has the rows and columns of a CTA, and the merging of threads; ``merged_parts.py``
has the merging of parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from layoutconv.planning.norm_schedule import NormShape

from ..common.dsl import Constexpr, Float32, Int32, Int64, cute, cutlass, range_constexpr
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import TYPES, at, put, select
from ..maps.per_rank import Chain
from .activations import activated, passed
from .merged_parts import OfParts
from .row_parts import OF_ALL, RowReduction, ThreadPlace, aligned, as_float, merge_moments

_math: Any = cute.math


class Statistics(RowReduction):
    """Compute count, mean and squares about it of the rows of a part, per column.

    Tensors: features, which rows count, and the moments (2 C + 1,) of each part: means, squares,
    and the number of rows that count.
    """

    reads = (*OF_ALL, "dtype", "masked")

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return self.of_features(), ("uint8", 1), ("float32", 4)

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        x, there, moments = pointers
        place, columns = self.enter(integers), integers[1]
        count = cute.make_rmem_tensor(1, Float32)
        count.fill(0.0)
        shift, sums, squares = self.registers(3)
        for turn in range(self.turns(place)):
            self.take(x, there, place, turn, columns, count, (shift, sums, squares))
        arrays = [*self.shared(1), *self.shared(2, self.vector)]
        n = count[0]
        share = select(n > 0.0, 1.0 / n, Float32(0.0))
        arrays[0][0, place.tid] = n
        for j in range_constexpr(self.vector):
            arrays[1][j, place.tid] = shift[j] + sums[j] * share
            arrays[2][j, place.tid] = squares[j] - sums[j] * sums[j] * share
        self.add_up(arrays, merge_moments, place.tid, place.log_across, place.log_step)
        own = Int64(place.part) * (2 * columns + 1)
        if (place.row == 0) & place.is_column:
            for j in range_constexpr(self.vector):
                put(moments, own + place.column + j, arrays[1][j, place.tid])
                put(moments, own + columns + place.column + j, arrays[2][j, place.tid])
            if place.column == 0:
                put(moments, own + 2 * columns, arrays[0][0, place.tid])

    def take(
        self, x: Any, there: Any, place: ThreadPlace, turn: Any, columns: Any, count: Any, held: Any
    ) -> None:
        """Add the rows of a turn; sums are relative to the thread's first row that counts."""
        shift, sums, squares = held
        rows = self.rows(place, turn, there)
        values = [self.read(x, place, row, columns) for row, *_ in rows]
        for value, (*_, valid) in zip(values, rows, strict=True):
            begins = valid & (count[0] == 0.0)
            count[0] = count[0] + select(valid, Float32(1.0), Float32(0.0))
            for j in range(self.vector):
                shift[j] = select(begins, value[j], shift[j])
                away = select(valid, value[j] - shift[j], Float32(0.0))
                sums[j] = sums[j] + away
                squares[j] = squares[j] + away * away


class MergeMoments(OfParts):
    """Merge the moments of a rank, which it sends to the others.

    Tensors: the moments of its parts; and those of all, with inverse deviations in place of
    squares. Integers: the bits of eps.
    """

    more, single, reads = 1, True, OF_ALL

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("float32", 4), ("float32", 4)

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        moments, told = pointers
        place, columns, parts = self.enter(integers), integers[1], Int32(integers[4])
        eps = as_float(integers[5])
        (n, mean, squares), _ = self.moments_of(moments, place, columns, parts, eps)
        if place.is_single:
            variance = squares * select(n > 0.0, 1.0 / n, Float32(0.0))
            put(told, place.single, mean)
            put(told, columns + place.single, _math.rsqrt(variance + eps))
            if place.single == 0:
                put(told, 2 * columns, n)


class Normalise(OfParts):
    """Apply the norm, and the operations behind it, to features.

    Tensors: features, which rows count, moments of the parts, weight, bias, the summand, the
    result, the values for the backward pass (2 C + 1,): mean, inverse deviation, count (if the
    backward pass recomputes results, (4 C + 1,): also scale and offset); both running statistics,
    and the number of batches, int64 (). Integers: the bits of eps and of the momentum, as float32,
    and the number of moments.
    """

    more = 3

    @property
    def reads_ranks(self) -> bool:
        return self.shape.ranks

    def tensors(self) -> tuple[tuple[str, int], ...]:
        shape, floats = self.shape, ("float32", 4)
        parameter, running = (aligned(t or "float32") for t in (shape.parameters, shape.running))
        features = self.of_features()
        return (
            features, ("uint8", 1), floats, parameter, parameter, features, features,
            floats, running, running, ("int64", 8),
        )  # fmt: skip

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        x, there, moments, weight, bias, past, out, kept, *moving = pointers
        mean_run, variance_run, batches = moving
        place, columns, parts = self.enter(integers), integers[1], Int32(integers[7])
        eps, momentum = (as_float(bits) for bits in integers[5:7])
        (n, mean, squares), arrays = self.moments_of(moments, place, columns, parts, eps)
        if place.is_single:
            column = place.single
            variance = squares * select(n > 0.0, 1.0 / n, Float32(0.0))
            inverse = _math.rsqrt(variance + eps)
            if place.part == 0:
                put(kept, column, mean)
                put(kept, columns + column, inverse)
                if column == 0:
                    put(kept, 2 * columns, n)
                    if cutlass.const_expr(self.shape.counts):
                        put(batches, 0, Int64(at(batches, 0)) + 1)
                if cutlass.const_expr(self.shape.running):
                    self.follow(mean_run, column, momentum, n, mean)
                    unbiased = squares * select(n > 1.0, 1.0 / (n - 1.0), Float32(0.0))
                    self.follow(variance_run, column, momentum, n, unbiased)
            scale, offset = inverse, Float32(0.0)
            if cutlass.const_expr(self.shape.parameters):
                scale, offset = inverse * Float32(at(weight, column)), Float32(at(bias, column))
            if cutlass.const_expr(self.shape.remakes):
                self.leave_line(kept, place, columns, (scale, offset))
            arrays[0][0, place.tid] = scale
            arrays[2][0, place.tid] = offset
        cute.arch.sync_threads()
        first = (place.tid & ((Int32(1) << place.log_across) - 1)) * self.vector
        lists = [[array[0, first + j] for j in range(self.vector)] for array in arrays]
        turns = self.turns(place)
        for number in range(turns):
            turn = self.last_first(turns, number)
            self.rows_of((x, there, past), out, place, turn, columns, lists)

    @cute.jit
    def leave_line(self, kept: Any, place: Constexpr, columns: Any, line: Any) -> None:
        """Write scale and offset of a column, from which the backward pass recomputes results."""
        if place.part == 0:
            put(kept, 2 * columns + 1 + place.single, line[0])
            put(kept, 3 * columns + 1 + place.single, line[1])

    def follow(self, running: Any, column: Any, momentum: Any, n: Any, now: Any) -> None:
        """Update a running statistic, unless fewer than two rows count."""
        before = Float32(at(running, column))
        moved = before + momentum * (now - before)
        put(running, column, TYPES[self.shape.running](select(n > 1.0, moved, before)))

    def rows_of(
        self, operands: Any, out: Any, place: ThreadPlace, turn: Any, columns: Any, of_columns: Any
    ) -> None:
        """Write the results of a turn."""
        (x, there, past), (scale, mean, offset) = operands, of_columns
        rows = self.rows(place, turn, there)
        values = [self.read(x, place, row, columns) for row, *_ in rows]
        if self.shape.added:
            added = [self.read(past, place, row, columns) for row, *_ in rows]
        for u, (row, inside, valid) in enumerate(rows):
            result = []
            for j in range(self.vector):
                y = (values[u][j] - mean[j]) * scale[j] + offset[j]
                y = y + added[u][j] if self.shape.added else y
                y = activated(self.shape.activation, y)
                result.append(select(valid, y, Float32(0.0)))
            self.write(out, place, row, inside, columns, result)


class GradientSums(OfParts):
    """Sum the gradient, and its product with the normalised value, over the rows of a part.

    Tensors: features, which rows count, the result, its gradient, the forward pass's values, and
    the sums (parts, 2, C).
    """

    reads: tuple[str, ...] = (*Statistics.reads, "activation", "remakes")

    def tensors(self) -> tuple[tuple[str, int], ...]:
        features, floats = self.of_features(), ("float32", 4)
        return features, ("uint8", 1), features, features, floats, floats

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        x, there, out, grad, kept, found = pointers
        place, columns = self.enter(integers), integers[1]
        mean, inverse = self.kept(kept, place, columns)
        if cutlass.const_expr(self.shape.remakes):
            out = (mean, *self.kept(kept, place, columns, 2 * columns + 1))
        held = self.registers(2)
        for turn in range(self.turns(place)):
            found_of = self.gradients(x, there, out, grad, place, turn, columns)
            for value, own, (_, _, valid) in found_of:
                for j in range_constexpr(self.vector):
                    normal = select(valid, (value[j] - mean[j]) * inverse[j], Float32(0.0))
                    held[0][j] = held[0][j] + own[j]
                    held[1][j] = held[1][j] + own[j] * normal
        self.leave_sums(held, found, place, columns)

    def kept(
        self, kept: Any, place: ThreadPlace, columns: Any, begin: Any = 0
    ) -> tuple[list[Any], list[Any]]:
        """Read mean and inverse deviation of a thread's columns; or scale and offset."""
        first, second = (
            [at(kept, start + place.column + j) for j in range(self.vector)]
            for start in (begin, begin + columns)
        )
        return first, second

    def given(self, out: Any, value: list[Any], u: int) -> list[Any]:
        """Return a row's result, which was loaded; or the activation's input, recomputed from
        features, if ``out`` is their mean, scale and offset.
        """
        if not self.shape.remakes:
            return self.widened(out[u])
        mean, scale, offset = out
        return [(value[j] - mean[j]) * scale[j] + offset[j] for j in range(self.vector)]

    def gradients(
        self, x: Any, there: Any, out: Any, grad: Any, place: Any, turn: Any, columns: Any
    ) -> Iterator[tuple[list[Any], list[Any], tuple[Any, Any, Any]]]:
        """Yield features, the gradient of the norm's result (0 in rows that do not count), and the
        row as :meth:`rows` returns it.

        All rows of a turn are loaded before one is widened, and widened one by one: sums with a
        SiLU then take 110 registers, not 176.
        """
        rows, kind = self.rows(place, turn, there), self.shape.activation
        read = [x, grad] if self.shape.remakes or not kind else [x, grad, out]
        values, grads, *results = (
            [self.load(base, place, row, columns) for row, *_ in rows] for base in read
        )
        for u, row in enumerate(rows):
            value, own = self.widened(values[u]), self.widened(grads[u])
            if kind:
                given = self.given(results[0] if results else out, value, u)
                own = [passed(kind, own[j], given[j]) for j in range(self.vector)]
            yield value, [select(row[2], one, Float32(0.0)) for one in own], row


class MergeSums(OfParts):
    """Merge the sums of a rank, which it sends to the others.

    Tensors: the forward pass's values, the sums of its parts, the gradients of weight and bias
    (2, C), over its rows, and the sums of all parts (2, C): with ``x - mean`` in place of ``x^``,
    by dividing by the inverse deviation.
    """

    single, reads = True, OF_ALL

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return (("float32", 4),) * 4

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        kept, found, of_parameters, told = pointers
        place, columns, parts = self.enter(integers), integers[1], Int32(integers[4])
        totals, _ = self.sums_of(found, place, columns, parts)
        if place.is_single:
            for number in range_constexpr(2):
                put(of_parameters, (1 - number) * columns + place.single, totals[number])
            put(told, place.single, totals[0])
            put(told, columns + place.single, totals[1] / at(kept, columns + place.single))


class Gradient(GradientSums):
    """Compute the gradients of features, of parameters, and of the summand.

    Tensors: features, which rows count, the result, its gradient, the forward pass's values, sums
    of the parts, weight, and the gradients of features, of the summand, and of weight and bias
    (2, C). The last integer is the number of sums.
    """

    more = 1
    reads = (*GradientSums.reads, "parameters", "ranks", "added")

    def tensors(self) -> tuple[tuple[str, int], ...]:
        features, floats = self.of_features(), ("float32", 4)
        parameter = aligned(self.shape.parameters or "float32")
        return (*super().tensors(), parameter, features, features, floats)

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        x, there, out, grad, kept, found, weight, dx, dpast, of_parameters = pointers
        place, columns, parts = self.enter(integers), integers[1], Int32(integers[5])
        totals, arrays = self.sums_of(found, place, columns, parts)
        n = at(kept, 2 * columns)
        if place.is_single:
            for number in range_constexpr(2):
                if place.part == 0:
                    place_of = (1 - number) * columns + place.single
                    put(of_parameters, place_of, totals[number])
                share = select(n > 0.0, 1.0 / n, Float32(0.0))
                if cutlass.const_expr(self.shape.ranks and number == 1):
                    share = share * at(kept, columns + place.single)
                arrays[number][0, place.tid] = totals[number] * share
        cute.arch.sync_threads()
        first = (place.tid & ((Int32(1) << place.log_across) - 1)) * self.vector
        grads, products = ([array[0, first + j] for j in range(self.vector)] for array in arrays)
        mean, inverse = self.kept(kept, place, columns)
        scale = inverse
        if cutlass.const_expr(self.shape.parameters):
            scale = [inverse[j] * Float32(at(weight, place.column + j)) for j in range(self.vector)]
        if cutlass.const_expr(self.shape.remakes):
            out = mean, scale, self.kept(kept, place, columns, 2 * columns + 1)[1]
        slope = [scale[j] * inverse[j] * products[j] for j in range(self.vector)]
        level = [scale[j] * grads[j] for j in range(self.vector)]
        turns = self.turns(place)
        for number in range(turns):
            turn = self.last_first(turns, number)
            self.rows_of(
                (x, there, out, grad), (dx, dpast), place, turn, columns,
                (mean, scale, slope, level),
            )  # fmt: skip

    def rows_of(
        self, read: Any, written: Any, place: Any, turn: Any, columns: Any, held: Any
    ) -> None:
        """Write the gradients of a turn."""
        mean, scale, slope, level = held
        x, there, out, grad = read
        # Load all rows before the first write's branches: with a mask, 118 registers, not 142.
        found = list(self.gradients(x, there, out, grad, place, turn, columns))
        for value, own, (row, inside, valid) in found:
            result = []
            for j in range(self.vector):
                one = scale[j] * own[j] - level[j] - slope[j] * (value[j] - mean[j])
                result.append(select(valid, one, Float32(0.0)))
            self.write(written[0], place, row, inside, columns, result)
            if self.shape.added:
                self.write(written[1], place, row, inside, columns, own)


_ALL = tuple(range(5))  # the integers of a schedule; the last is the number of parts


def forward(shape: NormShape) -> Chain:
    """Return the forward launches: tensors of ``Normalise``, and its integers but the last."""
    return Chain(
        (
            (Statistics(shape), (0, 1, 2), _ALL),
            (Normalise(shape), tuple(range(11)), (*_ALL, 5, 6, 4)),
        )
    )


def moments(shape: NormShape) -> Chain:
    """Return the launches of a rank's moments: tensors of ``Statistics``, and merged moments."""
    return Chain(((Statistics(shape), (0, 1, 2), _ALL), (MergeMoments(shape), (2, 3), (*_ALL, 5))))


def normalise(shape: NormShape) -> Chain:
    """Return the launch of ``Normalise`` that reads the moments of ranks."""
    return Chain(((Normalise(shape), tuple(range(11)), tuple(range(8))),))


def backward(shape: NormShape) -> Chain:
    """Return the backward launches: tensors of ``Gradient``, and its integers but the last."""
    parts = (
        (GradientSums(shape), tuple(range(6)), _ALL),
        (Gradient(shape), tuple(range(10)), (*_ALL, 4)),
    )
    return Chain(parts)


def sums(shape: NormShape) -> Chain:
    """Return the launches of a rank's sums: tensors of ``GradientSums``, then of ``MergeSums``."""
    return Chain(
        ((GradientSums(shape), tuple(range(6)), _ALL), (MergeSums(shape), (4, 5, 6, 7), _ALL))
    )


def gradient(shape: NormShape) -> Chain:
    """Return the launch of ``Gradient`` that reads the sums of all ranks."""
    return Chain(((Gradient(shape), tuple(range(10)), tuple(range(6))),))
