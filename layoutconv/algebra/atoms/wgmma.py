"""``wgmma.mma_async``: the product of one warpgroup of sm_90.

PTX ISA, "Asynchronous Warpgroup Level Matrix Register Fragment"; CUTLASS:
cute/atom/mma_traits_sm90_gmma.hpp.
"""

from __future__ import annotations

from functools import lru_cache

from ..errors import LayoutValueError, expect
from ..layout import Layout
from .atom import MmaAtom

_BITS = (1, 8, 16, 32)


@lru_cache(maxsize=256, typed=True)  # typed: 1 is not True
def wgmma_atom(
    n: int, a_bits: int = 16, *, a_in_registers: bool = False, sparse: bool = False
) -> MmaAtom:
    """Return the ``wgmma`` instruction m64nNk(256/bits) of one warpgroup.

    All threads read B, and A unless it is in registers, from shared memory: these fragments have
    stride 0 along the threads. 16-bit accumulators lie like 32-bit ones. If ``sparse``, K is twice
    as large, and A keeps half of it.

    Raises :class:`LayoutValueError` for an N or an input size that does not exist.

    >>> atom = wgmma_atom(128)
    >>> atom.shape, str(atom.c)
    ((64, 128, 16), '((4,8,4),(2,2,16)):((128,1,16),(64,8,512))')
    """
    expect("wgmma_atom", int, "a_bits, an integer", a_bits)
    expect("wgmma_atom", bool, "a_in_registers, a bool", a_in_registers)
    expect("wgmma_atom", bool, "sparse, a bool", sparse)
    if type(n) is not int or n % 8 or not 8 <= n <= 256:
        raise LayoutValueError(f"wgmma_atom: expected n = 8, 16, ... 256, got {n!r}")
    if a_bits not in _BITS:
        raise LayoutValueError(f"wgmma_atom: expected inputs of {_BITS} bits, got {a_bits!r}")
    if a_bits == 1 and (sparse or (n > 32 and n % 16)):
        raise LayoutValueError(
            "wgmma_atom: expected n = 8, 16, 24, 32, 48, ... 256 and sparse=False for inputs of "
            f"1 bit, got n = {n} and sparse={sparse}"
        )
    stored = 256 // a_bits
    k = 2 * stored if sparse else stored
    if a_in_registers:
        per_word = 32 // a_bits  # neighbouring elements of a row in one register
        values = ((per_word, 2, 2), (64, 8, 256 * per_word))
        shape, stride = values if per_word > 1 else ((2, 2), (8, 256))
        a = Layout(((4, 8, 4), shape), ((64 * per_word, 1, 16), stride))
    else:
        a = Layout((128, (64, stored)), (0, (1, 64)))
    b = Layout((128, (n, k)), (0, (1, n)))
    rests = n // 8
    c = Layout(((4, 8, 4), (2, 2)), ((128, 1, 16), (64, 8)))
    if rests > 1:
        c = Layout(((4, 8, 4), (2, 2, rests)), ((128, 1, 16), (64, 8, 512)))
    name = f"{'sp.' if sparse else ''}m64n{n}k{k}"
    return MmaAtom(name, (64, n, k), 128, a, b, c, a_bits, 32, Layout(128), sparse)
