"""Call a compiled function's own host code without a GPU, and record the launch that it makes.

A TVM-FFI function of the CuTe DSL checks its arguments, computes grid, shared memory and kernel
parameters, and calls CUDA through a few functions that ``libcute_dsl_runtime`` exports. While
:func:`launch_of` runs, Python functions replace these (the first bytes of each become a jump), so
that tests run the same host code as a user's call, and need not know the order of the compiler's
parameters. Linux on x86-64 only.
"""

from __future__ import annotations

import ctypes
import platform
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from .ptx import Kernel

# DLPack's numbers: https://dmlc.github.io/dlpack/latest/c_api.html
_CUDA = 2
_TYPES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}
# cudaLaunchAttribute: its size, and the numbers of the cooperative and the cluster attribute.
_ATTRIBUTE_SIZE, _COOPERATIVE, _CLUSTER = 72, 2, 4
_PAGE = 4096
# Loaded host code per compiled function, kept as long as the function lives.
_loaded: WeakKeyDictionary[Any, Callable[..., Any]] = WeakKeyDictionary()


@dataclass(frozen=True)
class HostLaunch:
    """A launch that the host code made: pass it on to :func:`launch.run`."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[bytes, ...]
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False


class DeviceTensor:
    """A tensor argument that claims to be on a GPU: an address of ``Memory``, a shape, a type.

    ``dtype`` is a name such as "float16", "bfloat16", "int32"; strides are compact and row-major
    unless given, in elements.
    """

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: str,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        kind = dtype.rstrip("0123456789")
        if kind not in _TYPES:
            raise ValueError(f"no DLPack type for {dtype!r}")
        if strides is None:
            strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
        extents = c_int64 * len(shape)
        self.address = address
        self._shape, self._strides = extents(*shape), extents(*strides)
        self._managed = _Managed(
            _Tensor(
                data=address,
                device_type=_CUDA,
                device_id=0,
                ndim=len(shape),
                code=_TYPES[kind],
                bits=int(dtype[len(kind) :]),
                lanes=1,
                shape=self._shape,
                strides=self._strides,
                byte_offset=0,
            )
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, 0

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
        return new(ctypes.addressof(self._managed), b"dltensor", None)


def launch_of(kernel: Kernel, compiled: Any, *arguments: Any) -> HostLaunch:
    """Return the launch that calling ``compiled(*arguments)`` makes.

    ``compiled`` is the result of ``cute.compile`` with ``--enable-tvm-ffi``, ``kernel`` its parsed
    PTX; tensors among the arguments, and in tuples of them, are :class:`DeviceTensor`. Raises the
    host code's errors for arguments that it refuses, and RuntimeError unless it launches exactly
    one kernel.
    """
    ready = [_handed_over(argument) for argument in arguments]
    launches: list[HostLaunch] = []
    if compiled not in _loaded:  # 0.1 s, as long as a small kernel runs
        with tempfile.TemporaryDirectory() as folder:
            _loaded[compiled] = _load(compiled, Path(folder))
    with _pretend_device(kernel, launches):
        _loaded[compiled](*ready)
    if len(launches) != 1:
        raise RuntimeError(f"one launch expected, the host code made {len(launches)}")
    return launches[0]


def _handed_over(argument: Any) -> Any:
    """Convert an argument for the host code."""
    import tvm_ffi

    if isinstance(argument, tuple):
        return tuple(map(_handed_over, argument))
    return tvm_ffi.from_dlpack(argument) if isinstance(argument, DeviceTensor) else argument


def _load(compiled: Any, folder: Path) -> Callable[..., Any]:
    """Load the host code as a function of this process, and with it the runtime library.

    Unlike ``export_to_c`` it does not optimise: that takes three times as long, 0.04 s more.
    """
    import cutlass.cute as cute
    from cutlass._mlir._mlir_libs._cutlass_ir import _aot_support  # type: ignore[attr-defined]

    path = folder / "function.o"
    path.write_bytes(
        _aot_support.export_module_to_bytes(
            compiled.ir_module, format="o", opt_level=0, enable_pic=True
        )
    )
    module = cute.runtime.load_module(str(path), enable_tvm_ffi=True)
    return getattr(module, compiled.function_name)  # type: ignore[no-any-return]


@contextmanager
def _pretend_device(kernel: Kernel, launches: list[HostLaunch]) -> Iterator[None]:
    """Replace the runtime library's CUDA calls, and record launches instead of making them."""
    if platform.machine() not in ("x86_64", "AMD64") or platform.system() != "Linux":
        raise NotImplementedError("host code can be intercepted on Linux x86-64 only")
    library = _library("libcute_dsl_runtime.so")
    replaced = []
    try:
        for name, (types, function) in _calls(kernel, launches).items():
            callback = ctypes.CFUNCTYPE(c_int, *types)(function)
            address = ctypes.cast(getattr(library, name), c_void_p).value
            target = ctypes.cast(callback, c_void_p).value
            assert address is not None
            assert target is not None
            # mov rax, target; jmp rax
            jump = b"\x48\xb8" + target.to_bytes(8, "little") + b"\xff\xe0"
            before = ctypes.string_at(address, len(jump))
            _write_code(address, jump)
            replaced.append((address, before, callback))
        yield
    finally:
        for address, before, _ in replaced:
            _write_code(address, before)


