"""Compile a kernel once, keep it on disk, load it back in milliseconds.

A kept kernel is one object file, named by a digest of everything that determines it. It is written
under a temporary name and moved into place, so other processes see all of it or nothing. It ends
with a note that describes the kernel to people, and a digest of its name and content. A file that
is damaged, misnamed or does not load is compiled again and replaced. The loader gets the bytes that
were verified, not the file, which another process may have changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layoutconv.base.cache_folder import (
    PREFIX,
    cache_directory,
    cache_limit,
    in_its_place,
    make_folder,
    read_file,
    shrink,
    usable_folder,
)
from layoutconv.base.caches import unloaded_by
from layoutconv.base.devices import ON_THE_CPU
from layoutconv.base.dry_hooks import dry_hooks
from layoutconv.base.interrupts import interrupted_afterwards
from layoutconv.errors import DeviceError
from layoutconv.planning.kernel_key import signature
from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.view.gemm_view import GemmView

from . import toolchains
from .packed import find_packed

__all__ = ["KernelKey", "architecture", "as_argument", "cache_directory", "load", "load_kernel"]

ENTRY = "implicit_gemm"
DIGEST_BYTES = hashlib.sha256().digest_size
NOTE = b"note"  # ends a note, after the note's length in four bytes
ARCHITECTURES = {
    (8, 0): "sm_80", (8, 6): "sm_86", (8, 7): "sm_87", (8, 9): "sm_89", (9, 0): "sm_90a",
    (10, 0): "sm_100a", (10, 3): "sm_103a", (12, 0): "sm_120a",
}  # fmt: skip


@dataclass(frozen=True)
class KernelKey:
    """The key of a kernel: the view's structure, and its spec."""

    view: str
    spec: KernelSpec

    @property
    def digest(self) -> str:
        return _digest(self)

    @property
    def note(self) -> dict[str, str]:
        """Return the note that describes the kernel to people."""
        spec, tile = self.spec, self.spec.tile
        words = [
            f"{spec.dtype} -> {spec.out_dtype}",
            f"{tile.m}x{tile.n}x{tile.k}",
            spec.epilogue,
            f"{spec.split} sums" if spec.split else "",
            "concurrent" if spec.concurrent else "",
            "A " + self.view.partition("\n")[0].removeprefix("a "),
        ]
        what = ", ".join(filter(None, words))
        return {"kernel": ENTRY, "arch": spec.arch, "what": what, "view": self.view}


_loaded: dict[Any, Callable[..., None]] = {}
_told = set[str]()  # the warnings that were shown since kernels were dropped
_lock = threading.Lock()


def _after_fork() -> None:
    """Replace the lock: a thread of the parent may have held it, and is not here to release it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@unloaded_by
def unload() -> None:
    """Drop the loaded kernels; those that nobody else holds are unloaded."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
    _loaded.clear()
    _told.clear()


def architecture(capability: tuple[int, int]) -> str:
    """Return the compiler's name of a compute capability.

    Raises ``DeviceError`` for a GPU for which no kernels are built.

    >>> architecture((8, 6))
    'sm_86'
    """
    if capability not in ARCHITECTURES:
        major, minor = capability
        known = ", ".join(f"{a}.{b}" for a, b in ARCHITECTURES)
        newer = " (a newer layoutconv may know it)" if capability > (8, 0) else ""
        raise DeviceError(
            f"compute capability {major}.{minor} is not supported: kernels are built for "
            f"{known}{newer}; {ON_THE_CPU}"
        )
    return ARCHITECTURES[capability]


def load_kernel(view: GemmView, spec: KernelSpec) -> Callable[..., None]:
    """Return a kernel as ``build`` makes it: from memory, from disk, or compiled now.

    It needs no GPU. The launch goes to torch's current stream.
    """
    key = KernelKey(signature(view, spec.along, spec.epilogue), spec)
    kernel = _loaded.get(key)
    if kernel is None:
        with _lock:
            kernel = _loaded.get(key)
            if kernel is None:
                kernel = _loaded[key] = _of_pack(key) or _load(key, view)
    return kernel


def as_argument(numbers: tuple[float, ...]) -> Any:
    """Convert a tuple of numbers, which many calls of a kernel pass, to the kernel's own type.

    Otherwise each call converts it: 0.2 us for a dozen numbers.

    >>> list(as_argument((3, 4)))
    [3, 4]
    """
    import tvm_ffi

    return tvm_ffi.convert(numbers)


