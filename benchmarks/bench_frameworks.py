"""Eager networks in spconv's names on clouds that are new, ours and every peer's. Needs a GPU.

    python benchmarks/bench_frameworks.py [--workloads FOLDER] [--training] [--json FILE]

The networks are those of ``spconv_networks.py``: a detector's residual backbone on a lidar sweep,
and a segmentation U-Net on a room, in fp16 with nobody's help: modules as a project has them. A
call gets a tensor of new coordinates, and the GPU is waited for after each; the time is the median
of 15. Beside it stand how long the GPU was busy in a call, the sum of its kernels by torch's
profiler, how many launches these are, what the host takes until it has launched all, and the most
memory that torch had allocated in a call, past what there was before the side was made: weights,
kernel maps, activations, gradients, and what CUDA graphs keep.

``ours, apart`` is with norms, activations and sums as launches of their own
(``lc.nn.unfused``), ``ours, graphed`` the network as a CUDA graph (``lc.nn.graphed``). With
``--training`` a step under autocast is timed, too: forward and backward, and both as a graph by
``lc.nn.graphed_step``.

The exit status is 1 if another side of ours does not agree with the one apart.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any, NamedTuple

import torch
from bench_sparse import PEERS, Cloud, clouds, first_line
from benchmark_options import program
from spconv_networks import residual_backbone, segmentation_unet
from timing import relative_error
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.compat.spconv import pytorch as ours

NETWORKS: dict[str, tuple[Callable[..., nn.Module], int, str]] = {
    "Res8x": (residual_backbone, 5, "lidar_waymo_b1"),
    "SpUNet": (segmentation_unet, 6, "indoor_b1"),
}
SIDES: dict[str, Callable[[], Any]] = {
    "ours": nullcontext,
    "ours, apart": lc.nn.unfused,
    "ours, graphed": nullcontext,
}
CALLS, WARM = 15, 5
TOLERANCE = 2e-2  # of fused against apart, both in fp16


class Input(NamedTuple):
    """A cloud of its own: features (rows, C), cells int32 (rows, 4)."""

    features: Tensor
    cells: Tensor


class Figures(NamedTuple):
    """Milliseconds of a side's call, of its kernels and of the host, its launches, and the MB that
    it takes at its peak."""

    wall: float
    busy: float
    host: float
    launches: int
    peak: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 0, 1 where sides of ours do not agree, 2 without a GPU."""
    parser = program(__doc__, "workloads", "json")
    add = parser.add_argument
    add("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    add("--training", action="store_true", help="time a training step, too")
    add("--peers", nargs="*", metavar="NAME", help="modules of spconv's names; all installed ones")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("bench_frameworks: error: it measures a GPU, and torch sees none", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    heads = "".join(
        f" {head:>8s}" for head in ("wall ms", "busy ms", "host ms", "launches", "peak MB")
    )
    print(f"{'row':20s} {'side':22s}{heads}")
    rows: dict[str, dict[str, Any]] = {}
    agreed = True
    for name in options.networks:
        cloud = next(clouds(options.workloads, [NETWORKS[name][2]]))
        for training in (False, True) if options.training else (False,):
            row = f"{name}, training" if training else name
            rows[row] = {}
            for side, found in measure(name, cloud, training, options.peers):
                rows[row][side] = found._asdict() if isinstance(found, Figures) else found
                print(f"{row:20s} {side:22s} {_text(found)}", flush=True)
                agreed &= side != "error" or float(found) < TOLERANCE
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0 if agreed else 1


def measure(
    name: str,
    cloud: Cloud,
    training: bool,
    peers: Sequence[str] | None = None,
    width: float = 1.0,
    calls: tuple[int, int] = (WARM, CALLS),
) -> Iterator[tuple[str, Any]]:
    """The sides of a row, and the error between both of ours; ``calls`` to warm up, and to time."""
    make, channels, _ = NETWORKS[name]
    inputs, warm = list(several(cloud, channels, sum(calls) + 2)), calls[0]
    state = initial(make(ours, channels, width=width))
    results = {}
    for side, context in SIDES.items():
        before = memory()
        net = make(ours, channels, width=width)
        if side == "ours, graphed":
            net = net if training else lc.nn.graphed(net)
        call = caller(ours, net, cloud, state, training, side == "ours, graphed")
        try:
            with context():
                results[side] = call(inputs[0])
                yield side, figures(call, inputs, before, warm)
        except RuntimeError as error:
            if not training or side != "ours, graphed":
                raise
            yield side, f"FAILED: {first_line(error)}"
        del net, call  # and their memory, before the next side's
    if not training:
        apart = results.pop("ours, apart")
        yield "error", max(relative_error(result, apart) for result in results.values())
    for peer in PEERS if peers is None else peers:
        try:
            module = import_module(peer)
        except ImportError:
            continue
        before = memory()
        try:
            net = make(module, channels, width=width)
            yield peer, figures(caller(module, net, cloud, state, training), inputs, before, warm)
        except Exception as error:  # the others are wanted
            yield peer, f"FAILED: {first_line(error)}"


def initial(net: nn.Module) -> dict[str, Tensor]:
    """Weights that keep the size of features, and norms that are not at their beginnings."""
    random = torch.Generator().manual_seed(0)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.copy_(0.1 * torch.randn(module.num_features, generator=random))
            module.running_var.copy_(0.2 + torch.rand(module.num_features, generator=random))
            nn.init.uniform_(module.weight, 0.5, 1.0, generator=random)
    return net.state_dict()


def several(cloud: Cloud, channels: int, count: int) -> Iterator[Input]:
    """Clouds of the same kind: each without another hundredth of the rows."""
    rows, device = len(cloud.cells), cloud.cells.device
    for seed in range(count):
        random = torch.Generator().manual_seed(seed)
        kept = torch.rand(rows, generator=random) < 0.99
        features = torch.randn(int(kept.sum()), channels, generator=random)
        yield Input(features.to(device), cloud.cells[kept.to(device)].contiguous())


def caller(
    spconv: Any, net: nn.Module, cloud: Cloud, state: dict[str, Tensor], training: bool,
    graphed: bool = False,
) -> Callable[[Input], Tensor]:  # fmt: skip
    """A function of an input, by modules as they are; ``graphed``: a training step as a graph."""
    device = cloud.cells.device
    net.load_state_dict(state)
    net.to(device).train(training)

    def tensor(given: Input) -> Any:
        features = given.features if training else given.features.half()
        shape = list(cloud.shape)
        return spconv.SparseConvTensor(features, given.cells, shape, cloud.images)

    if not training:
        net.half()

        @torch.no_grad()
        def call(given: Input) -> Tensor:
            found: Tensor = net(tensor(given)).features
            return found

        return call

    def loss(found: Any) -> Tensor:  # scaled, as fp16 has no gradients of means over a cloud
        return 2.0**16 * lc.nn.reduce_cells(found.features.float().square(), found)

    in_graph = lc.nn.graphed_step(net, loss) if graphed else None

    def step(given: Input) -> Tensor:
        found: Tensor
        for parameter in net.parameters():
            parameter.grad = None
        if in_graph is not None:
            with torch.autocast(device.type, torch.float16):
                found = in_graph(tensor(given))
            if in_graph.report().eager and device.type == "cuda":
                raise RuntimeError(f"no graph of the step: {list(in_graph.report().eager)}")
            return found
        with torch.autocast(device.type, torch.float16):
            found = net(tensor(given)).features
        found.float().square().mean().backward()
        return found.detach()

    return step


def figures(
    call: Callable[[Input], Tensor], inputs: Sequence[Input], before: int = 0, warm: int = WARM
) -> Figures:
    """Measure a call on an input that it has not had, after ``warm`` others.

    ``before`` are bytes that are not its own.
    """
    *others, one, another = inputs
    walls, hosts = [], []
    for at, given in enumerate(others):
        _wait()
        start = time.perf_counter()
        call(given)
        launched = time.perf_counter()
        _wait()
        if at >= warm:
            walls.append(1e3 * (time.perf_counter() - start))
            hosts.append(1e3 * (launched - start))
    memory()  # what has no owner any more is of no call
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    call(one)
    _wait()
    peak = (memory(peak=True) - before) / 1e6
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as seen:
        call(another)
        _wait()
    kernels = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    busy = sum(event.time_range.elapsed_us() for event in kernels) / 1e3
    return Figures(statistics.median(walls), busy, statistics.median(hosts), len(kernels), peak)


def memory(*, peak: bool = False) -> int:
    """Bytes that torch has allocated, or had at most, and those that CUDA graphs keep beside."""
    if not torch.cuda.is_available():
        return 0
    if not peak:
        gc.collect()
        torch.cuda.empty_cache()
    of_graphs = sum(  # of their own pools, which count as free between captures
        segment["total_size"] - segment["allocated_size"]
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) != (0, 0)
    )
    of_torch = torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
    return of_torch + of_graphs


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _text(found: Any) -> str:
    if isinstance(found, Figures):
        return "{:8.2f} {:8.3f} {:8.2f} {:8d} {:8.1f}".format(*found)
    return found if isinstance(found, str) else f"{found:8.1e}"


if __name__ == "__main__":
    raise SystemExit(main())
