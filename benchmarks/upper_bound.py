"""The template with its loads removed: how fast its main loop could be if memory cost nothing.

Everything else is the same kernel: the fragments are read from shared memory, which nothing fills,
the tensor cores multiply them, and the epilogue writes. The results mean nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import layoutconv as lc
from layoutconv.view.gemm_view import GemmView


@contextmanager
def no_loads() -> Iterator[None]:
    """Kernels that are compiled in this context load nothing; none of them is kept on disk."""
    from layoutconv.kernels.compile import store
    from layoutconv.kernels.gemm.cp_async import CpAsyncLoad
    from layoutconv.kernels.gemm.tf32_rounding import RoundingLoad
    from layoutconv.kernels.gemm.tma import TmaLoad, TmaTiledLoad
    from layoutconv.kernels.gemm.tma_im2col_copy import TmaIm2colLoad

    with (
        TemporaryDirectory() as folder,
        patch.dict(os.environ, LAYOUTCONV_CACHE_DIR=folder),
        patch.object(store, "_loaded", {}),
        patch.object(CpAsyncLoad, "copy_vectors", _nothing),
        patch.object(CpAsyncLoad, "read_ahead", _nothing),
        patch.object(RoundingLoad, "copy", _nothing),
        patch.object(RoundingLoad, "read_ahead", _nothing),
        patch.object(TmaLoad, "bring", _nothing),
        patch.object(TmaLoad, "bytes_of", _no_bytes),
        patch.object(TmaTiledLoad, "bytes_of", _no_bytes),
        patch.object(TmaIm2colLoad, "bytes_of", _no_bytes),
    ):
        yield


def without_loads(view: GemmView, a: Any, b: Any, out: Any, **options: Any) -> GemmView:
    """A view like ``view`` whose kernel, for tensors and options like these, loads nothing.

    It is bound to that kernel: ``lc.execute`` of it, with the same dtypes and options, runs it.
    """
    bound = replace(view)  # plans are kept with a view
    with no_loads():
        lc.execute(bound, a, b, out, **options)
    return bound


def _no_bytes(*arguments: Any) -> int:
    return 0


def _nothing(*arguments: Any, **named: Any) -> None:
    """In place of a producer's method."""
