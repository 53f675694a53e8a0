"""The calls of a row of ``bench_network.py``, on either side, and their reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from bench_sparse import Cloud
from minkunet import CHANNELS, CLASSES, Exact, MinkUNet, Ours, Theirs, Work, network
from timing import relative_error
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.sparse import Coordinates, SparseTensor, build_maps

KINDS = ("eager", "given", "graph", "graphed", "training")
CAPTURED = "graph", "graphed"
TARGETS = {"eager": 2.0, "given": 2.0, "graph": 3.0, "graphed": 3.0, "training": 1.8}
# Relative to float64, of 50 layers in fp16. Gradients have come by way of all of them, and of ReLUs
# that rounding turns over: 0.2 to 0.5 of the filters farthest from the loss, on either side, where
# the same step in fp32 has 6e-6. One that is missing has 1.
TOLERANCE = {"eager": 1e-2, "given": 1e-2, "graph": 1e-2, "graphed": 1e-2, "training": 0.8}
SLACK = 1.1  # rows of a level for each of its cells, where the number is fixed
LOSS_SCALE = 2.0**16  # of gradients in fp16, which are means over a cloud
Call = Callable[[], Tensor]


class Case:
    """A cloud, its data, and what a network in float64 makes of them.

    Attributes:
        features, labels: float32 (rows, 4), int64 (rows,).
        weights: of the network, as a state dict; ``folded`` those with batch norms in them.
        scores, gradient: the network's result, and the gradient of the loss by its parameters, one
            after another, float64.
        filters: where in the gradient those of the convolutions are.
        work: what a forward pass comes to.
    """

    def __init__(self, cloud: Cloud, width: float = 1.0) -> None:
        self.cloud, self.width = cloud, width
        device = cloud.cells.device
        generator = torch.Generator().manual_seed(0)
        shape = len(cloud.cells), CHANNELS
        self.features = torch.randn(shape, generator=generator).to(device)
        self.labels = torch.randint(CLASSES, shape[:1], generator=generator).to(device)
        ours = network(Ours(), width).to(device)
        self.weights = ours.state_dict()
        self.folded = lc.nn.fold_batch_norms(network(Ours(), width)).state_dict()
        exact = Exact(cloud)
        net = MinkUNet(exact, width).eval().requires_grad_(False)
        net.load_state_dict(self.weights)
        net = net.to(device).double()
        self.scores = net(exact.tensor(cloud, self.features.double())).as_subclass(Tensor)
        self.work = Work(*map(list, vars(exact.work).values()))
        starts = accumulate((p.numel() for p in net.parameters()), initial=0)
        self.filters = [
            slice(start, start + p.numel())
            for start, p in zip(starts, net.parameters(), strict=False)
            if p.dim() > 2
        ]
        self.gradient = _step(net, exact, self, torch.float64)() / LOSS_SCALE

    @property
    def capacities(self) -> list[int]:
        """Rows of every level, the finest first, with room for some more."""
        every = len(self.cloud.cells), *self.work.rows
        return [-(-int(rows * SLACK) // 128) * 128 for rows in every]

    def error(self, kind: str, result: Tensor) -> float:
        """Return the error of the result of a row's call."""
        if kind == "training":
            found = result.double() / LOSS_SCALE
            return max(relative_error(found[at], self.gradient[at]) for at in self.filters)
        return relative_error(_centred(result), _centred(self.scores))


def _centred(scores: Tensor) -> Tensor:
    """Subtract the mean row: constant outputs of biases alone would look right."""
    return scores.double() - scores.double().mean(0)


def ours(kind: str, case: Case, captures: bool = True) -> Call:
    """A row's call on our side. Without ``captures``, a graph's is what would be captured."""
    names, cloud = Ours(), case.cloud
    net = network(names, case.width)
    net.load_state_dict(case.weights)
    net = net.to(cloud.cells.device)
    if kind == "training":
        return _step(net, names, case, torch.float16)
    net = lc.nn.fold_batch_norms(net).half()
    data = case.features.half()
    if kind == "graph":
        return fixed(net, cloud, data, case.capacities, captures)
    run: nn.Module = lc.nn.graphed(net) if kind == "graphed" and captures else net
    kept = names.tensor(cloud, data)

    @torch.no_grad()
    def call() -> Tensor:
        scores: Tensor = run(kept if kind == "given" else names.tensor(cloud, data))
        return scores

    return call


def theirs(kind: str, case: Case, spconv: Any, folded: bool) -> Call:
    """The same by a library of spconv's names. In place of a graph, which its maps' waits for the
    host do not allow, an eager call; kept are its submanifold maps alone, as it refuses others."""
    names, cloud = Theirs(spconv, folded), case.cloud
    net = MinkUNet(names, case.width).eval().requires_grad_(False)
    net.load_state_dict(case.folded if folded else case.weights)
    net = net.to(cloud.cells.device)
    if kind == "training":
        return _step(net, names, case, torch.float16)
    net, data = net.half(), case.features.half()
    maps: dict[str, Any] = {}
    if kind == "given":
        with torch.no_grad():
            made = net.features(names.tensor(cloud, data)).indice_dict
        maps = {key: found for key, found in made.items() if key.startswith("subm")}

    @torch.no_grad()
    def call() -> Tensor:
        x = names.tensor(cloud, data)
        x.indice_dict.update(maps)
        return net(x)

    return call


def fixed(
    net: MinkUNet, cloud: Cloud, features: Tensor, capacities: Sequence[int], captures: bool = True
) -> Call:
    """The network with a fixed number of rows at every level, maps included, as a CUDA graph.

    Memory of that many rows is filled up with rows of the image -1; a call copies a cloud to its
    beginning, and replays. How a program of one's own does it is in docs/point_clouds.md.
    """
    most, *coarser = capacities
    cells = cloud.cells.new_zeros(most, cloud.cells.shape[1])
    data = features.new_zeros(most, features.shape[1])
    count = len(cloud.cells)

    def fill() -> None:
        cells[:count].copy_(cloud.cells)
        cells[count:, 0].fill_(-1)
        data[:count].copy_(features)

    def run() -> Tensor:
        coordinates = Coordinates(cells, cloud.shape, cloud.images, padded=True, valid=True)
        build_maps(coordinates, len(capacities), capacities=coarser)
        return net(SparseTensor(data, coordinates), coarser)

    with torch.no_grad():
        fill()
        replay, result = captured(run) if captures else (None, torch.empty(0))

    @torch.no_grad()
    def call() -> Tensor:
        fill()
        if replay is None:
            return run()[:count]
        replay()
        return result[:count]

    return call


def captured(run: Call) -> tuple[Callable[[], None], Tensor]:
    """Capture a function as a CUDA graph; return its replay and the memory of its result."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compile, and allocate, before
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph.replay, result


def _step(net: MinkUNet, names: Any, case: Case, dtype: torch.dtype) -> Call:
    """Forward, loss and backward, with maps, under autocast unless in float64: all gradients."""
    net.train().requires_grad_(True)
    cloud, device = case.cloud, case.cloud.cells.device.type
    lowered = dtype != torch.float64
    data = case.features if lowered else case.features.double()
    parameters = list(net.parameters())

    def call() -> Tensor:
        with torch.enable_grad():
            net.zero_grad(set_to_none=True)
            with torch.autocast(device, dtype=torch.float16, enabled=lowered):
                scores = net(names.tensor(cloud, data)).as_subclass(Tensor)
            exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
            loss = nn.functional.cross_entropy(exact, case.labels)
            (LOSS_SCALE * loss).backward()
        return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])

    return call
