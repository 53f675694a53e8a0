"""The time of a call, on a CPU or a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist


def best_seconds(call: Callable[[], object], device: torch.device, repeats: int = 6) -> float:
    """Return the least of the times of a call, which all ranks make together if there are several.

    A GPU is done before the clock starts and before it is read. The first call may compile.
    """

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    best = float("inf")
    for _ in range(repeats):
        if dist.is_initialized():
            dist.barrier()
        wait()
        begin = time.perf_counter()
        call()
        wait()
        best = min(best, time.perf_counter() - begin)
    return best
