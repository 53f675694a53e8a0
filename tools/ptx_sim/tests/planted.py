"""Faults that are planted in the PTX of a kernel, and the product of matrices that they spoil."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from .. import DeviceTensor, Memory, Stats, launch_of, parse, run

Planted = list[tuple[str, str, str, type[Exception]]]  # name, pattern, replacement, what is raised


def edit(ptx: str, pattern: str, replacement: str, count: int = 0) -> str:
    """Replace in the PTX; an error where there is nothing to replace."""
    edited, changes = re.subn(pattern, replacement, ptx, count=count)
    assert changes
    return edited


def each(faults: Planted) -> pytest.MarkDecorator:
    """Run a test once for each fault, with ``pattern``, ``replacement`` and ``fault``."""
    cases = [pytest.param(*fault[1:], id=fault[0]) for fault in faults]
    return pytest.mark.parametrize(("pattern", "replacement", "fault"), cases)


def multiply(
    compiled: Any, ptx: str, m: int, n: int, k: int, **options: Any
) -> tuple[np.ndarray, np.ndarray, Stats]:
    """D, (m, n), as a kernel of A, (m, k), and B, (n, k), computes it in fp16; as it should be; and
    what was executed.
    """
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m, k)).astype(np.float16)
    b = rng.standard_normal((n, k)).astype(np.float16)
    d = np.zeros((m, n), np.float16)
    memory = Memory()
    tensors = [
        DeviceTensor(memory.add(x, name, output=name == "d"), x.shape, "float16")
        for x, name in ((a, "a"), (b, "b"), (d, "d"))
    ]
    kernel = parse(ptx)
    launch = launch_of(kernel, compiled, *tensors, 0)
    options["shared_bytes"] = launch.shared_bytes
    stats = run(kernel, memory, launch.arguments, launch.grid, **options)
    assert memory.written(memory.find("d")).all()
    return d, (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16), stats
