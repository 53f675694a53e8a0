"""Every arithmetic instruction against its meaning in exact Python numbers."""

from __future__ import annotations

import numpy as np
import pytest

from .cases import ALL, Case, expected, values
from .snippets import elementwise


@pytest.mark.parametrize("case", ALL, ids=str)
def test_value(case: Case) -> None:
    arrays = values(case)
    want = expected(case, arrays)
    got = elementwise(case.instruction, arrays, case.out)
    wrong = np.flatnonzero(got != want)
    assert not wrong.size, (
        f"{case}: operands {[x[wrong[0]] for x in arrays]}, got {got[wrong[0]]}, "
        f"expected {want[wrong[0]]}; {wrong.size} of {got.size} wrong"
    )
