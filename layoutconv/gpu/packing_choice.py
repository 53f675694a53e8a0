"""Choice of packed channels for a pass, if the cost model expects the copies to pay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ..conv import ConvProblem, fprop_view, wgrad_view
from ..conv.k_major_filter import k_major_view
from ..conv.k_major_wgrad import VoxelRuns, k_major_wgrads
from ..conv.packed_channels import LinePacking, PackedProblem, exchanged, packings
from ..planning.concurrent_time import KernelAlone, time_together
from ..planning.machine import Machine
from ..planning.tile_time import LAUNCH, expected_time
from ..planning.view_rules import UnsupportedViewError
from ..tensors.expected_tensors import ExpectedTensor, expected
from ..tensors.tensor_checks import OUTPUTS
from ..view.gemm_view import GemmView
from . import machines
from .filter_choice import reads_along_sums
from .fp32_precision import multiplied_as
from .k_major_copy import k_major_copy
from .line_packing import pack_lines
from .select import choose_kernel
from .voxel_runs import voxel_runs

VECTOR_BYTES, HALF_LINE, ASYNC_BYTES = 16, 64, 4
FEW = 16  # channels, at most, that are packed
# A pass with copies must take at most this share of the time without them, less these microseconds:
# the host launches two more kernels.
GAIN, HOST = 0.85, 8.0
MOST = 1 << 31  # elements of a copy
# How much longer tf32 gradients take than expected that read channels of no whole vectors, and turn
# the filter word by word: 1.1 to 1.9 times, of seven layers on an H200.
TURNED_SHORT = 1.35
# The same for channels whose k-tiles span taps: 1.5 to 1.9 times, of four layers.
ACROSS_TAPS = 1.6
HALF_TILE, K_TILE = 16, 32  # float32 of the k-tiles that threads copy, and TMA
# How much longer gradients of several taps take in tf32 than expected that read both operands word
# by word: 1.0 to 1.45 times, of 41 layers on an H200.
BY_WORDS = 1.25
# How much longer K-major copies of volumes multiply than expected with fewer filters than wgmma has
# rows, and again with fewer channels: 1.25 to 1.5 times, and 1.5 to 2.4, of nine layers.
SHORT_OF_ROWS, ROWS = 1.4, 64
# How much longer forward passes take than expected whose packed rows have 16 bytes, so that each
# vector is of another tap: 1.3 to 1.9 times, of thirteen layers on an H200.
ROWS_OF_A_VECTOR = 1.6
WORKSPACE = 4 << 30  # bytes of K-major copies, of both operands
MOST_VIEWS = 8  # per pass: choosing for more takes seconds


class Multiplied(NamedTuple):
    """The operands of a pass: their dtype, the GPU, how float32 is multiplied, and whether only
    tiles end it in one kernel: with statistics, or in 8 bits.
    """

    dtype: torch.dtype
    machine: Machine
    precision: str
    by_tiles: bool = False

    @property
    def packs(self) -> bool:
        """Return whether kernels read packed channels of this data: not of 8 or 64 bits."""
        return self.dtype.itemsize in (2, 4)

    @property
    def vector(self) -> int:
        """Elements in 16 bytes."""
        return VECTOR_BYTES // self.dtype.itemsize

    @property
    def least(self) -> int:
        """Elements of the shortest vector that cp.async copies."""
        return max(1, ASYNC_BYTES // self.dtype.itemsize)

    def packings(self, problem: ConvProblem) -> Iterator[PackedProblem]:
        """Yield the ways to pack few channels of an activation."""
        line = HALF_LINE // self.dtype.itemsize
        found = packings(problem, self.vector, line, self.least)
        return (each for each in found if prod(each.problem.activation) < MOST)

    def expected(self, views: Sequence[GemmView]) -> float:
        """Return the microseconds that the cost model expects for the views of a pass."""
        time, concurrent = 0.0, list[KernelAlone]()
        for view in views:
            found = choose_kernel(
                view, self.dtype, self.machine, OUTPUTS.get(self.dtype), precision=self.precision,
                measures=False,
            )  # fmt: skip
            spec, problem = found.spec, found.problem
            alone = expected_time(problem, spec.tile, found.splits, self.machine)
            alone = max(alone, problem.moved / self.machine.bandwidth)
            if spec.may_be_concurrent:
                at_once = self.machine.sm_count * spec.ctas_per_sm
                concurrent.append(KernelAlone.of(alone, problem, spec.tile, at_once))
            else:
                time += alone
        return time + (time_together(concurrent) if concurrent else 0.0)

    def copied(self, read: int, written: int) -> float:
        """Return the same for a copy that reads and writes so many elements."""
        return LAUNCH + self.dtype.itemsize * (read + written) / self.machine.bandwidth


def multiplied_for(a: Tensor) -> Multiplied | None:
    """Return the ``Multiplied`` of tensors like ``a``; None on a CPU, and for 8 or 64 bits.

    >>> multiplied_for(torch.zeros(1)) is None
    True
    """
    if not a.is_cuda:
        return None
    found = multiplied_on(a.dtype, machines.machine_of(a.get_device()))
    return found if found.packs else None


def multiplied_on(dtype: torch.dtype, machine: Machine, precision: str | None = None) -> Multiplied:
    """Return the ``Multiplied`` of data of ``dtype`` on a machine, of 8 and 64 bits, too.

    ``precision`` is as of ``execute``.
    """
    return Multiplied(dtype, machine, multiplied_as(dtype, precision) or "tf32")


@dataclass(frozen=True)
class Packed:
    """Views of packed operands that together compute a pass, and the copies around them.

    Args:
        views: of the packed operands.
        shapes: of A, of B and of the views' output, in the order of memory.
        a, b: how to pack lines of the operands, or to copy them to runs over voxels; None if no
            copy is needed.
        k_major: whether B is a filter to copy so that K is contiguous.
        exchanged: whether the operands change places; the views then write the filter's gradient
            with reversed taps, (C, T, R, S, K).
        unpacked: how lines of the views' output become lines of the result.
        slower: how much longer the views take than the cost model expects.
    """

    views: tuple[GemmView, ...]
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    a: LinePacking | VoxelRuns | None = None
    b: LinePacking | VoxelRuns | None = None
    k_major: bool = False
    exchanged: bool = False
    unpacked: LinePacking | None = None
    slower: float = 1.0

    def operands(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return the views' operands, made from the pass's, which are contiguous."""
        if self.exchanged:
            a, b = b, a
        want = expected(self.views[0])
        a, b = (
            _copied(t, how, shape, stored)
            for t, how, shape, stored in zip(
                (a, b), (self.a, self.b), self.shapes, (want.a, want.b), strict=False
            )
        )
        return a, k_major_copy(b) if self.k_major else b

    def written(self, out: Tensor) -> Tensor:
        """Return the tensor for the views to write: the contiguous result itself, or new memory."""
        shape = self.shapes[2]
        if self.unpacked is None and not self.exchanged:
            return out.view(shape)
        return out.new_empty(shape)

    def finish(self, written: Tensor, out: Tensor) -> None:
        """Copy the views' output to the result, if it is not there already."""
        if self.exchanged:
            if self.unpacked is not None:
                written = pack_lines(written, self.unpacked)
            K, *taps, C = out.shape
            written = written.view(C, *taps, K)
            where = [mode for mode, extent in enumerate(taps, 1) if extent > 1]
            out.copy_((written.flip(where) if where else written).movedim(-1, 0).movedim(1, -1))
        elif self.unpacked is not None:
            pack_lines(written, self.unpacked, out)


