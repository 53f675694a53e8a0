"""Products of the CPU executor that are cut smaller than usual."""

from __future__ import annotations

import pytest

from layoutconv.cpu import cpu_executor


def blocked(patch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Cut products by these ``sizes``, and the usual ones else."""
    patch.setattr(cpu_executor, "BLOCKING", cpu_executor.BLOCKING._replace(**sizes))
