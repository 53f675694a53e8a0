"""Run a sparse network down its roads, and compare with sums tap by tap in float64."""

from __future__ import annotations

from copy import deepcopy
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import layoutconv as lc
import layoutconv.compat.spconv.pytorch as spconv

from .bench import Bench, check_same, poison
from .limits import UNITS
from .network_roads import ROADS as DENSE_ROADS
from .network_roads import by_two_threads, in_type, lowered
from .network_source import built
from .networks_run import randomised, tf32_unit, types_of, widened
from .oracle import WrongResultError
from .rounding import Record, Rounding, compare
from .sparse_network_reference import Maps, Reference
from .sparse_networks import SparseNetwork
from .sparse_reference import cells_of

FEW = "more than 1 value per channel"


def run_sparse_network(p: SparseNetwork, bench: Bench) -> None:
    """Raise ``WrongResultError`` for what is not as it should be, and whatever a call raises."""
    bench.stage("network")
    param, compute = types_of(p)
    net = randomised(built(p.text(), p.seed), p.seed).to(param)
    clouds = make_clouds(p, param)
    original = net.double().train(p.training)
    bench.stage("reference")
    maps: Maps = {}
    try:
        exact = by_reference(deepcopy(original), p, clouds, maps)
    except ValueError as few:
        if FEW not in str(few):
            raise
        exact = None
    bench.stage("roads")
    mine = randomised(built(p.text(), p.seed), p.seed).to(bench.device, param).train(p.training)
    for road in p.roads:
        mine = mine if road == "maps" else DENSE_ROADS[road](mine)
    given = [(cells.to(bench.device), x.to(bench.device, param)) for cells, x in clouds]
    poison(bench.device, [4096, 65536])
    bench.stage("calls")
    if exact is None:
        _check_refused(deepcopy(mine), p, given)
        return
    got = bench.fault(play(deepcopy(mine), p, given, graph=p.graph))
    bench.wait("the device")
    if not bench.runs:
        return
    again = bench.fault(play(deepcopy(mine), p, given, graph=p.graph))
    for name, value in got.items():
        check_same(name, value, again[name])
    _check_laws(p, mine, given, got, bench)
    unit = tf32_unit(compute, bench) or UNITS[compute]

    def sample(number: int) -> Record:
        with Rounding(compute, unit, p.seed * 97 + number):
            return by_reference(deepcopy(original), p, clouds, maps)

    bench.stage("samples")
    whole = frozenset(name for name in exact if name.startswith("cells"))
    for name, over in compare(widened(got), widened(exact), compute, sample, whole).items():
        word = name.split()[0]
        bench.passes[word] = max(over, bench.passes.get(word, 0.0))


def _check_refused(net: Any, p: SparseNetwork, clouds: list[tuple[Tensor, Tensor]]) -> None:
    """A batch norm in training refuses a single row, as torch's does."""
    try:
        play(net, p, clouds, graph=False)
    except ValueError as few:
        if FEW in str(few):
            return
        raise
    raise WrongResultError("a batch norm of one row in training: no error")


