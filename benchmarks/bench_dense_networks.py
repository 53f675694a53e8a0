"""Dense networks of other libraries, converted, beside torch's own. Needs a GPU and the libraries.

    python benchmarks/bench_dense_networks.py [--rows PATTERN] [--compiled] [--json FILE] ...

Sides are torch as it is, torch with ``channels_last`` memory, and ours: ``lc.nn.convert``,
``fold_batch_norms`` of evaluations, ``fuse_batch_norms`` of steps of training. A row has the median
wall time of a call of each, in turns, how long the GPU was busy, the peak of memory above what is
there before a call, and the time of a CUDA graph, where one can be captured. "ours graphed" is the
whole call of ``lc.nn.graphed`` or, of a step, ``lc.nn.graphed_step``. ``--compiled`` has
``torch.compile`` of the last two sides, too. A row whose library is not there says so.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from benchmark_options import program
from dense_networks import CASES, Case
from timing import captured, relative_error
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import layoutconv as lc

MEMORY = {4: torch.channels_last, 5: torch.channels_last_3d}
WARM = 3  # calls before the first one that is timed
TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 6e-2}  # beside torch, in the same precision
Call = Callable[[], Tensor]
GRAPHED = "ours graphed"


def in_order(net: nn.Module) -> nn.Module:
    """A network whose filters are in ``channels_last`` memory, of images and of volumes."""
    for parameter in net.parameters():
        if parameter.dim() in MEMORY:
            parameter.data = parameter.data.contiguous(memory_format=MEMORY[parameter.dim()])
    return net


def converted(net: nn.Module, case: Case) -> nn.Module:
    net = lc.nn.convert(net)
    return lc.nn.fuse_batch_norms(net) if case.trains else lc.nn.fold_batch_norms(net)


def caller(net: nn.Module, x: Tensor, case: Case) -> Call:
    """A call of a network: a forward pass, or a step whose result is the output."""
    if not case.trains:
        net = net.eval().requires_grad_(False).to(case.dtype)
        given = x.to(case.dtype)
        return lambda: case.run(net, given)

    def step() -> Tensor:
        net.zero_grad(set_to_none=True)
        with torch.autocast(x.device.type, case.dtype):
            y = first_tensor(case.run(net, x))
        y.float().square().mean().backward()
        return y.detach()

    return step


class Run(nn.Module):
    """A network whose forward pass is that of a case."""

    def __init__(self, net: nn.Module, case: Case) -> None:
        super().__init__()
        self.net, self.run = net, case.run

    def forward(self, x: Tensor) -> Any:
        return self.run(self.net, x)


def first_tensor(y: Any) -> Tensor:
    while not isinstance(y, Tensor):
        y = y[0]
    return y


def graphed(net: nn.Module, x: Tensor, case: Case) -> Call:
    """The same by the graphs that the library makes, results copied, arguments loaded."""
    net = Run(net, case)
    if not case.trains:
        graph, given = lc.nn.graphed(net.eval()), x.to(case.dtype)
        return lambda: first_tensor(graph(given))

    def loss(y: Any) -> tuple[Tensor, Tensor]:
        y = first_tensor(y)
        return y.float().square().mean(), y

    graphs = lc.nn.graphed_step(net, loss)

    def step() -> Tensor:
        net.zero_grad(set_to_none=True)
        with torch.autocast(x.device.type, case.dtype):
            _, y = graphs(x)
        found: Tensor = y
        return found

    return step


def sides(case: Case, device: str, *, compiled: bool = False) -> dict[str, Call]:
    """The calls of all sides, of the same weights."""
    torch.manual_seed(0)
    net = case.build().to(device).train(case.trains)
    x = torch.randn(case.shape, device=device)
    last = x.contiguous(memory_format=MEMORY[x.dim()])
    of_torch = in_order(deepcopy(net))
    of_ours = converted(deepcopy(net if case.trains else net.eval()), case)
    calls = {
        "torch": caller(deepcopy(net), x, case),
        "channels_last": caller(of_torch, last, case),
        "ours": caller(of_ours, last, case),
        GRAPHED: graphed(of_ours, last, case),
    }
    if compiled:
        of = case._replace(run=torch.compile(case.run))
        calls["channels_last compiled"] = caller(of_torch, last, of)
        calls["ours compiled"] = caller(of_ours, last, of)
    return calls


def busy(call: Call) -> float:
    """Milliseconds that kernels of a call take."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    gpu = torch.autograd.DeviceType.CUDA
    times = (e.time_range.elapsed_us() for e in seen.events() if e.device_type == gpu)
    return sum(times) / 1e3


