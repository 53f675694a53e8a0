"""``any`` and ``all`` of arrays of a CTA's size, needed several times per instruction.

NumPy's ``any`` and ``all`` take 2 us for any size, a fourth of an instruction's time;
``count_nonzero`` takes 0.4 us, and 0.1 us without NumPy's dispatch for other array types.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_count = getattr(np.count_nonzero, "__wrapped__", np.count_nonzero)


def some(values: NDArray) -> bool:
    """True if any of the values is not zero.

    >>> some(np.array([False, True])), some(np.array([], np.bool_))
    (True, False)
    """
    return bool(_count(values))


def every(values: NDArray) -> bool:
    """True if none of the values is zero.

    >>> every(np.array([True, False])), every(np.array([], np.bool_))
    (False, True)
    """
    return bool(_count(values) == values.size)