def make_clouds(p: SparseNetwork, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Cells int64 (rows, 1 + rank) in any order, and features in float64, of each call."""
    random = torch.Generator().manual_seed(p.seed + 1)
    found = []
    for count in p.rows:
        total = prod(p.extents)
        used = p.images - p.empty
        dense = bool(torch.rand((), generator=random) < 0.5)
        side = min(total, max(1, 3 * count // used)) if dense else total
        keys = torch.cat([
            image * total + torch.randperm(side, generator=random)[: -(-count // used)]
            for image in range(used)
        ])[:count]  # fmt: skip
        cells = cells_of(keys[torch.randperm(len(keys), generator=random)], p.extents)
        x = torch.randn(len(cells), p.C, generator=random, dtype=torch.float64)
        found.append((cells, x.to(dtype).double()))
    return found


def _has_head(p: SparseNetwork) -> bool:
    """Return whether a row to an image comes out, without cells."""
    return p.program[-1][0] == "head"


def _target(rows: Tensor, p: SparseNetwork, call: int) -> Tensor:
    random = torch.Generator().manual_seed(p.seed * 31 + call)
    target = torch.randint(-16, 17, rows.shape, generator=random) / 8  # the same in all types
    return in_type(target, rows)


def _loss(y: Any, target: Tensor) -> Tensor:
    rows = y if isinstance(y, Tensor) else y.features
    return functional.mse_loss(rows, target, reduction="sum")


# -- calls -----------------------------------------------------------------------------------------


def by_reference(
    net: Any, p: SparseNetwork, clouds: list[tuple[Tensor, Tensor]], maps: Maps
) -> Record:
    """All calls of the reference; ``maps`` are kept for more of them."""
    reference = Reference(net, p, maps)

    def call(cells: Tensor, x: Tensor) -> tuple[Any, Tensor, Tensor]:
        rows = reference(x, cells)
        return rows.features, rows.features, cells[:0] if _has_head(p) else rows.cells

    return _calls(net, p, clouds, call, None)


def play(net: Any, p: SparseNetwork, clouds: list[tuple[Tensor, Tensor]], *, graph: bool) -> Record:
    """All calls; outputs, cells, gradients and the state, by name."""
    graphed = lc.nn.graphed(net) if graph and not p.training else net

    def call(cells: Tensor, x: Tensor) -> tuple[Any, Tensor, Tensor]:
        y = graphed(cloud_of(p, cells, x))
        if isinstance(y, Tensor):
            return y, y, cells[:0]
        return y, y.features, y.indices if p.names == "spconv" else y.coords

    step = lc.nn.graphed_step(net, _loss) if graph and p.training else None
    return _calls(net, p, clouds, call, step)


def cloud_of(p: SparseNetwork, cells: Tensor, x: Tensor) -> Any:
    """The tensor of a cloud in the names of a network; its maps are made before, or not."""
    if p.names == "spconv":
        return spconv.SparseConvTensor(x, cells.int(), list(p.extents), p.images)
    made = lc.SparseTensor(x, cells.int(), p.extents, p.images)
    if "maps" in p.roads:
        least = min(p.extents)
        lc.sparse.build_maps(made.coordinates, levels=3 if least >= 4 else 1)
    return made


def _calls(net: Any, p: SparseNetwork, clouds: Any, call: Any, step: Any) -> Record:
    found: Record = {}
    wanted = list(net.parameters())
    optimizer = torch.optim.SGD(wanted, 0.003, momentum=0.9) if p.training and wanted else None
    for number, (cells, features) in enumerate(clouds):
        x = features.clone()
        if not p.training:
            with torch.no_grad(), lowered(p, x):
                _, rows, at = call(cells, x)
            found[f"y {number}"], found[f"cells {number}"] = rows.clone(), at.long()
            continue
        rows = None if step is None else Reference(deepcopy(net), p)(x, cells).features
        if rows is not None and rows.requires_grad:  # else the step is torch's error
            with lowered(p, x):
                found[f"loss {number}"] = step(
                    cloud_of(p, cells, x), _target(rows, p, number)
                ).clone()
        else:
            x.requires_grad_(not p.graph)
            with lowered(p, x):
                y, rows, at = call(cells, x)
                loss = _loss(y, _target(rows, p, number))
            found[f"loss {number}"] = loss.detach()
            if loss.requires_grad:
                loss.backward()
            if not p.graph:
                found[f"y {number}"], found[f"cells {number}"] = rows.detach().clone(), at.long()
                found[f"grad x {number}"] = x.grad
        for name, parameter in net.named_parameters():
            if parameter.grad is not None:
                found[f"grad {name} {number}"] = parameter.grad.clone()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
    if p.training:
        for name, tensor in net.state_dict().items():
            found[f"state {name}"] = tensor.clone()
    return found


def _check_laws(
    p: SparseNetwork, mine: Any, clouds: list[tuple[Tensor, Tensor]], got: Record, bench: Bench
) -> None:
    """A graph on a CPU is the eager call; two threads get what one gets."""
    if p.graph and bench.device.type == "cpu":
        want = bench.fault(play(deepcopy(mine), p, clouds, graph=False))
        for name, value in got.items():
            check_same(f"graphed: {name}", want[name], value)
    if not p.training and p.seed % 4 == 0:
        cells, x = clouds[0]

        def rows(x: Tensor) -> Tensor:
            y = mine(cloud_of(p, cells, x))
            return y if isinstance(y, Tensor) else y.features

        with torch.no_grad():
            alone = rows(x)
        for other in by_two_threads(rows, x):
            check_same("of two threads", alone, other)
