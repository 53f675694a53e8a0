"""Kernels of a few instructions, written by hand, to try one instruction on many values."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import Memory, Stats, parse, run

HEADER = """
.version 8.7
.target {arch}
.address_size 64
{variables}
.visible .entry snippet({params})
.reqntid {threads}, 1, 1 {directives}
{{
"""


def module(
    body: str,
    params: str = "",
    threads: int = 32,
    variables: str = "",
    arch: str = "sm_80",
    directives: str = "",
) -> str:
    """A PTX module with one kernel, whose text is ``body``."""
    head = HEADER.format(
        params=params, threads=threads, variables=variables, arch=arch, directives=directives
    )
    return f"{head}{body}\nret;\n}}\n"


def launch(
    body: str,
    *buffers: int | NDArray,
    memory: Memory | None = None,
    threads: int = 32,
    variables: str = "",
    **options,  # type: ignore[no-untyped-def]
) -> Stats:
    """Run ``body`` in one CTA; the addresses of ``buffers`` are in %rd0, %rd1 ...; %t is %tid.x.

    An array is added to the memory first; one that has an address there is given by that.
    """
    memory = memory or Memory()
    addresses = [memory.add(x) if isinstance(x, np.ndarray) else x for x in buffers]
    params = ", ".join(f".param .u64 p{i}" for i in range(len(buffers)))
    loads = "".join(f"ld.param.u64 %rd{i}, [p{i}];\n" for i in range(len(buffers)))
    registers = """
    .reg .b32 %t, %r<32>; .reg .b64 %rd<16>; .reg .b16 %h<8>; .reg .pred %p<8>; .reg .f32 %f<8>;
    mov.u32 %t, %tid.x;
    """
    kernel = parse(module(registers + loads + body, params, threads, variables))
    return run(kernel, memory, addresses, **options)


def elementwise_module(
    instruction: str, inputs: Sequence[NDArray], out_dtype: DTypeLike, arch: str
) -> str:
    """A kernel that computes ``instruction`` of %a, %b, %c, %e per thread into %d.

    Its parameters are the addresses of the inputs and of the result. Predicates %p and %q, and
    scratch registers %x, %y (32 bits) and %z (64 bits), may be used.
    """
    out = np.dtype(out_dtype)
    threads = inputs[0].size
    lines = [
        ".reg .pred %p, %q; .reg .b32 %x, %y, %tid32; .reg .b64 %z, %tid64, %at;",
        "mov.u32 %tid32, %tid.x; cvt.u64.u32 %tid64, %tid32;",
    ]
    for i, (name, array) in enumerate([*zip("abce", inputs, strict=False), ("d", out)]):
        width = array.dtype.itemsize if isinstance(array, np.ndarray) else out.itemsize
        bits = 8 * width
        # Registers have at least 16 bits.
        lines.append(f".reg .b{max(bits, 16)} %{name}; .reg .b64 %at_{name};")
        lines.append(f"ld.param.u64 %at, [p{i}]; mad.lo.u64 %at_{name}, %tid64, {width}, %at;")
        if name != "d":
            lines.append(f"ld.global.b{bits} %{name}, [%at_{name}];")
    lines += [instruction, f"st.global.b{8 * out.itemsize} [%at_d], %d;"]
    params = ", ".join(f".param .u64 p{i}" for i in range(len(inputs) + 1))
    return module("\n".join(lines), params, threads, arch=arch)


def elementwise(instruction: str, inputs: Sequence[NDArray], out_dtype: DTypeLike) -> NDArray:
    """Reference of :func:`elementwise_module`: one thread per element of the inputs."""
    ptx = elementwise_module(instruction, inputs, out_dtype, "sm_90")
    memory = Memory()
    result = np.zeros(inputs[0].size, out_dtype)
    addresses = [memory.add(np.ascontiguousarray(x), writable=False) for x in inputs]
    run(parse(ptx), memory, [*addresses, memory.add(result, output=True)])
    return result


def uses(instruction: str) -> int:
    """Count which of %a, %b, %c, %e an instruction reads."""
    return len(set(re.findall(r"%([abce])\b", instruction)))
