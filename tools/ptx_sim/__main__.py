"""``python -m tools.ptx_sim KERNEL.ptx``: describe a kernel, or run it on random arrays."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import Fault, Kernel, Memory, ParseError, UnsupportedInstruction, parse, run

ARRAY = re.compile(r"(out:)?([a-z]+\d+)\[(\d+)\]")
SCALAR = re.compile(r"([a-z]+\d+):(.+)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, 1 if the kernel breaks a rule, 2 for invalid arguments."""
    options = _options(arguments)
    try:
        kernel = parse(Path(options.kernel).read_text("utf-8"))
        if options.argument or options.grid:
            _run(kernel, options)
        else:
            _describe(kernel)
    except (OSError, ParseError, TypeError, UnsupportedInstruction, ValueError) as error:
        print(f"ptx_sim: error: {error}", file=sys.stderr)
        return 2
    except Fault as fault:
        print(f"ptx_sim: {type(fault).__name__}: {fault}", file=sys.stderr)
        return 1
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tools.ptx_sim",
        description="Describe a kernel; with arguments or a grid, run it on the CPU and check it.",
        epilog="arguments, in the kernel's order: float32[1024], an array of random small integers;"
        " out:float32[1024], one that is written; int32:128, a number",
    )
    parser.add_argument("kernel", help="a PTX file")
    parser.add_argument("argument", nargs="*", help="of the kernel, as below")
    parser.add_argument("--grid", type=_extents, metavar="X[,Y[,Z]]", help="CTAs (1)")
    parser.add_argument("--block", type=_extents, metavar="X[,Y[,Z]]", help="threads of a CTA")
    parser.add_argument("--shared", type=int, default=0, metavar="BYTES", help="dynamic memory")
    parser.add_argument("--seed", type=int, default=0, help="of the data and the order of warps")
    return parser.parse_args(arguments)


def _extents(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _describe(kernel: Kernel) -> None:
    """Print parameters, shape and instructions of a kernel."""
    print(f"kernel     {kernel.name}")
    for one in kernel.params:
        print(f"parameter  {one.name}: {one.type}, {one.size} bytes at {one.offset}")
    print(f"threads    {kernel.threads or 'not said'}")
    print(f"registers  {len(kernel.registers)} of PTX")
    _table(Counter(one.opcode for one in kernel.instructions), "instructions")


def _run(kernel: Kernel, options: argparse.Namespace) -> None:
    """Run a kernel, print what it executed and what it wrote."""
    memory, random = Memory(), np.random.default_rng(options.seed)
    values, outputs = list[Any](), dict[str, np.ndarray]()
    for number, text in enumerate(options.argument):
        array, scalar = ARRAY.fullmatch(text), SCALAR.fullmatch(text)
        if array:
            written, dtype, count = array.groups()
            data = random.integers(-4, 5, int(count)).astype(dtype)
            name = f"argument {number}, {text}"
            values.append(memory.add(data, name=name, writable=bool(written), output=bool(written)))
            if written:
                outputs[name] = data
        elif scalar:
            value = np.dtype(scalar[1]).type(scalar[2])
            values.append(value.item())
        else:
            expected = "expected float32[1024], out:float32[1024] or int32:128"
            raise ValueError(f"argument {number}: {expected}, got {text!r}")
    stats = run(
        kernel, memory, values, options.grid or (1,), block=options.block,
        shared_bytes=options.shared, seed=options.seed,
    )  # fmt: skip
    _table(stats.opcodes, "warp instructions executed")
    for name, data in outputs.items():
        with np.printoptions(threshold=64, precision=5):
            print(f"{name}: {data}")


def _table(counts: Counter[str], title: str) -> None:
    print(f"{sum(counts.values()):9d}  {title}")
    for opcode, count in counts.most_common(20):
        print(f"{count:9d}  {opcode}")


if __name__ == "__main__":
    sys.exit(main())
