"""Ranks that disagree: every call of ``layoutconv.distributed`` is one error on all of them.

``python -m tests.fuzz.ranks --count 300`` runs so many cases on three ranks, on gloo. A case is a
call that all ranks make, and something that one of them, or none, does otherwise.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import layoutconv as lc
from layoutconv.distributed import Slab, exchange_halo, mean_over_ranks, partition, restore
from layoutconv.errors import ArgumentError, RankError
from layoutconv.sparse import SparseTensor

from ..warm_process import WARM
from .report import parser_of_range

RANKS = 3
PATIENCE = timedelta(seconds=40)
CONV = {1: lc.conv1d, 2: lc.conv2d, 3: lc.conv3d}


def conv(rng):
    """A convolution of a split volume, forward and backward."""
    dims = rng.randint(1, 3)
    groups = rng.choice([1, 1, 2])
    return {
        "call": "conv", "dims": dims, "N": rng.randint(1, 2), "C": 4, "K": 4, "groups": groups,
        "spatial": tuple(rng.choice([(9, 5, 4), (8, 6, 5)])[:dims]), "mode": rng.randrange(dims),
        "taps": rng.choice([1, 3]), "stride": rng.choice([1, 1, 2]), "padding": rng.choice([0, 1]),
        "dilation": 1, "dtype": rng.choice(["float32", "float64"]), "bias": rng.random() < 0.5,
        "x_grad": rng.random() < 0.7, "w_grad": rng.random() < 0.7, "bounds": None,
    }  # fmt: skip


CONV_CHANGES = {
    "N": lambda spec: spec["N"] + 1,
    "C": lambda spec: 8,
    "K": lambda spec: 8,
    "groups": lambda spec: 3 - spec["groups"],
    "spatial": lambda spec: tuple(extent + 2 for extent in spec["spatial"]),
    "taps": lambda spec: 4 - spec["taps"],
    "stride": lambda spec: 3 - spec["stride"],
    "padding": lambda spec: 1 - spec["padding"],
    "dilation": lambda spec: 2,
    "dtype": lambda spec: "float32" if spec["dtype"] == "float64" else "float64",
    "bias": lambda spec: not spec["bias"],
    "x_grad": lambda spec: not spec["x_grad"],
    "w_grad": lambda spec: not spec["w_grad"],
    "bounds": lambda spec: (0, 1, 2, spec["spatial"][spec["mode"]]),
    "call": lambda spec: "halo",
    "dims": lambda spec: spec["dims"] % 3 + 1,
    "spoiled": lambda spec: "slab input weight stride bias rows dims complex",
    "backward": lambda spec: "elsewhere create_graph",
}


def run_conv(spec):
    dims, mode = spec["dims"], spec["mode"] % spec["dims"]
    spatial = (*spec["spatial"], 5, 5, 5)[:dims]
    slab = Slab(spatial[mode], mode, bounds=spec["bounds"])
    dtype = getattr(torch, spec["dtype"])
    torch.manual_seed(0)
    whole = torch.randn(spec["N"], spec["C"], *spatial, dtype=dtype)
    weight = torch.randn(
        spec["K"], spec["C"] // spec["groups"], *[spec["taps"]] * dims, dtype=dtype
    )
    bias = torch.randn(spec["K"], dtype=dtype) if spec["bias"] else None
    x = slab.shard(whole).clone()
    options = {name: spec[name] for name in ("stride", "padding", "dilation", "groups")}
    given = {"input": x, "weight": weight, "bias": bias, "slab": slab, **options}
    given |= spoiled(spec.get("spoiled"), given)
    if isinstance(given["input"], torch.Tensor):
        given["input"].requires_grad_(spec["x_grad"])
        given["weight"].requires_grad_(spec["w_grad"])
    y = getattr(lc.distributed, f"conv{dims}d")(**given)
    backward(spec.get("backward"), y, [x] * spec["x_grad"] + [weight] * spec["w_grad"])
    after = slab.after(spec["taps"], spec["stride"], spec["padding"], spec["dilation"])
    torch.testing.assert_close(after.gather(y), CONV[dims](whole, weight, bias, **options).detach())


def spoiled(what, given):
    """Arguments that a rank finds wrong by itself."""
    if what is None:
        return {}
    x = given["input"]
    return {
        "slab": {"slab": None},
        "input": {"input": np.zeros(3)},
        "weight": {"weight": given["weight"][:, :0]},
        "stride": {"stride": -1},
        "bias": {"bias": torch.zeros(3, dtype=x.dtype)},
        "rows": {"input": torch.cat([x, x], given["slab"].mode + 2)},
        "dims": {"input": x[0]},
        "complex": {"input": x.to(torch.complex64), "weight": given["weight"].to(torch.complex64)},
    }[what]


def backward(what, y, leaves):
    """The way back, of all that wants it, or what else a rank does instead."""
    if not leaves:
        return
    if what == "elsewhere":
        mean_over_ranks(torch.ones(2))
    elif what == "create_graph":
        torch.autograd.grad(y.sum(), leaves, create_graph=True)
    else:
        torch.autograd.grad(y.sum(), leaves)


def run_halo(spec):
    spatial = (*spec["spatial"], 5, 5, 5)[: spec["dims"]]
    mode = spec["mode"] % spec["dims"]
    slab = Slab(spatial[mode], mode)
    x = torch.zeros(spec["N"], spec["C"], *spatial, dtype=getattr(torch, spec["dtype"]))
    exchange_halo(slab.shard(x), 3, padding=1, slab=slab)


def cloud(rng):
    """A cloud that is split, convolved and put together again, forward and backward."""
    return {
        "call": "cloud", "C": 4, "K": 4, "groups": rng.choice([1, 2]), "dtype": "float64",
        "shape": rng.choice([(6, 6, 6), (8, 5, 7)]), "images": 2, "x_grad": rng.random() < 0.7,
        "w_grad": True, "bias": rng.random() < 0.5, "taps": rng.choice([1, 3]), "dilation": 1,
        "activation": rng.choice([None, "relu"]),
    }  # fmt: skip


CLOUD_CHANGES = {
    "C": lambda spec: 8,
    "K": lambda spec: 8,
    "groups": lambda spec: 3 - spec["groups"],
    "dtype": lambda spec: "float32",
    "shape": lambda spec: (9, 9, 9),
    "images": lambda spec: 3,
    "x_grad": lambda spec: not spec["x_grad"],
    "w_grad": lambda spec: False,
    "bias": lambda spec: not spec["bias"],
    "taps": lambda spec: 4 - spec["taps"],
    "dilation": lambda spec: 2,
    "activation": lambda spec: "gelu",
    "cells": lambda spec: "outside twice",
    "late": lambda spec: "weight input other_cloud restore dilation",
    "call": lambda spec: "mean",
    "backward": lambda spec: "elsewhere create_graph",
}


def run_cloud(spec):
    rank = dist.get_rank()
    dtype = getattr(torch, spec["dtype"])
    grid = (spec["images"], *spec["shape"])
    cells = torch.nonzero(torch.rand(2, 5, 5, 5, generator=torch.Generator().manual_seed(1)) < 0.3)
    mine = cells[rank::RANKS].int()
    if spec.get("cells") == "outside":
        mine[0, 1] = 99
    elif spec.get("cells") == "twice":
        mine = cells[(rank + 1) % RANKS :: RANKS].int()
    torch.manual_seed(rank)
    features = torch.randn(len(mine), spec["C"], dtype=dtype, requires_grad=spec["x_grad"])
    x = partition(SparseTensor(features, mine, grid[1:], grid[0]))
    weight = torch.ones(spec["K"], *[spec["taps"]] * 3, spec["C"] // spec["groups"], dtype=dtype)
    weight.requires_grad_(spec["w_grad"])
    bias = torch.ones(spec["K"], dtype=dtype) if spec["bias"] else None
    late = spec.get("late")
    given = x
    if late == "other_cloud":
        given = partition(SparseTensor(features, mine, grid[1:], grid[0]))
    elif late == "input":
        given = SparseTensor(features, mine, grid[1:], grid[0])
    dilation = -1 if late == "dilation" else spec["dilation"]
    filter_ = weight[..., :1] if late == "weight" else weight
    if late == "restore":
        restore(x)
    y = lc.distributed.subm_conv(
        given, filter_, bias, dilation, spec["groups"], activation=spec["activation"]
    )
    leaves = [features] * spec["x_grad"] + [weight] * spec["w_grad"]
    backward(spec.get("backward"), y.features, leaves)
    assert restore(y).shape == (len(mine), spec["K"])


def mean(rng):
    return {"call": "mean", "dtype": "float32", "values": "tensor"}


MEAN_CHANGES = {
    "dtype": lambda spec: "float64",
    "values": lambda spec: "number",
    "call": lambda spec: "gather",
}


def run_mean(spec):
    values = torch.ones(dist.get_rank() + 1, dtype=getattr(torch, spec["dtype"]))
    found = mean_over_ranks(1.0 if spec.get("values") == "number" else values)
    assert found == RANKS * len(values) / 6


def run_gather(spec):
    slab = Slab(4)
    slab.gather(slab.shard(torch.zeros(1, 1, 4)))


RUN = {
    "conv": run_conv,
    "halo": run_halo,
    "cloud": run_cloud,
    "mean": run_mean,
    "gather": run_gather,
}
KINDS = [(conv, CONV_CHANGES)] * 3 + [(cloud, CLOUD_CHANGES)] * 2 + [(mean, MEAN_CHANGES)]


def case_of(seed, number):
    """Return what all ranks do, which one does otherwise (or None), and what that one does."""
    rng = random.Random(f"{seed}/{number}")
    make, changes = rng.choice(KINDS)
    spec = make(rng)
    if rng.random() < 0.15:
        return spec, None, spec
    name = rng.choice([*changes])
    value = changes[name](spec)
    if name in ("spoiled", "backward", "cells", "late"):
        value = rng.choice(value.split())
    nothing_back = name == "backward" and not (spec["x_grad"] or spec["w_grad"])
    if nothing_back or (name, spec["call"], spec.get("taps")) == ("dilation", "cloud", 1):
        return spec, None, spec  # one tap of a cloud is the same at every dilation
    return spec, rng.randrange(RANKS), {**spec, name: value}


def outcome(spec):
    """Make a call on this rank; return None, or the class and the text of its error."""
    try:
        RUN[spec["call"]](spec)
    except (ArgumentError, RankError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def verdict(number, case, outcomes):
    """Return what is wrong with the outcomes on all ranks, or None."""
    spec, odd, other = case
    change = {} if odd is None else {k: v for k, v in other.items() if spec.get(k) != v}
    where = f"case {number}, {spec['call']}, rank {odd}, {change}"
    if odd is None:
        wrong = [text for text in outcomes if text is not None]
        return f"{where}: {wrong[0]}" if wrong else None
    if None in outcomes:
        return f"{where}: no error on rank {outcomes.index(None)}, elsewhere {outcomes}"
    others = {text for rank, text in enumerate(outcomes) if rank != odd}
    if len(others) > 1:
        return f"{where}: not the same error: {outcomes}"
    if not any("rank" in text for text in others):
        return f"{where}: no rank is named: {outcomes}"
    # What differs is told alike everywhere; what one rank finds wrong by itself is its own there.
    if outcomes[odd] not in others and f"on rank {odd}" not in next(iter(others)):
        return f"{where}: not the rank that it is: {outcomes}"
    return None


def work(rank, folder, seed, first, count, seconds):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = f"file://{folder}/store"
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=RANKS, timeout=PATIENCE
    )
    counts, wrong, begun = Counter(), [], time.monotonic()
    for number in range(first, first + count):
        Path(folder, f"at{rank}").write_text(str(number))
        spec, odd, other = case = case_of(seed, number)
        try:
            text = outcome(other if rank == odd else spec)
        except Exception as error:
            text = f"raw {type(error).__name__}: {error}"
            wrong.append(f"case {number}: {text}")
        texts = [None] * RANKS
        dist.all_gather_object(texts, text)
        late = [None] * RANKS
        dist.all_gather_object(late, seconds is not None and time.monotonic() - begun > seconds)
        found = verdict(number, case, texts)
        if rank == 0:
            counts["alike" if odd is None else f"{spec['call']}, otherwise"] += 1
            wrong += [found] if found else []
        if any(late):
            break
    if rank == 0 or wrong:
        Path(folder, f"found{rank}").write_text(json.dumps([counts, wrong]))
    dist.destroy_process_group()


def run(count, seed=0, first=0, seconds=None):
    """Run cases on three ranks: how many of each kind, and a line for each that is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = folder, seed, first, count, seconds
        started = [WARM.Process(target=work, args=(rank, *arguments)) for rank in range(RANKS)]
        for process in started:
            process.start()
        counts, wrong = Counter(), []
        for rank, process in enumerate(started):
            process.join()
            if process.exitcode:
                at = Path(folder, f"at{rank}").read_text() if process.exitcode else ""
                wrong.append(f"case {at}: rank {rank} ended with {process.exitcode}")
        for path in Path(folder).glob("found*"):
            some, lines = json.loads(path.read_text())
            counts.update(some)
            wrong += lines
    return counts, wrong


def main(arguments=None):
    parser = parser_of_range(__doc__, 300)
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    counts, wrong = run(options.count, options.seed, options.first, options.seconds)
    for name, number in sorted(counts.items()):
        print(f"{number:10,} {name}")
    print(*wrong[:100], sep="\n")
    print(
        f"{sum(counts.values()):,} cases in {time.monotonic() - begun:.0f} s, {len(wrong)} findings"
    )
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
