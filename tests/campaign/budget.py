"""Bounds of problems: on a GPU, on a CPU, and in the interpreter of kernels.

Large ones fill a GPU many times over, as persistent kernels and ping-pong are chosen only there.
"""

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
        small: the share of dense problems with a thirty-second of these elements.
        whole: whether most numbers of channels of dense problems are whole vectors.
    """

    products: int
    elements: int
    channels: int
    taps: int
    rows: int
    small: float = 0.0
    whole: bool = False


BUDGETS = {
    "large": Budget(
        products=2**36, elements=2**26, channels=512, taps=343, rows=300_000, whole=True
    ),
    "gpu": Budget(products=2**33, elements=2**23, channels=512, taps=343, rows=30_000, small=0.85),
    "cpu": Budget(products=2**22, elements=2**15, channels=96, taps=125, rows=400),
    "tiny": Budget(products=2**17, elements=2**12, channels=40, taps=27, rows=60),
}


def kind_of(seed: int) -> int:
    """The number of the kind that a seed belongs to."""
    return seed // SIZES
