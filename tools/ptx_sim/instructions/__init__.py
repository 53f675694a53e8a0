"""Semantics of every instruction, one file per family; importing the package registers all."""

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
    tensor_copy,
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
    "tensor_copy",
    "tensor_core",
    "warp",
    "warpgroup",
]