def is_kept(view: GemmView, spec: KernelSpec) -> bool:
    """Return whether ``load_kernel`` would find the kernel on disk."""
    return keeps(KernelKey(signature(view, spec.along, spec.epilogue), spec))


def keeps(key: Any) -> bool:
    """Return whether a kernel is on disk; ``key`` is as :func:`load` takes it."""
    folder = usable_folder()
    return folder is not None and _content(_path(folder, _digest(key))) is not None


def is_at_hand(key: Hashable) -> bool:
    """Return whether :func:`load` would find the kernel without compiling."""
    return key in _loaded or keeps(key) or _of_pack(key) is not None


def load(
    key: Hashable, compile: Callable[[], Any], writes: tuple[int, ...] = ()
) -> Callable[..., None]:
    """Return a kernel of any other kind, like ``load_kernel``: from memory, disk or ``compile()``.

    ``key``: the kind's name and everything else that determines the kernel, except sources and
    versions; its ``repr`` must be complete. ``compile`` must be picklable if another process may
    compile. ``writes``: numbers of the arguments that the kernel writes.
    """
    if dry_hooks.load is not None:
        later: Callable[..., None] | None = dry_hooks.load(key, compile, writes)
        if later is not None:
            return later
    kernel = _loaded.get(key)
    if kernel is None:
        with _lock:
            kernel = _loaded.get(key)
            if kernel is None:
                kernel = _of_pack(key) or _kept(_digest(key), compile, _note_of(key))
                _loaded[key] = kernel
    return kernel


def _of_pack(key: Any) -> Callable[..., None] | None:
    return find_packed(lambda toolchain, processor: _digest(key, toolchain, processor))


def loaded_names() -> list[str]:
    """Return the names in the kernel folder of the kernels that this process has loaded."""
    return sorted(_digest(key) for key in _loaded)


def kept_object(name: str) -> bytes | None:
    """Return a kept kernel's object file without its note; None if it is damaged or missing."""
    folder = usable_folder()
    content = None if folder is None else _content(_path(folder, name))
    return None if content is None else content[: _end_of_object(content)]


def what_is(name: str) -> str:
    """Describe a kept kernel in a line, for people."""
    folder = usable_folder()
    found = None if folder is None else note(_path(folder, name))
    return "" if found is None else f"{found['kernel']}: {found['what']}"


def ready_to_compile() -> None:
    """Import the compiler, and digest the sources that kernels are compiled from.

    If the compiler is not installed, do nothing here: compiling raises the error.
    """
    with suppress(ImportError):
        import ml_dtypes  # noqa: F401, which the DSL imports late
        import tvm_ffi  # noqa: F401

        from . import build  # noqa: F401
    toolchains.compiled_with()


def _load(key: KernelKey, view: GemmView) -> Callable[..., None]:
    def compile() -> Any:
        from .build import build

        return build(view, key.spec)

    return _kept(key.digest, compile, key.note)


def _note_of(key: Any) -> dict[str, str]:
    """Describe a key as ``load`` takes it: a name, what the kernel depends on, the architecture."""
    name, *rest = key if isinstance(key, tuple) else (key,)
    if isinstance(name, tuple):  # several kernels in one: the first gives the name
        name, rest = name[0], [name, *rest]
    arch = str(rest.pop()) if rest and str(rest[-1]).startswith("sm_") else ""
    return {"kernel": str(name), "arch": arch, "what": ", ".join(map(repr, rest))}


def note(path: Path) -> dict[str, str] | None:
    """Return the note of a kept kernel: ``kernel``, ``arch``, ``what`` and perhaps ``view``.

    None if the file is damaged, or has no note.
    """
    content = _content(path)
    if content is None:
        return None
    try:
        found: Any = json.loads(content[_end_of_object(content) : -len(NOTE) - 4] or "null")
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not {"kernel", "arch", "what"} <= found.keys():
        return None
    return {name: str(value) for name, value in found.items()}


def _kept(digest: str, compile: Callable[[], Any], about: dict[str, str]) -> Callable[..., None]:
    folder, limit = usable_folder(), cache_limit()
    if folder is None:
        with interrupted_afterwards():
            return _unkept(compile(), compile)
    path = _path(folder, digest)
    content = _content(path, used=True)
    if content is not None:
        try:
            return _from_object(content)
        except Exception:  # from the compiler's libraries: compile again, and replace the file
            pass
    with interrupted_afterwards():
        return _compiled(compile, path, about, limit)


