"""A sparse residual U-Net end to end, ours and every peer that is installed. Needs a GPU.

    python benchmarks/bench_network.py [--rows PATTERN] [--compile N] [--peers NAME ...]

The network is like the MinkUNet-34 of Choy, Gwak and Savarese (2019), one cloud at a time, in fp16.
For inference its batch norms, ReLUs and sums are folded into our convolutions, and a peer runs it
both as it is and with batch norms and ReLUs folded into its layers; the faster counts. Rows are

- ``eager``: from cells and features; every kernel map is made in the call;
- ``given``: on a tensor whose maps were made before. A peer keeps its submanifold maps, and makes
  those of its strided layers again, as it refuses to take them;
- ``graph``: ``eager`` as a CUDA graph, whose levels have room for a tenth more cells than there
  are; copying the cloud to its memory counts. Peers cannot be captured, as their maps wait for the
  host: their eager time stands beside it;
- ``graphed``: the same by ``lc.nn.graphed``, with the rows of the result read and cut;
- ``training``: forward, loss and backward under autocast, maps included.

Times are medians. The error is that of the scores, or of all gradients, against the network in
float64, on maps that a CPU made, in nothing but gathers and products; a peer whose error is greater
than what ours may be is left out, with a word. The floor is the sum over convolutions of the larger
of the times that their products and their bytes take at the limits of the GPU, maps not counted.

Every phase says when it began. ``--compile 16`` has sixteen processes compile the kernels of all
rows first. Peers run in processes of their own, each at most ``--peer-limit`` seconds; what they
have tuned by then they find again in another run. ``--peers`` without a name runs none.

Clouds are those of ``bench_sparse.py``. The exit status is 1 if a row failed or is wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from bench_sparse import PEERS, Cloud, Row, clouds, finish, first_line
from benchmark_options import program
from network_calls import CAPTURED, KINDS, TARGETS, TOLERANCE, Call, Case, ours
from network_peers import Request, Result, in_time, names_of
from roofs import Roof, roof_of
from timing import median_microseconds

import layoutconv as lc
from layoutconv.base.progress import Progress


class Phases:
    """Lines that say what begins, and when, in seconds since the start."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.start = progress, time.monotonic()

    def __call__(self, text: str) -> None:
        self.progress.print(f"[{time.monotonic() - self.start:6.1f} s] {text}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 0, 1 where a row failed or is wrong, 2 without a GPU."""
    options = _options(arguments)
    if not torch.cuda.is_available():
        print("bench_network: error: it measures a GPU, and torch sees none", file=sys.stderr)
        return 2
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    roof = roof_of(torch.cuda.get_device_name())
    wanted = PEERS if options.peers is None else options.peers
    peers = names_of([name if "." in name else f"{name}.pytorch" for name in wanted])
    print(f"{machine}; peers: {', '.join(peers) or 'none'}", flush=True)
    rows: list[Row] = []
    failed: list[str] = []
    with Progress().step("Measuring") as progress:
        say = Phases(progress)
        say("clouds")
        for cloud in clouds(options.workloads, options.cases):
            for row in measure(cloud, peers, roof, options, say):
                if isinstance(row, Row):
                    rows.append(row)
                else:
                    failed.append(row)
            torch.cuda.empty_cache()
    return report(rows, failed, machine, roof, options)


def measure(
    cloud: Cloud,
    peers: Sequence[str],
    roof: Roof | None,
    options: argparse.Namespace,
    say: Phases,
    width: float = 1.0,
    ours: Callable[..., Call] = ours,
    in_time: Callable[..., list[Result]] = in_time,
) -> Iterator[Row | str]:
    """The rows of a cloud, and the names of those that failed.

    ``ours`` makes the call of a row, ``in_time`` runs a peer.
    """
    names = {kind: f"{kind} {cloud.name} fp16" for kind in KINDS}
    wanted = {kind: name for kind, name in names.items() if re.search(options.rows, name)}
    if not wanted:
        return
    device = cloud.cells.device
    say(f"{cloud.name}: {len(cloud.cells)} cells; the network in float64, by torch")
    case = Case(cloud, width)
    if options.compile:
        say(f"kernels of {len(wanted)} rows, in {options.compile} processes")
        calls = [ours(kind, case, captures=False) for kind in wanted]
        count = lc.precompile(
            lambda: [call() for call in calls],
            processes=options.compile, tick=say.progress.tick,
        )  # fmt: skip
        del calls
        say(f"{count} kernels were missing, and are compiled")
    measured: dict[str, Row | str] = {}
    for kind, name in wanted.items():
        say(f"ours: {kind}")
        try:
            call = ours(kind, case, captures=device.type == "cuda")
            measured[kind] = _row(kind, name, call, case, roof, options.repeats)
        except Exception as error:  # whatever it is, the other rows are wanted
            measured[kind] = f"{name:34s} FAILED: {first_line(error)}"
        say.progress.print(measured[kind])
    beside: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
    kinds = {"eager" if kind in CAPTURED else kind for kind in wanted}
    for module in peers:
        say(f"{module}, {options.peer_limit:.0f} s at most")
        on_cpu = Cloud(cloud.name, cloud.cells.cpu(), cloud.shape, cloud.images)
        asked = tuple(kind for kind in KINDS if kind in kinds)
        request = Request(module, on_cpu, asked, options.repeats, str(device), width)
        for kind, variant, result in in_time(request, options.peer_limit, say):
            if isinstance(result, str):
                say(f"{variant}, {kind} FAILED: {result}")
            else:
                beside[kind][variant] = result
    beside |= dict.fromkeys(CAPTURED, beside["eager"])
    for kind, row in measured.items():
        if isinstance(row, str):
            yield wanted[kind]
            continue
        row.peers.update(beside[kind])
        yield row


def _row(kind: str, name: str, call: Call, case: Case, roof: Roof | None, repeats: int) -> Row:
    """Ours: compared with float64, then timed."""
    result = call()
    error = case.error(kind, result)
    again = case.error(kind, call())  # by what was kept of the first
    times = 3 if kind == "training" else 1
    floor = case.work.floor(roof, "fp16", 2)
    return Row(
        name, median_microseconds(call, 5, repeats), {}, None if floor is None else times * floor,
        max(error, again), TOLERANCE[kind], TARGETS[kind],
        dtype="fp16", flop=times * sum(case.work.flop), moved=times * sum(case.work.moved(2)),
    )  # fmt: skip


def report(
    rows: list[Row], failed: list[str], machine: str, roof: Roof | None, options: argparse.Namespace
) -> int:
    """The table, the files that are wanted, and the exit status."""
    print(f"\n{'row':28s} {'ours us':>10s} {'peer us':>10s} {'ratio':>7s} {'to reach':>8s}  peer")
    for row in rows:
        beside = f"{row.peers[row.peer]:10.0f} {row.ratio:6.2f}x" if row.ratio else f"{'':18s}"
        print(f"{row.name:28s} {row.microseconds:10.0f} {beside} {row.target:7.1f}x  {row.peer}")
    return finish(rows, failed, machine, roof, options)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(__doc__, "rows", "workloads", "repeats", "json")
    add = parser.add_argument
    add("--compile", type=int, default=0, metavar="N", help="compile first, in N processes")
    add("--peers", nargs="*", metavar="NAME", help="those to run; all that are installed")
    add("--peer-limit", type=float, default=300.0, metavar="SECONDS", help="of each peer")
    add("--cases", nargs="*", default=("lidar_kitti_b1",), help="of the workloads")
    add("--plot", type=Path, metavar="FILE", help="write a chart of ratios and a roofline here")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
