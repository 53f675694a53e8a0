"""Dense convolutions: what there is to choose of them, and what a seed chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from .budget import BUDGETS, Budget, kind_of
from .convolution import Convolution
from .data import ORDERS
from .dense_reference import Geometry
from .draws import Draw
from .ending import NARROW, Ending, draw_ending, with_less

DTYPES = {
    "float16": 25, "bfloat16": 15, "float32": 30, "float64": 8, "int8": 8, "float8_e4m3fn": 6,
    "float8_e5m2": 4, "complex64": 3, "complex128": 1,
}  # fmt: skip
CALLS = {"function": 60, "module": 10, "unbatched": 8, "autocast": 8, "second order": 8, "graph": 6}
TAPS = {1: 20, 2: 14, 3: 40, 4: 6, 5: 10, 6: 3, 7: 7}
STARTS = {0: 60, 1: 10, 2: 8, 4: 8, 8: 8, 3: 6}  # elements past a multiple of 16 bytes


@dataclass(frozen=True, kw_only=True)
class Dense(Convolution):
    """A convolution of torch's shapes, or a transposed one: ``x`` (N, C, *spatial) to K channels.

    Args:
        call: "function"; "module" of ``lc.nn``; "unbatched"; under "autocast", from float32;
            "second order": gradients of gradients; a CUDA "graph".
        order_x, order_w, order_residual: of memory, as ``strides_of`` has them.
        start_w: as ``start_x``.
    """

    family: ClassVar[str] = "dense"
    N: int
    spatial: tuple[int, ...]
    transposed: bool = False
    statistics: bool = False
    order_x: str = "last"
    order_w: str = "last"
    order_residual: str = "last"
    start_w: int = 0

    @property
    def rank(self) -> int:
        return len(self.spatial)

    @property
    def is_depthwise(self) -> bool:
        """True if each of several groups has one input channel (transposed: one output channel)."""
        wide = self.K if self.transposed else self.C
        return self.groups > 1 and self.groups == wide

    @property
    def kind(self) -> str:
        """A word on what it is, for the summary."""
        what = "transposed" if self.transposed else "conv"
        groups = "depthwise " if self.is_depthwise else "grouped " if self.groups > 1 else ""
        return f"{groups}{what} {self.rank}-D"

    @property
    def result_cells(self) -> tuple[int, ...]:
        """The extents of the result."""
        return self.geometry.spatial if self.transposed else self.geometry.voxels

    @property
    def geometry(self) -> Geometry:
        """The geometry of the convolution; of a transposed one, of that whose gradient it is."""
        if not self.transposed:
            of = self.spatial, self.taps, self.stride, self.dilation, self.padding, self.groups
            return Geometry(*of)
        cells, pairs = [], []
        for e, t, s, d, (near, far), extra in zip(
            self.spatial, self.taps, self.stride, self.dilation, self.padding,
            self.output_padding, strict=True,
        ):  # fmt: skip
            cells.append((e - 1) * s - near - far + d * (t - 1) + 1 + extra)
            pairs.append((near, far - extra))
        of = tuple(cells), self.taps, self.stride, self.dilation, tuple(pairs), self.groups
        return Geometry(*of)

    @property
    def filter(self) -> tuple[int, ...]:
        """The shape of the weight, in torch's order."""
        if self.transposed:
            return (self.C, self.K // self.groups, *self.taps)
        return (self.K, self.C // self.groups, *self.taps)

    @property
    def products(self) -> int:
        """The number of products in one pass."""
        return (
            self.N * prod(self.geometry.voxels) * self.C // self.groups * self.K * prod(self.taps)
        )


def draw_dense(seed: int, size: str = "gpu") -> Dense:
    """The problem of a seed; ``size`` is a name of ``BUDGETS``.

    >>> draw_dense(3) == draw_dense(3), draw_dense(3).dtype == draw_dense(4).dtype
    (True, True)
    """
    budget = BUDGETS[size]
    kind = _draw_kind(Draw("dense kind", kind_of(seed)), budget, size)
    return _draw_size(kind, Draw("dense size", seed), budget, seed)


def _draw_kind(draw: Draw, budget: Budget, size: str) -> Dense:
    """Draw the numbers that kernels are compiled for; sizes are drawn afterwards."""
    dtype, rank = draw.weighted(DTYPES), draw.weighted({1: 25, 2: 40, 3: 35})
    transposed = draw.chance(0.25)
    taps = _draw_taps(draw, rank, budget)
    stride = draw.per_mode(rank, 0.6, {1: 55, 2: 30, 3: 10, 4: 5})
    dilation = draw.per_mode(rank, 0.6, {1: 75, 2: 17, 3: 8})
    C, K, groups = _draw_channels(draw, dtype, transposed, budget, size)
    gradients = _draw_gradients(draw, dtype)
    # Every residue of the strides is a kernel of its own.
    if (gradients or transposed) and prod(stride) > 4:
        stride = (*[1] * (rank - 1), min(stride[-1], 4))
    padding = tuple(_draw_padding(draw, t, d) for t, d in zip(taps, dilation, strict=True))
    output_padding = tuple(draw.int(0, s - 1) if transposed else 0 for s in stride)
    exact = draw.chance(0.8)
    ending = draw_ending(draw, dtype, exact=exact, differentiable=bool(gradients))
    call = draw.weighted(CALLS)
    problem = Dense(
        seed=0, dtype=dtype, N=1, C=C, K=K, spatial=(1,) * rank, taps=taps, stride=stride,
        dilation=dilation, padding=padding, groups=groups, transposed=transposed,
        output_padding=output_padding, precision=draw.of(("tf32", "tf32", "fp32")),
        ending=ending, gradients=gradients, call=call, numbers="exact" if exact else "normal",
        start_x=draw.weighted(STARTS), start_w=draw.weighted(STARTS),
    )  # fmt: skip
    return _consistent(problem, draw)


def _consistent(p: Dense, draw: Draw) -> Dense:
    """Without what a call does not take together."""
    complex_, narrow = p.dtype.startswith("complex"), p.dtype in NARROW
    if p.call == "autocast":
        if p.dtype not in ("float16", "bfloat16"):
            p = replace(p, call="function")
        elif p.ending.residual or p.ending.out_dtype:
            p = replace(p, ending=replace(p.ending, residual="", out_dtype=""))
    if p.call == "second order":
        linear = Ending(out_dtype="")
        both = ("x", "w")
        p = replace(p, ending=linear, gradients=both) if not narrow and not complex_ else (
            replace(p, call="function")
        )  # fmt: skip
    if p.call == "module":
        ending = replace(p.ending, scale="", residual="", out_dtype="")
        bias = p.dtype if ending.bias and not narrow else ""
        wanted = tuple(name for name in p.gradients if name in ("x", "w", "bias"))
        p = replace(p, ending=replace(ending, bias=bias), gradients=wanted)
        same = all(near == far for near, far in p.padding)
        if narrow or not same:  # torch's modules have one number for both sides
            p = replace(p, call="function")
    statistics = not p.transposed and not complex_ and p.call == "function" and draw.chance(0.1)
    present = {"x", "w", *(n for n in ("bias", "residual") if getattr(p.ending, n))}
    if p.ending.scale not in ("", "number"):
        present.add("scale")
    gradients = tuple(name for name in p.gradients if name in present)
    if p.numbers == "exact" and p.dtype == "float32" and p.precision == "tf32" and (
        p.ending.is_linear and p.call == "function" and draw.chance(0.3)
    ):  # fmt: skip
        p = replace(p, numbers="rounded")
    return replace(p, statistics=statistics, gradients=gradients)


def _draw_taps(draw: Draw, rank: int, budget: Budget) -> tuple[int, ...]:
    """The same in all modes, or in each another number; of some, one mode has them all."""
    how = draw.weighted({"same": 50, "each": 30, "one": 20})
    if how == "same":
        taps = [draw.weighted(TAPS)] * rank
    else:
        taps = [draw.weighted(TAPS) for _ in range(rank)]
    if how == "one":
        at = draw.int(0, rank - 1)
        taps = [t if (mode == at) != (draw.int(0, 1) == 1 and rank > 1) else 1
                for mode, t in enumerate(taps)]  # fmt: skip
    while prod(taps) > budget.taps:
        taps[taps.index(max(taps))] -= 1
    return tuple(taps)


def _draw_padding(draw: Draw, taps: int, dilation: int) -> tuple[int, int]:
    """None, as many as keep the extent, or any, of which some exceed the filter."""
    half = dilation * (taps - 1) // 2
    how = draw.weighted({"none": 25, "half": 45, "each": 20, "any": 10})
    if how == "none":
        return (0, 0)
    if how == "half":
        return (half, half)
    if how == "each":
        return draw.int(0, half + 1), draw.int(0, half + 1)
    return draw.int(0, 2 * half + 3), draw.int(0, 2 * half + 3)


def draw_count(draw: Draw, most: int, whole: bool = False) -> int:
    """A number of channels: 1, few, odd, whole vectors, whole tiles; ``whole``: mostly the last."""
    how = draw.weighted(
        {"one": 2, "few": 3, "odd": 3, "vectors": 60, "many": 32} if whole else
        {"one": 20, "few": 15, "odd": 12, "vectors": 33, "many": 20}
    )  # fmt: skip
    if how == "one":
        return 1
    if how == "few":
        return draw.int(2, 7)
    if how == "odd":
        return min(most, 2 * draw.int(4, 50) + 1)
    if how == "vectors":
        return min(most, draw.of((8, 16, 24, 32, 40, 48, 56, 64, 96, 128)))
    return min(most, draw.of((72, 80, 100, 130, 160, 192, 200, 256, 320, 384, 512)))


def _draw_channels(
    draw: Draw, dtype: str, transposed: bool, budget: Budget, size: str
) -> tuple[int, int, int]:
    """C, K and groups. Kernels of depthwise convolutions have no data of 8 bits."""
    depthwise = dtype not in NARROW or size == "cpu"
    how = draw.weighted({"": 75, "grouped": 13, "depthwise": 12 if depthwise else 0})
    if how == "grouped":
        groups = draw.of((2, 3, 4, 8, 16, 32))
        each = max(2, budget.channels // groups)
        count = [min(draw_count(draw, each), each) for _ in range(2)]
        wide = 1 if transposed else 0  # groups of one channel each would be depthwise
        if not depthwise:
            count[wide] = max(2, count[wide])
        return groups * count[0], groups * count[1], groups
    if how == "depthwise":
        groups = max(2, draw_count(draw, budget.channels))
        times = draw.weighted({1: 60, 2: 25, 3: 10, 4: 5})
        return (groups * times, groups, groups) if transposed else (groups, groups * times, groups)
    most = budget.channels // 2 if dtype.startswith("complex") else budget.channels
    return draw_count(draw, most, budget.whole), draw_count(draw, most, budget.whole), 1


def _draw_gradients(draw: Draw, dtype: str) -> tuple[str, ...]:
    """With respect to everything, to some, or to nothing."""
    if dtype == "int8" or draw.chance(0.45 if dtype not in NARROW else 0.8):
        return ()
    every = ("x", "w", "bias", "residual", "scale")
    return every[:4] if draw.chance(0.7) else draw.some(every, 0.5)


def _draw_size(kind: Dense, draw: Draw, budget: Budget, seed: int) -> Dense:
    """Images, extents and memory, so that the budget holds."""
    rank = kind.rank
    images = 1 if kind.call == "unbatched" else draw.weighted({1: 40, 2: 25, 0: 3, 3: 12, 8: 20})
    elements = budget.elements >> (5 if draw.chance(budget.small) else 0)
    cells = max(1, elements // (max(kind.C, kind.K) * max(images, 1)))
    most = max(1, int(cells ** (1 / rank)))
    spatial = [_draw_extent(draw, most) for _ in range(rank)]
    if draw.chance(0.15) and rank > 1:  # long and thin
        at = draw.int(0, rank - 1)
        spatial = [draw.log_int(1, min(cells, 4096)) if mode == at else draw.int(1, 3)
                   for mode in range(rank)]  # fmt: skip
    order_x = draw.weighted(dict(zip(ORDERS, (50, 15, 12, 12, 6, 5), strict=True)))
    problem = replace(
        kind, seed=seed, N=images, spatial=tuple(spatial),
        order_x=order_x,
        order_w=draw.weighted({"last": 60, "first": 20, "permuted": 12, "sliced": 8}),
        order_residual=draw.weighted({"last": 70, "first": 20, "permuted": 10}),
    )  # fmt: skip
    return _fitted(problem, budget)


def _draw_extent(draw: Draw, most: int) -> int:
    if draw.chance(0.1):
        return draw.int(1, min(3, most))
    return draw.log_int(1, most) if draw.chance(0.4) else draw.int(max(1, most // 3), most)


def _fitted(p: Dense, budget: Budget) -> Dense:
    """With extents that the filter fits into, no larger than the budget."""
    spatial = list(p.spatial)
    if not p.transposed:
        for mode, (t, d, (near, far)) in enumerate(zip(p.taps, p.dilation, p.padding, strict=True)):
            spatial[mode] = max(spatial[mode], d * (t - 1) + 1 - near - far, 1)
        p = replace(p, spatial=tuple(spatial))
    else:
        for mode, (t, d, s, (near, far), more) in enumerate(
            zip(p.taps, p.dilation, p.stride, p.padding, p.output_padding, strict=True)
        ):
            missing = 1 - (-near - far + d * (t - 1) + 1 + more)
            spatial[mode] = max(spatial[mode], 1 + -(-missing // s))
        p = replace(p, spatial=tuple(spatial))
    while p.products > budget.products or _elements(p) > 4 * budget.elements:
        halved = replace(p, spatial=tuple(max(1, -(-e // 2)) for e in p.spatial))
        halved = _fitted(halved, Budget(2**62, 2**62, 0, 0, 0))
        if halved.spatial == p.spatial:
            if p.N > 1:
                p = replace(p, N=1)
                continue
            break
        p = halved
    return p


def _elements(p: Dense) -> int:
    return max(p.N * p.C * prod(p.spatial), p.N * p.K * prod(p.result_cells), prod(p.filter))


def smaller_dense(p: Dense) -> Iterator[Dense]:
    """Problems with less of one thing, the most drastic first."""
    plain = {"call": "function", "order_x": "last", "order_w": "last", "order_residual": "last",
             "start_x": 0, "start_w": 0, "statistics": False, "gradients": (),
             "groups": 1}  # fmt: skip
    if not any(p.output_padding):
        plain["transposed"] = False
    yield from with_less(p, plain)
    if p.rank > 1:
        for mode in range(p.rank):
            yield _without_mode(p, mode)
    for name in ("N", "C", "K"):
        for value in _lower(getattr(p, name), 1 if name == "N" else p.groups):
            yield replace(p, **{name: value})
    for name, least in (("spatial", 1), ("taps", 1), ("stride", 1), ("dilation", 1),
                        ("output_padding", 0)):  # fmt: skip
        for mode, value in enumerate(getattr(p, name)):
            for lower in _lower(value, least):
                entries = list(getattr(p, name))
                entries[mode] = lower
                yield replace(p, **{name: tuple(entries)})
    for mode, (near, far) in enumerate(p.padding):
        for pair in ((0, 0), (near, near), (near // 2, far // 2)):
            if pair != (near, far):
                pairs = [*p.padding]
                pairs[mode] = pair
                yield replace(p, padding=tuple(pairs))


def fits(p: Dense) -> bool:
    """Return whether a call accepts the problem: windows fit, groups divide channels."""
    if p.C % p.groups or p.K % p.groups:
        return False
    if p.transposed and any(o >= s for o, s in zip(p.output_padding, p.stride, strict=True)):
        return False
    cells = p.result_cells
    spans = [d * (t - 1) + 1 for d, t in zip(p.dilation, p.taps, strict=True)]
    room = [e + sum(pad) for e, pad in zip(p.geometry.spatial, p.padding, strict=True)]
    windows = p.transposed or all(s <= e for s, e in zip(spans, room, strict=True))
    return min(cells) >= 1 and windows


def _without_mode(p: Dense, mode: int) -> Dense:
    names = ("spatial", "taps", "stride", "dilation", "padding", "output_padding")
    cut = {name: tuple(v for i, v in enumerate(getattr(p, name)) if i != mode) for name in names}
    return replace(p, **cut)


def _lower(value: int, least: int) -> Iterator[int]:
    """Halves of a number, and one less."""
    for lower in dict.fromkeys((least, value // 2 // max(least, 1) * max(least, 1), value - 1)):
        if least <= lower < value:
            yield lower
