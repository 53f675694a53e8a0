"""What every instruction does, one file per family; importing this package registers them all.

A family that is added later (TMA) is one more file in this list.
"""

from . import (
    asynchronous,
    atomic,
    bits,
    control,
    convert,
    floating,
    integer,
    load_store,
    mbarrier,
    move,
    predicate,
    tensor_core,
    warp,
    warpgroup,
)

__all__ = [
    "asynchronous",
    "atomic",
    "bits",
    "control",
    "convert",
    "floating",
    "integer",
    "load_store",
    "mbarrier",
    "move",
    "predicate",
    "tensor_core",
    "warp",
    "warpgroup",
]
