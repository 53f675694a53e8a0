"""A sparse residual U-Net end to end, ours and every peer that imports, in one run. Needs a GPU.

    python benchmarks/bench_network.py [--rows PATTERN] [--workloads FOLDER] [--json F] [--plot F]

The network is like the MinkUNet-34 of Choy, Gwak and Savarese (2019), in fp16, for inference, one
cloud at a time. A call starts from cells and features, so all kernel maps are made in it. Peers run
the same network, built from their names with our weights. Rows are

- ``eager``: as anyone would run it;
- ``folded``: with batch norms and ReLUs folded into our convolutions;
- ``graph``: that, in a CUDA graph, whose kernel maps have a capacity a tenth above what is needed.

Peers cannot be captured, as their maps wait for the host; their eager time stands beside each row.
Times are medians. The error is that of the result against the network in float64. The floor is the
sum over convolutions of the larger of the times that their products and their bytes take at the
limits of the GPU, maps not counted.

Clouds are those of ``bench_sparse.py``. The exit status is 1 if a row failed or is wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from bars import plot
from bench_sparse import Cloud, Row, clouds, find_peers, first_line
from roofs import Roof, roof_of
from timing import median_microseconds, relative_error
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.progress import Progress
from layoutconv.sparse import SparseTensor, strided_map

CHANNELS = 4  # of a point: x, y, z and intensity
CLASSES = 20
WIDTHS = (32, 64, 128, 256, 256)  # of the stem, and of each level down
WIDTHS_UP = (256, 128, 96, 96)
BLOCKS, BLOCKS_UP = (2, 3, 4, 6), (2, 2, 2, 2)  # residual blocks of each level
TARGETS = {"eager": 2.0, "folded": 2.0, "graph": 3.0}
TOLERANCE = 2e-2  # relative to float64, of 50 layers in fp16
SLACK = 1.1  # capacity of a level for each of its cells


class Ours:
    """Layers and tensors by the names of ``lc.nn``."""

    Sequential = lc.nn.Sequential

    def subm(self, C: int, K: int, level: int) -> nn.Module:
        return lc.nn.SubmConv3d(C, K, 3, bias=False)

    def down(self, C: int, K: int, level: int) -> nn.Module:
        return lc.nn.SparseConv3d(C, K, 2, stride=2, bias=False)

    def up(self, C: int, K: int, level: int) -> nn.Module:
        return lc.nn.SparseInverseConv3d(C, K, 2, bias=False)

    def tensor(self, cloud: Cloud, features: Tensor) -> SparseTensor:
        return SparseTensor(features, cloud.coordinates())

    def replace(self, x: Any, features: Tensor) -> Any:
        return x.replace(features)


class Theirs:
    """The same by the names of spconv."""

    def __init__(self, spconv: Any) -> None:
        self.spconv, self.Sequential = spconv, spconv.SparseSequential

    def subm(self, C: int, K: int, level: int) -> nn.Module:
        return self.spconv.SubMConv3d(C, K, 3, bias=False, indice_key=f"subm{level}")

    def down(self, C: int, K: int, level: int) -> nn.Module:
        return self.spconv.SparseConv3d(C, K, 2, stride=2, bias=False, indice_key=f"down{level}")

    def up(self, C: int, K: int, level: int) -> nn.Module:
        return self.spconv.SparseInverseConv3d(C, K, 2, bias=False, indice_key=f"down{level}")

    def tensor(self, cloud: Cloud, features: Tensor) -> Any:
        return self.spconv.SparseConvTensor(features, cloud.cells, list(cloud.shape), cloud.images)

    def replace(self, x: Any, features: Tensor) -> Any:
        return x.replace_feature(features)


class Residual(nn.Module):
    """Two submanifold convolutions beside a way past them."""

    def __init__(self, names: Any, C: int, K: int, level: int) -> None:
        super().__init__()
        self.names = names
        self.body = names.Sequential(
            names.subm(C, K, level), nn.BatchNorm1d(K), nn.ReLU(),
            names.subm(K, K, level), nn.BatchNorm1d(K),
        )  # fmt: skip
        self.past = nn.Sequential()
        if C != K:
            self.past = nn.Sequential(nn.Linear(C, K, bias=False), nn.BatchNorm1d(K))

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        return self.names.replace(y, torch.relu(y.features + self.past(x.features)))


class MinkUNet(nn.Module):
    """(rows, 4) to (rows, 20) at the same cells; ``width`` scales all channels, for tests."""

    def __init__(self, names: Any, width: float = 1.0) -> None:
        super().__init__()
        self.names = names
        widths = [max(1, int(C * width)) for C in WIDTHS]
        widths_up = [max(1, int(C * width)) for C in WIDTHS_UP]
        self.stem = names.Sequential(
            names.subm(CHANNELS, widths[0], 0), nn.BatchNorm1d(widths[0]), nn.ReLU(),
            names.subm(widths[0], widths[0], 0), nn.BatchNorm1d(widths[0]), nn.ReLU(),
        )  # fmt: skip
        self.down, self.encode = nn.ModuleList(), nn.ModuleList()
        for level, ((C, K), blocks) in enumerate(zip(pairwise(widths), BLOCKS, strict=True)):
            self.down.append(_step(names, names.down(C, C, level), C))
            self.encode.append(_blocks(names, C, K, blocks, level + 1))
        self.up, self.decode = nn.ModuleList(), nn.ModuleList()
        C = widths[-1]
        for level, K, blocks in zip((3, 2, 1, 0), widths_up, BLOCKS_UP, strict=True):
            self.up.append(_step(names, names.up(C, K, level), K))
            self.decode.append(_blocks(names, K + widths[level], K, blocks, level))
            C = K
        self.head = nn.Linear(C, CLASSES)

    def forward(self, x: Any, capacities: Sequence[int] | None = None) -> Tensor:
        """Scores (rows, 20). ``capacities``: rows of the coarser levels, of ours alone."""
        x = self.stem(x)
        skips = []
        for level, (down, encode) in enumerate(zip(self.down, self.encode, strict=True)):
            skips.append(x)
            if capacities:
                # The map that the layer asks for is the one that was made for its coordinates.
                found = strided_map(x.coordinates, 2, 2, capacity=capacities[level])
                convolution, *rest = down.children()
                x = convolution(x, kernel_map=found)
                x = lc.nn.Sequential(*rest)(x)
            else:
                x = down(x)
            x = encode(x)
        for up, decode in zip(self.up, self.decode, strict=True):
            y = up(x)
            joined = torch.cat([y.features, skips.pop().features], dim=1)
            x = decode(self.names.replace(y, joined))
        return self.head(x.features)


def _step(names: Any, convolution: nn.Module, K: int) -> nn.Module:
    return names.Sequential(convolution, nn.BatchNorm1d(K), nn.ReLU())


def _blocks(names: Any, C: int, K: int, blocks: int, level: int) -> nn.Module:
    # Torch's own: spconv's gives features to modules that are not its.
    return nn.Sequential(*(Residual(names, K if block else C, K, level) for block in range(blocks)))


@dataclass(frozen=True)
class Work:
    """The flop of each convolution of a run and the bytes that it moves, and the levels' rows."""

    flop: list[float]
    moved: list[float]
    rows: list[int]

    def floor(self, roof: Roof | None, dtype: str) -> float | None:
        """Microseconds at least, one convolution after the other."""
        if roof is None:
            return None
        pairs = zip(self.flop, self.moved, strict=True)
        return sum(roof.floor(dtype, flop, moved) or 0.0 for flop, moved in pairs)


