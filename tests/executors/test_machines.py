"""GPUs that are present, as plans ask for them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from layoutconv.errors import DeviceError
from layoutconv.gpu import machines

from ..stand_ins import Gpu


def test_a_gpu_is_asked_once_what_it_is_like(gpu: Gpu) -> None:
    """Every kernel map of a training step wants to know, and asking takes the host 10 us."""
    asked: list[int] = []

    def properties(device: int) -> SimpleNamespace:
        asked.append(device)
        return SimpleNamespace(
            name=f"GPU {device}", major=9, minor=0, multi_processor_count=100 + device,
            shared_memory_per_block_optin=1 << 17, shared_memory_per_multiprocessor=1 << 18,
            memory_clock_rate=2_619_000, memory_bus_width=5120,
        )  # fmt: skip

    gpu.says(get_device_properties=properties)
    gpu.has_driver(13000)
    found = [machines.machine_of(device) for device in (0, 1, 0, 1)]
    assert asked == [0, 1]
    assert [machine.sm_count for machine in found] == [100, 101, 100, 101]
    assert found[0].bandwidth > 1e6


@pytest.mark.parametrize("said", [AssertionError("Invalid device id"), RuntimeError("no driver")])
def test_a_gpu_that_is_not_here_is_told_as_such(gpu: Gpu, said: Exception) -> None:
    def properties(device: int) -> SimpleNamespace:
        raise said

    gpu.says(get_device_properties=properties)
    gpu.has_driver(13000)
    for _ in range(2):
        with pytest.raises(DeviceError, match=f"there is no GPU 7 here: {said}"):
            machines.machine_of(7)