def packed_fprop(
    problem: ConvProblem, direct: Sequence[GemmView], of: Multiplied | None
) -> Packed | None:
    """Return the forward pass with packed channels, if expected to be faster than ``direct``.

    >>> from ..planning.machine import MACHINES
    >>> fp16 = multiplied_on(torch.float16, MACHINES["sm_90a"])
    >>> stem = ConvProblem((64, 224, 224, 3), (64, 7, 7), stride=2, padding=3)
    >>> packed_fprop(stem, [fprop_view(stem)], fp16).a.width > 3
    True
    >>> inner = ConvProblem((64, 56, 56, 64), (64, 3, 3), padding=1)
    >>> packed_fprop(inner, [fprop_view(inner)], fp16) is None
    True
    """
    return None if of is None else _best(problem, direct, of, fprop_packings(problem, of))


def fprop_packings(problem: ConvProblem, of: Multiplied) -> Iterator[Packed]:
    """Yield the candidates of :func:`packed_fprop`."""
    for found in of.packings(problem):
        new = found.problem
        shapes = new.activation, new.stored_filter, new.output
        slower = ROWS_OF_A_VECTOR if of.vector == new.C else 1.0
        yield Packed((fprop_view(new),), shapes, found.activation, found.filter, slower=slower)


def packed_wgrad(
    problem: ConvProblem, direct: Sequence[GemmView], of: Multiplied | None
) -> Packed | None:
    """Return wgrad with packed channels of the activation, or for few output channels.

    >>> from ..planning.machine import MACHINES
    >>> fp16 = multiplied_on(torch.float16, MACHINES["sm_90a"])
    >>> head = ConvProblem((2, 128, 128, 128, 32), (3, 1, 1, 1))
    >>> packed_wgrad(head, [wgrad_view(head)], fp16).exchanged
    True
    """
    if of is None:
        return None
    words = reads_along_sums(of.dtype, of.precision, of.machine) and prod(problem.taps) > 1
    slower = BY_WORDS if words and problem.K >= ROWS and problem.C > FEW else 1.0
    return _best(problem, direct, of, wgrad_packings(problem, of), slower)


