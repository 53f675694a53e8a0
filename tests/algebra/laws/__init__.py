"""The law of each operation, as a check of one random case; no test framework is needed.

A law makes its operands, applies the operation, and compares the result with the definition over
its whole domain. It returns ``"exact"``, ``"refused"`` where the operation rightly has no result,
or raises :class:`LawError`: the result is wrong, or was refused although there is one.
"""

from . import (
    analyses,
    casts,
    compositions,
    entries,
    inverses,
    products,
    questions,
    same_function,
    tiles,
    xor_tilers,
)
from .running import CALLED, VOID, LawError

_ROOMS = (
    same_function,
    entries,
    questions,
    analyses,
    tiles,
    compositions,
    products,
    inverses,
    casts,
    xor_tilers,
)

LAWS = {
    name[4:]: law for room in _ROOMS for name, law in vars(room).items() if name.startswith("law_")
}

__all__ = ["CALLED", "LAWS", "VOID", "LawError"]
