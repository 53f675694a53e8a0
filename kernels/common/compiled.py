"""Compile a kernel for torch's current stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import signature
from typing import Any

from .dsl import cute, cutlass, make_fake_stream

_runs = ContextVar("runs", default=False)


def compiled(kernel: Any, *arguments: Any, arch: str, dump: str | None, options: str = "") -> Any:
    """A TVM-FFI function of a kernel, for arguments like these; a stream is its last parameter.

    It is exported to an object file and loaded from there, or runs where it was compiled within
    :func:`runs_as_compiled`. ``options`` are more of the compiler's. With a folder ``dump``, the
    function has ``__ptx__`` (str) and ``__cubin__`` (bytes).
    """
    keep = f" --keep-ptx --keep-cubin --dump-dir {dump}" if dump else ""
    known = signature(cutlass.base_dsl.BaseDSL.compile_and_cache).parameters
    return cute.compile(
        kernel,
        *arguments,
        make_fake_stream(use_tvm_ffi_env_stream=True),
        options=f"--enable-tvm-ffi --gpu-arch {arch}{keep}{options}",
        **({} if _runs.get() else no_engine(known)),
    )


def no_engine(known: Mapping[str, Any]) -> dict[str, bool]:
    """Return the argument by which the DSL makes no host code for this process, if it is known.

    On a machine whose GPU could run the kernel it would, beside the object file that is exported:
    0.13 s of the 0.38 that a GEMM compiles for. A DSL that has dropped the argument makes both.

    >>> no_engine({"no_jit_engine": ...}), no_engine({})
    ({'no_jit_engine': True}, {})
    """
    return {"no_jit_engine": True} if "no_jit_engine" in known else {}


@contextmanager
def runs_as_compiled() -> Iterator[None]:
    """A context in which what is compiled runs without being exported, on a GPU of this machine."""
    token = _runs.set(True)
    try:
        yield
    finally:
        _runs.reset(token)