def wgrad_packings(problem: ConvProblem, of: Multiplied) -> Iterator[Packed]:
    """Yield the candidates of :func:`packed_wgrad`."""
    for found in of.packings(problem):
        yield _wgrad(found, exchanges=False)
    if reads_along_sums(of.dtype, of.precision, of.machine):
        volumes = sum(taps > 1 for taps in problem.taps) == 3
        short = (problem.K < ROWS) + (problem.C < ROWS)
        slower = SHORT_OF_ROWS**short if volumes else 1.0
        for each in k_major_wgrads(problem):
            small = of.dtype.itemsize * (each.a.size + each.b.size) <= WORKSPACE
            if small and each.a.fits and each.b.fits:
                shapes = each.a.shape, each.b.shape, expected(each.view).d.shape
                yield Packed((each.view,), shapes, each.a, each.b, slower=slower)
    if problem.K > FEW and problem.K % of.vector:
        whole = _in_whole_vectors(problem, of.vector)
        if max(map(prod, whole.shapes)) < MOST:
            yield whole
    # Filters are rows of the product: fewer than an instruction has leave some of its work undone,
    # and the windows that it reads are of the side with more channels.
    fewer = problem.K < ROWS and problem.K < problem.C
    other = exchanged(problem) if fewer else None
    if other is not None:
        for found in (PackedProblem(other), *(of.packings(other) if problem.K <= FEW else ())):
            yield _wgrad(found, exchanges=True)


