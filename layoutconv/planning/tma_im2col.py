"""TMA im2col: the operands that an im2col-mode TMA descriptor describes.

The descriptor holds a bounding box of pixels. One instruction names the first pixel, the offsets of
a tap, and a channel. It copies a fixed number of channels of a fixed number of pixels, each shifted
by the tap's offsets. Pixels run through the box, w first, then h, d and the images; out-of-bounds
elements become zeros. The rows of A are the pixels, and padding sets where the box begins and ends.
Wgrad sums over pixels: there they are the columns of both operands, one of which has taps. Pixels
without spatial modes, as in a pointwise layer, are rows of a matrix, which TMA tiled copies. The
runs of a K-major copy are images, along the sum: a k-tile is one of them, or a part of it.
``kernels/gemm/tma_im2col_copy.py`` issues the copies. Needs no compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from layoutconv.algebra.int_tuple import crd2idx, flatten, paired_leaves, product
from layoutconv.algebra.stride import ArithmeticTuple, E, ScaledBasis
from layoutconv.algebra.symint import is_runtime

from ..view.gemm_view import GemmView, OperandLayout, Stage, gathers, stages
from ..view.operands import transposed
from .halo_reuse import halo_of
from .kernel_spec import BYTES, VECTOR_BYTES, KernelSpec
from .tile import line_bytes
from .tma_tiled import has_map, memory_of_b

MOST_PIXELS = 256  # per copy
PERIOD = 8  # rows of shared memory after which a swizzle repeats: a copy may start there
MOST_MODES = 3  # spatial modes
MOST_STEP = 8  # traversal stride of the box
# Bits of an offset, and of a signed corner of the box, by the number of spatial modes.
BITS = (16, 8, 5)
MOST_EXTENT = 1 << 31
MOST_BYTES = 1 << 40  # of a stride


@dataclass(frozen=True)
class Mode:
    """A spatial mode: ``rows`` pixels, ``step`` apart, from ``lower`` on; ``extent`` in memory."""

    rows: Any
    step: int
    lower: int
    extent: Any
    stride: Any  # in memory, in elements

    @property
    def upper(self) -> Any:
        """The last pixel of the box, relative to the last in memory."""
        return self.lower + (self.rows - 1) * self.step - (self.extent - 1)


@dataclass(frozen=True)
class Im2col:
    """An operand (m, k) or (m, k, l) as pixels of a tensor, and channels at the offsets of taps.

    Rows are pixels here, and columns channels of a tap, whichever of m and k of the GEMM they are.
    ``modes`` are the spatial ones, fastest first, () for a matrix; ``images`` and ``channels``,
    pairs of extent and stride in memory. ``columns`` are the extents of k; ``column_steps``, the
    step of each in a coordinate (channel, \\*offsets); ``start``, that coordinate at column 0;
    ``group_step``, the channels that l adds. Tiles have ``halo`` more pixels than rows. With
    ``images_along_k`` the columns are those of an image, and further ones those of the next.
    ``whole``: the rows are all images of the tensor, so that rows past the last are zeros.
    """

    modes: tuple[Mode, ...]
    images: tuple[Any, Any]
    channels: tuple[Any, Any]
    columns: tuple[int, ...]
    column_steps: tuple[ScaledBasis, ...]
    start: tuple[int, ...]
    group_step: int = 0
    halo: int = 0
    images_along_k: bool = False
    whole: bool = False

    def pixel(self, m: Any, divisor: Callable[[Any], Any] = int) -> tuple[Any, ...]:
        """Return the base pixel of row ``m``: its spatial coordinates, fastest first, and image.

        ``divisor`` turns an extent into what rows are divided by. Rows past the last lie in further
        images.
        """
        shape = (*(divisor(mode.rows) for mode in self.modes), 1)
        steps = (*(mode.step * E(i) for i, mode in enumerate(self.modes)), E(len(self.modes)))
        lower = ArithmeticTuple((*(mode.lower for mode in self.modes), 0))
        return tuple(lower + crd2idx(m, shape, steps))

    def column(
        self, k: Any, group: Any = 0, divisor: Callable[[Any], Any] = int
    ) -> tuple[Any, ...]:
        """Return the channel of column ``k``, and the offsets of its tap, fastest mode first."""
        if self.images_along_k:
            k = k % product(self.columns)
        shape = tuple(map(divisor, self.columns))
        found = ArithmeticTuple(self.start) + crd2idx(k, shape, self.column_steps)
        channel, *offsets = found
        return (channel + group * self.group_step if self.group_step else channel, *offsets)

    def images_before(self, k: Any) -> Any:
        """Return how many images column ``k`` lies further on than column 0."""
        return k // product(self.columns) if self.images_along_k else 0

    def copies(self, rows: int) -> tuple[int, int]:
        """Return the number of copies for a tile of ``rows`` rows, and the pixels of each copy.

        >>> from layoutconv.conv import ConvProblem, fprop_view
        >>> found = im2col(fprop_view(ConvProblem((1, 9, 9, 64), (32, 3, 3))).a)
        >>> [replace(found, halo=halo).copies(256) for halo in (0, 2)]
        [(1, 256), (2, 136)]
        """
        count = -(-(rows + self.halo) // MOST_PIXELS)
        return count, -(-(rows + self.halo) // (count * PERIOD)) * PERIOD

    @property
    def ends(self) -> bool:
        """Return whether columns past the last are channels past the last, hence zeros."""
        stored, (channels, *taps) = self.channels[0], self.columns
        alone = product(tuple(taps)) == 1 and not (self.images_along_k or self.group_step)
        return alone and not (is_runtime(stored) or self.start[0]) and stored == channels

    def of_first_tap(self, halo: int) -> Im2col:
        """Return this without the slowest mode of k: a tile with ``halo`` more rows serves its
        taps."""
        columns, steps = self.columns[:-1], self.column_steps[:-1]
        return replace(self, columns=columns, column_steps=steps, halo=halo)

    @property
    def fits(self) -> bool:
        """Return whether a descriptor can encode the runtime numbers: ends of boxes, extents and
        strides.

        True without pixels: no descriptor is made then.
        """
        sign = 1 << (BITS[max(len(self.modes), 1) - 1] - 1)
        extents = [int(mode.extent) for mode in self.modes]
        strides = [int(mode.stride) for mode in self.modes] + [int(self.images[1])]
        images = int(self.images[0])
        if not images or not all(extents):
            return True
        uppers = [
            replace(mode, rows=int(mode.rows), extent=extent).upper
            for mode, extent in zip(self.modes, extents, strict=True)
        ]
        return (
            all(-sign <= upper < sign for upper in uppers)
            and all(0 < extent < MOST_EXTENT for extent in (*extents, images))
            and all(0 < stride < MOST_BYTES // 8 for stride in strides)
        )


def im2col(layout: OperandLayout) -> Im2col | None:
    """Return an operand as the im2col matrix of a tensor; None if no TMA descriptor describes it.

    The decision depends only on what a kernel is compiled for, not on runtime integers. Taps that
    run backwards are counted from the last one.

    >>> from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
    >>> problem = ConvProblem((2, 8, 9, 64), (32, 3, 3), stride=(1, 2), padding=1)
    >>> found = im2col(fprop_view(problem).a)
    >>> [(mode.lower, int(mode.upper), mode.step) for mode in found.modes], found.fits
    ([(-1, -1, 2), (-1, -1, 1)], True)
    >>> found.pixel(7), found.column(4 * 64 + 32)  # row (2, 1, 0), tap (1, 1)
    ((3, 0, 0), (32, 1, 1))
    >>> im2col(dgrad_views(problem)[0].a).column(0)  # the filter's last row is read first
    (0, 0, 2)
    >>> im2col(wgrad_view(problem).a)  # its rows are channels
    """
    chain = stages(layout)
    if len(chain) != 2 or any(map(gathers, chain)) or chain[1].offset:
        return None
    domain, storage = chain[0], chain[1].layout
    shape, stride = domain.layout.shape, domain.layout.stride
    modes_of_gemm = zip(shape, stride, strict=True)
    rows, columns, groups, *_ = (*(paired_leaves(*mode) for mode in modes_of_gemm), [])
    if not _are_coordinates([d for _, d in (*rows, *columns, *groups)], domain):
        return None
    (channels, channel), *taps = _joined(columns)
    images_along_k = bool(taps) and taps[-1][1].path not in {d.path for _, d in rows}
    *spatial, (images, image) = [*rows, taps.pop()] if images_along_k else rows
    modes = [d.path[0] for _, d in spatial]
    # Exactly one row mode, or the channel, moves each mode of memory.
    every = sorted([*modes, image.path[0], channel.path[0]])
    offset = _offset(domain, len(storage.shape))
    if (
        len(modes) > MOST_MODES
        or every != list(range(len(storage.shape)))
        or any(d.path[0] not in modes for _, d in taps)
        or len({d.path for _, d in taps}) != len(taps)
        or any(d.path != channel.path for _, d in groups)
        or len(groups) > 1
        or (image.value, channel.value, offset[image.path[0]]) != (1, 1, 0)
        or offset[channel.path[0]] < 0
        or storage.stride[channel.path[0]] != 1
        or any(not is_runtime(d) and d <= 0 for d in storage.stride)
    ):
        return None
    start, steps, lower = [offset[channel.path[0]], *(0 for _ in modes)], [E(0)], dict(offset)
    for extent, d in taps:
        at = 1 + modes.index(d.path[0])
        back = (int(extent) - 1) * max(0, -int(d.value))
        start[at], steps = back, [*steps, int(d.value) * E(at)]
        lower[d.path[0]] -= back
    found = Im2col(
        tuple(
            Mode(extent, int(d.value), lower[i], storage.shape[i], storage.stride[i])
            for i, (extent, d) in zip(modes, spatial, strict=True)
        ),
        (storage.shape[image.path[0]], storage.stride[image.path[0]]),
        (storage.shape[channel.path[0]], 1),
        (int(channels), *(int(extent) for extent, _ in taps)),
        tuple(steps),
        tuple(start),
        int(groups[0][1].value) if groups else 0,
        images_along_k=images_along_k,
        whole=not images_along_k and _is_same(images, storage.shape[image.path[0]]),
    )
    return found if _has_room(found, taps) else None


def pixels_of(view: GemmView, along: tuple[int, int]) -> tuple[Im2col | None, Im2col | None]:
    """Return A and B as im2col matrices: pixels are the rows of a K-major operand, or the columns
    of both.

    >>> from layoutconv.conv import ConvProblem, wgrad_view
    >>> view = wgrad_view(ConvProblem((2, 8, 9, 64), (32, 3, 3), padding=1))
    >>> [found and found.columns for found in pixels_of(view, (0, 0))]
    [(32,), (64, 3, 3)]
    """
    if along == (0, 0):
        return im2col(transposed(view.a)), im2col(transposed(view.b))
    a, b = (
        im2col(layout) if side == 1 else None
        for layout, side in zip((view.a, view.b), along, strict=True)
    )
    return a, b


def im2col_of_a(view: GemmView, spec: KernelSpec) -> Im2col | None:
    """Return A as an im2col matrix whose tiles TMA copies; None if it cannot.

    A k-tile must lie within one tap, or there must be only one tap: channels past the last read as
    zeros. Rows past the last of A reach no row of D, but statistics count them: then these must be
    zeros. With halo reuse, TMA loads the first of the taps that share rows.

    >>> from layoutconv.conv import ConvProblem, fprop_view
    >>> from .tile import specialized
    >>> def example(C, K, groups=1):
    ...     view = fprop_view(ConvProblem((1, 9, 9, C), (32, K, K), groups=groups))
    ...     tile = specialized((128, 64, 64), (8, 1), 4)
    ...     spec = KernelSpec.of(view, "float16", "float16", tile, "sm_90a")
    ...     return im2col_of_a(view, spec) is not None
    >>> example(64, 3), example(96, 3), example(96, 1), example(96, 1, groups=2)
    (True, False, True, False)
    """
    if not _copies(spec, 0) or spec.skip:
        return None
    return _of_a_sum(view, spec, 0) if spec.along == (0, 0) else _of_rows(view, spec, 0)


def im2col_of_b(view: GemmView, spec: KernelSpec) -> Im2col | None:
    """Return B as an im2col matrix; None if no descriptor describes it.

    If B is N-major, a line of a tile must lie within one tap, or there must be only one tap. Rows
    of a K-major B may be pixels, too: in K-major copies, channels and taps take their place.

    >>> from layoutconv.conv import ConvProblem, wgrad_view
    >>> from .tile import specialized
    >>> def example(C, K):
    ...     view = wgrad_view(ConvProblem((1, 9, 9, C), (32, K, K)))
    ...     tile = specialized((128, 64, 64), (8, 1), 4)
    ...     spec = KernelSpec.of(view, "float16", "float16", tile, "sm_90a")
    ...     return im2col_of_b(view, spec) is not None
    >>> example(64, 3), example(96, 3), example(96, 1)
    (True, False, True)
    """
    if not _copies(spec, 1) or spec.skip:
        return None
    if spec.along == (0, 0):
        return _of_a_sum(view, spec, 1)
    return _of_rows(view, spec, 1) if spec.tile.halo_taps == 1 else None


def is_mapped(view: GemmView, spec: KernelSpec) -> bool:
    """Return whether TMA loads both operands of a kernel, so no thread copies."""
    of_b = memory_of_b(view, spec) or im2col_of_b(view, spec)
    return of_b is not None and im2col_of_a(view, spec) is not None


def _copies(spec: KernelSpec, operand: int) -> bool:
    """Return whether a kernel could copy tiles of A (0) or of B (1) with im2col descriptors."""
    vector = spec.vectors[operand] * BYTES[spec.dtype]
    return bool(spec.tile.warp_specialized and vector == VECTOR_BYTES and has_map(spec.dtype))


def _of_rows(view: GemmView, spec: KernelSpec, operand: int) -> Im2col | None:
    """Return an operand whose rows are pixels, if every k-tile lies within one tap of one image;
    else None.
    """
    tile, found = spec.tile, pixels_of(view, spec.along)[operand]
    if (tile.m, tile.n)[operand] > MOST_PIXELS or not found:
        return None
    if _are_counted(spec, operand) and not found.whole:
        return None
    if tile.halo_taps > 1:
        found = found.of_first_tap(halo_of(view, tile).halo)
    within = found.columns[0] % tile.k == 0 or found.ends
    return found if within and found.fits else None


def _of_a_sum(view: GemmView, spec: KernelSpec, operand: int) -> Im2col | None:
    """Return an operand of sums over pixels, if every line of a tile lies within one tap.

    Only for 16 bits, which wgmma reads M/N-major, and pixels of all images.
    """
    found, size = pixels_of(view, spec.along)[operand], BYTES[spec.dtype]
    if not found or size != 2 or spec.tile.k > MOST_PIXELS or spec.tile.halo_taps > 1:
        return None
    if found.images_along_k or (_are_counted(spec, operand) and not found.ends):
        return None
    line = line_bytes((spec.tile.m, spec.tile.n)[operand] * size) // size
    within = found.columns[0] % line == 0 or product(found.columns[1:]) == 1
    return found if within and found.fits else None


def _are_counted(spec: KernelSpec, operand: int) -> bool:
    """Return whether rows of an operand past the last one count, unless they are zeros."""
    return operand == 0 and "statistics" in spec.epilogue.split()


def _is_same(extent: Any, other: Any) -> bool:
    """Return whether extents are equal whatever the values of runtime integers."""
    if is_runtime(extent) or is_runtime(other):
        return str(extent) == str(other)
    return int(extent) == int(other)


def _joined(columns: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return columns with the leading modes that form one run of channels merged.

    A kernel may serve every number of repetitions of a run, if that is the last mode: then this is
    one of them, which a k-tile has to lie within.
    """
    (extent, step), *taps = columns
    reach = extent
    while taps and (taps[0][1].path, taps[0][1].value) == (step.path, reach * step.value):
        (count, _), *taps = taps
        reach = reach * count
        if taps or not is_runtime(count):
            extent = reach
    return [(extent, step), *taps]


def _are_coordinates(steps: list[Any], domain: Stage) -> bool:
    """Return whether the offset is constant, and each step a constant in one mode."""
    offset = flatten(domain.offset) if domain.offset else ()
    return not any(map(is_runtime, offset)) and all(
        isinstance(d, ScaledBasis) and len(d.path) == 1 and not is_runtime(d.value) for d in steps
    )


def _offset(domain: Stage, modes: int) -> dict[int, int]:
    given = flatten(domain.offset) if domain.offset else (0,) * modes
    return {i: int(c) for i, c in enumerate(given)}


def _has_room(found: Im2col, taps: list[tuple[Any, Any]]) -> bool:
    """Return whether the descriptor can encode the constants: corners, steps, offsets of taps."""
    bits = BITS[max(len(found.modes), 1) - 1]
    sign = 1 << (bits - 1)
    reach = [(int(extent) - 1) * abs(int(d.value)) for extent, d in taps]
    return (
        product(found.columns) > 0
        and all(-sign <= mode.lower < sign and 1 <= mode.step <= MOST_STEP for mode in found.modes)
        and all(distance < 1 << bits for distance in reach)
    )
