"""The instructions that kernels are made of, as data: which thread holds which element.

A fragment is a layout ``(thread, value) -> position``, positions counting colexicographically
through the operand: A is (M, K), B is (N, K), C and D are (M, N). A copy maps ``(thread, value)``
to the *bit* that is read or written. The numbers are those of the PTX ISA ("Matrix Fragments for
mma", "ldmatrix", "wgmma") and carry CuTe's names (cute/atom/*_traits_sm*.hpp).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from .composed import ComposedLayout
from .errors import LayoutValueError
from .layout import Layout
from .notation import parse
from .swizzle import Swizzle


class MmaAtom(NamedTuple):
    """A matrix multiply-accumulate ``D = A * B + C`` of one warp or warpgroup.

    ``shape`` is (M, N, K), ``threads`` how many take part; ``a``, ``b`` and ``c`` (and D) are the
    fragments, ``a_bits`` and ``c_bits`` the sizes of the elements.
    """

    name: str
    shape: tuple[int, int, int]
    threads: int
    a: Layout
    b: Layout
    c: Layout
    a_bits: int
    c_bits: int
    quads: bool = False  # four threads and the four that come 16 after them, as on sm_70

    @property
    def thr_id(self) -> Layout:
        """The index in a warp, or warpgroup, of each thread of the instruction."""
        return Layout((4, 2), (1, 16)) if self.quads else Layout(self.threads)

    def fragment(self, operand: str) -> Layout:
        """The fragment of operand "A", "B" or "C"."""
        return {"A": self.a, "B": self.b, "C": self.c}[operand]


class CopyAtom(NamedTuple):
    """A copy of one warp: ``source`` and ``destination`` map (thread, value) to bits."""

    name: str
    threads: int
    source: Layout
    destination: Layout


# Input types of mma.sync: bits of an element, and the shapes that there are for them.
_MMA = {
    "f16": (16, "m8n8k4 m16n8k8 m16n8k16"),
    "bf16": (16, "m16n8k8 m16n8k16"),
    "tf32": (32, "m16n8k4 m16n8k8"),
    "f64": (64, "m8n8k4 m16n8k4 m16n8k8 m16n8k16"),
    "s8": (8, "m8n8k16 m16n8k16 m16n8k32"),
    "u8": (8, "m8n8k16 m16n8k16 m16n8k32"),
    "s4": (4, "m8n8k32 m16n8k32 m16n8k64"),
    "u4": (4, "m8n8k32 m16n8k32 m16n8k64"),
    "b1": (1, "m8n8k128 m16n8k128 m16n8k256"),
    "e4m3": (8, "m16n8k16 m16n8k32"),
    "e5m2": (8, "m16n8k16 m16n8k32"),
}

_LDMATRIX = {
    "ldmatrix.x1": ("((8,4),128):((128,0),1)", "(32,32):(32,1)"),
    "ldmatrix.x2": ("((16,2),128):((128,0),1)", "(32,(32,2)):(32,(1,1024))"),
    "ldmatrix.x4": ("(32,128):(128,1)", "(32,(32,4)):(32,(1,1024))"),
    "ldmatrix.x1.trans": ("((8,4),128):((128,0),1)", "((4,8),(16,2)):((256,16),(1,128))"),
    "ldmatrix.x2.trans": ("((16,2),128):((128,0),1)", "((4,8),(16,2,2)):((256,16),(1,128,1024))"),
    "ldmatrix.x4.trans": ("(32,128):(128,1)", "((4,8),(16,2,4)):((256,16),(1,128,1024))"),
}


def mma_names() -> tuple[str, ...]:
    """The names that :func:`mma_atom` knows.

    >>> "m16n8k16.bf16" in mma_names()
    True
    """
    names = [f"{shape}.{kind}" for kind, (_, shapes) in _MMA.items() for shape in shapes.split()]
    quads = [f"m8n8k4.f16{major}{c}" for major in _MAJORS for c in ("", ".acc16")]
    return (*quads, *[name for name in names if name not in quads])


# Of a quad pair's operands of sm_70: A by rows and B by columns, unless the name says otherwise.
_MAJORS = {"": (True, True), ".nn": (False, True), ".nt": (False, False), ".tt": (True, False)}


@lru_cache(maxsize=128)
def mma_atom(name: str) -> MmaAtom:
    """The ``mma.sync`` instruction of this PTX shape and input type, one warp.

    Raises :class:`LayoutValueError` with the names there are.

    >>> atom = mma_atom("m16n8k16.f16")
    >>> print(atom.a, atom.c)
    ((4,8),(2,2,2)):((32,1),(16,8,128)) ((4,8),(2,2)):((32,1),(16,8))
    >>> atom.a.size() == 16 * 16, atom.c(5, 2)  # thread 5, value 2: row 9, column 2
    (True, 41)
    """
    if name not in mma_names():
        raise LayoutValueError(f"mma_atom: no {name!r}; there are {', '.join(mma_names())}")
    shape, _, kind = name.partition(".")
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    kind = kind.partition(".")[0]
    bits = _MMA[kind][0]
    c_bits = 64 if kind == "f64" else 32
    if shape == "m8n8k4" and bits == 16:
        return _quad_pair(name)
    a, b = _rows_of_registers(m, k, bits), _rows_of_registers(8, k, bits)
    return MmaAtom(name, (m, n, k), 32, a, b, _accumulators(m), bits, c_bits)


def _quad_pair(name: str) -> MmaAtom:
    """The instruction of sm_70: four threads of a warp and the four that come 16 after them."""
    along_k = Layout((8, 4), (1, 8))  # a thread has one row of A, all of K
    across = Layout(((4, 2), 4), ((8, 4), 1))  # a thread has one column of A, half of M
    major = name.removeprefix("m8n8k4.f16").removesuffix(".acc16")
    a, b = (along_k if by_k else across for by_k in _MAJORS[major])
    if name.endswith(".acc16"):
        return MmaAtom(name, (8, 8, 4), 8, a, b, Layout((8, 8), (1, 8)), 16, 16, quads=True)
    c = parse("((2,2,2),(2,2,2)):((1,16,4),(8,2,32))")
    return MmaAtom(name, (8, 8, 4), 8, a, b, c, 16, 32, quads=True)


def _rows_of_registers(rows: int, k: int, bits: int) -> Layout:
    """A (rows, k) operand: lane 4 * g + t has row g, and in each register neighbours along k.

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
    """C of 8 columns: lane 4 * g + t has columns 2 * t and 2 * t + 1 of row g, then of g + 8."""
    if rows == 8:
        return Layout(((4, 8), 2), ((16, 1), 8))
    return Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))


