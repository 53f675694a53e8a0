"""The calls of Python that a network takes on a GPU's host, by a process that has no GPU.

    python host_network.py [evaluation] [training]
    python host_network.py kernels (evaluation | training)
    python host_network.py copies
    python host_network.py anew

The second prints the keys of the kernels of maps and norms that a first call loads, the third how
often a step of training asks for numbers of pairs, which come to the host one after the other, the
last how many kernels of convolutions and of their filters' gradients the first two steps of
training load, each.

Kernels are stood in for: those of convolutions by a function that does nothing, those of maps by
what the host reads of them, numbers of cells and pairs. Everything before a launch is real. The
process is good for nothing else.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layoutconv.gpu.kernel_source import take_from

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from spconv_networks import residual_backbone  # noqa: E402

import layoutconv.compat.spconv.pytorch as spconv  # noqa: E402
from layoutconv.gpu import machines  # noqa: E402
from layoutconv.kernels.maps import build_map, map_stages, pairs, per_rank  # noqa: E402
from layoutconv.kernels.maps.build_map import HashTable  # noqa: E402
from layoutconv.kernels.pointwise import segment_sum  # noqa: E402
from layoutconv.planning.machine import MACHINES  # noqa: E402

ROWS, SHAPE = 200, [41, 200, 176]
ROOMS = "layoutconv", "kernels"


class Event:
    """An event that has come; ``recorded`` counts them."""

    recorded = 0

    def record(self, stream: Any = None) -> None:
        Event.recorded += 1

    def synchronize(self) -> None: ...


def stand_in() -> None:
    """Have tensors on a GPU of which kernels take no notice."""
    every: Any = torch.Tensor
    every.is_cuda, every.is_cpu = True, False
    cuda: Any = torch.cuda
    cuda.current_device, cuda.device_count = lambda: -1, lambda: 1
    cuda.is_current_stream_capturing, cuda.current_stream = lambda: False, lambda *_: None
    cuda.Event = Event
    machines.stand_in(MACHINES["sm_90a"])
    take_from(lambda *_: nothing)
    for module in (build_map, map_stages, pairs):
        if hasattr(module, "ctas_for"):
            module.__dict__["ctas_for"] = lambda rows, device: 132
        if hasattr(module, "sm_count"):
            module.__dict__["sm_count"] = lambda device: 132
    segment_sum.__dict__["load_segment_sum"] = lambda *_: nothing
    rank: Any = per_rank
    rank.load_per_rank, rank._arch = map_kernel, lambda device: "sm_90a"
    rank.are_at_hand = lambda kernels, device: True
    table: Any = HashTable
    table.verdict = lambda found: (0, 0, found.memory is None)


def nothing(*_: Any) -> None: ...


def map_kernel(kernel: Any, arch: str) -> Callable[..., None]:
    """A kernel of maps, which writes what the host reads."""
    names = [type(part).__name__ for part, *_ in getattr(kernel, "parts", [(kernel,)])]

    def write(address: int, number: int, times: int = 1) -> None:
        numbers = (ctypes.c_int64 * times)(*[number] * times)
        ctypes.memmove(address, numbers, 8 * times)

    def counts(of: Any, addresses: Any, integers: Any) -> None:
        write(addresses[1], max(1, integers[0] // 3), integers[1])

    def cells(of: Any, addresses: Any, integers: Any) -> None:
        write(addresses[2], integers[3] * 4 // 5 + 1)

    def levels(of: Any, addresses: Any, integers: Any) -> None:
        for level in range(len(kernel.parts[1][0].boxes)):
            write(addresses[2] + 8 * level, ROWS * 4 // (5 + level))

    if names == ["CountPairs"]:
        return counts
    return cells if "CountBits" in names else levels if "CountLevels" in names else nothing


def clouds(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Features and cells, each cloud's its own."""
    random = torch.Generator().manual_seed(0)
    for _ in range(count):
        keys = torch.randperm(20 * 150 * 150, generator=random)[:ROWS]
        columns = (
            torch.zeros(ROWS, dtype=torch.int64),
            keys // 22_500,
            keys // 150 % 150,
            keys % 150,
        )
        yield torch.randn(ROWS, 5, generator=random), torch.stack(columns, 1).int().contiguous()


def network(training: bool) -> Callable[[Tensor, Tensor], Any]:
    """A call of VoxelResBackBone8x, or a step of its training under autocast, on a cloud; a step
    begins without gradients, as after an optimizer's ``zero_grad``.
    """
    net = residual_backbone(spconv, 5, width=0.5).train(training)
    parameters = list(net.parameters())
    if not training:
        net.half()

    @torch.no_grad()
    def evaluate(features: Tensor, cells: Tensor) -> Tensor:
        found: Tensor = net(spconv.SparseConvTensor(features.half(), cells, SHAPE, 1)).features
        return found

    def step(features: Tensor, cells: Tensor) -> None:
        for parameter in parameters:
            parameter.grad = None
        with torch.autocast("cpu", torch.float16):
            found = net(spconv.SparseConvTensor(features, cells, SHAPE, 1)).features
        found.float().square().mean().backward()

    return step if training else evaluate


def rooms_of(call: Callable[[Tensor, Tensor], Any]) -> Counter[str]:
    """The calls of Python that each room of the library takes, on a cloud that is new."""
    *others, last = clouds(6)
    for given in others:
        call(*given)
    found: Counter[str] = Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        parts = Path(frame.f_code.co_filename).parts
        at = next((i + 1 for i, part in enumerate(parts) if part in ROOMS), 0)
        if event == "call" and at and at < len(parts) and "benchmarks" not in parts:
            found[parts[at]] += 1

    sys.setprofile(note)
    try:
        call(*last)
    finally:
        sys.setprofile(None)
    return found


def keys_of(call: Callable[[Tensor, Tensor], Any]) -> list[str]:
    """The keys of the kernels that are loaded as maps and norms are launched."""
    rank: Any = per_rank
    load, keys = rank.load_per_rank, set[str]()

    def noted(kernel: Any, arch: str) -> Callable[..., None]:
        keys.add(repr((*kernel.key, arch)))
        found: Callable[..., None] = load(kernel, arch)
        return found

    rank.load_per_rank = noted
    for given in clouds(2):
        call(*given)
    return sorted(keys)


def copies_of(call: Callable[[Tensor, Tensor], Any]) -> int:
    """The events that a call waits for, on a cloud that is new."""
    before = 0
    for given in clouds(6):
        before = Event.recorded
        call(*given)
    return Event.recorded - before


def loaded_by(calls: int) -> list[int]:
    """The kernels of convolutions, and of sums of chunks, that each of the first steps loads."""
    loads = list[object]()

    def load(*of: Any) -> Callable[..., None]:
        loads.append(of)
        return nothing

    take_from(load)
    segment_sum.__dict__["load_segment_sum"] = load
    step, found = network(training=True), list[int]()
    for given in clouds(calls):
        step(*given)
        found.append(len(loads))
        loads.clear()
    return found


if __name__ == "__main__":
    stand_in()
    if sys.argv[1] == "anew":
        print(json.dumps(loaded_by(2)))
        sys.exit()
    if sys.argv[1] == "copies":
        print(copies_of(network(training=True)))
        sys.exit()
    if sys.argv[1] == "kernels":
        print(json.dumps(keys_of(network(training=sys.argv[2] == "training"))))
        sys.exit()
    print(json.dumps([rooms_of(network(training=name == "training")) for name in sys.argv[1:]]))
