"""What of B the tensor memory accelerator can copy: memory that a tensor map describes.

A filter is memory that no index buffer and no border interrupts. A *tensor map* tells the hardware
its extents and strides, of up to five modes; one instruction then names a corner, and the box from
there on arrives in shared memory, with zeros for what is past an extent (``boxes.py``). Needs no
compiler.
"""

from __future__ import annotations

from layoutconv.algebra.int_tuple import flatten, map_leaves
from layoutconv.algebra.layout import Layout
from layoutconv.algebra.stride import ScaledBasis
from layoutconv.algebra.symint import is_runtime
from layoutconv.gemm_view import GemmView, Stage, gathers, locate, stages

from .spec import BYTES, VECTOR_BYTES, Spec
from .window import window_of

# Whether the type CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 rounds fp32 data to nearest on their way.
MAPS_ROUND = True
MOST_MODES = 5
MOST_EXTENT = 1 << 32
MOST_STRIDE = 1 << 40  # bytes
MOST_ROWS = 256  # of a box


def has_map(dtype: str) -> bool:
    """Whether tensor maps copy elements as wgmma should read them: those of tf32 round to nearest.

    >>> has_map("float16"), has_map("tfloat32"), has_map("float64")
    (True, True, False)
    """
    return BYTES[dtype] <= 2 or (dtype == "tfloat32" and MAPS_ROUND)


def memory_of_b(view: GemmView, spec: Spec) -> tuple[Layout, int] | None:
    """B's memory for a tensor map: a layout of (n, k) or (n, k, l), and the first element's offset.

    None where no map describes B, so that producers copy it vector by vector. What a map says has
    to hold for every call of a kernel: extents and strides are constants, and tiles lie within one
    mode of memory. Of taps that share rows and run backwards, ``Window.backwards``, the layout has
    the last first.

    >>> from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
    >>> from .tile import Tile
    >>> def example(view, k=64):
    ...     tile = Tile(128, 64, k, 8, 1, 4, 128)
    ...     found = memory_of_b(view, Spec.of(view, "float16", "float16", tile, "sm_90a"))
    ...     return found and (str(found[0]), found[1])
    >>> example(fprop_view(ConvProblem((1, 8, 8, 64), (40, 3, 3))))
    ('(40,576):(576,1)', 0)
    >>> example(wgrad_view(ConvProblem((1, 8, 8, 64), (40, 3, 3))))  # whose B is the input
    >>> view = dgrad_views(ConvProblem((1, 9, 8, 64), (32, 3, 3), stride=2, padding=1))[1]
    >>> example(view), example(view, k=32)  # a k-tile of two taps, and of one
    (None, ('(64,(32,2)):(1,(576,128))', 192))
    """
    tile, size = spec.tile, BYTES[spec.dtype]
    if not tile.producers or not has_map(spec.dtype) or spec.vectors[1] * size != VECTOR_BYTES:
        return None
    if size > 2 and spec.along[1] != 1:  # those who copy turn it: wgmma does not turn 32 bits
        return None
    chain = stages(view.b)
    if len(chain) != 2 or any(map(gathers, chain)) or not all(map(_constant, chain)):
        return None
    domain, storage = (stage.layout for stage in chain)
    first = [0 for _ in domain.shape]
    last = [int(extent) - 1 for extent in (view.n, view.k, view.l)[: len(first)]]
    window = window_of(view, tile)
    if window.backwards:
        domain, others = _turned(domain), window.columns * (window.taps - 1)
        first[1], last[1] = others, last[1] - others
    steps = [int(d.value) for d in flatten(domain.stride)] + list(map(int, storage.stride))
    start, _ = locate(view.b, *first)
    bounded = all(locate(view.b, *crd)[1] for crd in (first, last))
    if min(steps) < 0 or not bounded:
        return None
    strides = map_leaves(lambda d: int(d.value) * int(storage.stride[d.path[0]]), domain.stride)
    memory = Layout(map_leaves(int, domain.shape), strides).coalesce((1,) * len(strides))
    return (memory, int(start)) if _fits(memory, int(start), spec) else None


def _turned(domain: Layout) -> Layout:
    """The slowest of the columns in the other order."""
    (n, k, *l), (n_step, k_steps, *l_steps) = domain.shape, domain.stride
    *steps, tap = flatten(k_steps)
    turned = *steps, ScaledBasis(-tap.value, tap.path)
    return Layout((n, flatten(k), *l), (n_step, turned, *l_steps))


def _constant(stage: Stage) -> bool:
    parts = stage.layout.shape, stage.layout.stride, stage.offset or ()
    return not any(is_runtime(getattr(d, "value", d)) for part in parts for d in flatten(part))


def _fits(memory: Layout, start: int, spec: Spec) -> bool:
    """Whether tiles are boxes, and the hardware has room for the numbers of a map of them."""
    size, along = BYTES[spec.dtype], spec.along[1]
    sides = spec.tile.n, spec.tile.k
    extents = [flatten(mode) for mode in memory.shape]
    whole = all(len(e) == 1 or e[0] % side == 0 for e, side in zip(extents, sides, strict=False))
    leaves = zip(flatten(memory.shape), flatten(memory.stride), strict=True)
    first = flatten(memory.stride[along])[0]
    others = [stride * size for extent, stride in leaves if extent > 1 and stride != 1]
    return (
        whole
        and first == 1
        and sides[1 - along] <= MOST_ROWS
        and len(flatten(memory.shape)) <= MOST_MODES
        and max(flatten(memory.shape)) <= MOST_EXTENT
        and all(0 < stride < MOST_STRIDE and stride % VECTOR_BYTES == 0 for stride in others)
        and start * size % VECTOR_BYTES == 0
    )