def network(names: Any, width: float = 1.0, seed: int = 0) -> MinkUNet:
    """For inference, with weights that keep the size of what goes through, float32."""
    torch.manual_seed(seed)
    net = MinkUNet(names, width)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, 0.0, 0.1)
    return net.eval().requires_grad_(False)


def work_of(net: MinkUNet, cloud: Cloud, features: Tensor) -> Work:
    """What a run of our network comes to, counted as it runs."""
    found = Work([], [], [])

    def count(module: Any, given: tuple[SparseTensor, ...], y: SparseTensor) -> None:
        [x] = given
        found_map: Any
        if isinstance(module, lc.nn.SubmConv3d):
            found_map = lc.sparse.submanifold_map(x.coordinates, 3)
        elif isinstance(module, lc.nn.SparseConv3d):
            found_map = y.coordinates.origin
            found.rows.append(len(y))
        else:
            found_map = x.coordinates.origin
        pairs = int((found_map.index >= 0).sum())
        K, C = len(module.weight), module.weight.shape[-1]
        size = x.features.element_size()
        numbers = x.features.numel() + y.features.numel() + module.weight.numel()
        found.flop.append(2.0 * pairs * C * K)
        found.moved.append(size * numbers + 4.0 * pairs)

    kinds = lc.nn.SubmConv3d, lc.nn.SparseConv3d, lc.nn.SparseInverseConv3d
    modules = [module for module in net.modules() if isinstance(module, kinds)]
    hooks = [module.register_forward_hook(count) for module in modules]
    try:
        net(net.names.tensor(cloud, features))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 0, 1 where a row failed or is wrong, 2 without a GPU."""
    options = _options(arguments)
    if not torch.cuda.is_available():
        print("bench_network: error: it measures a GPU, and torch sees none", file=sys.stderr)
        return 2
    peers = dict(find_peers())
    roof = roof_of(torch.cuda.get_device_name())
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(f"{machine}; peers: {', '.join(peers) or 'none'}")
    rows: list[Row] = []
    failed: list[str] = []
    with Progress().step("Measuring") as progress, torch.inference_mode():
        for cloud in clouds(options.workloads, options.cases):
            for name, row in measure(cloud, peers, roof, options.rows, options.repeats, progress):
                if isinstance(row, str):
                    failed.append(name)
                    progress.print(f"{name:34s} FAILED: {row}")
                else:
                    rows.append(row)
                    progress.print(row)
            torch.cuda.empty_cache()
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


def measure(
    cloud: Cloud,
    peers: dict[str, Any],
    roof: Roof | None,
    pattern: str,
    repeats: int,
    progress: Progress,
) -> Iterator[tuple[str, Row | str]]:
    """The rows of a cloud, or what went wrong with each."""
    names = {kind: f"{kind} {cloud.name} fp16" for kind in TARGETS}
    wanted = {kind: name for kind, name in names.items() if re.search(pattern, name)}
    if not wanted:
        return
    progress.say(f"Building the network for {cloud.name} ...")
    generator = torch.Generator(cloud.cells.device).manual_seed(0)
    shape = len(cloud.cells), CHANNELS
    features = torch.randn(shape, generator=generator, device=cloud.cells.device)
    ours = network(Ours()).to(features.device)
    exact = deepcopy(ours).double()
    reference = exact(Ours().tensor(cloud, features.double()))
    del exact
    data, half = features.half(), deepcopy(ours).half()
    folded = lc.nn.fold_batch_norms(deepcopy(ours)).half()
    work = work_of(half, cloud, data)
    beside: dict[str, float] = {}
    for name, spconv in peers.items():
        progress.say(f"Measuring {name} ...")
        theirs = Theirs(spconv)
        try:
            peer = MinkUNet(theirs).eval().requires_grad_(False).to(features.device)
            peer.load_state_dict(ours.state_dict())
            call = _call(peer.half(), theirs, cloud, data)
            error = relative_error(call(), reference)
            if not error <= TOLERANCE:
                raise RuntimeError(f"its error is {error:.1e}")
            beside[name] = median_microseconds(call, 5, repeats)
        except Exception as error_of_peer:  # the others are wanted
            print(f"{cloud.name}: {name} FAILED: {first_line(error_of_peer)}", file=sys.stderr)
    calls: dict[str, Callable[[], Callable[[], Tensor]]] = {
        "eager": lambda: _call(half, Ours(), cloud, data),
        "folded": lambda: _call(folded, Ours(), cloud, data),
        "graph": lambda: captured(folded, cloud, data, [_capacity(n) for n in work.rows]),
    }
    for kind, name in wanted.items():
        progress.say(f"Measuring {name} ...")
        try:
            call = calls[kind]()
            error = relative_error(call(), reference)
            time = median_microseconds(call, 5, repeats)
        except Exception as error_of_ours:
            yield name, first_line(error_of_ours)
            continue
        yield name, Row(
            name, time, beside, work.floor(roof, "fp16"), error, TOLERANCE, TARGETS[kind],
            dtype="fp16", flop=sum(work.flop), moved=sum(work.moved),
        )  # fmt: skip


def captured(
    net: MinkUNet, cloud: Cloud, features: Tensor, capacities: Sequence[int]
) -> Callable[[], Tensor]:
    """A call that replays a CUDA graph of the whole network, its kernel maps included."""

    def run() -> Tensor:
        return net(net.names.tensor(cloud, features), capacities)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compile, and allocate, before
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def _call(net: MinkUNet, names: Any, cloud: Cloud, features: Tensor) -> Callable[[], Tensor]:
    return lambda: net(names.tensor(cloud, features))


def _capacity(rows: int) -> int:
    return -(-int(rows * SLACK) // 128) * 128


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rows", default="", metavar="PATTERN", help="a regular expression that rows match")
    add("--workloads", type=Path, default=Path("../shared/bench"), metavar="FOLDER")
    add("--cases", nargs="*", default=("lidar_kitti_b1",), help="of the workloads")
    add("--repeats", type=int, default=7, metavar="N", help="batches whose median is taken")
    add("--json", type=Path, metavar="FILE", help="write the rows here")
    add("--plot", type=Path, metavar="FILE", help="write a chart of ratios and a roofline here")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
