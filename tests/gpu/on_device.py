"""Calls on a GPU: their kernels, and graphs of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Made = TypeVar("Made")


def kernels_of(call: Callable[[], object]) -> list[str]:
    """The names of the kernels that a call launches, the third one."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    gpu = torch.autograd.DeviceType.CUDA
    return [event.name for event in seen.events() or () if event.device_type == gpu]


def captured(call: Callable[[], Made]) -> tuple[torch.cuda.CUDAGraph, Made]:
    """A graph of a call, which a stream of its own ran before, and what its replays write."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = call()
    return graph, made
