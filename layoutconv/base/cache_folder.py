"""The cache folder of kernels and measured choices: ownership, reads and writes, size limit.

A kept kernel is machine code that this process runs, so whoever can write to the folder can run
what he likes as whoever reads it. The folder is made for its owner alone, and one that others may
write to is not used. Files are opened once, without waiting and without following links, and used
if they are plain files of the same owner.

Nothing is locked. A file is written beside its place and moved there whole; one that another
process deletes meanwhile is as one that was never there.
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
PREFIX = 16  # characters of a kernel's name that say which version of the sources it is from
UNFINISHED = 3600  # seconds after which a file that somebody was writing is left over
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


class Kernel(NamedTuple):
    """A kept kernel: where it is, its bytes, and when it was last used, and made."""

    path: Path
    size: int
    used: float
    made: float


def cache_directory() -> Path:
    """Where kernels are kept: ``LAYOUTCONV_CACHE_DIR``, or ``~/.cache/layoutconv``.

    It need not be there, nor can it always be written: then nothing is kept.
    """
    given = os.environ.get(FOLDER)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "layoutconv"
    except RuntimeError:  # a user without a home, as in a container that was given any number
        return Path("/.cache/layoutconv")


def cache_limit() -> int:
    """The most bytes of kernels that are kept: ``LAYOUTCONV_CACHE_LIMIT``, or 4 GB.

    Raises :class:`~layoutconv.errors.ArgumentError` for what is no size such as ``500 MB``.

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
        raise ArgumentError(LIMIT, "a size such as 500 MB or 4 GB; 0 keeps none", repr(given))
    return int(float(found[1]) * _UNITS[found[2]])


def usable_folder() -> Path | None:
    """The cache folder, if nobody else may write to it; else None, and a warning says why.

    A folder that is not there is usable: :func:`make_folder` makes it.
    """
    folder = cache_directory()
    why = why_unused(folder)
    if not why:
        return folder
    # At one place and in the same words, so that Python says it once.
    warnings.warn(
        f"the cache folder {folder} is not used: {why}, and what is kept there runs in this"
        f" process; kernels are compiled again in every process, unless {FOLDER} names a folder"
        " of your own, or this one is made so: `layoutconv cache clear` and `chmod 700`",
        stacklevel=1,
    )
    return None


def why_unused(folder: Path) -> str:
    """Who else may write to a folder, in words; empty if nobody may, or there is none.

    Root may do as he likes anyway, and fills folders that others read. Where files have no owners,
    as on Windows, the folder of a user is his.
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
    """Make a cache folder, for its owner alone. Raises ``OSError`` where that fails."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    why = why_unused(folder)
    if why:  # somebody else was faster
        raise PermissionError(
            f"the cache folder {folder} is not used: {why}; {FOLDER} names another"
        )


def read_file(path: Path, *, most: int = MOST_BYTES, used: bool = False) -> bytes | None:
    """All of a plain file that nobody else may write to; None of anything else.

    It is opened once and without waiting: a pipe in its place, a link or a folder is nothing.
    ``used`` notes that it was, which decides what stays when there is too much.
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
    """Write a file in place of what is there, which others see whole or not at all.

    Raises ``OSError`` where that fails, and leaves nothing behind then.
    """
    with in_its_place(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def in_its_place(path: Path) -> Iterator[Path]:
    """An empty file beside a path, its owner's alone, that is moved there if all goes well."""
    # A name of its own, known before the file is there: Ctrl-C leaves nothing behind.
    suffix = ".o" if path.suffix == ".o" else ".tmp"
    temporary = path.with_name(f"tmp{os.getpid()}-{_host()}-{os.urandom(8).hex()}{suffix}")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield temporary
        _move(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _move(temporary: Path, path: Path) -> None:
    """Put a file in its place, though an empty folder be there."""
    try:
        temporary.replace(path)
    except (IsADirectoryError, PermissionError):
        if path.is_symlink() or not path.is_dir():
            raise
        path.rmdir()
        temporary.replace(path)


def kernels(folder: Path) -> list[Kernel]:
    """The kept kernels of a folder, by name."""
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
    """Files that somebody began to write and never will finish."""
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
    """Delete kernels until they take no more than so many bytes.

    What was left over goes first, then what is from other versions of the sources than ``version``,
    which begins the names of those that are from this one; then what was used longest ago.
    Processes that do so at once go by the same order, and delete no more than one would.
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
    """Delete files; the bytes that they took, 0 of those that another process was faster with."""
    size = 0
    for path in paths:
        try:
            about = os.lstat(path)
            path.unlink()
        except OSError:  # gone, or open in a process of Windows
            continue
        size += about.st_size
    return size


def printable(text: str) -> str:
    r"""A text without what would do more to a terminal than appear there.

    >>> printable("a\x1b[31mb\u202ec\n")
    'a?[31mb?c?'
    """
    return "".join(c if c.isprintable() else "?" for c in text)


def _open(path: Path) -> int | None:
    flags = os.O_RDONLY
    for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
        flags |= getattr(os, name, 0)
    # Looking into a file is no use of it; only its owner may ask for that.
    for more in (getattr(os, "O_NOATIME", 0), 0):
        try:
            return os.open(path, flags | more)
        except PermissionError:
            continue
        except (OSError, ValueError):
            return None
    return None


def _is_own(found: os.stat_result) -> bool:
    """Return whether nobody but the user, and root, can have written a file."""
    if not hasattr(os, "geteuid"):
        return True
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def _note_use(path: Path, file: int, found: os.stat_result) -> None:
    """Set when a file was read last, which file systems are often told not to note."""
    of: int | Path = file if os.utime in os.supports_fd else path
    with suppress(OSError):  # root's, or read-only
        os.utime(of, ns=(time.time_ns(), found.st_mtime_ns))


def _host() -> str:
    """The name of this machine, as a part of a file's."""
    name = os.uname().nodename if hasattr(os, "uname") else ""
    return re.sub(r"\W", "", name, flags=re.ASCII)[:32] or "host"


def _is_of_the_dead(name: str) -> bool:
    """Return whether a process of this machine began a file, and is there no more."""
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
