"""Kept kernels linked into one shared library, which loads without the CuTe DSL.

An object file that the DSL exports needs the DSL's runtime (a static library in its wheels), the
CUDA runtime (which torch loads) and TVM-FFI. The machine that makes a pack links them once. Then
``tvm_ffi`` opens the library in a millisecond, from Python, C++ or C: each kernel is a TVM-FFI
function ``__tvm_ffi_<name>``, whose machine code goes to a GPU at its first call.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from layoutconv.errors import DeviceError

from .store import ENTRY, as_file

COMPILERS = ("cc", "gcc", "clang")
RUNTIME = "libcuda_dialect_runtime_static.a"
# The DSL's wheels that have the runtime, newest CUDA last.
WHEELS = ("nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13")
# Prefixes of a kernel's own symbols. The name behind them is as long as ENTRY.
PREFIXES = (b"__tvm_ffi_", b"__cute_internal_")
EXPORTS = "{ global: __tvm_ffi_*; local: *; };"
LAUNCH = "cudaLaunchKernelExC"
NEWEST = ("cudaLibraryLoadData", "cudaGetDriverEntryPointByVersion")  # since CUDA 12.8, 12.5

# The static runtime lacks two functions of the shared one, which turn CUDA errors into TVM-FFI's.
ERRORS = """
#include <stdint.h>
typedef void (*set_error_t)(const char *, const char **, int32_t);
extern const char *cudaGetErrorName(int32_t);
extern const char *cudaGetErrorString(int32_t);
void CuteDSLRT_TVMFFISetRaisedCudaError(set_error_t set_error, int32_t code) {
  const char *parts[] = {cudaGetErrorName(code), ": ", cudaGetErrorString(code)};
  set_error("CUDADialectError", parts, 3);
}
void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(set_error_t set_error, ...) {
  const char *parts[] = {"a launch asks for more threads, CTAs or shared memory than the GPU has"};
  set_error("CUDADialectError", parts, 1);
}
"""


def short_name(name: str) -> str:
    """Return the name in a library, as long as ``ENTRY``, of kernel ``name`` of the kernel folder.

    >>> short_name("a9d55ee51c4d03842b82e689d1eb5c201bd64a694bce9559c65cc38755f47c41")
    'k2b82e689d1eb'
    """
    return "k" + name[16 : 15 + len(ENTRY)]


def link(objects: Mapping[str, bytes]) -> bytes:
    """Link object files, by their kernels' names in the kernel folder, into a shared library.

    Raises ``FileNotFoundError`` if there is no C compiler or no runtime of the DSL, and
    ``RuntimeError`` with the compiler's message if it fails.
    """
    if len({short_name(name) for name in objects}) < len(objects):
        raise RuntimeError("two kernels have one short name")
    compiler, runtime = _compiler(), str(_runtime())
    import tvm_ffi

    with tempfile.TemporaryDirectory(prefix="layoutconv-") as folder:
        place = Path(folder)
        inputs = []
        for name, content in objects.items():
            short = short_name(name)
            (place / f"{short}.o").write_bytes(renamed(content, short))
            inputs.append(f"{short}.o")
        (place / "errors.c").write_text(ERRORS)
        (place / "exports").write_text(EXPORTS)
        command = [
            *compiler, "-shared", "-fPIC", "-O2", "-w", "-o", "kernels.so", *inputs, "errors.c",
            runtime, tvm_ffi.libinfo.find_libtvm_ffi(),
            "-Wl,--version-script=exports", "-Wl,-z,lazy", "-Wl,-Bsymbolic", "-Wl,-s",
        ]  # fmt: skip
        ran = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise RuntimeError(f"{command[0]} cannot link the kernels: {ran.stderr.strip()}")
        return (place / "kernels.so").read_bytes()


def renamed(content: bytes, short: str) -> bytes:
    """Rename ``ENTRY`` to ``short``, which has the same length, in an object file's own symbols."""
    (table,) = struct.unpack_from("<Q", content, 0x28)
    size, count, _ = struct.unpack_from("<HHH", content, 0x3A)
    headers = [struct.unpack_from("<IIQQQQI", content, table + i * size) for i in range(count)]
    of_symbols = next(header[6] for header in headers if header[1] == 2)  # SHT_SYMTAB's strings
    start, length = headers[of_symbols][4:6]
    strings = content[start : start + length]
    for prefix in PREFIXES:
        strings = strings.replace(prefix + ENTRY.encode(), prefix + short.encode())
    return content[:start] + strings + content[start + length :]


def opened(content: bytes) -> Callable[[str], Callable[..., None]]:
    """Open a library; return a function from a kernel's name in the kernel folder to the kernel."""
    import tvm_ffi

    with _library(content) as path:
        module = tvm_ffi.load_module(path)
    return lambda name: module.get_function(short_name(name))


def share_cuda_runtime() -> None:
    """Let libraries that are opened from now on find the CUDA runtime that torch has loaded.

    Raises ``DeviceError`` if there is none, or an older one: calling a function that it lacks would
    end the process.
    """
    own: Any = ctypes.CDLL(None)
    if not hasattr(own, LAUNCH):
        import torch

        major = (torch.version.cuda or "").partition(".")[0]
        with suppress(OSError):  # torch has loaded it, but not into the global symbol scope
            ctypes.CDLL(f"libcudart.so.{major}", mode=ctypes.RTLD_GLOBAL)
    if not all(hasattr(own, name) for name in (LAUNCH, *NEWEST)):
        raise DeviceError(
            "kernels of a pack need the CUDA runtime 12.8 or newer: install a torch that is built"
            " for it; without a pack, kernels are compiled and loaded by the CuTe DSL"
        )


@contextmanager
def _library(content: bytes) -> Iterator[str]:
    """Yield the path, with a library's suffix, of a file with ``content`` and no other writer."""
    with tempfile.TemporaryDirectory(prefix="layoutconv-") as folder, as_file(content) as path:
        link = Path(folder, "kernels.so")
        link.symlink_to(path)
        yield str(link)


def _compiler() -> list[str]:
    given = os.environ.get("CC", "").split()
    if given:
        return given
    for name in COMPILERS:
        found = shutil.which(name)
        if found:
            return [found]
    raise FileNotFoundError(
        "a C compiler has to link a pack's kernels, and none of "
        f"{', '.join(COMPILERS)} is here: install one, or name it in CC; whoever loads the pack "
        "needs none"
    )


def _runtime() -> Path:
    """The static runtime of the DSL."""
    for wheel in reversed(WHEELS):
        try:
            listed = files(wheel) or []
        except PackageNotFoundError:
            continue
        for file in listed:
            path = Path(str(file.locate()))
            if file.name == RUNTIME and path.is_file():
                return path
    raise FileNotFoundError(f"the CuTe DSL has no {RUNTIME} for this platform, which packs need")
