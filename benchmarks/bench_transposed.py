"""Transposed convolutions with a bias and an activation, ours and cuDNN's in one run. Needs a GPU.

    python benchmarks/bench_transposed.py [--rows PATTERN] [--dtype fp16] [--json FILE] [--predict]

A row is the median time of a call on either side, batches of the two in turns, as CUDA graphs;
results are compared with float64 first. cuDNN's time is the better one of both orders of memory,
its bias and the activation included. The model's time is what the tile was chosen by; ``--predict``
says it, and the launches, of an H200 without a GPU.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import torch
from benchmark_options import program
from roofs import roof_of
from timing import interleaved_microseconds, relative_error

import layoutconv as lc
from layoutconv.gpu.phase_choice import MORE_COLUMNS
from layoutconv.gpu.select import choose_kernel
from layoutconv.ops.dense_passes import dgrad_pass
from layoutconv.planning.cost_model import expected_time
from layoutconv.planning.machine import MACHINES, Machine

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}
TORCHS = {n: getattr(torch.nn.functional, f"conv_transpose{n}d") for n in (1, 2, 3)}
OURS = {n: getattr(lc, f"conv_transpose{n}d") for n in (1, 2, 3)}
MEMORY = {3: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class Layer:
    """A transposed convolution: (N, C, *cells), the output's channels, taps, stride, padding."""

    name: str
    shape: tuple[int, ...]
    channels: int
    taps: int
    stride: int
    padding: int = 0
    extra: int = 0  # the output's padding

    @property
    def rank(self) -> int:
        return len(self.shape) - 2

    @property
    def filter(self) -> tuple[int, ...]:
        return (self.shape[1], self.channels, *[self.taps] * self.rank)

    @property
    def numbers(self) -> tuple[int, int, int]:
        return self.stride, self.padding, self.extra

    @property
    def result(self) -> tuple[int, ...]:
        more = self.taps - 2 * self.padding + self.extra
        cells = [(n - 1) * self.stride + more for n in self.shape[2:]]
        return (self.shape[0], self.channels, *cells)


LAYERS = [
    Layer("U-Net 2x2x2 256 at 16", (2, 256, 16, 16, 16), 128, 2, 2),
    Layer("U-Net 2x2x2 128 at 32", (2, 128, 32, 32, 32), 64, 2, 2),
    Layer("U-Net 2x2x2 64 at 64", (2, 64, 64, 64, 64), 32, 2, 2),
    Layer("U-Net 3x3x3 128 at 32", (2, 128, 32, 32, 32), 64, 3, 2, 1, 1),
    Layer("U-Net 2x2 512 at 32", (8, 512, 32, 32), 256, 2, 2),
    Layer("DCGAN 4x4 512 at 4", (64, 512, 4, 4), 256, 4, 2, 1),
    Layer("DCGAN 4x4 256 at 8", (64, 256, 8, 8), 128, 4, 2, 1),
    Layer("DCGAN 4x4 64 to 3 at 32", (64, 64, 32, 32), 3, 4, 2, 1),
    Layer("CycleGAN 3x3 256 at 64", (4, 256, 64, 64), 128, 3, 2, 1, 1),
    Layer("CenterPoint 2x2 256", (4, 256, 124, 108), 256, 2, 2),
    Layer("CenterPoint 4x4 256", (4, 256, 62, 54), 256, 4, 4),
    Layer("patches 16x16 768 to 3", (64, 768, 14, 14), 3, 16, 16),
    Layer("patches 8x8x8 768 to 1", (2, 768, 12, 12, 12), 1, 8, 8),
    Layer("HiFi-GAN 16 by 8, 512", (16, 512, 32), 256, 16, 8, 4),
    Layer("HiFi-GAN 16 by 8, 256", (16, 256, 256), 128, 16, 8, 4),
    Layer("HiFi-GAN 4 by 2, 128", (16, 128, 2048), 64, 4, 2, 1),
    Layer("HiFi-GAN 4 by 2, 64", (16, 64, 4096), 32, 4, 2, 1),
    Layer("samples 320 by 320", (4, 512, 1000), 1, 320, 320),
]