def _compiled(
    compile: Callable[[], Any], path: Path, about: dict[str, str], limit: int
) -> Callable[..., None]:
    """Compile a kernel, and keep it."""
    kernel = compile()
    try:
        content = _keep(kernel, path, about)
        shrink(path.parent, limit, path.name[:PREFIX])
    except OSError as error:
        _warn_once(
            f"kernels cannot be kept in {path.parent}: {error.strerror or error}; they are compiled"
            " again in every process, unless LAYOUTCONV_CACHE_DIR names a folder with room"
        )
        return _unkept(kernel, compile)
    try:
        return _from_object(content)
    except Exception:
        return _as_compiled(compile)


def _warn_once(words: str) -> None:
    """Warn for the first kernel: Python itself warns again after an import that adds filters."""
    if words not in _told:
        _told.add(words)
        warnings.warn(words, stacklevel=5)


def _unkept(kernel: Any, compile: Callable[[], Any]) -> Callable[..., None]:
    """Load a kernel that is not kept in the kernel folder."""
    try:
        with tempfile.TemporaryDirectory(prefix="layoutconv-") as folder:
            path = Path(folder) / "kernel.o"
            kernel.export_to_c(str(path), function_name=ENTRY)
            return _from_object(path.read_bytes())
    except Exception:  # this process may not even write a temporary file
        return _as_compiled(compile)


def _as_compiled(compile: Callable[[], Any]) -> Callable[..., None]:
    """Compile once more a kernel that cannot be loaded; the result runs as it was compiled."""
    from ..common.compiled import runs_as_compiled

    with runs_as_compiled():
        return compile()  # type: ignore[no-any-return]


def _path(folder: Path, digest: str) -> Path:
    return folder / f"{digest}.o"


def _keep(kernel: Any, path: Path, about: dict[str, str]) -> bytes:
    """Write a kernel, and return the file's content without its digest."""
    make_folder(path.parent)
    with in_its_place(path) as temporary:
        kernel.export_to_c(str(temporary), function_name=ENTRY)
        text = json.dumps(about).encode()
        content = temporary.read_bytes() + text + len(text).to_bytes(4, "little") + NOTE
        temporary.write_bytes(content + _seal(path, content))
    return content


def _content(path: Path, *, used: bool = False) -> bytes | None:
    """Return a file's content without its digest; None if the digest does not match."""
    whole = read_file(path, used=used)
    if whole is None:
        return None
    content, seal = whole[:-DIGEST_BYTES], whole[-DIGEST_BYTES:]
    return content if _seal(path, content) == seal else None


def _seal(path: Path, content: bytes) -> bytes:
    """Return the digest that ends a file: of its name, which is the kernel's, and its content."""
    return hashlib.sha256(path.stem.encode() + b"\n" + content).digest()


def _end_of_object(content: bytes) -> int:
    """Return where the object ends and the note behind it begins."""
    end = len(content) - len(NOTE) - 4
    if end < 0 or not content.endswith(NOTE):
        return len(content)
    return max(0, end - int.from_bytes(content[end : end + 4], "little"))


def _from_object(content: bytes) -> Callable[..., None]:
    from cutlass.cute.runtime import load_module

    with as_file(content[: _end_of_object(content)]) as path:
        module = load_module(path, enable_tvm_ffi=True)
    return getattr(module, ENTRY)  # type: ignore[no-any-return]


@contextmanager
def as_file(content: bytes) -> Iterator[str]:
    """Yield the path of a file that has ``content`` and no other writer.

    It is a sealed file in memory, if the system has those and ``/proc`` is mounted.
    """
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        import fcntl

        file = os.memfd_create("layoutconv-kernel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with os.fdopen(file, "wb", buffering=0) as stream:
            for start in range(0, len(content), 1 << 24):  # one call writes no more than 2 GB
                stream.write(content[start : start + (1 << 24)])
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
            yield f"/proc/self/fd/{file}"
        return
    with tempfile.TemporaryDirectory(prefix="layoutconv-") as folder:
        path = Path(folder) / "kernel.o"
        path.write_bytes(content)
        yield str(path)


def _digest(key: Any, toolchain: str = "", processor: str = "") -> str:
    """Name a kernel: a digest of its toolchain, then one of everything that determines it."""
    if isinstance(key, KernelKey):
        key = key.view, key.spec
    toolchain = toolchain or toolchains.this_toolchain()
    processor = processor or toolchains.this_processor()
    whole = hashlib.sha256(repr((key, toolchain, processor)).encode()).hexdigest()
    return toolchains.version_of(toolchain) + whole[PREFIX:]
