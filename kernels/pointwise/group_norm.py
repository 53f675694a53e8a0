"""Group norms of images, channels last, and the activation after them: three kernels forward, four
backward. An instance norm has groups of one channel.

A row is a voxel of an image (P, C), and N images lie one behind the other; a group is ``width``
adjacent channels. Statistics are over the rows and channels of a group of an image. CTAs write the
results of their part of the rows, like those of ``row_norm.py``, and one CTA per group merges them
before the next pass: nothing is atomic, and results are the same in every run.

::

    Statistics       rows of a part -> count, mean, squares about it, of each channel
    MergeGroups      parts and channels of a group -> its mean, its inverse deviation
    NormaliseGroups  x^ = (x - mean) * inverse;  y = act(x^ * w + b)
    GroupSums        rows of a part -> sums of g and of g * x^, g the gradient in front of act
    MergeGroupSums   parts and channels of a group -> means of w * g and of w * g * x^
    GroupGradient    dx = inverse * (w * g - mean(w * g) - x^ * mean(w * g * x^))
    MergeColumns     parts of all images -> db, dw

The backward pass recomputes the activation's input from x: only x and the statistics are kept.
Sums are in fp32, and results are rounded once.
"""

from __future__ import annotations

from typing import Any

from layoutconv.planning.norm_schedule import LOG_THREADS, NormShape

from ..common.dsl import Constexpr, Float32, Int32, Int64, cute, range_constexpr
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import TYPES, at, put, select
from ..maps.per_rank import Chain
from .activations import activated, passed
from .column_sums import MergeColumns
from .row_norm import Statistics
from .row_parts import (
    THREADS,
    RowReduction,
    ThreadPlace,
    aligned,
    as_float,
    merge_moments,
    merge_sums,
    of_moments,
)

_math: Any = cute.math


