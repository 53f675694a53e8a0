"""AMD's matrix instructions as data: MFMA of CDNA, on one wavefront of 64 lanes.

Lane l has row ``l % M`` of A and B, and the contiguous K values of its group ``l / M``. Of C and D
it has column ``l % N``, four rows at a time (f64: one row): group g has rows 4g to 4g + 3, then
those after the rows of all groups. If an instruction multiplies several blocks, the groups of A are
the blocks. AMD, *CDNA3 Instruction Set Architecture*, "Matrix Arithmetic Instructions".
"""

from __future__ import annotations

from functools import lru_cache

from ..layout import Layout
from .atom import MmaAtom, bits_by_name, unknown

# Bits of an element, input types that A and B may mix, and shapes with their blocks:
# gfx908 and gfx90a, then gfx942 and gfx950.
_MFMA = [
    (32, "f32", "32x32x1.2b 16x16x1.4b 4x4x1.16b 32x32x2 16x16x4"),
    (32, "xf32", "32x32x4 16x16x8"),
    (16, "f16", "32x32x4.2b 16x16x4.4b 4x4x4.16b 32x32x8 16x16x16 32x32x16 16x16x32"),
    (16, "bf16", "32x32x2.2b 16x16x2.4b 4x4x2.16b 32x32x4 16x16x8"),
    (16, "bf16", "32x32x4.2b 16x16x4.4b 4x4x4.16b 32x32x8 16x16x16 32x32x16 16x16x32"),
    (8, "i8", "32x32x4.2b 16x16x4.4b 4x4x4.16b 32x32x8 16x16x16"),
    (8, "i8", "32x32x16 16x16x32 32x32x32 16x16x64"),
    (8, "fp8 bf8", "32x32x16 16x16x32"),
    (64, "f64", "16x16x4 4x4x4.4b"),
]


@lru_cache(maxsize=1)
def mfma_names() -> tuple[str, ...]:
    """Return the names that :func:`mfma_atom` knows.

    >>> "mfma.32x32x8.f16" in mfma_names(), "mfma.4x4x1.16b.f32" in mfma_names()
    (True, True)
    """
    return tuple(_bits())


@lru_cache(maxsize=1)
def _bits() -> dict[str, int]:
    return bits_by_name("mfma.", _MFMA)


@lru_cache(maxsize=128)
def mfma_atom(name: str) -> MmaAtom:
    """Return the MFMA instruction of this shape (M, N, K), number of blocks and input type.

    Raises :class:`LayoutValueError` that lists the known names.

    >>> atom = mfma_atom("mfma.32x32x8.f16")
    >>> print(atom.threads, atom.a, atom.c)
    64 ((32,2),4):((1,128),32) ((32,2),(4,4)):((32,4),(1,8))
    """
    if name not in _bits():
        raise unknown("mfma_atom", name, mfma_names())
    parts = name.split(".")
    m, n, k = map(int, parts[1].split("x"))
    blocks = int(parts[2][:-1]) if parts[2].endswith("b") and parts[2][:-1].isdigit() else 1
    bits = _bits()[name]
    groups = 64 // m // blocks  # that share the K of one block
    values = k // groups
    a = _layout(
        [(m, 1), (blocks, m * k), (groups, values * m)],
        [(values, m)],
    )
    together = 1 if bits == 64 else 4  # neighbouring rows in one lane
    halves = min(64 // n, m // together)  # groups of lanes that share the rows of one block
    aside = 64 // n // halves  # blocks in further lanes
    rows = [(halves, together)]
    c = _layout(
        [(n, m), *([(aside, m * n), *rows] if aside > 1 else rows)],
        [(together, 1), (m // together // halves, together * halves), (blocks // aside, m * n)],
    )
    c_bits = 64 if bits == 64 else 32
    return MmaAtom(name, (m, n, k), 64, a, a, c, bits, c_bits, Layout(64), blocks=blocks)


def _layout(threads: list[tuple[int, int]], values: list[tuple[int, int]]) -> Layout:
    """Return (threads, values) with these modes, without modes of extent 1."""
    modes = [[mode for mode in part if mode[0] > 1] or [(1, 0)] for part in (threads, values)]
    shape, stride = (
        tuple([side[0] if len(side) == 1 else tuple(side) for side in sides])
        for sides in ([[m[i] for m in part] for part in modes] for i in range(2))
    )
    return Layout(shape, stride)
