"""Sparse layers and clouds: what there is to choose of them, and what a seed chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from .budget import BUDGETS, Budget, kind_of
from .convolution import Convolution
from .dense import STARTS, draw_count
from .draws import Draw
from .ending import NARROW, Ending, draw_ending, with_less

DTYPES = {"float16": 35, "bfloat16": 20, "float32": 35, "float64": 10}
CONVOLUTIONS = ("subm", "strided", "transposed", "inverse")
POOLS = ("max", "mean", "sum", "unpool", "global max", "global mean", "global sum")
LAYERS = {"subm": 34, "strided": 20, "transposed": 14, "inverse": 12} | dict.fromkeys(POOLS, 20 / 7)
CALLS = {"function": 65, "module": 12, "autocast": 8, "map": 7, "second order": 8}
CLOUDS = {"random": 30, "surface": 25, "lines": 12, "block": 12, "far": 8, "one": 5, "none": 4,
          "full": 4}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sparse(Convolution):
    """A layer on a cloud: ``x`` (rows, C) at cells of ``images`` grids, and what comes of it.

    Args:
        layer: one of ``LAYERS``; an inverse convolution goes back through a strided one.
        offsets: instead of ``taps``, a set of cells.
        capacity: rows of a strided or transposed result, -1 for as many as there are.
        given: whether the cells that are computed are given: a random part of those that are
            reached, and some that are not.
        call: "function"; "module" of ``lc.nn``; under "autocast", from float32; "map": given the
            kernel map; "second order": gradients of gradients.
        cloud: how cells lie, one of ``CLOUDS``.
        rows: how many cells, about.
        empty: images without cells.
        absent: rows whose batch is -1.
    """

    family: ClassVar[str] = "sparse"
    layer: str
    extents: tuple[int, ...]
    rows: int
    offsets: tuple[tuple[int, ...], ...] = ()
    capacity: int = -1
    given: bool = False
    cloud: str = "random"
    images: int = 1
    empty: int = 0
    absent: int = 0
    sorted: bool = False

    @property
    def rank(self) -> int:
        return len(self.extents)

    @property
    def is_convolution(self) -> bool:
        return self.layer in CONVOLUTIONS

    @property
    def is_depthwise(self) -> bool:
        return self.groups == self.C > 1

    @property
    def kind(self) -> str:
        """A word on what it is, for the summary."""
        groups = "depthwise " if self.is_depthwise else "grouped " if self.groups > 1 else ""
        pool = " pool" if self.layer in POOLS and self.layer != "unpool" else ""
        return f"{groups}{self.layer}{pool} {self.rank}-D"

    @property
    def filter(self) -> tuple[int, ...]:
        """The shape of the weight."""
        taps = (len(self.offsets),) if self.offsets else self.taps
        return (self.K, *taps, self.C // self.groups)


def draw_sparse(seed: int, size: str = "gpu") -> Sparse:
    """The problem of a seed; ``size`` is a name of ``BUDGETS``.

    >>> draw_sparse(3) == draw_sparse(3), draw_sparse(3).layer == draw_sparse(4).layer
    (True, True)
    """
    budget = BUDGETS[size]
    kind = _draw_kind(Draw("sparse kind", kind_of(seed)), budget)
    return _draw_cloud(kind, Draw("sparse size", seed), budget, seed)


def _draw_kind(draw: Draw, budget: Budget) -> Sparse:
    """Draw the numbers that kernels are compiled for; clouds are drawn afterwards."""
    dtype, layer = draw.weighted(DTYPES), draw.weighted(LAYERS)
    rank = draw.weighted({1: 12, 2: 20, 3: 50, 4: 18})
    taps = _draw_taps(draw, rank, budget)
    stride = (
        (1,) * rank if layer == "subm" else draw.per_mode(rank, 0.75, {1: 15, 2: 60, 3: 18, 4: 7})
    )
    dilation = draw.per_mode(rank, 0.75, {1: 80, 2: 14, 3: 6})
    padding = tuple(
        (0, 0) if layer == "subm" or draw.chance(0.3) else (
            (half, half) if draw.chance(0.6) else (draw.int(0, half + 1), draw.int(0, half + 1))
        )
        for half in (d * (t - 1) // 2 for t, d in zip(taps, dilation, strict=True))
    )  # fmt: skip
    extra = tuple(draw.int(0, s - 1) if layer == "transposed" and draw.chance(0.4) else 0
                  for s in stride)  # fmt: skip
    C, K, groups = _draw_channels(draw, layer, budget)
    exact = draw.chance(0.8)
    gradients = _draw_gradients(draw)
    convolves = layer in CONVOLUTIONS
    ending = Ending()
    if convolves:
        ending = draw_ending(draw, dtype, exact=exact, differentiable=bool(gradients))
    problem = Sparse(
        seed=0, layer=layer, dtype=dtype, C=C, K=K, extents=(1,) * rank, taps=taps,
        stride=stride, dilation=dilation, padding=padding, rows=0, output_padding=extra,
        groups=groups, precision=draw.of(("tf32", "tf32", "fp32")), ending=ending,
        gradients=gradients, call=draw.weighted(CALLS) if convolves else "function",
        start_x=draw.weighted(STARTS), numbers="exact" if exact else "normal",
        given=layer in ("strided", "transposed") and draw.chance(0.25),
        capacity=1 if layer in ("strided", "transposed") and draw.chance(0.25) else -1,
        offsets=_draw_offsets(draw, rank) if layer == "subm" and draw.chance(0.12) else (),
    )  # fmt: skip
    aside = draw.aside("8 bits")
    if convolves and not problem.is_depthwise and aside.chance(0.12):
        problem = _narrow(problem, aside)
    return _consistent(problem, draw)


def _narrow(p: Sparse, draw: Draw) -> Sparse:
    """A problem in 8 bits: for inference, by functions."""
    dtype = draw.of(NARROW)
    exact = dtype == "int8" or p.numbers == "exact"
    return replace(
        p, dtype=dtype, numbers="exact" if exact else "normal", gradients=(),
        ending=draw_ending(draw, dtype, exact=exact, differentiable=False),
        call=p.call if p.call in ("function", "map") else "function",
    )  # fmt: skip


def _consistent(p: Sparse, draw: Draw) -> Sparse:
    """Without what a call does not take together."""
    if p.offsets:
        one = (1,) * p.rank
        p = replace(p, taps=one, dilation=one, call="function" if p.call == "module" else p.call)
    if p.given:
        p = replace(p, capacity=-1, call="function" if p.call in ("module", "map") else p.call)
    if p.call == "autocast":
        if p.dtype not in ("float16", "bfloat16"):
            p = replace(p, call="function")
        else:
            p = replace(p, ending=replace(p.ending, residual="", out_dtype=""))
    if p.call == "second order":
        p = replace(p, ending=Ending(), gradients=("x", "w"))
    if p.call == "module":
        ending = replace(p.ending, scale="", residual="", out_dtype="")
        p = replace(p, ending=replace(ending, bias=p.dtype if ending.bias else ""))
        if p.capacity >= 0 or any(near != far for near, far in p.padding):
            p = replace(p, call="function")
    present = {"x", "w", *(n for n in ("bias", "residual") if getattr(p.ending, n))}
    if p.ending.scale not in ("", "number"):
        present.add("scale")
    if not p.is_convolution:
        present = {"x"}
    gradients = tuple(name for name in p.gradients if name in present)
    tf32 = p.dtype == "float32" and p.precision == "tf32" and p.is_convolution
    if p.numbers == "exact" and tf32 and p.ending.is_linear and p.call == "function" and (
        draw.chance(0.3)
    ):  # fmt: skip
        p = replace(p, numbers="rounded")
    return replace(p, gradients=gradients)


def _draw_taps(draw: Draw, rank: int, budget: Budget) -> tuple[int, ...]:
    weights = {1: 10, 2: 22, 3: 45, 4: 6, 5: 11, 7: 6}
    taps = [*draw.per_mode(rank, 0.75, weights)]
    while prod(taps) > budget.taps:
        taps[taps.index(max(taps))] -= 1
    return tuple(taps)


def _draw_offsets(draw: Draw, rank: int) -> tuple[tuple[int, ...], ...]:
    """A set of cells, with a centre or without."""
    found = {tuple(draw.int(-3, 3) for _ in range(rank)) for _ in range(draw.int(1, 9))}
    if draw.chance(0.4):  # mirrored
        found |= {tuple(-o for o in offset) for offset in found}
    return tuple(draw.shuffled(sorted(found)))


def _draw_channels(draw: Draw, layer: str, budget: Budget) -> tuple[int, int, int]:
    most = min(budget.channels, 256)
    how = draw.weighted({"": 76, "grouped": 12, "depthwise": 12})
    if layer not in CONVOLUTIONS:
        C = draw_count(draw, most)
        return C, C, 1
    if how == "grouped":
        groups = draw.of((2, 3, 4, 8))
        each = max(2, most // groups)
        counts = [min(draw_count(draw, each), each) for _ in range(2)]
        return groups * max(2, counts[0]), groups * counts[1], groups
    if how == "depthwise":
        C = max(2, draw_count(draw, most))
        return C, C * draw.weighted({1: 60, 2: 25, 3: 15}), C
    return draw_count(draw, most), draw_count(draw, most), 1


def _draw_gradients(draw: Draw) -> tuple[str, ...]:
    if draw.chance(0.4):
        return ()
    every = ("x", "w", "bias", "residual", "scale")
    return every[:4] if draw.chance(0.75) else draw.some(every, 0.5)


def _draw_cloud(kind: Sparse, draw: Draw, budget: Budget, seed: int) -> Sparse:
    """The grid, how many cells of it are there, and how they lie."""
    rank, cloud = kind.rank, draw.weighted(CLOUDS)
    pairs = prod(kind.filter[1:-1]) * kind.C // kind.groups * kind.K
    most = max(4, min(budget.rows, budget.products // (4 * max(pairs, 1)),
                      budget.elements // max(kind.C, kind.K)) // _growth(kind))  # fmt: skip
    rows = draw.log_int(1, most) if draw.chance(0.5) else draw.int(max(1, most // 4), most)
    images = draw.weighted({1: 50, 2: 25, 3: 15, 8: 10})
    if cloud in ("block", "full"):
        side = max(1, round((rows / images) ** (1 / rank)))
    elif cloud == "far":
        side = 1 << min(20, 48 // rank)
    else:
        side = max(2, round((rows * draw.of((1.5, 4, 12, 60)) / images) ** (1 / rank)))
    extents = [max(1, draw.int(side - side // 3, side + side // 3)) for _ in range(rank)]
    if draw.chance(0.08):
        extents[draw.int(0, rank - 1)] = 1
    extents = [_least(kind, mode, e) for mode, e in enumerate(extents)]
    capacity = kind.capacity
    if capacity >= 0:
        capacity = draw.of((rows * 2 + 10, rows * 2 + 10, max(rows // 2, 1), 0, 1))
    return replace(
        kind, seed=seed, cloud=cloud, rows=rows, images=images, extents=tuple(extents),
        empty=draw.int(0, images - 1) if images > 1 and draw.chance(0.5) else 0,
        absent=draw.int(1, 40) if draw.chance(0.12) else 0,
        sorted=draw.chance(0.3), capacity=capacity,
    )  # fmt: skip


def _growth(p: Sparse) -> int:
    """Return how many output rows one input row makes, at most."""
    if p.layer == "transposed":
        return prod(p.taps)
    if p.layer == "subm":
        return 1
    return prod(-(-t // s) for t, s in zip(p.taps, p.stride, strict=True))


def _least(p: Sparse, mode: int, extent: int) -> int:
    """An extent that windows fit into."""
    span = p.dilation[mode] * (p.taps[mode] - 1) + 1
    near, far = p.padding[mode]
    if p.layer == "transposed":
        missing = 1 - (span - near - far + p.output_padding[mode])
        return max(extent, 1 + -(-missing // p.stride[mode]))
    return max(extent, span - near - far, 1) if p.layer != "subm" else extent


def fits(p: Sparse) -> bool:
    """Return whether a call accepts the problem: windows fit, groups divide channels."""
    if p.C % p.groups or p.K % p.groups or p.empty >= p.images or p.rows < 0:
        return False
    if any(o >= s for o, s in zip(p.output_padding, p.stride, strict=True)):
        return False
    return all(_least(p, mode, extent) == extent for mode, extent in enumerate(p.extents))


def smaller_sparse(p: Sparse) -> Iterator[Sparse]:
    """Problems with less of one thing, the most drastic first."""
    plain = {"call": "function", "start_x": 0, "gradients": (), "groups": 1, "given": False,
             "capacity": -1, "absent": 0, "empty": 0, "sorted": True,
             "cloud": "random"}  # fmt: skip
    yield from with_less(p, plain)
    if p.rank > 1:
        names = ("extents", "taps", "stride", "dilation", "padding", "output_padding")
        for mode in range(p.rank if not p.offsets else 0):
            cut = {n: tuple(v for i, v in enumerate(getattr(p, n)) if i != mode) for n in names}
            yield replace(p, **cut)
    for name in ("rows", "images", "C", "K"):
        value = getattr(p, name)
        least = p.groups if name in "CK" else 1
        for lower in dict.fromkeys((least, value // 2 // least * least, value - 1)):
            if least <= lower < value:
                same = {"C": lower, "K": lower} if not p.is_convolution and name in "CK" else {}
                yield replace(p, **{name: lower, **same})
    for name in ("extents", "taps", "stride", "dilation", "output_padding"):
        for mode, value in enumerate(getattr(p, name)):
            least = 0 if name == "output_padding" else 1
            for lower in dict.fromkeys((least, value // 2, value - 1)):
                if least <= lower < value:
                    entries = [*getattr(p, name)]
                    entries[mode] = lower
                    yield replace(p, **{name: tuple(entries)})
    for mode, pair in enumerate(p.padding):
        if pair != (0, 0):
            pairs = [*p.padding]
            pairs[mode] = (0, 0)
            yield replace(p, padding=tuple(pairs))
    for at in range(len(p.offsets) if len(p.offsets) > 1 else 0):
        yield replace(p, offsets=(*p.offsets[:at], *p.offsets[at + 1 :]))
