"""A folder of kernels that are stand-ins of a kilobyte, and what processes do with it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from layoutconv.kernels.compile import store

compiled: list[int] = []
loaded: list[bytes] = []


class Kernel:
    """A stand-in for a compiled kernel, with what the store needs."""

    def __init__(self, number: int) -> None:
        compiled.append(number)
        self.number = number

    def export_to_c(self, path: str, function_name: str) -> None:
        Path(path).write_bytes(bytes([self.number]) * 1000)


def loaded_by(monkeypatch: pytest.MonkeyPatch, load: Callable[[bytes], Any]) -> None:
    """A kernel is what ``load`` makes of the bytes that are kept."""
    monkeypatch.setattr(store, "_from_object", load)


@pytest.fixture
def folder(kernel_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No cache yet, and a process that has loaded nothing."""

    def load(content: bytes) -> bytes:
        content = content[: store._end_of_object(content)]
        if b"does not load" in content:
            raise RuntimeError("not recognized as a valid object file")
        loaded.append(content)
        return content

    compiled.clear()
    loaded.clear()
    loaded_by(monkeypatch, load)
    return kernel_folder


def key(number: int) -> tuple[str, int]:
    return "stand-in", number


def path_of(folder: Path, number: int) -> Path:
    return folder / f"{store._digest(key(number))}.o"


def get(number: int) -> bool:
    """Return whether a process that has loaded nothing compiles a kernel; check the kernel."""
    store.unload()
    before = len(compiled)
    found = store.load(key(number), lambda: Kernel(number))
    assert found == bytes([number]) * 1000 or isinstance(found, Kernel)
    return len(compiled) > before


@pytest.fixture
def at_once() -> Iterator[None]:
    """Who waits for something is told off."""

    def late(*_: Any) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 20)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