def _in_whole_vectors(problem: ConvProblem, vector: int) -> Packed:
    """Return wgrad of as many output channels as whole vectors have; those added are 0."""
    K, width = problem.K, -(-problem.K // vector) * vector
    row = problem.C * prod(problem.taps)
    wide = replace(problem, filter=(width, *problem.taps))
    return Packed(
        (wgrad_view(wide),),
        (wide.output, wide.activation, wide.stored_filter),
        a=LinePacking.resized(K, width),
        unpacked=LinePacking.resized(width * row, K * row),
    )


def _wgrad(found: PackedProblem, *, exchanges: bool) -> Packed:
    new = found.problem
    return Packed(
        (wgrad_view(new),),
        (new.output, new.activation, new.stored_filter),
        b=found.activation,
        exchanged=exchanges,
        unpacked=found.unpacked,
    )


def packed_dgrad(
    problem: ConvProblem,
    direct: Sequence[GemmView],
    views_of: Callable[[int], Sequence[GemmView]],
    of: Multiplied | None,
) -> Packed | None:
    """Return dgrad with packed channels of the output, or with a K-major filter.

    ``views_of`` makes the views of the problem with a given number of output channels.

    >>> from ..conv import dgrad_views
    >>> from ..planning.machine import MACHINES
    >>> fp16 = multiplied_on(torch.float16, MACHINES["sm_90a"])
    >>> few = ConvProblem((2, 64, 64, 64, 3), (32, 3, 3, 3), padding=1)
    >>> packed_dgrad(few, dgrad_views(few), lambda K: (), fp16).k_major
    True
    """
    if of is None:
        return None
    along_sums = reads_along_sums(of.dtype, of.precision, of.machine)
    slower = 1.0
    if along_sums and problem.K > FEW:
        if problem.K % HALF_TILE and prod(problem.taps) > 1:
            slower = ACROSS_TAPS
        elif problem.K % of.vector:
            slower = TURNED_SHORT
    return _best(problem, direct, of, dgrad_packings(problem, direct, views_of, of), slower)


def dgrad_packings(
    problem: ConvProblem,
    direct: Sequence[GemmView],
    views_of: Callable[[int], Sequence[GemmView]],
    of: Multiplied,
) -> Iterator[Packed]:
    """Yield the candidates of :func:`packed_dgrad`."""
    K, vector, row = problem.K, of.vector, problem.C * prod(problem.taps)
    along_sums = reads_along_sums(of.dtype, of.precision, of.machine)
    # Where k-tiles would span taps, those of one tap, which TMA loads.
    of_tiles = along_sums and K > FEW and K % HALF_TILE > 0
    unit = K_TILE if of_tiles else vector
    widths = {K, -(-K // unit) * unit}
    if vector > K:
        widths.add(max(of.least, 1 << (K - 1).bit_length()))
    for width in sorted(widths):
        shapes = (*problem.output[:-1], width), (width, *problem.taps, problem.C)
        if prod(shapes[0]) >= MOST or (width != K and prod(shapes[1]) >= MOST):
            continue
        views = direct if width == K else views_of(width)
        a = b = None
        if width != K:
            a, b = LinePacking.resized(K, width), LinePacking.resized(K * row, width * row)
            if not of_tiles:
                yield Packed(tuple(views), (*shapes, problem.activation), a, b)
        if width % vector == 0 and (problem.C % vector or (a is not None and along_sums)):
            views = tuple(map(k_major_view, views))
            yield Packed(views, (*shapes, problem.activation), a, b, k_major=True)


def _best(
    problem: ConvProblem,
    direct: Sequence[GemmView],
    of: Multiplied,
    candidates: Iterator[Packed],
    slower: float = 1.0,
) -> Packed | None:
    """Return the candidate expected to be fastest, if it beats ``direct`` by enough; else None.

    ``slower``: how much longer ``direct`` takes than the cost model expects.
    """
    if problem.groups > 1 or not prod(problem.activation) or len(direct) > MOST_VIEWS:
        return None
    found = list(candidates)
    if not found:
        return None
    try:
        most = GAIN * slower * of.expected(direct) - HOST
        times = [_time(each, of) for each in found]
    except UnsupportedViewError:
        return None
    return found[times.index(min(times))] if min(times) < most else None


def _copied(
    t: Tensor, how: LinePacking | VoxelRuns | None, shape: tuple[int, ...], stored: ExpectedTensor
) -> Tensor:
    """Return an operand of the views: contiguous with ``shape``, or runs over voxels as stored."""
    if isinstance(how, VoxelRuns):
        return voxel_runs(t, how).as_strided(stored.shape, stored.stride)
    return (t if how is None else pack_lines(t, how)).view(shape)


def _time(packed: Packed, of: Multiplied) -> float:
    """Return the microseconds that the cost model expects for views and the copies around them."""
    return packed.slower * of.expected(packed.views) + copies_time(packed, of)


def copies_time(packed: Packed, of: Multiplied) -> float:
    """Return the microseconds that the cost model expects for the copies."""
    time = 0.0
    for packing, shape in zip((packed.a, packed.b), packed.shapes, strict=False):
        if isinstance(packing, VoxelRuns):
            time += of.copied(prod(packing.source), packing.size)
        elif packing is not None:
            lines = prod(shape) // (packing.positions * packing.width)
            time += of.copied(lines * packing.length, prod(shape))
    launches = packed.k_major + (packed.unpacked is not None) + 2 * packed.exchanged
    return time + LAUNCH * launches
