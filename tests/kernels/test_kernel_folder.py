"""The folder of kept kernels: whose it is, and what may lie in it."""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layoutconv.base.cache_folder import printable, write_file
from layoutconv.cli import main
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.kernels.compile import store
from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.planning.tile import TileConfig

from .kept_kernels import Kernel, at_once, folder, get, loaded, loaded_by, path_of

__all__ = ["at_once", "folder"]  # fixtures

IS_ROOT = os.geteuid() == 0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- whose it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_folder_is_for_its_owner_alone(folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert get(1)
        write_file(folder / "choice.json", b"{}")
    finally:
        os.umask(before)
    assert mode(folder) == 0o700
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    assert not get(1)


@pytest.mark.parametrize("bits", [0o770, 0o707, 0o777, 0o720, 0o702])
def test_a_folder_that_others_may_write_to_is_not_used(folder: Path, bits: int) -> None:
    get(1)
    folder.chmod(bits)
    with pytest.warns(UserWarning, match=rf"not used: others may write to it \(mode 0{bits:o}\)"):
        assert get(1)
    with pytest.warns(UserWarning, match="chmod 700"):
        assert get(2)
    assert [path.name for path in folder.iterdir()] == [path_of(folder, 1).name]
    folder.chmod(0o700)
    assert not get(1)


@pytest.mark.parametrize("bits", [0o700, 0o755, 0o500])
def test_one_that_others_may_read_is(folder: Path, bits: int) -> None:
    get(1)
    folder.chmod(bits)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not get(1)
    finally:
        folder.chmod(0o700)


@pytest.fixture
def run_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function: this process is another user's, by number."""
    return lambda user: monkeypatch.setattr(os, "geteuid", lambda: user)


def of_another_user(path: Path, run_by: Callable[[int], None]) -> None:
    if IS_ROOT:
        os.chown(path, 65534, -1)
    else:
        run_by(os.geteuid() + 1)


def test_a_folder_of_another_user_is_not_used(
    folder: Path, run_by: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    get(1)
    of_another_user(folder, run_by)
    with pytest.warns(UserWarning, match=r"user \d+ owns it and you are \d+"):
        assert get(1)
    assert main(["cache", "list"]) == 0
    assert re.search(r"1 kernels, .*, not used: user \d+ owns it", capsys.readouterr().out)


@pytest.mark.skipif(not IS_ROOT, reason="gives files away")
def test_what_root_made_may_be_read_by_others(folder: Path, run_by: Callable[[int], None]) -> None:
    get(1)
    folder.chmod(0o755)
    path_of(folder, 1).chmod(0o644)
    run_by(1000)
    assert not get(1)


def test_the_warning_is_given_once(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for number in range(4):
            get(number)
    assert len(told) == 1
    assert str(folder) in str(told[0].message)


@pytest.mark.parametrize("how", ["others may write", "another user's"])
def test_so_are_files(folder: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is used and replaced as if it were not there."""
    get(1)
    path = path_of(folder, 1)
    if how == "others may write":
        path.chmod(0o666)
    elif not IS_ROOT:
        pytest.skip("gives a file away")
    else:
        os.chown(path, 65534, -1)
    assert get(1)
    assert mode(path) == 0o600
    assert not get(1)


# -- what may lie in it ---------------------------------------------------------------------------

IN_ITS_PLACE: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "dangling link": lambda path: path.symlink_to(path.parent / "nowhere"),
    "link to itself": lambda path: path.symlink_to(path),
    "link to another's": lambda path: path.symlink_to("/etc/passwd"),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "unreadable": lambda path: (path.write_bytes(b"x"), path.chmod(0)),
    "empty": Path.touch,
    "text": lambda path: path.write_text("not a kernel" * 100),
    "large": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
}


@pytest.mark.parametrize("what", IN_ITS_PLACE)
def test_what_is_in_the_place_of_a_kernel_is_replaced(
    folder: Path, what: str, at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.mkdir(mode=0o700)
    path = path_of(folder, 1)
    IN_ITS_PLACE[what](path)
    assert store.note(path) is None
    assert main(["cache", "list"]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert get(1)
    assert path.is_file()
    assert not path.is_symlink()
    assert not get(1)


@pytest.mark.parametrize("what", IN_ITS_PLACE)
def test_it_is_deleted_with_the_others(
    folder: Path, what: str, at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    get(2)
    path = path_of(folder, 1)
    IN_ITS_PLACE[what](path)
    assert main(["cache", "clear"]) == 0
    assert os.path.lexists(path) is (what == "folder")  # no file of ours
    assert Path("/etc/passwd").exists()


def test_a_folder_with_something_in_it_stays(folder: Path) -> None:
    path_of(folder, 1).mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    (path_of(folder, 1) / "mine").touch()
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert get(1)
    assert (path_of(folder, 1) / "mine").exists()


def test_a_pipe_in_the_place_of_a_choice(folder: Path, at_once: None) -> None:
    from layoutconv.gpu import measured_choices

    for place in ("a pipe.json", "deep.json", "strange.json"):
        path = measured_choices.folder() / "A GPU" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if "pipe" in place:
            os.mkfifo(path)
        else:
            path.write_text("[" * 100_000 if "deep" in place else '{"tile": {"m": "\x1b"}}')
    folder.chmod(0o700)
    assert list(measured_choices.kept()) == []


def test_a_kernel_under_the_name_of_another_is_none(folder: Path) -> None:
    get(1)
    path_of(folder, 1).rename(path_of(folder, 2))
    assert get(2)
    assert loaded[-1] == bytes([2]) * 1000


def test_what_does_not_load_is_compiled_once_more(folder: Path) -> None:
    """Whole, under its own name, and no object all the same."""
    get(1)
    path = path_of(folder, 1)
    content = b"does not load"
    path.write_bytes(content + store._seal(path, content))
    assert store._content(path) == content
    assert get(1)
    assert not get(1)


def test_the_compiler_says_no_to_what_is_no_object(
    kernel_folder: Path, compilations: list[Any]
) -> None:
    """The real one, of a real kernel of which half is there."""
    view = fprop_view(ConvProblem((1, 20, 8), (8, 1)))
    spec = KernelSpec.of(view, "float16", "float16", TileConfig((16, 16, 32), (1, 1), 2), "sm_80")
    store.load_kernel(view, spec)
    [path] = kernel_folder.iterdir()
    whole = path.read_bytes()
    compilations.clear()
    for content in (whole[:9000], b"text" * 1000):
        path.write_bytes(content + store._seal(path, content))
        for _ in range(2):
            store.unload()
            assert callable(store.load_kernel(view, spec))
        assert len(compilations) == 1
        compilations.clear()
        assert path.read_bytes()[:1000] == whole[:1000]


def test_where_even_a_new_one_does_not_load_it_runs_as_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(content: bytes) -> None:
        raise RuntimeError("no memory to load it")

    loaded_by(monkeypatch, fails)
    assert get(1)
    assert get(1)


def test_what_is_loaded_is_what_was_verified(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though another process replaces the file between the two."""
    get(1)
    original = store._seal

    def replaced(path: Path, content: bytes) -> bytes:
        path.write_bytes(b"evil" * 1000)
        return original(path, content)

    monkeypatch.setattr(store, "_seal", replaced)
    assert not get(1)
    assert loaded[-1] == bytes([1]) * 1000


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_file_that_is_loaded_is_private(
    in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("no files in memory")
    with store.as_file(b"content" * 10_000) as path:
        assert Path(path).read_bytes() == b"content" * 10_000
        if in_memory:
            with pytest.raises(OSError), open(path, "r+b") as file:
                file.write(b"other")
        else:
            assert mode(Path(path).parent) == 0o700
    assert not os.path.exists(path)


def test_notes_are_printed_without_what_moves_a_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.load(("\x1b]0;evil\x07\x9b2J\u202e\r\n", 1), lambda: Kernel(1))
    for command in (["cache", "list"], ["cache", "list", "--json"], ["cache"]):
        assert main(command) == 0
        out = capsys.readouterr().out
        assert not set("\x1b\x07\x9b\u202e\r") & set(out)
    assert printable("ä→\t") == "ä→?"
