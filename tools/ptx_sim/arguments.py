"""Kernel arguments: convert Python values to the bytes that a kernel's ``.param`` list declares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .ptx import Kernel, Parameter

Scalar = int | float | np.generic
Argument = Scalar | bytes | Sequence[np.generic]


def c_struct(*fields: np.generic) -> bytes:
    """Pack NumPy scalars as a C struct: each aligned to its size, the whole to the largest.

    >>> c_struct(np.uint64(1), np.int32(2), np.int32(3), np.int64(4)).hex("-", 8)
    '0100000000000000-0200000003000000-0400000000000000'
    """
    block = b""
    for field in fields:
        block += bytes(-len(block) % field.itemsize) + field.tobytes()
    return block + bytes(-len(block) % max(field.itemsize for field in fields))


def pack(kernel: Kernel, arguments: Sequence[Argument]) -> bytes:
    """Return the argument block of a launch: one argument per ``.param``, in order.

    A scalar parameter takes an int (also for a pointer) or a float; a struct takes its bytes or a
    sequence of NumPy scalars (see :func:`c_struct`). Raises ValueError, naming the parameter, if
    the number of arguments, or the size or range of one, is wrong.
    """
    if len(arguments) != len(kernel.params):
        wanted = [f"{p.type} ({p.size} bytes)" for p in kernel.params]
        raise ValueError(
            f"{kernel.name} takes {len(wanted)} arguments {wanted}, got {len(arguments)}"
        )
    block = b""
    for parameter, argument in zip(kernel.params, arguments, strict=True):
        block = block.ljust(parameter.offset, b"\0") + _bytes_of(parameter, argument)
    return block


def _bytes_of(parameter: Parameter, argument: Argument) -> bytes:
    size = parameter.size
    if isinstance(argument, (bytes, bytearray)):
        raw = bytes(argument)
    elif isinstance(argument, np.generic):
        raw = argument.tobytes()
    elif isinstance(argument, int):
        if parameter.is_struct and size not in (4, 8):
            raise ValueError(
                f"{parameter.name} is a struct of {size} bytes, got the int {argument}"
            )
        if not -(1 << 8 * size - 1) <= argument < 1 << 8 * size:
            raise ValueError(f"{argument} does not fit the {size} bytes of {parameter.name}")
        raw = (argument % (1 << 8 * size)).to_bytes(size, "little")
    elif isinstance(argument, float):
        raw = np.array(argument, f"f{size}").tobytes()
    else:
        raw = c_struct(*argument)
    if len(raw) != size:
        raise ValueError(f"{parameter.name} has {size} bytes, got {len(raw)}")
    return raw