def predicted(layer: Layer, dtype: torch.dtype, machine: Machine) -> tuple[int, float]:
    """Launches, and the microseconds that the model expects of them."""
    first, filter = ((t[0], *t[2:], t[1]) for t in (layer.shape, layer.filter))
    modes = [[layer.stride], [layer.padding] * 2, [1]]
    numbers = [*(some * layer.rank for some in modes), 1]
    found = dgrad_pass(first, filter, layer.result[2:], numbers, ends=True, columns=MORE_COLUMNS)
    times = []
    for view in found.views:
        steps = f"bias:{str(dtype)[6:]} relu"
        chosen = choose_kernel(view, dtype, machine, structure=steps)
        of = chosen.problem, chosen.spec.tile, chosen.splits, machine
        times.append(expected_time(*of))
    return len(times), sum(times)


def floor_of(layer: Layer, name: str, gpu: str) -> float | None:
    """Microseconds that its products and bytes take at least, where the GPU's limits are known."""
    roof, size = roof_of(gpu), DTYPES[name].itemsize
    flop = 2.0 * prod(layer.shape) * prod(layer.filter[1:])
    moved = size * sum(map(prod, (layer.shape, layer.filter, layer.result)))
    return None if roof is None else roof.floor(name, flop, moved)


def measured(layer: Layer, dtype: torch.dtype) -> dict[str, Any]:
    """Microseconds of both sides, and their errors."""
    torch.manual_seed(0)
    rank, numbers = layer.rank, layer.numbers
    x = torch.randn(layer.shape, device="cuda", dtype=dtype)
    w = torch.randn(layer.filter, device="cuda", dtype=dtype) / 16
    bias = torch.randn(layer.channels, device="cuda", dtype=dtype)
    laid = [t.movedim(1, -1).contiguous().movedim(-1, 1) for t in (x, w)]
    of_torch = [tuple(t.contiguous(memory_format=MEMORY[t.dim()]) for t in (x, w)), (x, w)]

    def ours() -> torch.Tensor:
        y: torch.Tensor = OURS[rank](*laid, bias, *numbers, activation="relu")
        return y

    def theirs(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.relu_(TORCHS[rank](*operands, bias, *numbers))

    few = slice(0, 1)
    reference = TORCHS[rank](x[few].double(), w.double(), bias.double(), *numbers).relu()
    errors = [relative_error(call()[few], reference) for call in (ours, lambda: theirs((x, w)))]
    calls = [ours, *(lambda operands=operands: theirs(operands) for operands in of_torch)]
    with torch.no_grad():
        microseconds, *peers = interleaved_microseconds(calls)
    return {
        "us": microseconds, "cudnn_us": min(peers), "ratio": min(peers) / microseconds,
        "error": errors[0], "cudnn_error": errors[1],
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = program(__doc__, "json")
    parser.add_argument("--rows", default="", help="a regular expression that rows match")
    parser.add_argument("--dtype", choices=DTYPES, default="fp16")
    parser.add_argument("--predict", action="store_true", help="the model's time alone, of an H200")
    arguments = parser.parse_args(argv)
    if not arguments.predict and not torch.cuda.is_available():
        print("there is no GPU: --predict says what the model expects", file=sys.stderr)
        return 2
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = True
    dtype, rows = DTYPES[arguments.dtype], []
    gpu = "H200" if arguments.predict else torch.cuda.get_device_name()
    for layer in LAYERS:
        if not re.search(arguments.rows, layer.name):
            continue
        launches, model = predicted(layer, dtype, MACHINES["sm_90a"])
        row = {"launches": launches, "model_us": model}
        row["floor_us"] = floor_of(layer, arguments.dtype, gpu) or float("nan")
        row |= {} if arguments.predict else measured(layer, dtype)
        text = "  ".join(f"{name} {value:.4g}" for name, value in row.items())
        print(f"{layer.name:26} {arguments.dtype}  {text}", flush=True)
        rows.append({**asdict(layer), **row})
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return int(any(not row.get("error", 0) <= 1e-2 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
