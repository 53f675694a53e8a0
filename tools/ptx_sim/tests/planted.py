"""Faults to plant in the PTX of a kernel, and the matrix product that they break."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from .. import DeviceTensor, Memory, Stats, launch_of, parse, run


def edit(ptx: str, pattern: str, replacement: str, count: int = 0) -> str:
    """Replace text in the PTX; raise if there is nothing to replace."""
    edited, changes = re.subn(pattern, replacement, ptx, count=count)
    assert changes
    return edited


class Planted(NamedTuple):
    """An edit of PTX, and the fault that the simulator must raise for it."""

    pattern: str
    replacement: str
    fault: type[Exception]

    def is_caught(self, ptx: str, run: Callable[[str], object]) -> None:
        """Run the edited PTX, which must fail."""
        broken = edit(ptx, self.pattern, self.replacement)
        with pytest.raises(self.fault):
            run(broken)


def each(faults: list[tuple[str, str, str, type[Exception]]]) -> pytest.MarkDecorator:
    """Run a test once for each fault, a name and then what ``planted`` is made of."""
    cases = [pytest.param(Planted(*fault), id=name) for name, *fault in faults]
    return pytest.mark.parametrize("planted", cases)


def run_on(compiled: Any, ptx: str, arrays: dict[str, np.ndarray], **options: Any) -> Stats:
    """Run a kernel of fp16 tensors, which must write all of ``d``; return what was executed."""
    memory = Memory()
    tensors = [
        DeviceTensor(memory.add(x, name, output=name == "d"), x.shape, "float16")
        for name, x in arrays.items()
    ]
    kernel = parse(ptx)
    launch = launch_of(kernel, compiled, *tensors, 0)
    options["shared_bytes"] = launch.shared_bytes
    stats = run(kernel, memory, launch.arguments, launch.grid, **options)
    assert memory.written(memory.find("d")).all()
    return stats


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
    stats = run_on(compiled, ptx, {"a": a, "b": b, "d": d}, **options)
    return d, (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16), stats