def in_turns(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each call, the GPU waited for after every one."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(found) for name, found in times.items()}


@torch.no_grad()
def measured(case: Case, repeats: int, *, compiled: bool = False) -> dict[str, Any]:
    """A row: of each side milliseconds, those of the GPU, GiB, and the time of a graph."""
    calls = sides(case, "cuda", compiled=compiled)
    with torch.set_grad_enabled(case.trains):
        lc.precompile(calls["ours"])
        exact = calls["torch"]()
        of_ours = [relative_error(call(), exact) for name, call in calls.items() if "ours" in name]
        row: dict[str, Any] = {"error": max(of_ours)}
        for name, call in calls.items():
            for _ in range(WARM):
                call()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call()
            row[f"{name} GiB"] = (torch.cuda.max_memory_allocated() - before) / 2**30
        row |= {f"{name} ms": found for name, found in in_turns(calls, repeats).items()}
        row |= {f"{name} busy ms": busy(call) for name, call in calls.items()}
        graphs = {n: captured(call) for n, call in calls.items() if n not in ("torch", GRAPHED)}
    replays = {name: replay for name, replay in graphs.items() if replay is not None}
    row |= {f"{name} graph ms": found for name, found in in_turns(replays, repeats).items()}
    return row


def speed_ups(row: dict[str, Any]) -> str:
    """The sides' times, and those of torch divided by ours."""
    best = min(row["torch ms"], row["channels_last ms"])
    text = (
        f"ours {row['ours ms']:.2f} ms (busy {row['ours busy ms']:.2f}, {row['ours GiB']:.2f} GiB)"
    )
    for name in "torch", "channels_last":
        ratio = row[f"{name} ms"] / row["ours ms"]
        text += f"; {name} {row[f'{name} ms']:.2f} ({ratio:.2f}, {row[f'{name} GiB']:.2f} GiB)"
    text += f"; best {best / row['ours ms']:.2f}"
    if f"{GRAPHED} ms" in row:
        text += f"; graphed {row[f'{GRAPHED} ms']:.2f} ({best / row[f'{GRAPHED} ms']:.2f})"
    for kind in " graph", " compiled", " compiled graph":
        ours, theirs = row.get(f"ours{kind} ms"), row.get(f"channels_last{kind} ms")
        if ours and theirs:
            text += f";{kind} {ours:.2f} ({theirs / ours:.2f})"
    return text


def main(argv: list[str] | None = None) -> int:
    parser = program(__doc__, "rows", "repeats", "json")
    parser.add_argument("--compiled", action="store_true", help="torch.compile on both sides, too")
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("there is no GPU", file=sys.stderr)
        return 2
    torch.backends.cudnn.benchmark = True
    rows, wrong = {}, 0
    for case in CASES:
        if not re.search(arguments.rows, case.name):
            continue
        try:
            row = measured(case, arguments.repeats, compiled=arguments.compiled)
        except ImportError as missing:
            print(f"{case.name:26} {missing}", flush=True)
            continue
        rows[case.name] = row
        wrong += not row["error"] <= TOLERANCE[case.dtype]
        print(f"{case.name:26} {speed_ups(row)}; error {row['error']:.1e}", flush=True)
        torch.compiler.reset()
        torch.cuda.empty_cache()
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
