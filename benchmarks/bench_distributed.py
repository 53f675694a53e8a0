"""More than one GPU: a volume and a cloud split over them, and training in parallel.

    python benchmarks/bench_distributed.py [--ranks 1 2] [--size 512] [--steps 10] [--json FILE]

Three tables, each against one GPU in the same run, for 1, 2, 4, ... and all GPUs, a process each:

- the forward pass of one volume, 512^3 x 32 channels in fp16, 3x3x3 to as many channels, a slab on
  every rank. *Exchange* is what the halo takes by itself, of the pass; *not hidden* is how much
  longer the pass is than that of the slab alone, which has no halo. A small volume is compared with
  the unsplit convolution first.
- the forward pass of one cloud, a surface of 8 million voxels, 3x3x3 with as many channels, a range
  of a Morton curve on every rank. *Exchange* and *not hidden* as above; the kernel map is at hand.
- steps of ``examples/minkunet_segmentation.py``'s network under ``DistributedDataParallel``, 4
  clouds of this package's synthetic street per rank, each of as many points as a sweep of KITTI's
  lidar, in bfloat16 where autocast says so: voxels of 5 cm, kernel maps, forward, backward,
  optimizer. ``+sync`` has ``SyncBatchNorm`` for batch norms. With larger voxels or fewer beams a
  step is what Python takes for it, on any number of GPUs.

With ``--device cpu`` processes talk through gloo, to see that everything runs. A row that fails
says why, and the others run. The exit status is 1 if one failed, or the small volume is wrong.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from bench_stream import surface
from benchmark_options import program
from timing import wait_for
from torch.nn.parallel import DistributedDataParallel

import layoutconv as lc
from layoutconv.distributed import Slab
from layoutconv.distributed.border import border_of
from layoutconv.distributed.cloud import cloud_of
from layoutconv.distributed.route import carry
from layoutconv.sparse import SparseTensor
from layoutconv.sparse.coords.street import street

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
from minkunet_segmentation import MinkUNet

TARGETS = {("split", 2): 1.8, ("split", 4): 3.4, ("ddp", 2): 1.85}
TOLERANCE = 1e-3  # relative, of fp16 against the same convolution unsplit
CHANNELS, CLASSES = 5, 2
PATIENCE = timedelta(minutes=3)  # with ranks that do not come


@dataclass(frozen=True)
class Measured:
    """Times of a job on a number of ranks, in milliseconds, of the slowest rank."""

    job: str
    ranks: int
    time: float
    work: int  # volumes, or clouds, in that time
    exchange: float = 0.0
    alone: float = 0.0  # a slab without its halo
    error: float = 0.0
    failed: str = ""  # why there are no times

    def speed_up(self, one: Measured) -> float:
        """Return the work done in a time over that of one rank."""
        return (self.work / self.time) / (one.work / one.time)


def jobs_of(options: argparse.Namespace, ranks: int) -> dict[str, Callable[[], Measured]]:
    """The jobs of this number of ranks, by name."""
    jobs: dict[str, Callable[[], Measured]] = {
        "split": partial(split, options, ranks),
        "cloud": partial(cloud, options, ranks),
        "ddp": partial(training, options, ranks, sync=False),
    }
    if ranks > 1 and options.device == "cuda":
        jobs["ddp +sync"] = partial(training, options, ranks, sync=True)
    return jobs


def measure(
    options: argparse.Namespace, jobs: Mapping[str, Callable[[], Measured]] | None = None
) -> list[Measured]:
    """All rows, as every rank measures them together; of ``jobs``, if they are given."""
    ranks, found = dist.get_world_size() if dist.is_initialized() else 1, []
    for job, run in (jobs or jobs_of(options, ranks)).items():
        if options.jobs and job not in options.jobs:
            continue
        try:
            found.append(run())
        except Exception as error:  # said in its row; the others run
            found.append(Measured(job, ranks, 0.0, 0, failed=f"{type(error).__name__}: {error}"))
    return found


def split(options: argparse.Namespace, ranks: int) -> Measured:
    device, C = _device(options), options.channels
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    w = torch.randn(C, C, 3, 3, 3, device=device, dtype=dtype) / (27 * C) ** 0.5
    small = torch.randn(1, C, *[min(options.size, 40)] * 3, device=device, dtype=dtype)
    slab, split_conv = Slab(small.shape[2]), lc.distributed.conv3d
    with torch.no_grad():
        got = slab.gather(split_conv(slab.shard(small), w, padding=1, slab=slab)).double()
        want = lc.conv3d(small, w, padding=1, executor="view").double()
        error = float((got - want).norm() / want.norm())
        slab = Slab(options.size)
        shape = (1, len(slab.rows), options.size, options.size, C)
        x = torch.randn(shape, device=device, dtype=dtype).movedim(-1, 1)  # in NDHWC memory
        calls = (
            partial(split_conv, x, w, padding=1, slab=slab),
            partial(lc.distributed.exchange_halo, x, 3, padding=1, slab=slab),
            partial(lc.conv3d, x, w, padding=1),
        )
        times = [milliseconds(call, device, options.steps) for call in calls]
    return Measured("split", ranks, times[0], 1, times[1], times[2], error)


def cloud(options: argparse.Namespace, ranks: int) -> Measured:
    device, C = _device(options), options.channels
    rank = dist.get_rank() if dist.is_initialized() else 0
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    w = torch.randn(C, 3, 3, 3, C, device=device, dtype=dtype) / (27 * C) ** 0.5
    split_conv = lc.distributed.subm_conv

    def whole(voxels: int) -> SparseTensor:
        cells, shape = surface(voxels, device)
        features = torch.randn(voxels, C, device=device, dtype=dtype)
        return SparseTensor(features, cells.to(device), shape, 1)

    def part(x: SparseTensor) -> SparseTensor:
        coords = x.coords[rank::ranks].contiguous()
        mine = SparseTensor(x.features[rank::ranks], coords, x.spatial_shape, 1)
        return lc.distributed.partition(mine)

    with torch.no_grad():
        small = whole(min(options.voxels, 20_000))
        y = split_conv(part(small), w)
        got = lc.distributed.restore(y).double()
        want = lc.subm_conv(small, w).features[rank::ranks].double()
        error = float((got - want).norm() / want.norm())
        x = part(whole(options.voxels))
        border = border_of(cloud_of(x))
        alone = SparseTensor(x.features, border.inside.inputs)
        calls = (
            partial(split_conv, x, w),
            partial(carry, x.features, border.route),
            partial(lc.subm_conv, alone, w, kernel_map=border.inside),
        )
        times = [milliseconds(call, device, options.steps) for call in calls]
    return Measured("cloud", ranks, times[0], 1, times[1], times[2], error)


def training(options: argparse.Namespace, ranks: int, sync: bool) -> Measured:
    device = _device(options)
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(0)
    seeds = range(rank * options.clouds, (rank + 1) * options.clouds)
    sweeps = [street(seed, options.beams, 9 * options.beams) for seed in seeds]
    clouds = [torch.from_numpy(points).to(device) for points in sweeps]
    net: torch.nn.Module = MinkUNet(CHANNELS, CLASSES, options.width).to(device)

    def compute() -> None:
        x = lc.voxelize(clouds, options.voxel)
        inside = (x.features[:, :3] - x.centres().float()) / options.voxel
        high = (x.features[:, 2] > -2.35).long()
        x = x.replace(torch.cat([x.features[:, 2:], inside], dim=1))
        with torch.autocast(device.type, torch.bfloat16):
            y = net(x).features
        torch.nn.functional.cross_entropy(y.float(), high).backward()

    lc.precompile(compute)
    if sync:
        net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    if ranks > 1:
        # Gradients are summed where they lie, and every rank keeps statistics of its own clouds.
        net = DistributedDataParallel(net, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        compute()
        optimizer.step()

    taken = milliseconds(step, device, options.steps)
    return Measured("ddp +sync" if sync else "ddp", ranks, taken, ranks * options.clouds)


def milliseconds(call: Callable[[], object], device: torch.device, steps: int) -> float:
    """Median time of a call that all ranks make, of the slowest rank; three batches of steps."""
    for _ in range(min(3, steps)):
        call()
    times = []
    for _ in range(3):
        if dist.is_initialized():
            dist.barrier()
        wait_for(device)
        begin = time.perf_counter()
        for _ in range(steps):
            call()
        wait_for(device)
        times.append(1e3 * (time.perf_counter() - begin) / steps)
    taken = torch.tensor(statistics.median(times), dtype=torch.float64, device=device)
    if dist.is_initialized():
        dist.all_reduce(taken, dist.ReduceOp.MAX)
    return taken.item()


def _device(options: argparse.Namespace) -> torch.device:
    if options.device == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", dist.get_rank() if dist.is_initialized() else 0)


def _worker(rank: int, ranks: int, folder: str, options: argparse.Namespace) -> None:
    backend, device = "gloo", None
    if options.device == "cuda":
        backend, device = "nccl", torch.device("cuda", rank)
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    where = f"file://{folder}/store{ranks}"
    dist.init_process_group(
        backend, init_method=where, rank=rank, world_size=ranks, device_id=device, timeout=PATIENCE
    )
    found = measure(options)
    if rank == 0:
        text = json.dumps([asdict(row) for row in found])
        (Path(folder) / f"{ranks}.json").write_text(text)
    gc.collect()  # a reducer that goes last waits for threads that want what it keeps
    dist.barrier()
    dist.destroy_process_group()


def rows(options: argparse.Namespace) -> Iterator[list[Measured]]:
    """Yield the measurements of each number of ranks."""
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(_worker, (ranks, folder, options), nprocs=ranks)
            text = (Path(folder) / f"{ranks}.json").read_text()
        yield [Measured(**row) for row in json.loads(text)]


def report(row: Measured, one: Measured | None) -> str:
    """A line of a table."""
    text = f"{row.job:10} {row.ranks:2} ranks "
    if row.failed:
        return f"{text}FAILED: {row.failed}"
    text += f"{row.time:10.2f} ms"
    if one is not None and not one.failed:
        gain = row.speed_up(one)
        text += f"  {gain:5.2f}x one"
        target = TARGETS.get((row.job, row.ranks))
        if target is not None and gain < target:
            text += f"  below {target}x"
    if row.job in ("split", "cloud") and row.ranks > 1:
        hidden = max(0.0, row.time - row.alone) / row.time
        text += f"  exchange {row.exchange / row.time:.1%}, {hidden:.1%} not hidden"
    if row.error > TOLERANCE:
        text += f"  WRONG: error {row.error:.1e}"
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("it measures GPUs, and there is none; --device cpu tries it out", file=sys.stderr)
        return 2
    if not options.ranks:
        here = torch.cuda.device_count() if options.device == "cuda" else 2
        options.ranks = sorted({1, *(n for n in (2, 4, 8) if n <= here), here})
    name = torch.cuda.get_device_name() if options.device == "cuda" else "a CPU"
    print(f"{name}, torch {torch.__version__}")
    print(f"split: {options.size}^3 x {options.channels} forward, a slab per rank")
    print(f"cloud: {options.voxels:,} voxels x {options.channels} forward, a range per rank")
    print(f"ddp: MinkUNet of width {options.width}, {options.clouds} clouds per rank", flush=True)
    found: list[Measured] = []
    for batch in rows(options):
        for row in batch:
            found.append(row)
            job = row.job.split()[0]
            one = next((r for r in found if r.job == job and r.ranks == 1), None)
            print(report(row, one), flush=True)
    if options.json:
        content = {"machine": name, "rows": [asdict(row) for row in found]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return int(any(row.failed or row.error > TOLERANCE for row in found))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(__doc__, "json")
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="GPUs and NCCL, or gloo")
    add("--ranks", type=int, nargs="+", metavar="N", help="numbers of ranks; 1, 2, 4 ... if absent")
    add("--jobs", nargs="+", metavar="JOB", help="split, cloud, ddp, 'ddp +sync'; all if absent")
    add("--size", type=int, default=512, metavar="CELLS", help="edge of the volume")
    add("--channels", type=int, default=32, metavar="C", help="of the volume and the cloud")
    add("--voxels", type=int, default=8_000_000, metavar="N", help="of the cloud")
    add("--width", type=int, default=32, metavar="C", help="of the MinkUNet's finest stage")
    add("--clouds", type=int, default=4, metavar="N", help="of a rank's batch")
    add("--beams", type=int, default=128, metavar="N", help="of a cloud; points are 8 beams^2")
    add("--voxel", type=float, default=0.05, metavar="M", help="edge of a voxel of a cloud")
    add("--steps", type=int, default=10, metavar="N", help="calls in a batch of three")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
