"""``MmaAtom`` and ``CopyAtom``: an instruction, with the thread and value of every element.

A fragment is a layout ``(thread, value) -> position``. Positions count colexicographically through
the operand: A is (M, K), B is (N, K), C and D are (M, N). A copy maps ``(thread, value)`` to the
*bit* that is read or written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from typing import Any

from ..display import Pictured
from ..errors import LayoutValueError
from ..layout import Layout
from ..like import LayoutLike
from ..operands import INTS, expect_fields, of_class


@dataclass(frozen=True)
class MmaAtom(Pictured):
    """A matrix multiply-accumulate ``D = A * B + C`` and the threads that take part in it.

    ``shape`` is (M, N, K); ``threads`` is the number that take part: lanes of a warp, a warpgroup
    or a wavefront, or the CTAs of a tcgen05.mma. ``a``, ``b`` and ``c`` (and D) are the fragments,
    ``a_bits`` and ``c_bits`` the element sizes. If ``sparse``, A has only the K / 2 elements kept.
    If the instruction computes several products side by side (``blocks``), as some of AMD's do,
    they are the last mode of each operand: A is (M, K, blocks).

    >>> from . import mma_atom
    >>> atom = mma_atom("m16n8k16.f16")
    >>> print(atom.shape, atom.threads, atom.c)
    (16, 8, 16) 32 ((4,8),(2,2)):((32,1),(16,8))
    """

    name: str
    shape: tuple[int, int, int]
    threads: int
    a: Layout
    b: Layout
    c: Layout
    a_bits: int
    c_bits: int
    thr_id: Layout  # the index in a warp, warpgroup, ... of each thread of the instruction
    sparse: bool = False
    blocks: int = 1

    def __post_init__(self) -> None:
        expect_fields(self, _OF_MMA)

    def fragment(self, operand: str) -> Layout:
        """Return the fragment of operand "A", "B" or "C"."""
        return {"A": self.a, "B": self.b, "C": self.c}[operand]

    def extents(self, operand: str) -> tuple[int, int]:
        """Return the rows and columns of operand "A", "B" or "C", as the atom stores it.

        >>> from . import mma_atom
        >>> mma_atom("sp.m16n8k32.f16").extents("A"), mma_atom("sp.m16n8k32.f16").extents("B")
        ((16, 16), (8, 32))
        """
        M, N, K = self.shape
        stored = K // 2 if self.sparse else K
        rows, columns = {"A": (M, stored), "B": (N, K), "C": (M, N)}[operand]
        return rows, columns * self.blocks


@dataclass(frozen=True)
class CopyAtom(Pictured):
    """A copy instruction: ``source`` and ``destination`` map (thread, value) to bits.

    ``row_bits`` is the length of a row of the moved block, ``element_bits`` the unit in which the
    instruction distributes it: pictures have a row for each row, and a cell for each unit.

    >>> from . import copy_atom
    >>> atom = copy_atom("ldmatrix.x4")
    >>> print(atom.threads, atom.source)
    32 (32,128):(128,1)
    """

    name: str
    threads: int
    source: Any  # a Layout; the destination of a swizzled TMA box is a ComposedLayout
    destination: Any
    row_bits: int = 128
    element_bits: int = 16

    def __post_init__(self) -> None:
        expect_fields(self, _OF_COPY)


_OF_MMA = {
    "name": of_class(str),
    "shape": INTS,
    **dict.fromkeys(("a", "b", "c", "thr_id"), of_class(Layout)),
    **dict.fromkeys(("threads", "a_bits", "c_bits", "blocks"), of_class(int)),
    "sparse": of_class(bool),
}
_OF_COPY = {
    "name": of_class(str),
    **dict.fromkeys(("source", "destination"), of_class(LayoutLike)),
    **dict.fromkeys(("threads", "row_bits", "element_bits"), of_class(int)),
}


def bits_by_name(prefix: str, groups: Iterable[tuple[int, str, str]]) -> dict[str, int]:
    """Return the bits of an input element for each name ``shape.a.b``; if b is a, ``shape.a``.

    A group has the bits, the types that A and B may mix, and the shapes.

    >>> bits_by_name("sp.", [(8, "s8 u8", "m16n8k64")]).keys()
    dict_keys(['sp.m16n8k64.s8', 'sp.m16n8k64.s8.u8', 'sp.m16n8k64.u8.s8', 'sp.m16n8k64.u8'])
    """
    return {
        f"{prefix}{shape}.{a}" + (f".{b}" if a != b else ""): bits
        for bits, types, shapes in groups
        for shape, a, b in product(shapes.split(), types.split(), types.split())
    }


def unknown(function: str, name: str, names: tuple[str, ...]) -> LayoutValueError:
    """Return the error for an unknown name, with the nearest known ones: by extents for C++'s.

    >>> print(unknown("mma_atom", "SM80_16x8x8_F32TF32TF32F32_TN", ("m8n8k4.f64", "m16n8k8.tf32")))
    mma_atom: 'SM80_16x8x8_F32TF32TF32F32_TN' is not known; expected one of m16n8k8.tf32, m8n8k4.f64
    """
    name = str(name)
    extents = re.search(r"(\d+)x(\d+)x(\d+)", name)
    sought = "m{}n{}k{}.".format(*extents.groups()) if extents else f"{name}."
    near = [known for known in names if known.startswith(sought)]
    near += get_close_matches(name, names, 4, 0.5) + list(names)
    of = function.replace("atom", "names")
    shown = ", ".join(list(dict.fromkeys(near))[:4])
    if len(names) > 4:
        shown = f"{of}(), {len(names)} in all, such as {shown}"
    return LayoutValueError(f"{function}: {name!r} is not known; expected one of {shown}")
