"""Timing on a GPU: medians of batches between events; errors against float64.

A batch is long enough that the host's time per launch does not show, and where two sides are
compared their batches alternate, so that clocks and neighbours act on both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from layoutconv.base.gpu_clock import gpu_microseconds

Call = Callable[[], object]


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_microseconds(call: Call, iterations: int, repeats: int = 7) -> float:
    """Median over ``repeats`` of the mean time of a launch in a batch of ``iterations``."""
    for _ in range(3):
        call()
    return statistics.median(_batch(call, iterations) for _ in range(repeats))


def interleaved_microseconds(
    calls: Sequence[Call], batch: float = 2000.0, repeats: int = 7
) -> list[float]:
    """Median time of a launch of each call, batches of them in turns.

    A batch takes about ``batch`` microseconds, and is a CUDA graph where the call can be captured,
    so that a launch takes what the GPU needs and not what Python does.
    """
    runs, counts = [], []
    for call in calls:
        for _ in range(3):
            call()
        once = min(_batch(call, 2) for _ in range(2))
        counts.append(max(2, min(100, round(batch / max(once, 1.0)))))
        runs.append(_captured(call, counts[-1]))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for run, count, found in zip(runs, counts, times, strict=True):
            found.append(_batch(run, 1) / count)
    return [statistics.median(found) for found in times]


def host_microseconds(call: Call, calls: int = 100, repeats: int = 20) -> float:
    """Time that the host spends on a call: the best of a few batches, the device not waited for."""
    best = float("inf")
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    torch.cuda.synchronize()
    return 1e6 * best


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """``|out - reference| / |reference|`` in float64; NaN where anything was left unwritten."""
    out, reference = out.double(), reference.double()
    return float((out - reference).norm() / reference.norm())


def _batch(call: Call, iterations: int) -> float:
    if not torch.cuda.is_available():  # of a test, on a CPU
        begin = time.perf_counter()
        for _ in range(iterations):
            call()
        return 1e6 * (time.perf_counter() - begin) / iterations
    return gpu_microseconds(call, iterations)


def captured(call: Call) -> Call | None:
    """The replay of a call as a CUDA graph, or None where it cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def _captured(call: Call, count: int) -> Call:
    """Return a launcher of ``count`` calls: the replay of a graph, or else a loop."""

    def loop() -> None:
        for _ in range(count):
            call()

    return captured(loop) or loop
