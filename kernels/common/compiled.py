"""Compile a kernel for torch's current stream."""

from __future__ import annotations

from typing import Any

from .dsl import cute, make_fake_stream


def compiled(kernel: Any, *arguments: Any, arch: str, dump: str | None, options: str = "") -> Any:
    """A TVM-FFI function of a kernel, for arguments like these; a stream is its last parameter.

    ``options`` are more of the compiler's. With a folder ``dump``, the function has ``__ptx__``
    (str) and ``__cubin__`` (bytes).
    """
    keep = f" --keep-ptx --keep-cubin --dump-dir {dump}" if dump else ""
    return cute.compile(
        kernel,
        *arguments,
        make_fake_stream(use_tvm_ffi_env_stream=True),
        options=f"--enable-tvm-ffi --gpu-arch {arch}{keep}{options}",
    )
