"""Tables of taps on GPUs: an LRU cache; tables that a CUDA graph reads all stay.

A graph replays launches with the addresses that were captured, and nothing reports when a graph is
gone. So a table that a captured launch reads stays until kernels are unloaded, after which no graph
may be replayed, either.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from layoutconv.base.caches import remembered, unloaded_by
from layoutconv.base.torch_internals import is_capturing

Table = tuple[tuple[int, ...], ...]

_MOST_BYTES = 64 << 20  # of tables that graphs read: 100,000 with 27 taps each
_READ_BY_GRAPHS: dict[Any, torch.Tensor] = {}  # by contents and device
# The contents and device of each table that is still referenced.
_KEYS: MutableMapping[torch.Tensor, Any] = WeakTensorKeyDictionary()


@remembered(1024, stays=True)
def device_table(table: Table | tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return an int32 table (rows, columns), or vector, on a device, copied there once.

    Raises ``RuntimeError`` for the first time in a capture, which no graph could repeat.
    """
    key = table, device
    found = _READ_BY_GRAPHS.get(key)
    if found is None:
        if device.type == "cuda" and is_capturing():
            raise RuntimeError(
                "kernel maps in a CUDA graph: expected tables of their filters on the GPU, got the"
                " first call with such filters within a capture; run the network once before it"
            )
        found = torch.tensor(table, dtype=torch.int32, device=device)
        _KEYS[found] = key
    return found


def is_table(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is one of these tables, which other calls may read."""
    return tensor in _KEYS


def keep_for_graph(tensors: Iterable[torch.Tensor]) -> None:
    """Keep the tables among the tensors of a captured launch until kernels are unloaded.

    Raises ``RuntimeError`` if graphs already read too many: the capture ends there.
    """
    for tensor in tensors:
        key = _KEYS.get(tensor)
        if key is None or key in _READ_BY_GRAPHS:
            continue
        held = sum(kept.nbytes for kept in list(_READ_BY_GRAPHS.values()))
        if held + tensor.nbytes > _MOST_BYTES:
            raise RuntimeError(
                f"CUDA graphs read {len(_READ_BY_GRAPHS)} tables of taps, as many as may be kept:"
                " layoutconv.clear_caches(kernels=True) drops them, after which no graph that was"
                " captured before may be replayed"
            )
        _READ_BY_GRAPHS[key] = tensor


unloaded_by(_READ_BY_GRAPHS.clear)
