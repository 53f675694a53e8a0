"""The shared-memory layouts that wgmma and tcgen05 descriptors describe.

PTX ISA, "Shared Memory Matrix Layout" and "Canonical Layouts"; CUTLASS:
cute/atom/mma_traits_sm90_gmma.hpp and mma_traits_sm100.hpp.
"""

from __future__ import annotations

from functools import lru_cache

from ..composed import ComposedLayout
from ..errors import LayoutValueError, expect
from ..layout import Layout
from ..swizzle import Swizzle

SWIZZLES = {"INTER": 0, "SW32": 1, "SW64": 2, "SW128": 3}  # bits that are XOR-ed


@lru_cache(maxsize=128)
def smem_atom(name: str, element_bits: int = 16) -> ComposedLayout:
    """Return a canonical shared-memory layout of wgmma and tcgen05 descriptors.

    ``name`` is the major mode, ``K`` or ``MN``, and the swizzle: ``K_SW128``, ``MN_SW64``,
    ``K_INTER`` and so on. ``MN_SW128_32B``, for tcgen05, keeps 32 bytes together instead of 16. The
    modes are (MN, K). Tile it with :func:`tile_to_shape`.

    Raises :class:`LayoutValueError` that lists the known names.

    >>> print(smem_atom("K_SW128", 16), smem_atom("MN_SW32", 32))
    S<3,3,3> o 0 o (8,64):(64,1) S<1,2,3> o 0 o (8,8):(1,8)
    """
    expect("smem_atom", str, "the name of a layout, as K_SW128", name)
    major, _, swizzle = name.partition("_")
    together = name == "MN_SW128_32B"
    swizzle = "SW128" if together else swizzle
    if major not in ("K", "MN") or swizzle not in SWIZZLES:
        raise LayoutValueError(
            f"smem_atom: {name!r} is not known; expected K_ or MN_ with {', '.join(SWIZZLES)}, "
            "or MN_SW128_32B"
        )
    if element_bits not in (4, 8, 16, 32, 64):
        raise LayoutValueError(
            f"smem_atom: expected elements of 4, 8, 16, 32 or 64 bits, got {element_bits!r}"
        )
    bits = SWIZZLES[swizzle]
    run = (128 << bits) // element_bits
    rows = Layout((8, run), (run, 1)) if major == "K" else Layout((run, 8), (1, run))
    base = 7 - (element_bits.bit_length() - 1)  # 16 bytes stay together
    swizzled = Swizzle(2, base + 1, 2) if together else Swizzle(bits, base, 3)
    return ComposedLayout(swizzled, 0, rows)
