"""AMD's matrix instructions as data: MFMA of CDNA, one wavefront of 64 lanes.

Lane l has row ``l % M`` of A and of B, and along K the values of its group ``l / M`` side by side.
Of C and D it has column ``l % N``, four rows at a time: group g has rows 4g to 4g + 3, then those
after the rows of all groups. AMD, *CDNA3 Instruction Set Architecture*, "Matrix Arithmetic
Instructions".
"""

from __future__ import annotations

from functools import lru_cache

from .atoms import MmaAtom
from .errors import LayoutValueError
from .layout import Layout

# Input types: bits of an element, and K of the shapes 32x32 and 16x16.
_MFMA = {
    "f32": (32, ("32x32x2", "16x16x4")),
    "xf32": (32, ("32x32x4", "16x16x8")),
    "f16": (16, ("32x32x8", "16x16x16")),
    "bf16": (16, ("32x32x8", "16x16x16")),
    "i8": (8, ("32x32x16", "16x16x32")),
    "fp8": (8, ("32x32x16", "16x16x32")),
    "bf8": (8, ("32x32x16", "16x16x32")),
}


def mfma_names() -> tuple[str, ...]:
    """The names that :func:`mfma_atom` knows.

    >>> "mfma.32x32x8.f16" in mfma_names()
    True
    """
    return tuple(
        [f"mfma.{shape}.{kind}" for kind, (_, shapes) in _MFMA.items() for shape in shapes]
    )


@lru_cache(maxsize=128)
def mfma_atom(name: str) -> MmaAtom:
    """The MFMA instruction of this shape (M, N, K) and input type, 32-bit accumulators.

    Raises :class:`LayoutValueError` with the names there are.

    >>> atom = mfma_atom("mfma.32x32x8.f16")
    >>> print(atom.threads, atom.a, atom.c)
    64 ((32,2),4):((1,128),32) ((32,2),(4,4)):((32,4),(1,8))
    """
    if name not in mfma_names():
        raise LayoutValueError(f"mfma_atom: no {name!r}; there are {', '.join(mfma_names())}")
    _, shape, kind = name.split(".")
    m, n, k = map(int, shape.split("x"))
    groups = 64 // m
    values = k // groups
    a = Layout(((m, groups), values), ((1, values * m), m if values > 1 else 0))
    blocks = m * n // 256
    c = Layout(((n, groups), (4, blocks)), ((m, 4), (1, 4 * groups if blocks > 1 else 0)))
    return MmaAtom(name, (m, n, k), 64, a, a, c, _MFMA[kind][0], 32)