def _calls(
    kernel: Kernel, launches: list[HostLaunch]
) -> dict[str, tuple[list[Any], Callable[..., int]]]:
    """Return the calls that host code makes: argument types, and a replacement; 0 is success."""
    loader = ctypes.CFUNCTYPE(c_int, POINTER(c_void_p), c_int)
    # Handles only need to be different from zero.
    library_handle, kernel_handle = 0x1000, 0x2000

    def load_library(slot: Any, _init: int, load: int, _error: int) -> int:
        library = (c_void_p * 1)(library_handle)
        slot[0] = library_handle
        return loader(load)(library, 0) if load else 0

    def put(value: int) -> Callable[..., int]:
        def call(out: Any, *_: Any) -> int:
            out[0] = value
            return 0

        return call

    def launch(config: int, _function: int, arguments: int) -> int:
        x, y, z, bx, by, bz = (c_uint32 * 6).from_address(config)
        shared = c_size_t.from_address(config + 24).value
        pointers = (c_void_p * len(kernel.params)).from_address(arguments)
        values = tuple(
            ctypes.string_at(pointer, parameter.size)
            for pointer, parameter in zip(pointers, kernel.params, strict=True)
        )
        cluster, cooperative = (1, 1, 1), False
        attributes = c_void_p.from_address(config + 40).value or 0
        for number in range(c_uint32.from_address(config + 48).value):
            at = attributes + _ATTRIBUTE_SIZE * number
            if c_uint32.from_address(at).value == _CLUSTER:
                i, j, k = (c_uint32 * 3).from_address(at + 8)
                cluster = (i, j, k)
            elif c_uint32.from_address(at).value == _COOPERATIVE:
                cooperative = bool(c_int.from_address(at + 8).value)
        launches.append(HostLaunch((x, y, z), (bx, by, bz), shared, values, cluster, cooperative))
        return 0

    def succeed(*_: Any) -> int:
        return 0

    numbers = POINTER(c_int)
    return {
        "cuda_dialect_init_library_once": ([POINTER(c_void_p), *[c_void_p] * 3], load_library),
        "_cudaLibraryGetKernel": ([POINTER(c_void_p), c_void_p, c_char_p], put(kernel_handle)),
        "_cudaGetDevice": ([numbers], put(0)),
        "_cudaSetDevice": ([c_int], succeed),
        # The only attribute asked for is the shared memory that a block may have.
        "_cudaDeviceGetAttribute": ([numbers, c_int, c_int], put(227 * 1024)),
        "_cuKernelGetAttribute": ([numbers, c_int, c_void_p, c_int], put(0)),
        "_cudaFuncSetAttribute": ([c_void_p, c_int, c_int], succeed),
        "_cudaKernelSetAttributeForDevice": ([c_void_p, c_int, c_int, c_int], succeed),
        "_cudaLaunchKernelEx": ([c_void_p, c_void_p, c_void_p], launch),
    }


@cache
def _library(name: str) -> ctypes.CDLL:
    """Find a loaded library once: a process that ran many kernels maps 3,000 files."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("/" + name):
            return ctypes.CDLL(line.split(maxsplit=5)[-1])
    raise RuntimeError(f"{name} is not loaded")


def _write_code(address: int, code: bytes) -> None:
    for page in range(address // _PAGE, (address + len(code) - 1) // _PAGE + 1):
        _make_writable(page)
    ctypes.memmove(address, code, len(code))


@cache  # a page stays as it is made
def _make_writable(page: int) -> None:
    readable_writable_executable = 7
    if ctypes.CDLL(None, use_errno=True).mprotect(
        c_void_p(page * _PAGE), c_size_t(_PAGE), readable_writable_executable
    ):
        raise OSError(ctypes.get_errno(), "the code of the runtime library cannot be changed")


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int),
        ("device_id", c_int),
        ("ndim", c_int),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor; Python owns the memory, so there is no deleter."""

    _fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p))
