"""Compile a kernel once, keep it on disk, load it back in milliseconds.

A kept kernel is one object file, named by a digest of everything that determines it. It is written
to a temporary name and moved into place, so readers and other processes see all of it or nothing,
and it ends with a note that says what it is, for people, and a digest of all of itself: a damaged
one is compiled again and replaced. Loading needs no linker, and passes over what is after the
object.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import threading
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import layoutconv.algebra
from layoutconv.base.devices import ON_THE_CPU
from layoutconv.errors import DeviceError
from layoutconv.planning.kernel_key import signature
from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.view.gemm_view import GemmView

ENTRY = "implicit_gemm"
DIGEST_BYTES = hashlib.sha256().digest_size
NOTE = b"note"  # ends a note, after its length in four bytes
ARCHITECTURES = {
    (8, 0): "sm_80", (8, 6): "sm_86", (8, 7): "sm_87", (8, 9): "sm_89", (9, 0): "sm_90a",
    (10, 0): "sm_100a", (10, 3): "sm_103a", (12, 0): "sm_120a",
}  # fmt: skip


@dataclass(frozen=True)
class KernelKey:
    """What determines a kernel: the view's structure, and its spec."""

    view: str
    spec: KernelSpec

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr((self.view, self.spec, _toolchain())).encode()).hexdigest()

    @property
    def note(self) -> dict[str, str]:
        """What the kernel is, for people: of one kind, for one architecture."""
        spec, tile = self.spec, self.spec.tile
        words = [
            f"{spec.dtype} -> {spec.out_dtype}",
            f"{tile.m}x{tile.n}x{tile.k}",
            spec.epilogue,
            f"{spec.split} sums" if spec.split else "",
            "A " + self.view.partition("\n")[0].removeprefix("a "),
        ]
        what = ", ".join(filter(None, words))
        return {"kernel": ENTRY, "arch": spec.arch, "what": what, "view": self.view}


_loaded: dict[Any, Callable[..., None]] = {}
_lock = threading.Lock()


