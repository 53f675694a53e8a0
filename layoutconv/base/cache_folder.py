"""The cache folder of kernels and measured choices: ownership, reads and writes, size limit.

A kept kernel is machine code that this process runs, so whoever can write to the folder can run
any code as its reader. The folder is created for its owner alone, and is not used if others may
write to it. Files are opened once, without waiting and without following links, and used only if
they are plain files of the same owner.

Nothing is locked. A file is written under a temporary name and moved into place as a whole; if
another process deletes one meanwhile, it counts as missing.
"""

from __future__ import annotations

import os
import re
import stat
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ..errors import ArgumentError

FOLDER, LIMIT = "LAYOUTCONV_CACHE_DIR", "LAYOUTCONV_CACHE_LIMIT"  # environment variables
DEFAULT_LIMIT = 4_000_000_000
MOST_BYTES = 256 << 20  # of a file: kernels have 20 kB to 1 MB
PREFIX = 16  # characters of a kernel's name that identify the version of the sources
UNFINISHED = 3600  # seconds after which an unfinished file counts as left over
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


class Kernel(NamedTuple):
    """A kept kernel: its path, size in bytes, and when it was last used, and made."""

    path: Path
    size: int
    used: float
    made: float


def cache_directory() -> Path:
    """Return where kernels are kept: ``LAYOUTCONV_CACHE_DIR``, or ``~/.cache/layoutconv``.

    It need not exist or be writable; nothing is kept then.
    """
    given = os.environ.get(FOLDER)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "layoutconv"
    except RuntimeError:  # a user without a home, such as an arbitrary number in a container
        return Path("/.cache/layoutconv")


def cache_limit() -> int:
    """Return the most bytes of kernels to keep: ``LAYOUTCONV_CACHE_LIMIT``, or 4 GB.

    Raises :class:`~layoutconv.errors.ArgumentError` if it is not a size such as ``500 MB``.

    >>> before = os.environ.get(LIMIT)
    >>> os.environ[LIMIT] = "1.5GB"
    >>> cache_limit()
    1500000000
    >>> _ = os.environ.pop(LIMIT) if before is None else os.environ.update({LIMIT: before})
    """
    given = os.environ.get(LIMIT, "").strip()
    if not given:
        return DEFAULT_LIMIT
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?) ?([a-z]{0,2})", given.lower(), re.ASCII)
    if not found or found[2] not in _UNITS:
        raise ArgumentError(
            LIMIT, "a size such as 500 MB or 4 GB, or 0 to keep nothing", repr(given)
        )
    return int(float(found[1]) * _UNITS[found[2]])


def usable_folder() -> Path | None:
    """Return the cache folder if nobody else may write to it; else None, with a warning.

    A folder that does not exist is usable: :func:`make_folder` makes it.
    """
    folder = cache_directory()
    why = why_unused(folder)
    if not why:
        return folder
    # Always from one place and in the same words, so that Python shows it once.
    warnings.warn(
        f"the cache folder {folder} is not used: {why}, and kernels there would run in this"
        " process. Kernels are compiled again in every process. To keep them, set"
        f" {FOLDER} to a folder of your own, or run `layoutconv cache clear` and `chmod 700`"
        " on this one.",
        stacklevel=1,
    )
    return None


