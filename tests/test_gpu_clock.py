"""The clock of a GPU, over events that count calls in place of time."""

from __future__ import annotations

from typing import Any

from layoutconv.base.gpu_clock import gpu_microseconds

from .stand_ins import Gpu


def test_a_mean_of_all_calls_between_the_events(gpu: Gpu) -> None:
    """A call takes 3 ms here; the time is read when the second event has been waited for."""
    done: list[str] = []

    class Counted:
        at: int | None = None

        def __init__(self, enable_timing: bool = False) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = done.count("call")
            done.append("record")

        def synchronize(self) -> None:
            done.append("wait")

        def elapsed_time(self, end: Any) -> float:
            assert done[-1] == "wait"
            return 3.0 * (end.at - self.at)

    gpu.says(Event=Counted)
    assert gpu_microseconds(lambda: done.append("call"), 5) == 3000.0
    assert done == ["record", *["call"] * 5, "record", "wait"]
    assert gpu_microseconds(lambda: [done.append("call") for _ in range(2)]) == 6000.0
