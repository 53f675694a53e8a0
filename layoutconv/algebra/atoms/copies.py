"""``copy_atom``: copy instructions by name, including those of tensor memory."""

from __future__ import annotations

from functools import lru_cache

from .atom import CopyAtom, unknown
from .tmem_copies import tmem_copy, tmem_names
from .warp_copies import warp_copy, warp_names


@lru_cache(maxsize=1)
def copy_names() -> tuple[str, ...]:
    """Return the names that :func:`copy_atom` knows.

    >>> "ldmatrix.x4" in copy_names(), "tcgen05.cp.128x256b" in copy_names()
    (True, True)
    """
    return (*warp_names(), *tmem_names())


@lru_cache(maxsize=256)
def copy_atom(name: str) -> CopyAtom:
    """Return the copy instruction of this PTX name, without the parts that do not affect layouts.

    Names: ``ldmatrix`` and ``stmatrix`` (with ``.trans``, and for bytes), ``movmatrix``,
    ``cp.async`` with bytes, ``universal`` with bits, and ``tcgen05.ld``, ``.st`` and ``.cp`` of
    tensor memory. For a TMA box, see :func:`tma_atom`.

    Raises :class:`LayoutValueError` that lists the known names.

    >>> atom = copy_atom("ldmatrix.x4")
    >>> print(atom.source, atom.destination)
    (32,128):(128,1) (32,(32,4)):(32,(1,1024))
    """
    if name not in copy_names():
        raise unknown("copy_atom", name, copy_names())
    return tmem_copy(name) if name.startswith("tcgen05") else warp_copy(name)