class OfGroups(RowReduction):
    """Base of kernels of parts that use the statistics of groups.

    Integers: those of images, the width of a group, and the bits of a slope.
    """

    more = 2

    def of_results(self) -> tuple[str, int]:
        """Return the type and alignment of results, or of their gradients."""
        dtype = self.shape.stored or self.shape.dtype
        return dtype, min(16, self.vector * TYPES[dtype].width // 8)

    def groups_of(self, place: ThreadPlace, integers: Any) -> list[Any]:
        """Return the group number, through all images, of each of a thread's channels."""
        columns, width = Int32(integers[1]), Int32(integers[6])
        start = place.image * (columns // width)
        return [start + (Int32(place.column) + j) // width for j in range(self.vector)]

    def affine(self, weight: Any, bias: Any, place: ThreadPlace) -> tuple[list[Any], list[Any]]:
        """Read weight and bias of a thread's channels."""
        if not self.shape.parameters:
            return [Float32(1.0)] * self.vector, [Float32(0.0)] * self.vector
        scale, offset = (
            [Float32(at(base, place.column + j)) for j in range(self.vector)]
            for base in (weight, bias)
        )
        return scale, offset


class NormaliseGroups(OfGroups):
    """Apply the norm and the activation to images.

    Tensors: images, the statistics of groups (N G, 2), weight, bias, and the result.
    """

    def tensors(self) -> tuple[tuple[str, int], ...]:
        parameter = aligned(self.shape.parameters or "float32")
        return self.of_features(), ("float32", 4), parameter, parameter, self.of_results()

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        x, statistics, weight, bias, out = pointers
        place, columns, slope = self.enter(integers), integers[1], as_float(integers[7])
        scale, offset = self.affine(weight, bias, place)
        groups = self.groups_of(place, integers)
        mean, inverse = ([at(statistics, 2 * g + k) for g in groups] for k in range(2))
        scale = [inverse[j] * scale[j] for j in range(self.vector)]
        for turn in range(self.turns(place)):
            self.rows_of(x, out, place, turn, columns, (mean, scale, offset, slope))

    def rows_of(
        self, x: Any, out: Any, place: ThreadPlace, turn: Any, columns: Any, held: Any
    ) -> None:
        """Write the results of a turn."""
        (mean, scale, offset, slope), kind = held, self.shape.activation
        rows = self.rows(place, turn, None)
        values = [self.read(x, place, row, columns) for row, *_ in rows]
        for value, (row, inside, _) in zip(values, rows, strict=True):
            result = [
                activated(kind, (value[j] - mean[j]) * scale[j] + offset[j], slope)
                for j in range(self.vector)
            ]
            self.write(out, place, row, inside, columns, result)


class GroupSums(OfGroups):
    """Sum the gradient, and its product with the normalised value, over the rows of a part.

    Tensors: images, the gradient of the result, the statistics of groups, weight, bias, and the
    sums (parts, 2, C).
    """

    def tensors(self) -> tuple[tuple[str, int], ...]:
        parameter, floats = aligned(self.shape.parameters or "float32"), ("float32", 4)
        return self.of_features(), self.of_results(), floats, parameter, parameter, floats

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        x, grad, statistics, weight, bias, found = pointers
        place, columns = self.enter(integers), integers[1]
        held = self.registers(2)
        known = self.known(statistics, weight, bias, place, integers)
        for turn in range(self.turns(place)):
            for own, normal, _, inside in self.gradients(x, grad, place, turn, columns, known):
                for j in range_constexpr(self.vector):
                    one = select(inside, own[j], Float32(0.0))
                    held[0][j] = held[0][j] + one
                    held[1][j] = held[1][j] + one * normal[j]
        self.leave_sums(held, found, place, columns)

    def known(
        self, statistics: Any, weight: Any, bias: Any, place: ThreadPlace, integers: Any
    ) -> Any:
        """Read mean, inverse deviation, weight and bias of a thread's channels, and the slope."""
        groups = self.groups_of(place, integers)
        mean, inverse = ([at(statistics, 2 * g + k) for g in groups] for k in range(2))
        return mean, inverse, *self.affine(weight, bias, place), as_float(integers[7])

    def gradients(
        self, x: Any, grad: Any, place: Any, turn: Any, columns: Any, known: Any
    ) -> list[tuple[Any, Any, Any, Any]]:
        """Return the gradients of activation inputs, normalised values, and rows of a turn."""
        mean, inverse, scale, offset, slope = known
        rows = self.rows(place, turn, None)
        values, grads = (
            [self.read(base, place, row, columns) for row, *_ in rows] for base in (x, grad)
        )
        found = []
        for value, above, (row, inside, _) in zip(values, grads, rows, strict=True):
            normal = [(value[j] - mean[j]) * inverse[j] for j in range(self.vector)]
            own = [
                passed(self.shape.activation, above[j], normal[j] * scale[j] + offset[j], slope)
                for j in range(self.vector)
            ]
            found.append((own, normal, row, inside))
        return found


class GroupGradient(GroupSums):
    """Compute the gradient of images.

    Tensors: images, the gradient of the result, the statistics of groups, weight, bias, the means
    of groups (N G, 2), and the gradient.
    """

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return *super().tensors(), self.of_features()

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        x, grad, statistics, weight, bias, means, dx = pointers
        place, columns = self.enter(integers), integers[1]
        known = self.known(statistics, weight, bias, place, integers)
        groups = self.groups_of(place, integers)
        level, slant = ([at(means, 2 * g + k) for g in groups] for k in range(2))
        for turn in range(self.turns(place)):
            self.rows_of(x, grad, dx, place, turn, columns, known, (level, slant))

    def rows_of(
        self, x: Any, grad: Any, dx: Any, place: ThreadPlace, turn: Any, columns: Any, known: Any,
        means: Any,
    ) -> None:  # fmt: skip
        """Write the gradients of a turn."""
        (_, inverse, scale, *_), (level, slant) = known, means
        for own, normal, row, inside in self.gradients(x, grad, place, turn, columns, known):
            result = [
                inverse[j] * (scale[j] * own[j] - level[j] - normal[j] * slant[j])
                for j in range(self.vector)
            ]
            self.write(dx, place, row, inside, columns, result)


class OfEachGroup(RowReduction):
    """Base of kernels with one CTA per group of an image, which merges the parts of its channels.

    Integers: those of images, and the width of a group.
    """

    more = 1

    def start(self, pointers: Any, integers: Any, stream: Any) -> None:
        groups = integers[1] // integers[6] * integers[5]
        self.kernel(pointers, integers).launch(
            grid=[Int32(groups), 1, 1],
            block=[self.threads, 1, 1],
            stream=stream,
            use_pdl=self.shape.early,
        )

    def place(self, integers: Any) -> Any:
        """Return the thread, its group through all images, and its first channel and part."""
        tid, _, _ = cute.arch.thread_idx()
        group, _, _ = cute.arch.block_idx()
        of_image = Int32(integers[1]) // Int32(integers[6])
        channel = group % of_image * Int32(integers[6])
        return tid, group, channel, group // of_image * Int32(integers[4])

    def turns_of(self, tid: Any, integers: Any) -> Any:
        """Return the number of (part, channel) pairs that a thread has."""
        return (Int32(integers[4]) * Int32(integers[6]) - tid + THREADS - 1) // THREADS

    def pair(self, turn: Any, place: Any, integers: Any) -> tuple[Any, Any]:
        """Return the part and the channel of a turn."""
        tid, _, channel, part = place
        number, width = turn * THREADS + tid, Int32(integers[6])
        return Int64(part + number // width), channel + number % width


class MergeGroups(OfEachGroup):
    """Merge the mean and the inverse deviation of each group.

    Tensors: moments of parts (parts, 2 C + 1), and the statistics (N G, 2). The last integer is the
    bits of eps.
    """

    more, reads = 2, ("early", "images")

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("float32", 4), ("float32", 4)

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        moments, statistics = pointers
        place = self.enter(integers)
        tid, group = place[0], place[1]
        merged = self.merged(moments, place, integers)
        arrays = self.shared(3)
        for array, own in zip(arrays, merged, strict=True):
            array[0, tid] = own
        self.add_up(arrays, merge_moments, tid, Int32(0), Int32(LOG_THREADS))
        if tid == 0:
            variance = arrays[2][0, 0] / arrays[0][0, 0]
            put(statistics, 2 * group, arrays[1][0, 0])
            put(statistics, 2 * group + 1, _math.rsqrt(variance + as_float(integers[7])))

    @cute.jit
    def merged(self, moments: Any, place: Constexpr, integers: Any) -> Any:
        """Merge the moments of a thread's pairs."""
        merged = Float32(0.0), Float32(0.0), Float32(0.0)
        columns = integers[1]
        for turn in range(self.turns_of(place[0], integers)):
            part, channel = self.pair(turn, place, integers)
            start = part * (2 * columns + 1)
            own = (
                at(moments, start + 2 * columns), at(moments, start + channel),
                at(moments, start + columns + channel),
            )  # fmt: skip
            merged = of_moments(merged, own)
        return merged


class MergeGroupSums(OfEachGroup):
    """Merge the means that the gradient of a group subtracts.

    Tensors: sums of parts (parts, 2, C), weight, and the means (N G, 2).
    """

    reads = "early", "images", "parameters"

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("float32", 4), aligned(self.shape.parameters or "float32"), ("float32", 4)

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        found, weight, means = pointers
        place = self.enter(integers)
        tid, group = place[0], place[1]
        arrays = self.shared(2)
        for array, own in zip(arrays, self.merged(found, weight, place, integers), strict=True):
            array[0, tid] = own
        self.add_up(arrays, merge_sums, tid, Int32(0), Int32(LOG_THREADS))
        if tid == 0:
            share = 1.0 / (Float32(Int32(integers[0])) * Float32(Int32(integers[6])))
            for number in range_constexpr(2):
                put(means, 2 * group + number, arrays[number][0, 0] * share)

    @cute.jit
    def merged(self, found: Any, weight: Any, place: Constexpr, integers: Any) -> Any:
        """Add up the sums of a thread's pairs, each times its channel's weight."""
        grads, products = Float32(0.0), Float32(0.0)
        columns = integers[1]
        for turn in range(self.turns_of(place[0], integers)):
            part, channel = self.pair(turn, place, integers)
            start = part * 2 * columns + channel
            scale = Float32(at(weight, channel)) if self.shape.parameters else Float32(1.0)
            grads = grads + scale * at(found, start)
            products = products + scale * at(found, start + columns)
        return grads, products


_IMAGES = tuple(range(6))  # the integers of an image's schedule, and the number of images


def forward(shape: NormShape) -> Chain:
    """Return the launches of the forward pass.

    Tensors: images, moments of parts, statistics of groups, weight, bias, the result, and one that
    no kernel reads. Integers: those of ``OfGroups``, and the bits of eps.
    """
    return Chain(
        (
            (Statistics(shape), (0, 6, 1), _IMAGES),
            (MergeGroups(shape), (1, 2), (*_IMAGES, 6, 8)),
            (NormaliseGroups(shape), (0, 2, 3, 4, 5), (*_IMAGES, 6, 7)),
        )
    )


def backward(shape: NormShape) -> Chain:
    """Return the launches of the backward pass.

    Tensors: images, the gradient of the result, statistics of groups, weight, bias, sums of parts,
    means of groups, the gradient of images, and that of bias and weight, float32 (2, C). Integers:
    those of ``OfGroups``, and a ``Schedule`` of the sums (parts of all images, 2 C).
    """
    of_groups = *_IMAGES, 6, 7
    sums = NormShape("float32", 1, "float32", early=shape.early)
    return Chain(
        (
            (GroupSums(shape), tuple(range(6)), of_groups),
            (MergeGroupSums(shape), (5, 3, 6), (*_IMAGES, 6)),
            (GroupGradient(shape), (0, 1, 2, 3, 4, 6, 7), of_groups),
            (MergeColumns(sums), (5, 8), tuple(range(8, 13))),
        )
    )