def why_unused(folder: Path) -> str:
    """Return who else may write to a folder, in words; empty if nobody may, or without a folder.

    Root has all rights anyway, and fills folders that others read. If files have no owners, as on
    Windows, a user's folder is their own.
    """
    try:
        found = os.stat(folder)
    except OSError:
        return ""
    if not hasattr(os, "geteuid"):
        return ""
    if found.st_uid not in (0, os.geteuid()):
        return f"user {found.st_uid} owns it and you are {os.geteuid()}"
    if found.st_mode & 0o022:
        return f"others may write to it (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def make_folder(folder: Path) -> None:
    """Make a cache folder for its owner alone. Raises ``OSError`` if that fails."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    why = why_unused(folder)
    if why:  # somebody else made it first
        raise PermissionError(
            f"the cache folder {folder} is not used: {why}; set {FOLDER} to another folder"
        )


def read_file(path: Path, *, most: int = MOST_BYTES, used: bool = False) -> bytes | None:
    """Return the content of a plain file that nobody else may write to; None for anything else.

    It is opened once and without waiting, so a pipe, a link or a folder in its place is harmless.
    ``used`` records the use, which decides what stays when the folder is too full.
    """
    file = _open(path)
    if file is None:
        return None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most or not _is_own(found):
            return None
        with os.fdopen(os.dup(file), "rb") as stream:
            content = stream.read(most)
        if used:
            _note_use(path, file, found)
        return content
    except OSError:
        return None
    finally:
        os.close(file)


def write_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: others see either the old one or the whole new one.

    Raises ``OSError`` if that fails, and then leaves nothing behind.
    """
    with in_its_place(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def in_its_place(path: Path) -> Iterator[Path]:
    """Yield an empty file of the owner alone beside a path, and move it there if all goes well."""
    # A unique name, known before the file exists: Ctrl-C leaves nothing behind.
    suffix = ".o" if path.suffix == ".o" else ".tmp"
    temporary = path.with_name(f"tmp{os.getpid()}-{_host()}-{os.urandom(8).hex()}{suffix}")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield temporary
        _move(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _move(temporary: Path, path: Path) -> None:
    """Move a file into place, even over an empty folder."""
    try:
        temporary.replace(path)
    except (IsADirectoryError, PermissionError):
        if path.is_symlink() or not path.is_dir():
            raise
        path.rmdir()
        temporary.replace(path)


def kernels(folder: Path) -> list[Kernel]:
    """Return the kept kernels of a folder, by name."""
    found = []
    for path in sorted(folder.glob("*.o")):
        if re.fullmatch("[0-9a-f]{64}", path.stem):
            try:
                about = os.lstat(path)
            except OSError:  # another process deleted it
                continue
            if not stat.S_ISDIR(about.st_mode):
                found.append(Kernel(path, about.st_size, about.st_atime, about.st_mtime))
    return found


def leftovers(folder: Path) -> list[Path]:
    """Return files that a process began to write and will never finish."""
    found = []
    for path in (*folder.glob("tmp*.o"), *folder.glob("tuned/*/*/tmp*.tmp")):
        try:
            about = os.lstat(path)
        except OSError:
            continue
        old = about.st_mtime < time.time() - UNFINISHED
        if stat.S_ISREG(about.st_mode) and (old or _is_of_the_dead(path.name)):
            found.append(path)
    return found


def shrink(folder: Path, limit: int, version: str) -> None:
    """Delete kernels until they take at most ``limit`` bytes.

    Leftovers go first, then kernels of other versions of the sources (their names do not begin with
    ``version``), then the least recently used. Processes that shrink at once use the same order,
    and delete no more than one would.
    """
    kept = kernels(folder)
    total = sum(kernel.size for kernel in kept)
    if total <= limit:
        return
    delete(leftovers(folder))
    kept.sort(key=lambda kernel: (kernel.path.name.startswith(version), kernel.used))
    for kernel in kept:
        if total <= limit:
            return
        delete([kernel.path])
        total -= kernel.size


def delete(paths: Iterable[Path]) -> int:
    """Delete files; return their bytes, 0 for files that another process deleted first."""
    size = 0
    for path in paths:
        try:
            about = os.lstat(path)
            path.unlink()
        except OSError:  # gone, or open in a process on Windows
            continue
        size += about.st_size
    return size


def printable(text: str) -> str:
    r"""Replace the characters of a text that would control a terminal.

    >>> printable("a\x1b[31mb\u202ec\n")
    'a?[31mb?c?'
    """
    return "".join(c if c.isprintable() else "?" for c in text)


def _open(path: Path) -> int | None:
    flags = os.O_RDONLY
    for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
        flags |= getattr(os, name, 0)
    # Inspecting a file is not a use of it; only its owner may ask for that.
    for more in (getattr(os, "O_NOATIME", 0), 0):
        try:
            return os.open(path, flags | more)
        except PermissionError:
            continue
        except (OSError, ValueError):
            return None
    return None


def _is_own(found: os.stat_result) -> bool:
    """Return whether only the user, or root, can have written a file."""
    if not hasattr(os, "geteuid"):
        return True
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def _note_use(path: Path, file: int, found: os.stat_result) -> None:
    """Record the last use of a file, as file systems often do not."""
    of: int | Path = file if os.utime in os.supports_fd else path
    with suppress(OSError):  # root's file, or a read-only file system
        os.utime(of, ns=(time.time_ns(), found.st_mtime_ns))


def _host() -> str:
    """Return the name of this machine, for use in a file name."""
    name = os.uname().nodename if hasattr(os, "uname") else ""
    return re.sub(r"\W", "", name, flags=re.ASCII)[:32] or "host"


def _is_of_the_dead(name: str) -> bool:
    """Return whether a process of this machine began a file, and has ended."""
    found = re.match(r"tmp(\d{1,9})-(\w+)-", name)
    if found is None or found[2] != _host() or os.name != "posix":
        return False
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
