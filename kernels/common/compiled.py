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
    """Compile a kernel to a TVM-FFI function of arguments like these and, last, a stream.

    Export the function to an object file and load it from there; compiled within
    :func:`runs_as_compiled`, it runs as it is. ``options`` are further compiler options. With a
    folder ``dump``, the function has ``__ptx__`` (str) and ``__cubin__`` (bytes).
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
    """Return the argument that stops the DSL from making host code for this process, if ``known``.

    On a machine whose GPU could run the kernel, the DSL would make that code beside the exported
    object file: 0.13 s of the 0.38 s that a GEMM takes to compile. A DSL without the argument
    makes both.

    >>> no_engine({"no_jit_engine": ...}), no_engine({})
    ({'no_jit_engine': True}, {})
    """
    return {"no_jit_engine": True} if "no_jit_engine" in known else {}


@contextmanager
def runs_as_compiled() -> Iterator[None]:
    """Context in which compiled kernels run without being exported, on a GPU of this machine."""
    token = _runs.set(True)
    try:
        yield
    finally:
        _runs.reset(token)
