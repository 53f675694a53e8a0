"""What every instruction does, one file per family; importing this package registers them all.

A family that is added later (mbarrier, TMA, wgmma) is one more file in this list.
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
    move,
    predicate,
    tensor_core,
    warp,
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
    "move",
    "predicate",
    "tensor_core",
    "warp",
]
