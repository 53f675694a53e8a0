"""Kernels that are compiled to be run in the simulator."""

from __future__ import annotations

import tempfile
from functools import cache
from typing import Any

from tools.ptx_sim import parse


def to_simulate(build: Any, *key: Any) -> tuple[Any, Any]:
    """Return the function that ``build(*key)`` compiles, and its program."""
    with tempfile.TemporaryDirectory() as folder:
        function = build(*key, dump=folder)
        return function, parse(function.__ptx__)


simulated = cache(to_simulate)  # once in a process
