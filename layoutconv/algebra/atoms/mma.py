"""``mma.sync`` and ``mma.sp``: products of a warp, and products of a single thread.

The fragments are those of the PTX ISA, "Matrix Fragments for mma": lane 4 * g + t has row g of A
(and g + 8) and column g of B; neighbours along K are packed into 32-bit registers. CUTLASS:
cute/atom/mma_traits_sm61.hpp to mma_traits_sm120.hpp.
"""

from __future__ import annotations

from functools import lru_cache

from ..layout import Layout
from ..notation import parse
from .atom import MmaAtom, bits_by_name, unknown

# Groups of input types that A and B may mix: bits of an element, their names, and shapes.
_DENSE = [
    (16, "f16", "m16n8k8 m16n8k16"),
    (16, "bf16", "m16n8k8 m16n8k16"),
    (32, "tf32", "m16n8k4 m16n8k8"),
    (64, "f64", "m8n8k4 m16n8k4 m16n8k8 m16n8k16"),
    (8, "s8 u8", "m8n8k16 m16n8k16 m16n8k32"),
    (4, "s4 u4", "m8n8k32 m16n8k32 m16n8k64"),
    (1, "b1", "m8n8k128 m16n8k128 m16n8k256"),
    (8, "e4m3 e5m2", "m16n8k16"),
    (8, "e4m3 e5m2 e3m2 e2m3 e2m1", "m16n8k32"),  # sm_120: 4 and 6 bits lie in bytes
    (4, "e2m1", "m16n8k64"),  # sm_120: mxf4, two in a byte
]
_SPARSE = [
    (16, "f16", "m16n8k16 m16n8k32"),
    (16, "bf16", "m16n8k16 m16n8k32"),
    (32, "tf32", "m16n8k8 m16n8k16"),
    (8, "s8 u8", "m16n8k32 m16n8k64"),
    (4, "s4 u4", "m16n8k64 m16n8k128"),
    (8, "e4m3 e5m2 e3m2 e2m3 e2m1", "m16n8k64"),
    (4, "e2m1", "m16n8k128"),
]
# Operands of a quad pair of sm_70: A by rows and B by columns, unless the name says otherwise.
_MAJORS = {"": (True, True), ".nn": (False, True), ".nt": (False, False), ".tt": (True, False)}
# One thread: a fused multiply-add, and the dot products of sm_61; K, then the bits of A.
_ONE_THREAD = {"m1n1k1.fma": (1, 32), "m1n1k2.dp2a": (2, 16), "m1n1k4.dp4a": (4, 8)}


@lru_cache(maxsize=1)
def mma_names() -> tuple[str, ...]:
    """Return the names that :func:`mma_atom` knows.

    >>> "m16n8k16.bf16" in mma_names(), "sp.m16n8k64.e4m3" in mma_names()
    (True, True)
    """
    return tuple(_bits())


@lru_cache(maxsize=1)
def _bits() -> dict[str, int]:
    """Return the bits of an input element for each name."""
    of_quad_pairs = {f"m8n8k4.f16{major}{c}": 16 for major in _MAJORS for c in ("", ".acc16")}
    of_one_thread = {name: bits for name, (_, bits) in _ONE_THREAD.items()}
    of_warps = bits_by_name("", _DENSE) | bits_by_name("sp.", _SPARSE)
    return of_quad_pairs | of_warps | of_one_thread


@lru_cache(maxsize=512)
def mma_atom(name: str) -> MmaAtom:
    """Return the ``mma.sync`` instruction of this PTX shape and input type.

    The name has the type of A, then that of B if it differs: ``m16n8k32.s8.u8``. The prefix ``sp.``
    means sparse; metadata is not described. ``m8n8k4.f16`` is for a quad pair of sm_70, with
    ``.nn``, ``.nt`` and ``.tt`` for other majors and ``.acc16`` for 16-bit accumulators.
    ``m1n1k1.fma``, ``m1n1k2.dp2a`` and ``m1n1k4.dp4a`` are for one thread.

    Raises :class:`LayoutValueError` that lists the known names.

    >>> atom = mma_atom("m16n8k16.f16")
    >>> print(atom.a, atom.c)
    ((4,8),(2,2,2)):((32,1),(16,8,128)) ((4,8),(2,2)):((32,1),(16,8))
    >>> atom.a.size() == 16 * 16, atom.c(5, 2)  # thread 5, value 2: row 9, column 2
    (True, 41)
    """
    if name not in _bits():
        raise unknown("mma_atom", name, mma_names())
    if name.startswith("m8n8k4.f16"):
        return _quad_pair(name)
    if name in _ONE_THREAD:
        return _one_thread(name)
    sparse = name.startswith("sp.")
    shape, kind = name.removeprefix("sp.").split(".")[:2]
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    bits = _bits()[name]
    a = _rows_of_registers(m, k // 2 if sparse else k, bits)
    b = _rows_of_registers(n, k, bits)
    c_bits = 64 if kind == "f64" else 32
    thr_id = Layout(32)
    return MmaAtom(name, (m, n, k), 32, a, b, _accumulators(m), bits, c_bits, thr_id, sparse)


def _quad_pair(name: str) -> MmaAtom:
    """Return the sm_70 instruction: four threads of a warp and the four that follow 16 later."""
    along_k = Layout((8, 4), (1, 8))  # a thread has one row of A, all of K
    across = Layout(((4, 2), 4), ((8, 4), 1))  # a thread has one column of A, half of M
    major = name.removeprefix("m8n8k4.f16").removesuffix(".acc16")
    a, b = (along_k if by_k else across for by_k in _MAJORS[major])
    thr_id = Layout((4, 2), (1, 16))
    if name.endswith(".acc16"):
        return MmaAtom(name, (8, 8, 4), 8, a, b, Layout((8, 8), (1, 8)), 16, 16, thr_id)
    c = parse("((2,2,2),(2,2,2)):((1,16,4),(8,2,32))")
    return MmaAtom(name, (8, 8, 4), 8, a, b, c, 16, 32, thr_id)


def _one_thread(name: str) -> MmaAtom:
    k, bits = _ONE_THREAD[name]
    values = Layout((1, k), (0, 1 if k > 1 else 0))
    one = Layout((1, 1), (0, 0))
    return MmaAtom(name, (1, 1, k), 1, values, values, one, bits, 32, Layout(1, 0))


def _rows_of_registers(rows: int, k: int, bits: int) -> Layout:
    """Return a (rows, k) operand: lane 4 * g + t has row g, each register neighbours along k.

    Registers of A alternate between rows g and g + 8, then step through k. An element of 64 bits
    is a register of two.
    """
    packed = max(1, 32 // bits)
    extents, strides = [packed], [rows]
    if rows == 16:
        extents, strides = [*extents, 2], [*strides, 8]
    extents, strides = [*extents, k // (4 * packed)], [*strides, 4 * packed * rows]
    values = [(s, d) for s, d in zip(extents, strides, strict=True) if s > 1] or [(1, 0)]
    shape = tuple([s for s, _ in values]) if len(values) > 1 else values[0][0]
    stride = tuple([d for _, d in values]) if len(values) > 1 else values[0][1]
    return Layout(((4, 8), shape), ((packed * rows, 1), stride))


def _accumulators(rows: int) -> Layout:
    """Return C of 8 columns: lane 4 * g + t has columns 2 * t, 2 * t + 1 of row g, then g + 8."""
    if rows == 8:
        return Layout(((4, 8), 2), ((16, 1), 8))
    return Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))
