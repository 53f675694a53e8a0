"""Questions to arrays of a CTA's size, asked several times an instruction.

``any`` and ``all`` of an array take 2 us whatever its size, a fourth of an instruction's time;
counting what is not zero takes 0.4 us.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def some(values: NDArray) -> bool:
    """True if any of the values is not zero.

    >>> some(np.array([False, True])), some(np.array([], np.bool_))
    (True, False)
    """
    return bool(np.count_nonzero(values))


def every(values: NDArray) -> bool:
    """True if none of the values is zero.

    >>> every(np.array([True, False])), every(np.array([], np.bool_))
    (False, True)
    """
    return bool(np.count_nonzero(values) == values.size)
