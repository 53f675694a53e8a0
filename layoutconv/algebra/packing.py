"""Pack a sum of scaled bases into one integer, so that exact integer methods serve vectors, too.

The components are digits in a base so large that they never carry into each other: sums of a
bounded number of bounded vectors are equal if and only if their packed integers are.
"""

from __future__ import annotations

from typing import Any

from .basis import ScaledBasis, basis_terms, sum_of_bases

Path = tuple[int, ...]


class Packing:
    """Packs the strides of one layout; ``bound`` is the most terms that a sum may have.

    >>> packing = Packing([ScaledBasis(3, (0,)), ScaledBasis(-1, (1,))], bound=10)
    >>> packed = 2 * packing.pack(ScaledBasis(3, (0,))) + packing.pack(ScaledBasis(-1, (1,)))
    >>> packing.unpack(packed)
    ArithmeticTuple((6, -1))
    """

    def __init__(self, strides: list[Any], bound: int) -> None:
        terms = [term for d in strides for term in basis_terms(d)]
        self.paths: list[Path] = sorted({term.path for term in terms})
        largest = max((abs(int(term.value)) for term in terms), default=0)
        self.bits = (largest + 1).bit_length() + bound.bit_length() + 2

    def pack(self, d: Any) -> int:
        """Return the integer of a stride; a plain integer stride is its own."""
        if isinstance(d, int):
            return int(d)
        return sum(
            int(term.value) << self.bits * self.paths.index(term.path) for term in basis_terms(d)
        )

    def unpack(self, packed: int) -> Any:
        """Return the stride of an integer: a scaled basis, a sum of them, or a plain 0."""
        if not self.paths:
            return packed
        half = 1 << (self.bits - 1)
        terms = []
        for path in self.paths:
            value = ((packed + half) & (2 * half - 1)) - half
            packed = (packed - value) >> self.bits
            if value:
                terms.append(ScaledBasis(value, path))
        return sum_of_bases(terms)
