"""Time calls on a GPU between two events of its stream."""

from __future__ import annotations

from collections.abc import Callable

import torch


def gpu_microseconds(call: Callable[[], object], times: int = 1) -> float:
    """Return the mean microseconds of a call, over ``times`` in a row on the current stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return 1e3 * milliseconds / times