@lru_cache(maxsize=128)
def wgmma_atom(n: int, a_bits: int = 16, *, a_in_registers: bool = False) -> MmaAtom:
    """The ``wgmma`` instruction m64nNk(256/bits) of one warpgroup, accumulating 32 bits.

    B, and A unless it is in registers, are read from shared memory by all threads alike: their
    fragments have stride 0 along the threads.

    >>> atom = wgmma_atom(128)
    >>> atom.shape, str(atom.c)
    ((64, 128, 16), '((4,8,4),(2,2,16)):((128,1,16),(64,8,512))')
    """
    if type(n) is not int or n % 8 or not 8 <= n <= 256:
        raise LayoutValueError(f"wgmma_atom: expected n = 8, 16, ... 256, got {n!r}")
    if a_bits not in (8, 16, 32):
        raise LayoutValueError(f"wgmma_atom: expected inputs of 8, 16 or 32 bits, got {a_bits!r}")
    k = 256 // a_bits
    per_word = 32 // a_bits  # neighbouring elements of a row that one register holds
    if a_in_registers:
        values = ((per_word, 2, 2), (64, 8, 256 * per_word))
        a = Layout(((4, 8, 4), values[0]), ((64 * per_word, 1, 16), values[1]))
    else:
        a = Layout((128, (64, k)), (0, (1, 64)))
    b = Layout((128, (n, k)), (0, (1, n)))
    c = Layout(((4, 8, 4), (2, 2, n // 8)), ((128, 1, 16), (64, 8, 512)))
    return MmaAtom(f"m64n{n}k{k}", (64, n, k), 128, a, b, c, a_bits, 32)


@lru_cache(maxsize=128)
def smem_atom(name: str, element_bits: int = 16) -> ComposedLayout:
    """The canonical shared-memory layout that wgmma and tcgen05 descriptors speak of.

    ``name`` is the major mode, ``K`` or ``MN``, and the swizzle: ``K_SW128``, ``MN_SW64``,
    ``K_INTER`` and so on. Tile it with :func:`tile_to_shape`. CUTLASS:
    cute/atom/mma_traits_sm90_gmma.hpp.

    >>> print(smem_atom("K_SW128", 16), smem_atom("MN_SW32", 32))
    S<3,3,3> o 0 o (8,64):(64,1) S<1,2,3> o 0 o (8,8):(1,8)
    """
    major, _, swizzle = name.partition("_")
    if major not in ("K", "MN") or swizzle not in _SWIZZLES:
        raise LayoutValueError(
            f"smem_atom: no {name!r}; there are K_ and MN_ with {', '.join(_SWIZZLES)}"
        )
    if element_bits not in (4, 8, 16, 32, 64):
        raise LayoutValueError(f"smem_atom: no elements of {element_bits!r} bits")
    bits = _SWIZZLES[swizzle]
    run = (128 << bits) // element_bits
    rows = Layout((8, run), (run, 1)) if major == "K" else Layout((run, 8), (1, run))
    base = 7 - (element_bits.bit_length() - 1)  # 16 bytes stay together
    return ComposedLayout(Swizzle(bits, base, 3), 0, rows)


_SWIZZLES = {"INTER": 0, "SW32": 1, "SW64": 2, "SW128": 3}


def copy_names() -> tuple[str, ...]:
    """The names that :func:`copy_atom` knows.

    >>> "ldmatrix.x4" in copy_names()
    True
    """
    return tuple(_LDMATRIX) + tuple([name.replace("ld", "st", 1) for name in _LDMATRIX])


@lru_cache(maxsize=128)
def copy_atom(name: str) -> CopyAtom:
    """The ``ldmatrix`` or ``stmatrix`` instruction of this name: 8x8 matrices of 16 bits.

    The side in shared memory, the source of a load, counts the bits of the rows that the threads
    point at, 128 a row.

    >>> atom = copy_atom("ldmatrix.x4")
    >>> print(atom.source, atom.destination)
    (32,128):(128,1) (32,(32,4)):(32,(1,1024))
    """
    if name not in copy_names():
        raise LayoutValueError(f"copy_atom: no {name!r}; there are {', '.join(copy_names())}")
    rows, registers = (parse(text) for text in _LDMATRIX[name.replace("st", "ld", 1)])
    if name.startswith("st"):
        return CopyAtom(name, 32, registers, rows)
    return CopyAtom(name, 32, rows, registers)
