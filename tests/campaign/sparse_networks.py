"""Small sparse networks: what there is to choose of them, and what a seed chooses.

Encoders, U-Nets, residual blocks and heads over random clouds, in the names of ``lc.nn`` and in
spconv's. Five seeds in a row have one network, with other weights, clouds and roads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, ClassVar

from .budget import kind_of
from .draws import Draw
from .network_program import Program
from .networks import TYPES, without
from .sparse_network_source import network_text
from .sparse_program import OPTIONS, Cells, Level, Value, laid_out, options_of, step

ROADS = {"copy": 0.25, "state": 0.15, "convert": 0.1, "fuse": 0.15, "maps": 0.3}
CHANNELS = {"cpu": (1, 2, 3, 4, 6, 8), "tiny": (1, 2, 4), "gpu": (1, 3, 4, 8, 16, 32)}
ACTIVATIONS = {"relu": 70, "silu": 10, "leaky_relu": 12, "gelu": 8}


@dataclass(frozen=True, kw_only=True)
class SparseNetwork:
    """A network of sparse layers, and what is done with it.

    Args:
        names: "lc" or "spconv".
        program: as ``sparse_program`` has it.
        packed: whether layers that follow each other are in a ``Sequential``.
        extents: of the grid.
        rows: of each call, about how many cells the cloud has.
        empty: images at the end that have no cell.
        roads, graph, training, type: as of ``networks.Network``.
    """

    family: ClassVar[str] = "sparse_networks"
    numbers: ClassVar[str] = "normal"
    seed: int
    names: str = "lc"
    C: int = 1
    program: Program = ()
    packed: bool = False
    extents: Cells = (8, 8, 8)
    type: str = "float64"
    rows: tuple[int, ...] = (40,)
    images: int = 1
    empty: int = 0
    training: bool = False
    roads: tuple[str, ...] = ()
    graph: bool = False

    @property
    def rank(self) -> int:
        return len(self.extents)

    @property
    def kind(self) -> str:
        """A word on what it is, for the summary."""
        graph = " graphed" if self.graph else ""
        return f"{self.names} {self.rank}-D {'training' if self.training else 'evaluation'}{graph}"

    def laid(self) -> tuple[list[Value], list[Level]]:
        found = laid_out(self.program, self.C, self.extents)
        assert found is not None
        return found

    def text(self) -> str:
        """Python code of the network."""
        return network_text(self.program, self.laid(), self.names, self.rank, self.packed)


class _Builder:
    """Steps as they are drawn; one that takes no such values is not there."""

    def __init__(self, draw: Draw, C: int, extents: Cells, channels: tuple[int, ...]) -> None:
        self.draw, self.C, self.extents, self.channels = draw, C, extents, channels
        self.rank, self.steps = len(extents), list[Any]()
        self.activation = draw.weighted(ACTIVATIONS)
        self.taps = (draw.weighted({3: 80, 2: 8, 1: 12}),) * self.rank
        self.values: list[Value] = [Value(C, 0)]

    @property
    def last(self) -> int:
        return len(self.steps)

    def add(self, op: str, *of: int, **options: Any) -> int:
        one = step(op, *of, **options)
        laid = laid_out((*self.steps, one), self.C, self.extents)
        if laid is None:
            return of[0]
        self.steps.append(one)
        self.values = laid[0]
        return len(self.steps)

    def all(self, number: int) -> Cells:
        return (number,) * self.rank

    def ended(self, v: int) -> int:
        """A norm and an activation, or one of them."""
        draw = self.draw
        v = self.add("norm", v, affine=draw.chance(0.95)) if draw.chance(0.75) else v
        if draw.chance(0.8):
            form = draw.weighted({"module": 50, "module inplace": 35, "function": 15})
            inplace = form == "module inplace" and self.activation == "gelu"
            v = self.add("act", v, kind=self.activation, form="module" if inplace else form)
        return v

    def subm(self, v: int, K: int = 0) -> int:
        draw, C = self.draw, self.values[v].C
        K = K or draw.of(self.channels)
        taps = self.taps if draw.chance(0.85) else tuple(draw.of((1, 3)) for _ in self.extents)
        groups = draw.of([g for g in (1, 2, 4, C) if not C % g and not K % g]) if (
            draw.chance(0.12) and max(taps) > 1) else 1  # fmt: skip
        return self.ended(self.add(
            "subm", v, K=K, taps=taps, dilation=self.all(2 if draw.chance(0.08) else 1),
            groups=groups, bias=draw.chance(0.3),
        ))  # fmt: skip

    def down(self, v: int) -> int:
        draw = self.draw
        tap, stride, pad = draw.weighted({(2, 2, 0): 40, (3, 2, 1): 40, (3, 3, 0): 5, (3, 1, 1): 5,
                                          (1, 2, 0): 5, (4, 2, 1): 5})  # fmt: skip
        each = [self.all(tap), self.all(stride), self.all(pad)]
        if draw.chance(0.15) and self.rank > 1:  # as detectors do along z
            each = [(t, *e[1:]) for e, t in zip(each, (1, 1, 0), strict=True)]
        dilation = self.all(2 if tap == 3 and draw.chance(0.1) else 1)
        K = draw.of(self.channels)
        if draw.chance(0.12):
            return self.add("pool", v, kind=draw.of(("max", "mean")), taps=each[0], stride=each[1],
                            padding=each[2])  # fmt: skip
        made = self.add("down", v, K=K, taps=each[0], stride=each[1], padding=each[2],
                        dilation=dilation, bias=draw.chance(0.3))  # fmt: skip
        return made

    def residual(self, v: int) -> int:
        draw = self.draw
        K = self.values[v].C if draw.chance(0.6) else draw.of(self.channels)
        return self.add("residual", v, K=K, taps=self.taps, last=draw.chance(0.8))

    def joined(self, a: int, b: int) -> int:
        form = self.draw.of(("features", "tensors"))
        if self.values[a].C == self.values[b].C and self.draw.chance(0.5):
            return self.add("add", a, b, form=form)
        return self.add("cat", a, b, form=form)


def _unet(b: _Builder, v: int, depth: int) -> int:
    """Layers, down, the same again, back, and the skip beside it."""
    draw = b.draw
    for _ in range(draw.int(0, 2)):
        v = b.residual(v) if draw.chance(0.4) else b.subm(v)
    if depth == 0:
        return v
    down = b.down(v)
    if down == v:
        return v
    deep = _unet(b, b.ended(down), depth - 1)
    if draw.chance(0.15):  # a generative layer, and no way back
        return b.subm(b.add("up", deep, K=draw.of(b.channels), taps=b.all(2), stride=b.all(2),
                            padding=b.all(0), bias=draw.chance(0.5)))  # fmt: skip
    back = b.add("inverse", deep, K=draw.of(b.channels), at=down - 1, bias=draw.chance(0.3))
    if back == deep:
        return deep
    return b.subm(b.joined(b.ended(back), v)) if draw.chance(0.8) else b.ended(back)


def _anything(b: _Builder) -> int:
    """Steps at random on values at random."""
    draw = b.draw
    for _ in range(draw.int(3, 9)):
        v = draw.of([b.last, b.last, max(0, b.last - 1), draw.int(0, b.last)])
        near = [i for i, value in enumerate(b.values) if value.level == b.values[v].level]
        called = [i for i, s in enumerate(b.steps) if s[0] in ("subm", "norm", "residual")]
        made_by = [i for i, s in enumerate(b.steps) if s[0] == "down"]
        op = draw.weighted({"subm": 30, "ended": 15, "down": 15, "residual": 12, "join": 15,
                            "shared": 6, "inverse": 12, "linear": 4})  # fmt: skip
        if op in ("subm", "ended", "down", "residual"):
            getattr(b, op)(v)
        elif op == "join":
            b.joined(v, draw.of(near))
        elif op == "shared" and called:
            at = draw.of(called)
            b.add("shared", draw.of([i for i, value in enumerate(b.values)
                                     if value == b.values[b.steps[at][1][0]]]), at=at)  # fmt: skip
        elif op == "inverse" and made_by:
            b.add("inverse", v, K=draw.of(b.channels), at=draw.of(made_by))
        elif op == "linear":
            b.add("linear", v, K=draw.of(b.channels))
    return b.last


def draw_sparse_network(seed: int, size: str = "gpu") -> SparseNetwork:
    """The problem of a seed; ``size`` is a name of ``BUDGETS``.

    >>> first, second = draw_sparse_network(3), draw_sparse_network(4)
    >>> first.program == second.program, first == second
    (True, False)
    """
    kind = _draw_program(Draw("sparse network kind", kind_of(seed)), size)
    return _draw_clouds(kind, Draw("sparse network clouds", seed), size, seed)


def _draw_program(draw: Draw, size: str) -> SparseNetwork:
    rank = draw.weighted({1: 8, 2: 17, 3: 65, 4: 10})
    most = {1: 200, 2: 24, 3: 12, 4: 7}[rank] * (2 if size in ("gpu", "large") else 1)
    extents = tuple(draw.int(most // 2, most) for _ in range(rank))
    channels = CHANNELS.get(size, CHANNELS["gpu"])
    C = draw.of(channels)
    for _ in range(20):
        b = _Builder(draw, C, extents, channels)
        v = _anything(b) if draw.chance(0.35) else _unet(b, 0, draw.int(0, 3))
        if b.steps and v:
            break
    if draw.chance(0.15):
        b.add("head", b.last, kind=draw.of(("mean", "max")))
    types = TYPES["cpu" if size in ("cpu", "tiny") else "gpu"]
    return SparseNetwork(
        seed=0, names=draw.of(("lc", "spconv")), C=C, program=tuple(b.steps) or (
            step("act", 0, kind="relu"),), packed=draw.chance(0.6), extents=extents,
        type=draw.weighted(types),
    )  # fmt: skip


def _draw_clouds(p: SparseNetwork, draw: Draw, size: str, seed: int) -> SparseNetwork:
    training = draw.chance(0.5)
    most = min({"gpu": 2000, "large": 20000}.get(size, 60), max(2, prod(p.extents) // 2))
    calls = draw.int(1, 4)
    rows = tuple(draw.log_int(1, most) for _ in range(calls))
    if training:
        rows = tuple(max(r, min(12, most)) for r in rows)
    elif draw.chance(0.1):
        rows = (*rows, 0)
    roads = draw.shuffled([name for name, share in ROADS.items() if draw.chance(share)])
    if not training and draw.chance(0.5):
        roads.insert(draw.int(0, len(roads)), "fold")
    images = draw.weighted({1: 50, 2: 30, 4: 20})
    return replace(
        p, seed=seed, rows=rows, training=training, roads=tuple(roads), images=images,
        empty=draw.int(0, images - 1) if draw.chance(0.4) else 0, graph=draw.chance(0.4),
    )  # fmt: skip


def fits(p: SparseNetwork) -> bool:
    """Return whether there is such a network."""
    return bool(p.program and p.rows) and laid_out(p.program, p.C, p.extents) is not None


def smaller_sparse_network(p: SparseNetwork) -> Iterator[SparseNetwork]:
    """Networks with less of one thing, the most drastic first."""
    plain = {field.name: field.default for field in fields(p)}
    for gone in reversed(range(len(p.program))):
        for instead in dict.fromkeys(p.program[gone][1]):
            yield replace(p, program=without(p.program, gone, instead))
    for name in ("roads", "graph", "training", "packed", "empty"):
        if getattr(p, name) != plain[name]:
            yield replace(p, **{name: plain[name]})
    for at in range(len(p.roads)):
        yield replace(p, roads=(*p.roads[:at], *p.roads[at + 1 :]))
    for at in range(len(p.rows) if len(p.rows) > 1 else 0):
        yield replace(p, rows=(*p.rows[:at], *p.rows[at + 1 :]))
    for lower in (1, 4, 16):
        rows = tuple(min(lower, r) for r in p.rows)
        if rows != p.rows:
            yield replace(p, rows=rows)
    if p.images > 1:
        yield replace(p, images=1, empty=0)
    for number, (op, of, options) in enumerate(p.program):
        for name, value in options:
            if name == "K" and value > 1:
                rest = tuple((n, v) for n, v in options if n != name)
                yield replace(p, program=(*p.program[:number], (op, of, rest),
                                          *p.program[number + 1 :]))  # fmt: skip


__all__ = ["OPTIONS", "SparseNetwork", "draw_sparse_network", "options_of"]
