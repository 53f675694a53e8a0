"""Run a network down its roads, and compare with the untouched one in float64."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import layoutconv as lc

from .bench import Bench, check_same, poison
from .limits import UNITS
from .network_roads import Data, by_two_threads, play, set_up, swapped, travelled
from .network_source import built
from .networks import Network
from .oracle import WrongResultError
from .rounding import Record, Rounding, compare

# What torch adds up in any order on a GPU: gradients of what reads a number more than once.
IN_ANY_ORDER = re.compile("replicate|reflect|Upsample|interpolate|Adaptive|Pool")


def run_network(p: Network, bench: Bench) -> None:
    """Raise ``WrongResultError`` for what is not as it should be, and whatever a call raises."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True  # of convolutions that stay torch's
    try:
        _run_network(p, bench)
    finally:
        torch.backends.cudnn.deterministic = before


def _run_network(p: Network, bench: Bench) -> None:
    bench.stage("network")
    param, compute = types_of(p)
    net = randomised(built(p.text(), p.seed), p.seed).to(param)
    data = make_data(net, p, param)
    bench.stage("reference")
    original = set_up(net.double(), p)
    if "swap" in p.roads:
        swapped(original)
    plain = replace(p, memory="first")  # torch is not right of all other memory
    exact = play(deepcopy(original), plain, data, graph=False)
    bench.stage("roads")
    given = data.to(param, bench.device)
    mine = _on_the_road(p, param, bench)
    poison(bench.device, [4096, 65536])
    bench.stage("calls")
    try:
        got = play(deepcopy(mine), p, given, graph=p.graph)
    except NotImplementedError:  # a pool of half numbers on a CPU, say
        _check_not_in_torch(p, param, given)
        return
    bench.wait("the device")
    if not bench.runs:
        return
    if bench.device.type == "cpu" or not IN_ANY_ORDER.search(p.text()):
        again = play(deepcopy(mine), p, given, graph=p.graph)
        for name, value in got.items():
            check_same(name, value, again[name])
    bench.stage("laws")
    check_laws(p, mine, given, got, bench)
    unit = tf32_unit(compute, bench) or UNITS[compute]

    def sample(number: int) -> Record:
        with Rounding(compute, unit, p.seed * 97 + number):
            return play(deepcopy(original), plain, data, graph=False)

    bench.stage("samples")
    results = within_range(p, param, given, widened(got), widened(exact))
    found = compare(*results, compute, sample)
    for name, over in found.items():
        word = name.split()[0]
        bench.passes[word] = max(over, bench.passes.get(word, 0.0))


def tf32_unit(compute: torch.dtype, bench: Bench) -> float | None:
    """The unit of tf32, which has as many bits as float16, where float32 is multiplied so."""
    tf32 = compute == torch.float32 and bench.tensor_cores and torch.backends.cudnn.allow_tf32
    return UNITS[torch.float16] if tf32 else None


def types_of(p: Any) -> tuple[torch.dtype, torch.dtype]:
    """The type of parameters and images, and that of what is computed."""
    words = p.type.split()
    compute = getattr(torch, words[0])
    return (torch.float32 if len(words) > 1 else compute), compute


def _on_the_road(p: Network, param: torch.dtype, bench: Bench) -> Any:
    net = randomised(built(p.text(), p.seed), p.seed)
    net = set_up(net.to(param).to(bench.device), p)
    return travelled(net, p)


def _by_torch(p: Network, param: torch.dtype, data: Data) -> Record:
    """The results of the untouched network in its own types."""
    device = data.inputs[0].device
    plain = set_up(randomised(built(p.text(), p.seed), p.seed).to(device, param), p)
    return play(plain, replace(p, memory="first"), data, graph=False)


def _check_not_in_torch(p: Network, param: torch.dtype, data: Data) -> None:
    """Torch does not have an operation of the network in this type, either."""
    try:
        _by_torch(p, param, data)
    except NotImplementedError:
        return
    raise WrongResultError("not implemented here, and torch has it")


def within_range(
    p: Network, param: torch.dtype, data: Data, got: Record, exact: Record
) -> tuple[Record, Record]:
    """Both without results that are infinite, or no number, as those of torch's own network are in
    this type: values in between are beyond its range, and the reference goes on in float64.
    """
    lost = {n for n, v in got.items() if n in exact and _is_finite(exact[n]) and not _is_finite(v)}
    if lost:
        lost -= {name for name, value in _by_torch(p, param, data).items() if _is_finite(value)}
    got, exact = ({n: v for n, v in each.items() if n not in lost} for each in (got, exact))
    return got, exact


def _is_finite(value: Tensor) -> bool:
    return bool(value.isfinite().all())


def randomised(net: Any, seed: int) -> Any:
    """A network whose norms have numbers of training."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in net.modules():
            if getattr(module, "running_mean", None) is not None:
                module.running_mean.normal_(0, 0.3, generator=random)
                module.running_var.uniform_(0.5, 2, generator=random)
            if getattr(module, "eps", None) and module.weight is not None:
                module.weight.uniform_(0.5, 1.5, generator=random)
                module.bias.normal_(0, 0.3, generator=random)
    return net


def make_data(net: Any, p: Network, dtype: torch.dtype) -> Data:
    """Images of a normal distribution, rounded to ``dtype``, and gradients of results."""
    random = torch.Generator().manual_seed(p.seed + 1)
    inputs, grads = [], []
    plain = deepcopy(net).eval().double()
    for call in range(p.calls):
        shape = p.images, p.C, *p.sizes[call % len(p.sizes)]
        x = torch.randn(shape, generator=random, dtype=torch.float64).to(dtype).double()
        with torch.no_grad():
            y = plain(x.clone())
        inputs.append(x)
        grads.append(torch.randn(y.shape, generator=random).to(dtype).double())
    return Data(tuple(inputs), tuple(grads))


def widened(found: Record) -> Record:
    return {name: value.detach().cpu().double() for name, value in found.items()}


# -- laws of bits ----------------------------------------------------------------------------------


def check_laws(p: Network, mine: Any, data: Data, got: Record, bench: Bench) -> None:
    """Results that are promised to have the same bits as others."""
    if p.graph and not p.training:
        _check_all("graphed", got, play(deepcopy(mine), p, data, graph=False))
    if p.type == "float64" and bench.device.type == "cpu":
        # Contiguous: a sum has the order of memory of its first operand, and a sum over it too.
        first = replace(p, memory="first")
        plain = set_up(randomised(built(p.text(), p.seed), p.seed).double(), p)
        want = play(deepcopy(plain), first, data, graph=False)
        fused = lc.nn.fuse_batch_norms(deepcopy(plain))
        _check_all("fused", play(fused, first, data, graph=False), want)
        back = lc.nn.revert(lc.nn.convert(lc.nn.fuse_batch_norms(deepcopy(plain))))
        _check_all("reverted", play(back, first, data, graph=False), want)
    if not p.training and p.seed % 4 == 0:
        x = data.inputs[0]
        with torch.no_grad():
            alone: Tensor = mine(x)
        for other in by_two_threads(mine, x):
            check_same("of two threads", alone, other)


def _check_all(name: str, got: Record, want: Record) -> None:
    if set(got) != set(want):
        raise WrongResultError(f"{name}: results {sorted(set(got) ^ set(want))} are not in both")
    for key, value in want.items():
        check_same(f"{name}: {key}", value, got[key])
