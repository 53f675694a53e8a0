"""Captures of CUDA graphs that fail leave nothing behind, and host waits are found before one."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from layoutconv.nn import graph_recorder
from layoutconv.nn.graph_recorder import CudaGraphs, HostReads

from ..stand_ins import Gpu


@pytest.mark.parametrize("of", ["", "Stream", "Event"])
def test_what_waits_for_the_device_is_refused_before_a_capture(of: str) -> None:
    wait: Any = torch.cuda.synchronize if not of else getattr(torch.cuda, of).synchronize
    expected = r"synchronize waits for the device, in .*test_captures"
    with pytest.raises(RuntimeError, match=expected), HostReads("cpu"):
        wait(object()) if of else wait()
    assert sys.getprofile() is None


class Nothing:
    """A stream, a graph or a device of no GPU."""

    def __enter__(self) -> None: ...
    def __exit__(self, *_: Any) -> None: ...
    def wait_stream(self, _: Any) -> None: ...
    def zero_(self) -> None: ...


@pytest.mark.parametrize("torch_ends", [False, True])
def test_a_capture_that_fails_is_ended(
    torch_ends: bool, monkeypatch: pytest.MonkeyPatch, gpu: Gpu
) -> None:
    """As torch 2.11 leaves one: its allocator goes on, its stream stays, its generator waits."""
    before, done = Nothing(), list[Any]()

    class Graph(Nothing):
        def __init__(self, graph: Any, pool: Any = None, **_: Any) -> None:
            self.fails = pool is not None

        def __exit__(self, *_: Any) -> None:
            if self.fails:
                raise RuntimeError("operation failed due to a previous error during capture")
            done.append("captured")

    def ends(*of: Any) -> None:
        if torch_ends:
            raise RuntimeError("not currently recording")
        done.append(("ended", *of))

    gpu.says(
        current_stream=before, Stream=Nothing, stream=Nothing(), CUDAGraph=Nothing, graph=Graph,
        graph_pool_handle=(0, 7), set_stream=done.append, current_device=3, device=Nothing(),
    )  # fmt: skip
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: Nothing())
    monkeypatch.setattr(graph_recorder, "end_of_pool", ends)
    monkeypatch.setattr(graph_recorder, "release_pool", lambda *of: done.append(("freed", *of)))
    monkeypatch.setattr(graph_recorder, "_FAILED", [])
    with pytest.raises(RuntimeError, match="during capture"):
        CudaGraphs(torch.device("cuda", 3)).record(lambda: None)
    own = [] if torch_ends else [("ended", 3, (0, 7)), ("freed", 3, (0, 7))]
    assert done == [before, *own, "captured"]
