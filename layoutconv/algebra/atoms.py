"""The instructions that kernels are made of, as data: which thread holds which element.

A fragment is a layout ``(thread, value) -> position``, positions counting colexicographically
through the operand: A is (M, K), B is (N, K), C and D are (M, N). A copy maps ``(thread, value)``
to the *bit* that is read or written. The numbers are those of the PTX ISA ("Matrix Fragments for
mma", "ldmatrix", "wgmma") and carry CuTe's names (cute/atom/*_traits_sm*.hpp).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from .errors import LayoutValueError
from .layout import Layout
from .notation import parse


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


class CopyAtom(NamedTuple):
    """A copy of one warp: ``source`` and ``destination`` map (thread, value) to bits."""

    name: str
    threads: int
    source: Layout
    destination: Layout


_ROWS_16x8 = "((4,8),(2,2)):((32,1),(16,8))"
_ROWS_8x8 = "((4,8),2):((16,1),8)"
_COLUMN_8x4 = "((4,8),1):((8,1),0)"

# PTX shape, kinds -> A, B, C, bits of A, bits of C
_MMA = {
    "m16n8k8.f16": (_ROWS_16x8, _ROWS_8x8, _ROWS_16x8, 16, 32),
    "m16n8k16.f16": (
        "((4,8),(2,2,2)):((32,1),(16,8,128))",
        "((4,8),(2,2)):((16,1),(8,64))",
        _ROWS_16x8,
        16,
        32,
    ),
    "m16n8k4.tf32": ("((4,8),2):((16,1),8)", _COLUMN_8x4, _ROWS_16x8, 32, 32),
    "m16n8k8.tf32": (
        "((4,8),(2,2)):((16,1),(8,64))",
        "((4,8),2):((8,1),32)",
        _ROWS_16x8,
        32,
        32,
    ),
    "m8n8k4.f64": (_COLUMN_8x4, _COLUMN_8x4, _ROWS_8x8, 64, 64),
    "m16n8k16.s8": (
        "((4,8),(4,2)):((64,1),(16,8))",
        "((4,8),4):((32,1),8)",
        _ROWS_16x8,
        8,
        32,
    ),
    "m16n8k32.s8": (
        "((4,8),(4,2,2)):((64,1),(16,8,256))",
        "((4,8),(4,2)):((32,1),(8,128))",
        _ROWS_16x8,
        8,
        32,
    ),
}
_SAME_FRAGMENTS = {"bf16": "f16", "u8": "s8", "e4m3": "s8", "e5m2": "s8"}

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
    kinds = {kind: [kind] for kind in ("f16", "tf32", "f64", "s8")}
    for kind, like in _SAME_FRAGMENTS.items():
        kinds[like].append(kind)
    names = []
    for key in _MMA:
        shape, kind = key.split(".")
        names += [f"{shape}.{k}" for k in kinds[kind] if not (k[0] == "e" and shape != "m16n8k32")]
    return tuple(names)


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
    shape, _, kind = name.partition(".")
    key = f"{shape}.{_SAME_FRAGMENTS.get(kind, kind)}"
    if key not in _MMA or name not in mma_names():
        raise LayoutValueError(f"mma_atom: no {name!r}; there are {', '.join(mma_names())}")
    a, b, c, a_bits, c_bits = _MMA[key]
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    return MmaAtom(name, (m, n, k), 32, parse(a), parse(b), parse(c), a_bits, c_bits)


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


def copy_names() -> tuple[str, ...]:
    """The names that :func:`copy_atom` knows.

    >>> "ldmatrix.x4" in copy_names()
    True
    """
    return tuple(_LDMATRIX)


@lru_cache(maxsize=128)
def copy_atom(name: str) -> CopyAtom:
    """The ``ldmatrix`` instruction of this name: 8x8 matrices of 16 bits from shared memory.

    The source counts the bits of the rows that the threads point at, 128 a row.

    >>> atom = copy_atom("ldmatrix.x4")
    >>> print(atom.source, atom.destination)
    (32,128):(128,1) (32,(32,4)):(32,(1,1024))
    """
    if name not in _LDMATRIX:
        raise LayoutValueError(f"copy_atom: no {name!r}; there are {', '.join(_LDMATRIX)}")
    source, destination = _LDMATRIX[name]
    return CopyAtom(name, 32, parse(source), parse(destination))
