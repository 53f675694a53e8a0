"""Tiles and partitions of tensors and layouts, for kernels: slices of a division.

A tensor gives a tensor, and a composed layout (a gather, a swizzle) a composed layout with a moved
offset. A plain layout has nowhere to keep an offset, so it gives a pair of a layout and an offset.
"""

from __future__ import annotations

from typing import Any

from .composed import ComposedLayout
from .divide import zipped_divide
from .errors import LayoutTypeError, LayoutValueError, text
from .int_tuple import IntTuple, expect_leaves, idx2crd, product
from .inverse import left_inverse
from .layout import Layout, as_layout, as_like
from .normal import Arithmetic, arithmetic
from .over_coordinates import over_coordinates
from .slices import slice_and_offset
from .stride import add
from .tensor import Tensor


def local_tile(x: Any, tiler: Any, crd: IntTuple, proj: IntTuple = None) -> Any:
    """Return tile ``crd`` of ``x``: the tile's modes, and the rest modes that ``crd`` leaves open.

    ``tiler`` is as in :func:`zipped_divide`; ``crd`` has an entry for each of its modes, with None
    for a rest mode to keep. ``proj`` drops entries of both where it is None, so that one tiler
    (M, N, K) serves all operands. CUTLASS: cute/tensor_impl.hpp.

    >>> tensor = Tensor(list(range(32)), Layout((4, 8), (8, 1)))
    >>> tile = local_tile(tensor, (2, 4), (1, 0))
    >>> print(tile, tile[0, 0])
    (2,4):(8,1) + 16 over list 16
    >>> print(local_tile(tensor, (2, 4, 16), (1, None, 0), proj=(1, 1, None)))
    (2,4,2):(8,1,4) + 16 over list
    """
    if proj is not None:
        tiler, crd = _projected("local_tile", tiler, proj), _projected("local_tile", crd, proj)
    divided = zipped_divide(x, tiler)
    return _sliced(divided, (_all_open(divided, 0), _padded(divided, 1, crd)))


def local_partition(x: Any, threads: Any, index: int, proj: IntTuple = None) -> Any:
    """Return the part of ``x`` that thread ``index`` owns: one element of each tile of the shape of
    ``threads``.

    ``threads`` maps coordinates to thread indices; ``proj`` is as in :func:`local_tile`. CUTLASS:
    cute/tensor_impl.hpp.

    >>> tensor = Tensor(list(range(32)), Layout((4, 8), (8, 1)))
    >>> print(local_partition(tensor, Layout((2, 4), (4, 1)), 5))
    (2,2):(16,4) + 9 over list
    """
    threads = as_layout("local_partition", threads)
    extents = tuple([product(mode.shape) for mode in threads])
    crd = idx2crd(left_inverse(threads)(index), extents)
    if threads(crd) != index:
        raise LayoutValueError(f"local_partition: {threads} has no thread {index}")
    tiler: Any = extents
    if proj is not None:
        tiler = _projected("local_partition", tiler, proj)
        crd = _projected("local_partition", crd, proj)
    divided = zipped_divide(x, tiler)
    return _sliced(divided, (crd, _all_open(divided, 1)))


def domain_offset(crd: IntTuple, x: Any) -> Any:
    """Move the origin of ``x`` to ``crd``: ``domain_offset(c0, x)(c) == x(c0 + c)``.

    A plain layout gives a pair: itself and the offset. CUTLASS: cute/layout.hpp,
    cute/tensor_impl.hpp.

    >>> print(domain_offset((1, 2), Tensor(list(range(32)), Layout((4, 8), (8, 1)))))
    (4,8):(8,1) + 10 over list
    """
    x = as_like("domain_offset", x)
    if isinstance(x, Tensor):
        inner = _moving(x.layout)
        if isinstance(inner, ComposedLayout):
            return Tensor(x.engine, domain_offset(crd, inner), x.offset)
        return Tensor(x.engine, inner, add(x.offset, inner(crd)))
    x = _moving(x)
    if isinstance(x, ComposedLayout):
        inner = _moving(x.inner)
        if isinstance(inner, ComposedLayout):
            return ComposedLayout(x.outer, x.offset, domain_offset(crd, inner))
        return ComposedLayout(x.outer, add(inner(crd), x.offset), inner)
    return x, x(crd)


def _moving(x: Any) -> Any:
    """Return a layout whose values shift by a constant when coordinates do, or a composed one.

    An index buffer and a layout that adds without carry are composed over their coordinates, which
    do shift so.
    """
    additive = (Arithmetic.INTEGER, Arithmetic.COORDINATE, Arithmetic.TRACED)
    if not isinstance(x, Layout) or arithmetic(x) in additive:
        return x
    return over_coordinates(x)


def _sliced(x: Any, crd: IntTuple) -> Any:
    return slice_and_offset(crd, x) if isinstance(x, Layout) else x.sliced(crd)


def _all_open(x: Any, mode: int) -> IntTuple:
    shape = x.shape[mode]
    return (None,) * len(shape) if isinstance(shape, tuple) else None


def _padded(x: Any, mode: int, crd: IntTuple) -> IntTuple:
    """Pad ``crd`` with None for the modes beyond the tiler."""
    shape = x.shape[mode]
    if not isinstance(crd, tuple):
        return crd
    if not isinstance(shape, tuple) or len(crd) > len(shape):
        raise LayoutTypeError(f"local_tile: {text(crd)} has more modes than the rest {text(shape)}")
    return crd + (None,) * (len(shape) - len(crd))


def _projected(name: str, entries: Any, proj: IntTuple) -> tuple[Any, ...]:
    if not isinstance(entries, tuple) or not isinstance(proj, tuple) or len(entries) != len(proj):
        raise LayoutTypeError(f"{name}: proj {text(proj)} does not fit {text(entries)}")
    expect_leaves(name, proj)  # False would keep an entry
    return tuple([e for e, keep in zip(entries, proj, strict=True) if keep is not None])
