"""``tcgen05.mma``: products of one SM or two, and the place of their accumulators.

PTX ISA, "TensorCore 5th Generation Instructions": matrix shapes, and data path layouts A to G.
CUTLASS: cute/atom/mma_traits_sm100.hpp and mma_traits_sm100_frag.hpp.
"""

from __future__ import annotations

from functools import lru_cache

from ..errors import LayoutValueError, expect
from ..layout import Layout
from ..stride import ScaledBasis
from .atom import MmaAtom

_BITS = (4, 8, 16, 32)
_ROWS = {1: (64, 128), 2: (128, 256)}  # M of one CTA and of a pair
_WEIGHT_STATIONARY = (64, 128, 256)  # N of tcgen05.mma.ws


@lru_cache(maxsize=256, typed=True)  # typed: True is not 1
def tcgen05_atom(m: int, n: int, a_bits: int = 16, *, cta_group: int = 1) -> MmaAtom:
    """Return the ``tcgen05.mma`` instruction of M x N and K = 256 / bits; its "threads" are CTAs.

    In a pair (``cta_group=2``), each CTA has half of the rows of A and D, and half of the columns
    of B. :func:`tmem_accumulator` says where D lies in tensor memory, :func:`smem_atom` where A and
    B lie in shared memory. N has steps of 8, for a pair 16. Integer inputs allow fewer N: 8, 16,
    24, 32, 48 and on in steps of 16, for a pair in steps of 32.

    Raises :class:`LayoutValueError` for a shape that does not exist.

    >>> atom = tcgen05_atom(256, 128, cta_group=2)
    >>> print(atom.shape, atom.a, atom.b)
    (256, 128, 16) (2,(128,16)):(128,(1,256)) (2,(64,16)):(64,(1,128))
    """
    expect("tcgen05_atom", int, "cta_group, an integer", cta_group)
    expect("tcgen05_atom", int, "a_bits, an integer", a_bits)
    if cta_group not in _ROWS or m not in _ROWS[cta_group]:
        raise LayoutValueError(
            f"tcgen05_atom: expected m = 64 or 128 for one CTA, 128 or 256 for two, "
            f"got {m!r} with cta_group={cta_group!r}"
        )
    if a_bits not in _BITS or (a_bits == 4 and m == 64):
        raise LayoutValueError(
            f"tcgen05_atom: expected inputs of {_BITS} bits (4 only for m >= 128), got {a_bits!r}"
        )
    _expect_columns("tcgen05_atom", n, cta_group)
    k = 256 // a_bits
    a, b, c = (
        Layout((cta_group, (rows // shares, columns)), (rows // shares, (1, rows)))
        for rows, columns, shares in ((m, k, cta_group), (n, k, cta_group), (m, n, cta_group))
    )
    name = f"tcgen05.m{m}n{n}k{k}" + ("" if cta_group == 1 else ".2cta")
    thr_id = Layout(cta_group, 1 if cta_group > 1 else 0)
    return MmaAtom(name, (m, n, k), cta_group, a, b, c, a_bits, 32, thr_id)


def tmem_accumulator(
    m: int, n: int, *, cta_group: int = 1, weight_stationary: bool = False
) -> Layout:
    """Return D of a ``tcgen05.mma`` in tensor memory: (m, n) to lane@0 + column@1, CTA@2 of a pair.

    A column has 32 bits. ``weight_stationary`` is for ``tcgen05.mma.ws``, which also has M = 32,
    and has N = 64, 128 or 256. A is dense: a pair with M = 128 and a sparse A keeps D elsewhere.

    Raises :class:`LayoutValueError` for a shape that does not exist.

    >>> print(tmem_accumulator(64, 32), tmem_accumulator(128, 64, cta_group=2))
    ((16,4),32):((1@0,32@0),1@1) ((64,2),(32,2)):((1@0,1@2),(1@1,64@0))
    """
    expect("tmem_accumulator", int, "cta_group, an integer", cta_group)
    expect("tmem_accumulator", bool, "weight_stationary, a bool", weight_stationary)
    rows = (32, 64, 128) if weight_stationary else _ROWS.get(cta_group, ())
    if m not in rows or (weight_stationary and cta_group != 1):
        raise LayoutValueError(
            f"tmem_accumulator: expected m in {rows} for cta_group={cta_group!r}"
            f"{' and cta_group=1 for .ws' if weight_stationary else ''}, got {m!r}"
        )
    if weight_stationary and (type(n) is not int or n not in _WEIGHT_STATIONARY):
        raise LayoutValueError(
            f"tmem_accumulator: expected n in {_WEIGHT_STATIONARY} for .ws, got {n!r}"
        )
    _expect_columns("tmem_accumulator", n, cta_group)
    lane, column, cta = (ScaledBasis(1, (i,)) for i in range(3))
    if m == 64 and cta_group == 1 and not weight_stationary:  # half of each warp's lanes
        return Layout(((16, 4), n), ((lane, 32 * lane), column))
    per_cta = m // cta_group
    aside = 128 // per_cta  # parts of N in further lanes
    over_m = (per_cta, lane) if cta_group == 1 else ((per_cta, 2), (lane, cta))
    over_n = (n, column) if aside == 1 else ((n // aside, aside), (column, per_cta * lane))
    return Layout((over_m[0], over_n[0]), (over_m[1], over_n[1]))


def _expect_columns(function: str, n: int, cta_group: int) -> None:
    """Raise unless ``tcgen05.mma`` on these CTAs has this N: PTX ISA, "Matrix Shape"."""
    step = 8 * cta_group
    if type(n) is not int or n % step or not step <= n <= 256:
        ctas = "one CTA" if cta_group == 1 else "two CTAs"
        raise LayoutValueError(
            f"{function}: expected n = {step}, {2 * step}, ... 256 for {ctas}, got {n!r}"
        )
