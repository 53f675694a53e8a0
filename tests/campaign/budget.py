"""How large problems may be: on a GPU, on a CPU, and in the interpreter of kernels."""

from __future__ import annotations

from dataclasses import dataclass

SIZES = 5  # problems of a kind: neighbouring seeds


@dataclass(frozen=True)
class Budget:
    """Bounds of a problem.

    Args:
        products: of one pass.
        elements: of a tensor.
        channels: C and K.
        taps: of a filter.
        rows: of a cloud.
    """

    products: int
    elements: int
    channels: int
    taps: int
    rows: int


BUDGETS = {
    "gpu": Budget(products=2**33, elements=2**23, channels=512, taps=343, rows=30_000),
    "cpu": Budget(products=2**22, elements=2**15, channels=96, taps=125, rows=400),
    "tiny": Budget(products=2**17, elements=2**12, channels=40, taps=27, rows=60),
}


def kind_of(seed: int) -> int:
    """The number of the kind that a seed belongs to."""
    return seed // SIZES
