"""int4: two numbers per byte along memory, so that a view of numbers becomes one of bytes.

The order of k, and its pairs, do not change a sum. So a view whose elements are pairs has the same
results if the instruction multiplies both numbers of a pair; copies, bounds and offsets are of
bytes.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from ..algebra.composed import ComposedLayout
from ..errors import ArgumentError, ArgumentTypeError
from ..view.gemm_view import GemmView, OperandLayout
from ..view.vectors import contiguous_extent, recast
from .expected_tensors import ExpectedTensor
from .spans import flat_memory

INT4 = "int4"
_WIDE = (torch.int8, torch.int16, torch.int32, torch.int64)


def pack_int4(x: Tensor) -> Tensor:
    """Pack integers from -8 to 7 as int4, two per byte: even ones of the last mode in the low bits.

    Args:
        x: int8, int16, int32 or int64 (..., C), C even. The last mode has to be the channels, which
            run along memory.

    Returns contiguous int8 (..., C / 2) for ``execute(view, a, b, dtype="int4")``.

    Raises :class:`~layoutconv.errors.ArgumentError` for an odd C, or a number outside of int4.

    >>> pack_int4(torch.tensor([1, 2, -1, 7, -8, 0]))
    tensor([ 33, 127,   8], dtype=torch.int8)
    """
    if not isinstance(x, torch.Tensor) or x.dtype not in _WIDE:
        got = str(getattr(x, "dtype", type(x).__name__))
        raise ArgumentTypeError("x", "a tensor of int8, int16, int32 or int64", got)
    if not x.dim() or x.shape[-1] % 2:
        raise ArgumentError("x", "an even extent in the last mode", f"shape {tuple(x.shape)}")
    if x.numel():
        low, high = (int(e) for e in torch.aminmax(x))
        if low < -8 or high > 7:
            raise ArgumentError("x", "numbers from -8 to 7", low if low < -8 else high)
    x = x.to(torch.int8)
    return ((x[..., ::2] & 15) | (x[..., 1::2] << 4)).contiguous()


def unpack_int4(packed: Tensor) -> Tensor:
    """Return what :func:`pack_int4` packed, as int8.

    >>> unpack_int4(torch.tensor([33, 127, 8], dtype=torch.int8))
    tensor([ 1,  2, -1,  7, -8,  0], dtype=torch.int8)
    """
    if not isinstance(packed, torch.Tensor) or packed.dtype != torch.int8:
        got = str(getattr(packed, "dtype", type(packed).__name__))
        raise ArgumentTypeError("packed", "a tensor of int8", got)
    if not packed.dim():
        raise ArgumentError("packed", "at least one mode", "none")
    return torch.stack((packed << 4 >> 4, packed >> 4), -1).flatten(-2)


def in_pairs(view: GemmView) -> GemmView:
    """Return the view whose elements of A and B are pairs along k, adjacent in memory.

    It is made once, and kept with the view. Raises :class:`~layoutconv.errors.ArgumentError` if k
    does not run along memory in pairs, in A or B.

    >>> from ..conv import ConvProblem, fprop_view
    >>> print(in_pairs(fprop_view(ConvProblem((1, 9, 6), (4, 3)))))
    A: (N,W,C//2):(W*C//2,C//2,1) o (0,0,0) o ((Q,N),(C//2,S)):((1@1,1@0),(1@2,1@1))
    B: (K,S,C//2):(S*C//2,C//2,1) o 0 o (K,(C//2,S)):(1@0,(1@2,1@1))
    D: (N,Q,K):(Q*K,K,1) o 0 o ((Q,N),K):((1@1,1@0),1@2)
    """
    kept: GemmView | None = view.kept.get("in pairs")
    if kept is None:
        a, b = _in_pairs("a", view.a), _in_pairs("b", view.b)
        kept = view.kept["in pairs"] = GemmView(a, b, view.d, columns=view.columns)
    return kept


def unpacked(layout: OperandLayout, packed: Tensor) -> Tensor:
    """Unpack an operand's pairs into the int8 tensor that its layout stores."""
    stored = ExpectedTensor.of("operand", layout)
    if not packed.numel():
        return packed.new_empty(stored.shape)
    return unpack_int4(flat_memory(packed)).as_strided(stored.shape, stored.stride)


def _in_pairs(name: str, layout: OperandLayout) -> OperandLayout:
    together = contiguous_extent(layout, 1)
    if together % 2:
        expected = f"an even number of elements of {name} side by side along k, for int4"
        raise ArgumentError("view", expected, together)
    chain = recast(layout, 1, 2)
    result: OperandLayout = chain[0].layout
    for before, stage in pairwise(chain):
        result = ComposedLayout(stage.layout, before.offset, result)
    return result
