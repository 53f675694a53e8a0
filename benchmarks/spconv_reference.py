"""spconv itself, from its CPU wheel, as the reference of ``layoutconv.compat.spconv``.

``pip install spconv`` is spconv without CUDA. Its algorithm Native computes on a CPU, but for three
things that are asked of CUDA, or not there; :func:`reference` puts them in place:

- the number of the current CUDA stream, which a backward pass asks for: 0;
- bias and activation of a layer in evaluation, which are added to the sums afterwards;
- the rows of each image, for global pooling, and sums of tensors by a hash table: with torch.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


def is_installed() -> bool:
    """Return True if a spconv other than layoutconv's is installed."""
    return find_spec("spconv") is not None and find_spec("cumm") is not None


@cache
def reference() -> Any:
    """Return ``spconv.pytorch`` of the CPU wheel, whose layers run forward and backward.

    Raises ``ImportError`` where it is not installed.
    """
    # torch tells everybody who asks for its tracer that a function of it means something else.
    logger = logging.getLogger("torch.fx._symbolic_trace")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        import spconv.pytorch as spconv
        from spconv.pytorch import cppcore, functional, hash, ops
    finally:
        logger.setLevel(level)
    for module in (cppcore, functional, hash, ops):
        module.get_current_stream = lambda: 0
    ops.indice_conv = _with_ending(ops.indice_conv)
    ops.global_pool_rearrange = _rows_by_image
    functional.sparse_add_hash_based = functional.sparse_add
    return spconv


def _with_ending(indice_conv: Any) -> Any:
    """The convolution, and after it what it refuses to do on a CPU."""

    def convolution(*args: Any, **options: Any) -> Tensor:
        bias, kind = options.pop("bias", None), options.pop("act_type", None)
        slope = options.pop("act_alpha", 0.0)
        y = indice_conv(*args, **options)
        y = y if bias is None else y + bias
        name = "None_" if kind is None else kind.name
        if name == "LeakyReLU":
            return torch.nn.functional.leaky_relu(y, slope)
        functions: dict[str, Any] = {"ReLU": torch.relu, "Sigmoid": torch.sigmoid}
        return functions[name](y) if name in functions else y

    return convolution


def _rows_by_image(coords: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
    """The rows of each image, int32 (batch_size, rows), the first of a row; and how many."""
    rows = torch.zeros(batch_size, len(coords), dtype=torch.int32)
    counts = torch.zeros(batch_size, dtype=torch.int32)
    for image in range(batch_size):
        found = (coords[:, 0] == image).nonzero()[:, 0]
        rows[image, : len(found)], counts[image] = found.int(), len(found)
    return rows, counts
