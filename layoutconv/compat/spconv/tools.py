"""``spconv.tools``: a timer that measures nothing. ``torch.profiler`` sees every kernel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any


class CUDAKernelTimer:
    """The timer of a tensor made with ``enable_timer``: its contexts do nothing.

    >>> timer = CUDAKernelTimer(enable=True)
    >>> with timer.namespace("layer"), timer.record("forward"):
    ...     timer.get_all_pair_time()
    {}
    """

    def __init__(self, enable: bool = True) -> None:
        self.enable = False

    def namespace(self, name: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def record(self, name: str, stream: int = 0) -> AbstractContextManager[Any]:
        return nullcontext()

    def get_all_pair_time(self) -> dict[str, float]:
        return {}

    @staticmethod
    def collect_by_name(name: str, res: dict[str, float]) -> dict[str, float]:
        """Return the times whose dotted names have ``name`` among their parts."""
        return {key: time for key, time in res.items() if name in key.split(".")}