def architecture(capability: tuple[int, int]) -> str:
    """The compiler's name of a compute capability.

    Raises ``DeviceError`` for a GPU that kernels are not built for.

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
    """A kernel as ``build`` makes it: from memory, from disk, or compiled now.

    No GPU is needed. The launch goes to torch's current stream.
    """
    key = KernelKey(signature(view, spec.along), spec)
    kernel = _loaded.get(key)
    if kernel is None:
        with _lock:
            kernel = _loaded.get(key)
            if kernel is None:
                kernel = _loaded[key] = _load(key, view)
    return kernel


def as_argument(numbers: tuple[float, ...]) -> Any:
    """A tuple of numbers that many calls of a kernel get, as kernels take it.

    Calls convert tuples: 0.2 us for a dozen of numbers, each time.

    >>> list(as_argument((3, 4)))
    [3, 4]
    """
    import tvm_ffi

    return tvm_ffi.convert(numbers)


def is_kept(view: GemmView, spec: KernelSpec) -> bool:
    """Whether ``load_kernel`` would find a kernel on disk."""
    return _intact(_path(KernelKey(signature(view, spec.along), spec).digest))


def load(key: Hashable, compile: Callable[[], Any]) -> Callable[..., None]:
    """A kernel of any other kind: from memory, from disk, or ``compile()``, as ``load_kernel``.

    ``key`` is the kind's name, and everything else that determines the kernel but the sources and
    the versions; its ``repr`` says all of it.
    """
    kernel = _loaded.get(key)
    if kernel is None:
        with _lock:
            kernel = _loaded.get(key)
            if kernel is None:
                digest = hashlib.sha256(repr((key, _toolchain())).encode()).hexdigest()
                kernel = _loaded[key] = _kept(digest, compile, _note_of(key))
    return kernel


def cache_directory() -> Path:
    """Where kernels are kept: ``LAYOUTCONV_CACHE_DIR``, or ``~/.cache/layoutconv``.

    It need not be there, nor can it always be written: then nothing is kept.
    """
    given = os.environ.get("LAYOUTCONV_CACHE_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "layoutconv"
    except RuntimeError:  # a user without a home, as in a container that was given any number
        return Path("/.cache/layoutconv")


def _load(key: KernelKey, view: GemmView) -> Callable[..., None]:
    def compile() -> Any:
        from .build import build

        return build(view, key.spec)

    return _kept(key.digest, compile, key.note)


def _note_of(key: Any) -> dict[str, str]:
    """Of a key as ``load`` takes it: a name, what the kernel depends on, the architecture."""
    name, *rest = key if isinstance(key, tuple) else (key,)
    if isinstance(name, tuple):  # of several in one, the first gives its name
        name, rest = name[0], [name, *rest]
    arch = str(rest.pop()) if rest and str(rest[-1]).startswith("sm_") else ""
    return {"kernel": str(name), "arch": arch, "what": ", ".join(map(repr, rest))}


def note(path: Path) -> dict[str, str] | None:
    """What a kept kernel says that it is: ``kernel``, ``arch``, ``what`` and perhaps ``view``.

    None of what is damaged, or was kept without one.
    """
    content = _content(path)
    if content is None or not content.endswith(NOTE):
        return None
    end = len(content) - len(NOTE) - 4
    size = int.from_bytes(content[end : end + 4], "little")
    found: dict[str, str] = json.loads(content[end - size : end])
    return found


def _kept(digest: str, compile: Callable[[], Any], about: dict[str, str]) -> Callable[..., None]:
    path = _path(digest)
    if _intact(path):
        return _from_object(path)
    kernel = compile()
    try:
        _keep(kernel, path, about)
    except OSError as error:
        # The same words for every kernel, so that Python says them once.
        warnings.warn(
            f"kernels cannot be kept in {path.parent}: {error.strerror or error}; they are compiled"
            " again in every process, unless LAYOUTCONV_CACHE_DIR names a folder with room",
            stacklevel=3,
        )
        return kernel
    return _from_object(path)


def _path(digest: str) -> Path:
    return cache_directory() / f"{digest}.o"


def _keep(kernel: Any, path: Path, about: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own, known before the file is there: Ctrl-C leaves nothing behind.
    temporary = path.with_name(f"tmp{os.getpid()}-{secrets.token_hex(8)}.o")
    try:
        kernel.export_to_c(str(temporary), function_name=ENTRY)
        text = json.dumps(about).encode()
        content = temporary.read_bytes() + text + len(text).to_bytes(4, "little") + NOTE
        temporary.write_bytes(content + hashlib.sha256(content).digest())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _intact(path: Path) -> bool:
    return _content(path) is not None


def _content(path: Path) -> bytes | None:
    """What a file holds before its digest; None if that is not its digest."""
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    content, digest = whole[:-DIGEST_BYTES], whole[-DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == digest else None


def _from_object(path: Path) -> Callable[..., None]:
    from cutlass.cute.runtime import load_module

    module = load_module(str(path), enable_tvm_ffi=True)
    return getattr(module, ENTRY)


@cache
def _toolchain() -> str:
    """What a kept kernel depends on besides its key: the compiler's version and our own sources."""
    package, digest = Path(layoutconv.algebra.__file__).parents[1], hashlib.sha256()
    for room in ("algebra", "kernels", "planning", "view"):
        for source in sorted((package / room).rglob("*.py")):
            digest.update(source.relative_to(package).as_posix().encode())
            digest.update(source.read_bytes())
    versions = f"{version('nvidia-cutlass-dsl')} {version('apache-tvm-ffi')}"
    return f"{versions} {_processor()} {digest.hexdigest()}"


def _processor() -> str:
    """What the host code of a kernel was compiled for: it has all instructions of this processor.

    A folder of kept kernels may be shared with machines that lack some.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {hashlib.sha256(flags.encode()).hexdigest()[:16]}"
