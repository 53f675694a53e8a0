"""Workers with operations that take for ever, in place of some that do not."""

from __future__ import annotations

import pytest

from layoutconv.draw import workers

# One runs for ever, one does so where Python looks at no signal, and one takes all memory.
_OPERATIONS = """
from layoutconv import algebra
def spin(a):
    while True:
        pass
algebra.nullspace = spin
algebra.flatten_layout = lambda a: sum(range(10**12))
algebra.make_layout_like = lambda a: [bytearray(1 << 20) for _ in range(10**6)]
"""


def slow_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give them to the workers that are started from now on."""
    head, _, tail = workers._CODE.partition("; from")
    monkeypatch.setattr(workers, "_CODE", f"{head}{_OPERATIONS}from{tail}")
