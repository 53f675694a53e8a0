"""The folder of kept kernels: how large it gets, and who shares it: processes, forks, systems."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from layoutconv.base import cache_folder
from layoutconv.base.cache_folder import cache_limit, leftovers, read_file, shrink
from layoutconv.cli import main
from layoutconv.errors import ArgumentError
from layoutconv.kernels.compile import store, toolchains

from .kept_kernels import Kernel, at_once, compiled, folder, get, key, path_of

__all__ = ["at_once", "folder"]  # fixtures

ROOT = Path(__file__).parents[2]


# -- how large it gets ----------------------------------------------------------------------------


def made(folder: Path, number: int, *, used: float, version: str = "") -> Path:
    """A file of 1000 bytes with the name of a kernel."""
    name = (version or toolchains.current_version()) + f"{number:048x}"
    path = folder / f"{name}.o"
    path.write_bytes(bytes(1000))
    os.utime(path, (used, 1e9))
    return path


def test_other_versions_go_first_and_then_what_was_used_longest_ago(folder: Path) -> None:
    folder.mkdir()
    ours = [made(folder, number, used=100 - number) for number in range(4)]
    others = [made(folder, 9 - n, used=200 + n, version="f" * 16) for n in range(3)]
    stranger, old = folder / "notes.o", folder / "tmp1-x.o"
    for path in (stranger, old):
        path.write_bytes(bytes(5000))
    os.utime(old, (0, 0))
    inorder = [*others, *reversed(ours)]
    for left in range(7, -1, -1):
        shrink(folder, 1000 * left, toolchains.current_version())
        assert {path for path in inorder if path.exists()} == set(inorder[7 - left :])
    assert stranger.exists()
    assert not old.exists()


def test_the_limit_holds_and_what_is_loaded_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get(0)
    size = path_of(folder, 0).stat().st_size
    monkeypatch.setenv("LAYOUTCONV_CACHE_LIMIT", str(3 * size + 5))
    for number in range(1, 12):
        assert get(number)
        os.utime(path_of(folder, number), (number, number))  # long ago, and made then
        assert not get(0)  # so that it was used last
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 3 * size + 5
        assert path_of(folder, number).stat().st_mtime == number
    assert {n for n in range(12) if path_of(folder, n).exists()} == {0, 10, 11}


def test_a_limit_of_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYOUTCONV_CACHE_LIMIT", "0")
    assert get(1)
    assert get(1)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [("", 4 * 10**9), ("123", 123), ("1.5 GB", 15 * 10**8), ("20kb", 20_000), ("7 B", 7)],
)
def test_sizes(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYOUTCONV_CACHE_LIMIT", text)
    assert cache_limit() == size


@pytest.mark.parametrize("text", ["much", "-1", "4 XB", "1e9", "٣", "GB", "1" * 99])
def test_what_is_no_size_is_named(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAYOUTCONV_CACHE_LIMIT", text)
    with pytest.raises(ArgumentError, match=r"LAYOUTCONV_CACHE_LIMIT.*such as 500 MB"):
        get(1)
    assert not compiled  # for nothing
    assert main(["cache", "list"]) == 2
    assert "LAYOUTCONV_CACHE_LIMIT" in capsys.readouterr().err


# -- who shares it --------------------------------------------------------------------------------


def in_child(run: Callable[[], object], seconds: int = 20) -> int:
    """Start a process that was forked from this one; a signal ends it if it waits."""
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            run()
            status = 0
        finally:
            os._exit(status)
    return child


def status_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_does_not_wait_for_a_thread_of_its_parent(folder: Path) -> None:
    """Which compiles, and holds the lock, when the process is forked."""
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> Kernel:
        begun.set()
        assert go_on.wait(60)
        return Kernel(1)

    thread = threading.Thread(target=lambda: store.load(key(1), slow))
    thread.start()
    try:
        assert begun.wait(60)
        assert store._lock.locked()
        assert status_of(in_child(lambda: (get(2), get(1)))) == 0
    finally:
        go_on.set()
        thread.join()
    assert not store._lock.locked()
    assert path_of(folder, 2).exists()


def test_who_forks_while_compiling_goes_on(folder: Path) -> None:
    """The thread that holds the lock is the one that is forked: the child releases its own."""

    def forking() -> Kernel:
        assert status_of(in_child(lambda: get(2))) == 0
        return Kernel(1)

    store.load(key(1), forking)
    assert not store._lock.locked()


def test_nobody_waits_for_one_that_was_killed_while_it_wrote(
    folder: Path, at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed() -> None:
        cache_folder.make_folder(folder)
        with cache_folder.in_its_place(path_of(folder, 1)) as temporary:
            temporary.write_bytes(b"half a ker")
            os.kill(os.getpid(), signal.SIGKILL)

    assert status_of(in_child(killed)) == -signal.SIGKILL
    [left] = folder.iterdir()
    assert leftovers(folder) == [left]
    assert get(1)
    assert not get(1)
    assert main(["cache", "clear", "--only", "tuned"]) == 0
    assert [path.name for path in folder.iterdir()] == [path_of(folder, 1).name]


def test_what_is_being_written_is_not_left_over(folder: Path) -> None:
    cache_folder.make_folder(folder)
    with cache_folder.in_its_place(path_of(folder, 1)) as temporary:
        assert leftovers(folder) == []
        os.utime(temporary, (0, 0))
        assert leftovers(folder) == [temporary]


def test_processes_evict_what_others_are_about_to_load(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three at once, and room for two kernels of eight: nobody gets an error, or a wrong one."""
    get(0)
    monkeypatch.setenv("LAYOUTCONV_CACHE_LIMIT", str(2 * path_of(folder, 0).stat().st_size))

    def run(step: int) -> None:
        warnings.simplefilter("error")
        for number in range(100):
            get(number * step % 8)

    children = [in_child(lambda step=step: run(step), 60) for step in (1, 3, 5)]
    assert [status_of(child) for child in children] == [0, 0, 0]
    kept = cache_folder.kernels(folder)
    assert len(kept) <= 2
    assert all(store._content(kernel.path) for kernel in kept)
    assert leftovers(folder) == []


# -- systems that have less -----------------------------------------------------------------------

WITHOUT = f"""
import os, random, subprocess, sys, tempfile  # which find out what the system has
for name in ("register_at_fork", "memfd_create", "geteuid", "uname", "O_NONBLOCK", "O_NOFOLLOW",
             "O_CLOEXEC", "O_NOCTTY", "O_NOATIME"):
    if hasattr(os, name):
        delattr(os, name)
os.supports_fd = set()
sys.path.insert(0, {str(ROOT)!r})
import conftest
from pathlib import Path
from layoutconv.kernels.compile import store
class Kernel:
    def export_to_c(self, path, function_name):
        Path(path).write_bytes(bytes(1000))
store._from_object = lambda content: content
for _ in range(2):
    store._loaded.clear()
    store.load("a kernel", Kernel)
    Kernel = None
with store.as_file(b"content") as path:
    assert Path(path).read_bytes() == b"content"
from layoutconv.cli import main
sys.exit(main(["cache", "list"]))
"""


def test_systems_without_owners_forks_and_files_in_memory(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1 kernels" in done.stdout
    assert done.stderr == ""


def test_reading_notes_is_no_use(folder: Path) -> None:
    get(1)
    path = path_of(folder, 1)
    os.utime(path, (1000, 2000))
    assert store.note(path) is not None
    assert read_file(path) is not None
    if hasattr(os, "O_NOATIME"):
        assert path.stat().st_atime == 1000
    get(1)
    assert path.stat().st_atime > 1e9
    assert path.stat().st_mtime == 2000
