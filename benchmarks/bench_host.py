"""Host time of a convolution, ours and torch's in one run. Needs a GPU.

    python benchmarks/bench_host.py [--json FILE]

A row is what Python and the driver take for a call: the best mean of a few batches, the device not
waited for. The convolutions are so small that the device keeps up. A step of training has all three
gradients; where there are many voxels, that of the filter has sums that are worth splitting, which
is two launches. Then come a layer's share of the replay of a CUDA graph of a hundred layers, of a
volume and of a point cloud, and eager calls of a point cloud.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from benchmark_options import program
from timing import Call, host_microseconds

import layoutconv as lc

SHAPES = {"64 channels, few": (1, 64, 4, 8, 8), "64 channels": (1, 64, 16, 32, 32)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 0, or 2 without a GPU."""
    parser = program(__doc__, "json")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("bench_host: error: it measures a GPU, and torch sees none", file=sys.stderr)
        return 2
    rows = {}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for title, shape in SHAPES.items():
        for name, sides in calls(shape):
            ours, theirs = (host_microseconds(call) for call in sides)
            rows[f"{title}: {name}"] = {"ours": ours, "torch": theirs, "ratio": theirs / ours}
            print(f"{title:20s} {name:24s} {ours:7.1f} us  {theirs / ours:5.2f}x torch", flush=True)
    for name, call in graphs():
        taken = in_graph(call)
        rows[name] = {"ours": taken}
        print(f"{'in a graph':20s} {name:24s} {taken:7.1f} us", flush=True)
    for name, call in sparse_calls():
        taken = host_microseconds(call)
        rows[f"point cloud: {name}"] = {"ours": taken}
        print(f"{'64 voxels':20s} {name:24s} {taken:7.1f} us", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


def graphs(device: str = "cuda", dtype: torch.dtype = torch.float16) -> Iterator[tuple[str, Call]]:
    """Layers that a graph is made of."""
    C, order = 16, torch.channels_last_3d
    kind: dict[str, Any] = {"device": device, "dtype": dtype}
    x = torch.randn(1, C, 4, 8, 8, **kind).contiguous(memory_format=order)
    dense = lc.nn.Conv3d(C, C, 3, padding=1, **kind).requires_grad_(False)
    yield "dense", partial(dense, x)
    sparse = lc.nn.SubmConv3d(C, C, 3, **kind).requires_grad_(False)
    yield "point cloud", partial(sparse, line_of_voxels(C, device, dtype))


def line_of_voxels(C: int, device: str, dtype: torch.dtype) -> lc.SparseTensor:
    """64 voxels in a row."""
    cells = torch.zeros(64, 4, dtype=torch.int32, device=device)
    cells[:, 3] = torch.arange(64)
    features = torch.randn(64, C, device=device, dtype=dtype)
    return lc.SparseTensor(features, cells, (1, 1, 64), 1)


def sparse_calls(
    device: str = "cuda", dtype: torch.dtype = torch.float16
) -> Iterator[tuple[str, Call]]:
    """Eager calls over a kernel map that the tensor has."""
    C = 16
    cloud = line_of_voxels(C, device, dtype)
    conv = lc.nn.SubmConv3d(C, C, 3, device=device, dtype=dtype)
    frozen = deepcopy(conv).requires_grad_(False)
    weight = frozen.weight
    yield "subm_conv", partial(lc.subm_conv, cloud, weight)
    yield "module, no gradient", partial(frozen, cloud)
    yield "module, forward", partial(conv, cloud)

    def step() -> Any:
        return torch.autograd.grad(conv(cloud).features.sum(), conv.weight)[0]

    yield "module and backward", step


def in_graph(call: Call, layers: int = 100) -> float:
    """Microseconds of the host for each of the layers that a graph replays."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(layers):
            call()
    return host_microseconds(graph.replay, calls=10) / layers


def calls(
    shape: tuple[int, ...], device: str = "cuda", dtype: torch.dtype = torch.float16
) -> Iterator[tuple[str, tuple[Callable[[], Any], Callable[[], Any]]]]:
    """Rows by name: our call, and torch's."""
    C, order = shape[1], torch.channels_last_3d
    kind: dict[str, Any] = {"device": device, "dtype": dtype}
    x = torch.randn(shape, **kind).contiguous(memory_format=order)
    theirs = torch.nn.Conv3d(C, C, 3, padding=1, **kind)
    theirs.weight.data = theirs.weight.data.contiguous(memory_format=order)
    ours = lc.nn.Conv3d(C, C, 3, padding=1, **kind)
    ours.load_state_dict(theirs.state_dict())
    w = theirs.weight.detach()
    functions = lc.conv3d, torch.nn.functional.conv3d
    modules = ours, theirs

    def both(sides: Sequence[Any], *given: Any, **numbers: Any) -> tuple[Any, Any]:
        first, second = (partial(side, *given, **numbers) for side in sides)
        return first, second

    yield "conv3d", both(functions, x, w, padding=1)
    yield "conv3d, stride 2", both(functions, x, w, stride=2, padding=1)
    transposed = lc.conv_transpose3d, torch.nn.functional.conv_transpose3d
    yield "conv_transpose3d", both(transposed, x, w, stride=2, padding=1)
    frozen = [deepcopy(module).requires_grad_(False) for module in modules]
    yield "module, no gradient", both(frozen, x)
    yield "module, forward", both(modules, x)

    def step(module: Any) -> Any:
        return torch.autograd.grad(module(x).sum(), module.weight)[0]

    yield "module and backward", (partial(step, ours), partial(step, theirs))
    learned, grad = x.detach().requires_grad_(), torch.ones_like(theirs(x))

    def train(module: Any) -> Any:
        wanted = learned, module.weight, module.bias
        return torch.autograd.grad(module(learned), wanted, grad)

    yield "step of training", (partial(train, ours), partial(train, theirs))


if __name__ == "__main__":
    raise SystemExit(main())
