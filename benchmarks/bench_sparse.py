"""Sparse convolution of point clouds, ours and every peer that imports, in one run. Needs a GPU.

    python benchmarks/bench_sparse.py [--rows PATTERN] [--workloads FOLDER] [--json F] [--plot F]

Rows are submanifold convolutions, 3x3x3, of C channels to C: the kernel map that inference needs,
the forward pass with the map at hand, that pass with a user's function fused into it beside our
bare one ("clamp", of C = 64 in fp16), that pass in 8 bits, codes in and requantised codes out,
beside ours and the peers' in fp16 ("quantized", of C >= 64), forward and backward. Times are
medians, batches of all sides in turns, a batch being a CUDA graph where the call can be captured
("graph"), else a loop that may wait for its host ("loop"); maps are always a loop, from coordinates
to what kernels read. Beside the peers stands the floor: the larger of the times that the products
that exist and the bytes that have to move take at the limits of the GPU, where ``roofs.py`` knows
them.

Clouds come from ``voxel_workloads.py`` in FOLDER if it is there (``../shared/bench`` by default),
else from this package's synthetic street. Peers are ``spconv`` and ``spconv_triton``.

A row that fails prints its error, and the others run. The exit status is 1 if one failed or is
wrong.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from bars import plot
from benchmark_options import program
from dense_cases import clamp
from roofs import Roof, roof_of
from timing import host_microseconds, interleaved_microseconds, median_microseconds, relative_error
from torch import Tensor

import layoutconv as lc
from layoutconv.base.progress import Progress
from layoutconv.nn.eight_bits import of_codes, scale_of, to_codes
from layoutconv.nn.sparse import subm_conv
from layoutconv.sparse import Coordinates, KernelMap, SparseTensor, submanifold_map, voxelize
from layoutconv.sparse.coords.street import street

PEERS = ("spconv_triton.pytorch", "spconv.pytorch")
CASES = ("indoor_b1", "lidar_kitti_b1", "shape512_b1")
CHANNELS = (16, 32, 64, 128, 256)
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}
TOLERANCE = {"fp16": 1e-3, "bf16": 8e-3, "tf32": 1e-3}  # relative to float64
NARROW = {"int8": torch.int8, "e4m3": torch.float8_e4m3fn}
COST = {"int8": 0.03, "e4m3": 0.07}  # of rounding normal features and weights to 8 bits
TARGETS = {"map": 1.5, "forward": 1.2, "training": 1.2, "clamp": 0.97, "quantized": 1.6}
CLAMPED = "fp16", 64
FEWEST = 64  # channels of rows in 8 bits


@dataclass(frozen=True)
class Cloud:
    """Cells of a batch of grids, and the pairs of neighbours that a 3x3x3 filter multiplies."""

    name: str
    cells: Tensor
    shape: tuple[int, ...]
    images: int

    def coordinates(self) -> Coordinates:
        """New ones, of which nothing is known but that they are cells of the grid."""
        return Coordinates(self.cells, self.shape, self.images, valid=True)


@dataclass(frozen=True)
class Job:
    """A row to be measured."""

    kind: str
    cloud: Cloud
    dtype: str = "fp16"
    channels: int = 0

    @property
    def name(self) -> str:
        of = f" {self.dtype} C={self.channels}" if self.channels else ""
        return f"{self.kind} {self.cloud.name}{of}"


@dataclass(frozen=True)
class Row:
    """Microseconds of all sides, how far ours is from float64, and the flop and bytes it takes."""

    name: str
    microseconds: float
    peers: dict[str, float] = field(default_factory=dict)
    floor: float | None = None
    error: float | None = None
    limit: float | None = None
    target: float | None = None
    note: str = ""
    dtype: str = ""
    flop: float = 0.0
    moved: float = 0.0

    @property
    def peer(self) -> str:
        """The fastest."""
        return min(self.peers, key=self.peers.__getitem__, default="")

    @property
    def ratio(self) -> float | None:
        """The fastest peer's time in ours."""
        return self.peers[self.peer] / self.microseconds if self.peers else None

    @property
    def right(self) -> bool:
        return self.error is None or self.limit is None or self.error <= self.limit

    def __str__(self) -> str:
        peers = ", ".join(f"{name} {us:.1f}" for name, us in self.peers.items())
        ratio = f"{self.ratio:5.2f}x" if self.ratio else "      "
        notes = [] if self.right else ["WRONG"]
        if self.ratio and self.target and self.ratio < self.target:
            notes.append(f"below {self.target}x")
        floor = (
            f"floor {self.floor:6.1f} ({self.microseconds / self.floor:.1f}x)" if self.floor else ""
        )
        error = f"error {self.error:.1e}" if self.error is not None else ""
        parts = (floor, error, self.note, ", ".join(notes))
        text = f"{self.name:34s} {self.microseconds:9.1f} us {ratio} of {peers or 'no peer'}"
        return "  ".join([text, *filter(None, parts)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 0, 1 where a row failed or is wrong, 2 without a GPU."""
    options = _options(arguments)
    if not torch.cuda.is_available():
        print("bench_sparse: error: it measures a GPU, and torch sees none", file=sys.stderr)
        return 2
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = True
    peers = dict(find_peers())
    roof = roof_of(torch.cuda.get_device_name())
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(f"{machine}; peers: {', '.join(peers) or 'none'}")
    rows: list[Row] = []
    failed: list[str] = []
    with Progress().step("Measuring") as progress:
        for job in jobs(options):
            if not re.search(options.rows, job.name):
                continue
            progress.say(f"Measuring {job.name} ...")
            try:
                rows.append(measure(job, peers, options.repeats, roof))
                progress.print(rows[-1])
            except Exception as error:  # whatever it is, the other rows are wanted
                failed.append(job.name)
                progress.print(f"{job.name:34s} FAILED: {first_line(error)}")
            torch.cuda.empty_cache()
    for kind in TARGETS:
        found = [row.ratio for row in rows if row.ratio and row.name.startswith(kind)]
        if found:
            mean = torch.tensor(found).log().mean().exp()
            print(f"{kind}: geometric mean {mean:.2f}x, lowest {min(found):.2f}x")
    return finish(rows, failed, machine, roof, options)


def finish(
    rows: list[Row], failed: list[str], machine: str, roof: Roof | None, options: argparse.Namespace
) -> int:
    """Print the number of rows of each kind, write the files asked for, return the exit status."""
    wrong = [row.name for row in rows if not row.right]
    print(f"{len(rows)} rows, {len(failed)} failed, {len(wrong)} wrong")
    if options.json:
        content = {
            "device": machine,
            "rows": [{**asdict(row), "peer": row.peer, "ratio": row.ratio} for row in rows],
            "failed": failed,
        }
        options.json.write_text(json.dumps(content, indent=1))
    if options.plot:
        plot(rows, machine, options.plot, roof)
    return 1 if failed or wrong else 0


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """All rows, cloud by cloud."""
    for cloud in clouds(options.workloads, options.cases):
        yield Job("map", cloud)
        wide = [dtype for dtype in options.dtypes if dtype in DTYPES]
        for dtype in wide:
            for channels in options.channels:
                yield Job("forward", cloud, dtype, channels)
        if CLAMPED[0] in options.dtypes and CLAMPED[1] in options.channels:
            yield Job("clamp", cloud, *CLAMPED)
        for dtype in options.dtypes:
            for channels in options.channels:
                if dtype in NARROW and channels >= FEWEST:
                    yield Job("quantized", cloud, dtype, channels)
        for dtype in wide:
            for channels in options.channels:
                yield Job("training", cloud, dtype, channels)
        yield Job("host", cloud, "fp16", 16)


def clouds(folder: Path, cases: Sequence[str]) -> Iterator[Cloud]:
    """Yield the workloads' clouds, ``(batch, x, y, z)`` in their order of rows; or a street."""
    if not (folder / "voxel_workloads.py").exists():
        print(f"no voxel_workloads.py in {folder}: a synthetic street instead")
        voxels = voxelize(torch.from_numpy(street(seed=0)).cuda(), 0.05)
        yield Cloud("street", voxels.coords, voxels.spatial_shape, 1)
        return
    sys.path.insert(0, str(folder))
    workloads = importlib.import_module("voxel_workloads")
    for name in cases:
        cells, shape, images = workloads.get(name)
        yield Cloud(name, torch.from_numpy(cells).cuda(), tuple(shape), images)


def measure(job: Job, peers: dict[str, ModuleType], repeats: int, roof: Roof | None = None) -> Row:
    """One row: ours against float64, then all sides in turns."""
    if job.kind == "map":
        return _measure_map(job, peers, repeats, roof)
    if job.kind == "quantized":
        return _measure_quantized(job, peers, repeats, roof)
    data = _Data(job)
    if job.kind == "host":
        calls = {"": data.forward, **{name: data.peer(spconv) for name, spconv in peers.items()}}
        found = {name: host_microseconds(call) for name, call in calls.items()}
        return Row(job.name, found.pop(""), found, note="host time of a forward call")
    if job.kind == "clamp":
        return _measure_clamp(data, repeats)
    error = data.error(training=job.kind == "training")
    training = job.kind == "training"
    calls = {"": data.training if training else data.forward}
    for name, spconv in peers.items():
        calls[name] = data.peer(spconv, training=training)
    times, ran = {}, []
    for name, call in list(calls.items()):
        try:
            call()
            torch.cuda.synchronize()
        except Exception as error_of_peer:
            if not name:
                raise
            print(f"{job.name}: {name} FAILED: {first_line(error_of_peer)}", file=sys.stderr)
            continue
        ran.append(name)
    times = dict(
        zip(ran, interleaved_microseconds([calls[n] for n in ran], repeats=repeats), strict=True)
    )
    ours = times.pop("")
    flop, moved = (amount * (3 if training else 1) for amount in data.work())
    floor = roof.floor(job.dtype, flop, moved) if roof else None
    limit = TOLERANCE[job.dtype]
    return Row(
        job.name, ours, times, floor, error, limit, TARGETS[job.kind],
        dtype=job.dtype, flop=flop, moved=moved,
    )  # fmt: skip


def _measure_clamp(data: _Data, repeats: int) -> Row:
    """A user's function, a clamp with a learned threshold per channel, beside our bare pass."""
    job = data.job
    threshold = torch.linspace(-1, 1, job.channels, device="cuda")
    step = lc.Pointwise(clamp, columns={"threshold": threshold}, values={"slope": 0.1})
    z = data.reference()
    over = threshold.double()
    error = relative_error(
        data.forward(activation=step), torch.where(z > over, over + 0.1 * (z - over), z)
    )
    calls = [lambda: data.forward(activation=step), data.forward]
    ours, bare = interleaved_microseconds(calls, repeats=repeats)
    limit, target = TOLERANCE[job.dtype], TARGETS[job.kind]
    return Row(job.name, ours, {"ours, bare": bare}, None, error, limit, target, dtype=job.dtype)


def _measure_quantized(
    job: Job, peers: dict[str, ModuleType], repeats: int, roof: Roof | None
) -> Row:
    """The forward pass from codes to codes, beside all sides in fp16."""
    data, dtype = _Data(replace(job, dtype="fp16")), NARROW[job.dtype]
    y = data.reference()
    by_output = data.weight.flatten(1).abs().amax(1)
    into, out = (float(scale_of(t.abs().amax(), dtype)) for t in (data.features, y))
    scales = scale_of(by_output, dtype)
    codes = to_codes(data.features, into, dtype)
    weight = to_codes(data.weight, scales.view(-1, 1, 1, 1, 1), dtype)
    scale = scales * (into / out)

    def narrow() -> Tensor:
        with torch.no_grad():
            x = SparseTensor(codes, data.coordinates)
            return subm_conv(x, weight, scale=scale, out_dtype=dtype).features

    error = relative_error(of_codes(narrow(), out, torch.float32), y)
    calls = {"": narrow, "ours, fp16": data.forward}
    calls |= {name: data.peer(spconv) for name, spconv in peers.items()}
    found = interleaved_microseconds([*calls.values()], repeats=repeats)
    times = dict(zip(calls, found, strict=True))
    flop, moved = data.work()
    moved -= data.features.numel() * 2 + data.weight.numel()  # of codes half as many bytes
    floor = roof.floor(job.dtype, flop, moved) if roof else None
    return Row(
        job.name, times.pop(""), times, floor, error, COST[job.dtype], TARGETS[job.kind],
        dtype=job.dtype, flop=flop, moved=moved,
    )  # fmt: skip


def _measure_map(job: Job, peers: dict[str, ModuleType], repeats: int, roof: Roof | None) -> Row:
    cloud = job.cloud
    calls: dict[str, Callable[[], Any]] = {"": lambda: submanifold_map(cloud.coordinates()).sorted}
    for name, spconv in peers.items():
        ops = importlib.import_module(f"{spconv.__name__}.ops")

        def build(ops: Any = ops, spconv: Any = spconv) -> Any:
            three, one, none = [3] * 3, [1] * 3, [0] * 3
            return ops.get_indice_pairs_implicit_gemm(
                cloud.cells, cloud.images, list(cloud.shape), spconv.ConvAlgo.MaskImplicitGemm,
                three, one, one, one, none, subm=True, is_train=False,
            )  # fmt: skip

        calls[name] = build
    times = {name: median_microseconds(call, 20, repeats) for name, call in calls.items()}
    # Cells are read, and a row for each of 27 taps is written.
    moved = 4 * (cloud.cells.numel() + 27 * len(cloud.cells))
    floor = moved / roof.bandwidth if roof else None
    return Row(job.name, times.pop(""), times, floor, target=TARGETS["map"])


class _Data:
    """The tensors of a row, and what is done with them."""

    def __init__(self, job: Job) -> None:
        generator = torch.Generator("cuda").manual_seed(0)
        self.job, cloud, C = job, job.cloud, job.channels
        dtype = DTYPES[job.dtype]

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device="cuda")

        self.features = normal(len(cloud.cells), C).to(dtype)
        self.weight = (normal(C, 3, 3, 3, C) / (9 * C) ** 0.5).to(dtype)
        self.gradient = normal(len(cloud.cells), C).to(dtype)
        self.coordinates = cloud.coordinates()
        self.map: KernelMap = submanifold_map(self.coordinates)

    def forward(self, **options: Any) -> Tensor:
        with torch.no_grad():
            x = SparseTensor(self.features, self.coordinates)
            return subm_conv(x, self.weight, **options).features

    def reference(self) -> Tensor:
        """The forward pass, tap by tap in float64."""
        x, w = self.features.double(), self.weight.double()
        flat, y = w.view(len(w), 27, -1), torch.zeros_like(x)
        for tap in range(27):
            sources = self.map.index[:, tap]
            rows = (sources >= 0).nonzero()[:, 0]
            y[rows] += x[sources[rows].long()] @ flat[:, tap].T
        return y

    def training(self) -> Any:
        x = self.features.detach().requires_grad_()
        w = self.weight.detach().requires_grad_()
        y = subm_conv(SparseTensor(x, self.coordinates), w).features
        return torch.autograd.grad(y, (x, w), self.gradient)

    def peer(self, spconv: Any, *, training: bool = False) -> Callable[[], Any]:
        """The same by a library of spconv's names, the map made before."""
        C, cloud = self.job.channels, self.job.cloud
        self._allow_tf32(spconv)
        layer = spconv.SubMConv3d(C, C, 3, bias=False, indice_key="map").cuda()
        layer = layer.to(self.features.dtype)
        with torch.no_grad():
            layer.weight.copy_(self.weight)
        features = self.features.detach().requires_grad_(training)
        x = spconv.SparseConvTensor(features, cloud.cells, list(cloud.shape), cloud.images)
        x = layer(x).replace_feature(features)  # a call copies `indice_dict`: this x has the map
        layer.train(training)
        if not training:
            for parameter in layer.parameters():
                parameter.requires_grad_(False)
            return lambda: layer(x).features
        return lambda: torch.autograd.grad(
            layer(x).features, (features, layer.weight), self.gradient
        )

    @staticmethod
    def _allow_tf32(spconv: Any) -> None:
        constants: Any = importlib.import_module(f"{spconv.__name__.partition('.')[0]}.constants")
        constants.SPCONV_ALLOW_TF32 = True

    def error(self, *, training: bool) -> float:
        """The largest relative error of what is computed, tap by tap in float64."""
        y = self.reference()
        if not training:
            return relative_error(self.forward(), y)
        x, w, g = (t.double() for t in (self.features, self.weight, self.gradient))
        dx, dw = torch.zeros_like(x), torch.zeros_like(w)
        C, flat = self.job.channels, w.view(len(w), 27, -1)
        for tap in range(27):
            sources = self.map.index[:, tap]
            rows = (sources >= 0).nonzero()[:, 0]
            sources = sources[rows].long()
            dx[sources] += g[rows] @ flat[:, tap]
            dw.view(C, 27, C)[:, tap] = g[rows].T @ x[sources]
        found = self.training()
        return max(relative_error(ours, want) for ours, want in zip(found, (dx, dw), strict=True))

    def work(self) -> tuple[float, float]:
        """The flop of the forward pass, and the bytes that have to move."""
        pairs = int((self.map.index >= 0).sum())
        C, size = self.job.channels, self.features.element_size()
        flop = 2 * pairs * C * C
        moved = size * (2 * self.features.numel() + self.weight.numel()) + 4 * pairs
        return flop, moved


def find_peers() -> Iterator[tuple[str, ModuleType]]:
    for name in PEERS:
        try:
            yield name.partition(".")[0], importlib.import_module(name)
        except Exception as error:  # missing, or broken on this machine
            print(f"no {name}: {first_line(error)}", file=sys.stderr)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(__doc__, "rows", "workloads", "repeats", "json")
    add = parser.add_argument
    add("--cases", nargs="*", default=CASES, help="of the workloads")
    add("--channels", nargs="*", type=int, default=CHANNELS)
    every = (*DTYPES, *NARROW)
    add("--dtypes", nargs="*", default=every, choices=every)
    add("--plot", type=Path, metavar="FILE", help="write a bar chart of the ratios here")
    return parser.parse_args(arguments)


def first_line(error: Any) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


if __name__ == "__main__":
    raise SystemExit(main())
