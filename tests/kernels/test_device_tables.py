"""Tables of taps stay where they are for as long as a CUDA graph may read them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import layoutconv as lc
from layoutconv.kernels.maps import device_tables, per_rank
from layoutconv.kernels.maps.device_tables import device_table

from ..stand_ins import Gpu

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> Iterator[SimpleNamespace]:
    """A GPU that launches nothing, and says whether it captures."""
    state = SimpleNamespace(captures=False)
    for module in (per_rank, device_tables):
        monkeypatch.setattr(module, "is_capturing", lambda: state.captures)
    gpu.says(current_device=0)
    lc.clear_caches(kernels=True)
    yield state
    lc.clear_caches(kernels=True)


class OnGPU(torch.Tensor):
    """A tensor that says it is on a GPU."""

    def get_device(self) -> int:
        return 0


def launch(*tables: torch.Tensor) -> None:
    kernel: Any = SimpleNamespace(functions={0: lambda *of: None})
    per_rank.launch(kernel, (torch.empty(0).as_subclass(OnGPU), *tables), (), ())


def many(first: int) -> None:
    """More tables than are kept."""
    for number in range(first, first + 1100):
        device_table((number,), CPU)
    gc.collect()


def test_a_first_call_within_a_capture_is_refused(gpu: SimpleNamespace) -> None:
    gpu.captures = True
    with pytest.raises(RuntimeError, match="run the network once before it"):
        device_table((1, 2), torch.device("cuda", 0))


def test_a_captured_table_is_never_dropped_and_others_are(gpu: SimpleNamespace) -> None:
    eager, captured = device_table((-1, 2), CPU), device_table(((-1, 3),), CPU)
    before, address = weakref.ref(eager), captured.data_ptr()
    launch(eager)
    gpu.captures = True
    launch(captured)
    gpu.captures = False
    del eager, captured
    many(0)
    assert before() is None
    (kept,) = device_tables._READ_BY_GRAPHS.values()
    assert (kept.data_ptr(), kept.tolist()) == (address, [[-1, 3]])
    # The next graph of the same taps reads the same memory, and nothing is kept twice.
    gpu.captures = True
    launch(device_table(((-1, 3),), CPU), torch.ones(2))
    assert device_table(((-1, 3),), CPU) is kept
    assert len(device_tables._READ_BY_GRAPHS) == 1


def test_they_go_with_the_kernels(gpu: SimpleNamespace) -> None:
    gpu.captures = True
    launch(device_table((7,), CPU))
    found = weakref.ref(device_table((7,), CPU))
    lc.clear_caches()
    assert found() is not None
    lc.clear_caches(kernels=True)
    gc.collect()
    assert found() is None


def test_they_are_bounded(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_tables, "_MOST_BYTES", 40)
    gpu.captures = True
    for number in range(10):
        launch(device_table((number,), CPU))
    launch(device_table((3,), CPU))
    with pytest.raises(RuntimeError, match=r"10 tables.*clear_caches\(kernels=True\)"):
        launch(device_table((10,), CPU))
    gpu.captures = False
    launch(device_table((10,), CPU))
