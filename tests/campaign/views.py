"""Hand-written views: what there is to choose of them, and what a seed chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from .budget import BUDGETS, Budget, kind_of
from .dense import draw_count
from .draws import Draw
from .ending import EXACT, FLOATS, NARROW, SMOOTH
from .operand import Leaf, Operand

DTYPES = {
    "float16": 26, "bfloat16": 14, "float32": 32, "float64": 6, "int8": 9, "float8_e4m3fn": 6,
    "float8_e5m2": 3, "int4": 4,
}  # fmt: skip
STEPS = ("scale", "bias", "residual", "activation", "clamp")


@dataclass(frozen=True)
class View:
    """``D[m, n, l] = sum_k A[m, k, l] * B[n, k, l]`` over operands that are described by hand.

    Args:
        seed: of the numbers in tensors and index buffers.
        a, b, d: of logical modes (m, k), (n, k) and (m, n), and l for a third.
        letters: whether what rows move is an argument of kernels.
        steps: of the epilogue, in order: a word of ``STEPS``, and a type, an activation or "".
        out: whether the result is written into given memory, which keeps what is not written.
        starts: elements past a multiple of 16 bytes at which A, B and D start.
    """

    family: ClassVar[str] = "views"
    seed: int
    dtype: str
    a: Operand
    b: Operand
    d: Operand
    out_dtype: str
    precision: str = "tf32"
    steps: tuple[tuple[str, str], ...] = ()
    statistics: bool = False
    letters: bool = True
    out: bool = True
    atomic: bool = False
    starts: tuple[int, int, int] = (0, 0, 0)
    numbers: str = "exact"

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """m, n, k and l."""
        l = self.a.extent(2) if len(self.a.modes) > 2 else 1
        return self.a.extent(0), self.b.extent(0), self.a.extent(1), l

    @property
    def kind(self) -> str:
        """A word on what it is, for the summary."""
        words = ["batched"] if len(self.a.modes) > 2 else []
        words += [f"gathered {n}" for n in "ab" if getattr(self, n).index]
        words += ["scattered"] if self.d.index else []
        return " ".join(words) or "affine"

    @property
    def type(self) -> str:
        return f"float32 as {self.precision}" if self.dtype == "float32" else self.dtype


def draw_view(seed: int, size: str = "gpu") -> View:
    """The problem of a seed; ``size`` is a name of ``BUDGETS``.

    >>> draw_view(3) == draw_view(3), draw_view(3).dtype == draw_view(4).dtype
    (True, True)
    """
    draw = Draw("view", kind_of(seed))
    budget = BUDGETS[size]
    dtype = draw.weighted({k: v for k, v in DTYPES.items() if k != "int4" or size != "gpu"})
    exact = draw.chance(0.85) or dtype in ("int8", "int4")
    a, b, d = _draw_operands(draw, Draw("view size", seed), budget, dtype)
    own = {"float64": ("float64",), "int8": ("int32",), "int4": ("int32",)}.get(dtype, ())
    usual = {"int8": "int32", "int4": "int32", "float8_e4m3fn": "float16",
             "float8_e5m2": "float16"}.get(dtype, dtype)  # fmt: skip
    out = usual if draw.chance(0.6) else draw.of((*FLOATS, *NARROW, *own))
    starts = tuple(draw.weighted({0: 70, 1: 10, 2: 8, 4: 6, 8: 6}) for _ in range(3))
    if dtype == "int4":
        starts = (0, 0, starts[2])
    return View(
        seed, dtype, a, b, d, out, draw.of(("tf32", "tf32", "fp32")),
        steps=_draw_steps(draw, dtype, exact), statistics=draw.chance(0.1),
        letters=draw.chance(0.7), out=draw.chance(0.75), atomic=draw.chance(0.08),
        starts=starts, numbers="exact" if exact else "normal",
    )  # fmt: skip


def _draw_steps(draw: Draw, dtype: str, exact: bool) -> tuple[tuple[str, str], ...]:
    if draw.chance(0.55):
        return ()
    floats = (*FLOATS, "float64") if dtype == "float64" else FLOATS
    found = []
    for name in draw.shuffled(draw.some(STEPS, 0.45)):
        word = ""
        if name == "scale":
            word = draw.of(("number", *floats))
        elif name in ("bias", "residual"):
            word = draw.of(floats)
        elif name == "activation":
            word = draw.weighted(
                {k: v for k, v in (EXACT if exact else EXACT | SMOOTH).items() if k}
            )
        found.append((name, word))
    return tuple(found)


def _draw_operands(
    draw: Draw, size: Draw, budget: Budget, dtype: str
) -> tuple[Operand, Operand, Operand]:
    """``draw`` decides on what kernels are compiled for, ``size`` on what they are given."""
    batched = draw.chance(0.2)
    batch = size.int(1, 5) if batched else 1
    k0, n0 = (
        draw_count(draw, min(256, budget.channels)),
        draw_count(draw, min(256, budget.channels)),
    )
    if dtype == "int4":
        k0 = -(-k0 // 16) * 16
    taps = [draw.int(1, 4) for _ in range(draw.weighted({0: 40, 1: 35, 2: 25}))]
    while prod(taps) * k0 > budget.products**0.45:
        taps = taps[:-1] if taps else taps
        if not taps:
            break
    n = [n0] if draw.chance(0.8) else [n0, draw.int(1, 3)]
    most = max(1, min(budget.products // (k0 * prod(taps) * prod(n) * batch * 8),
                      budget.elements // max(k0, prod(n)) // batch))  # fmt: skip
    rank = draw.weighted({1: 40, 2: 40, 3: 20})
    rows = [max(1, int(size.log_int(1, most) ** (1 / rank))) for _ in range(rank)]
    a = _draw_a(draw, size, rows, k0, taps, batch if batched else 0)
    b = _draw_b(draw, n, k0, taps, batch if batched else 0)
    if dtype == "int4":  # pairs lie along k, at even places
        a, b = _even(a, len(a.memory) - (2 if batched else 1)), _even(b, len(n) + len(taps))
    d = _draw_d(draw, size, rows, n, batch if batched else 0)
    return a, b, d


def _draw_a(
    draw: Draw, size: Draw, rows: list[int], k0: int, taps: list[int], batch: int
) -> Operand:
    """Windows: rows and taps move the same coordinates, channels one of their own."""
    cells = max(len(rows), len(taps))
    m: list[Leaf] = [(e, i, draw.of((1, 1, 2, 3))) for i, e in enumerate(rows)]
    k: list[Leaf] = [(k0, cells, 1)]
    k += [(e, i, draw.of((1, 1, 2, -1))) for i, e in enumerate(taps)]
    gathered = draw.chance(0.2) and not batch
    modes: tuple[tuple[Leaf, ...], ...] = tuple(m), tuple(k)
    if batch:
        modes = (*modes, ((batch, cells + 1, 1),))
    extents, offset = [], []
    for at in range(cells):
        low, high = _range(modes, at)
        alone = not any(leaf[1] == at for leaf in m)
        near = 0 if alone or draw.chance(0.4) else draw.int(-2, 3)
        offset.append(-low - near)
        reach = high - low + 1 - near
        extents.append(max(1, reach if alone else reach + draw.of((0, 0, -1, -3, 2))))
    extents += [k0, *([batch] if batch else [])]
    offset += [0, *([0] if batch else [])]
    entries = 0
    if gathered:
        entries = extents[0]
        extents[0] = max(1, entries + size.int(-3, 9))
    strides = _strides(draw, extents, cells)
    return Operand(modes, tuple(offset), tuple(extents), strides, entries,
                   draw.of((0.0, 0.3, 1.0)) if gathered else 0.0)  # fmt: skip


def _draw_b(draw: Draw, n: list[int], k0: int, taps: list[int], batch: int) -> Operand:
    """A filter, its channels or its columns fastest, or a slice of a larger one."""
    columns: list[Leaf] = [(e, i, 1) for i, e in enumerate(n)]
    first = len(n)
    k: list[Leaf] = [(k0, first + len(taps), 1), *((e, first + i, 1) for i, e in enumerate(taps))]
    modes: tuple[tuple[Leaf, ...], ...] = tuple(columns), tuple(k)
    extents, offset = [*n, *taps, k0], [0] * (len(n) + len(taps) + 1)
    if draw.chance(0.15) and taps:  # backwards
        at = first
        k[1] = (taps[0], at, -1)
        offset[at] = taps[0] - 1
        modes = tuple(columns), tuple(k)
    if batch:
        shared = draw.chance(0.3)
        modes = (*modes, ((batch, len(extents), 0 if shared else 1),))
        extents.append(1 if shared else batch)
        offset.append(0)
    fastest = first + len(taps) if draw.chance(0.7) else 0
    return Operand(modes, tuple(offset), tuple(extents), _strides(draw, extents, fastest))


def _draw_d(draw: Draw, size: Draw, rows: list[int], n: list[int], batch: int) -> Operand:
    """A result with steps between rows, some of which lie outside, or in the order of an index."""
    m: list[Leaf] = [(e, i, draw.of((1, 1, 1, 2))) for i, e in enumerate(rows)]
    columns: list[Leaf] = [(e, len(rows) + i, 1) for i, e in enumerate(n)]
    modes: tuple[tuple[Leaf, ...], ...] = tuple(m), tuple(columns)
    extents = [(e - 1) * step + 1 for e, _, step in m]
    offset = [draw.of((0, 0, 0, 1, -1)) for _ in m]
    extents = [max(1, e + draw.of((0, 0, 2, -1))) for e in extents]
    extents, offset = [*extents, *n], [*offset, *[0] * len(n)]
    last = len(extents) - 1 if len(n) == 1 else len(rows)
    if batch:
        modes = (*modes, ((batch, len(extents), 1),))
        extents.append(batch)
        offset.append(0)
    entries = 0
    if draw.chance(0.2) and not batch and len(rows) == 1:
        entries = extents[0]
        extents[0] = entries + size.int(0, 9)
    strides = _strides(draw, extents, last)
    return Operand(modes, tuple(offset), tuple(extents), strides, entries,
                   draw.of((0.0, 0.2)) if entries else 0.0)  # fmt: skip


def _range(modes: tuple[tuple[Leaf, ...], ...], at: int) -> tuple[int, int]:
    """The least and the greatest that a coordinate becomes, from 0."""
    ends = [(e - 1) * step for leaves in modes for e, to, step in leaves if to == at]
    return sum(min(0, e) for e in ends), sum(max(0, e) for e in ends)


def _strides(draw: Draw, extents: list[int], fastest: int) -> tuple[int, ...]:
    """Contiguous but for gaps, a mode fastest, the others in order or in any."""
    others = [i for i in reversed(range(len(extents))) if i != fastest]
    if draw.chance(0.2):
        others = draw.shuffled(others)
    strides, reach = [0] * len(extents), 1
    for mode in (fastest, *others):
        strides[mode] = reach
        reach *= extents[mode]
        if draw.chance(0.1):
            reach += draw.of((1, 2, 8))
    return tuple(strides)


def _even(operand: Operand, fastest: int) -> Operand:
    """Contiguous, a mode fastest."""
    others = [i for i in reversed(range(len(operand.memory))) if i != fastest]
    strides, reach = [0] * len(operand.memory), 1
    for mode in (fastest, *others):
        strides[mode] = reach
        reach *= operand.memory[mode]
    return replace(operand, strides=tuple(strides))


def fits(p: View) -> bool:
    return all(min(o.memory) >= 1 for o in (p.a, p.b, p.d))


def smaller_view(p: View) -> Iterator[View]:
    """Views with less of one thing."""
    if p.steps:
        yield replace(p, steps=())
        for at in range(len(p.steps)):
            yield replace(p, steps=(*p.steps[:at], *p.steps[at + 1 :]))
    plain = {"statistics": False, "atomic": False, "starts": (0, 0, 0), "letters": False,
             "out": True, "precision": "tf32"}  # fmt: skip
    for name, value in plain.items():
        if getattr(p, name) != value:
            yield replace(p, **{name: value})
    for name in "abd":
        operand = getattr(p, name)
        if operand.index:
            rows = (operand.index, *operand.memory[1:])
            yield replace(p, **{name: replace(operand, index=0, memory=rows)})
    if len(p.a.modes) > 2:
        yield replace(
            p, **{n: replace(getattr(p, n), modes=getattr(p, n).modes[:2]) for n in "abd"}
        )
    pairs = {"m": (("a", 0), ("d", 0)), "n": (("b", 0), ("d", 1)), "k": (("a", 1), ("b", 1))}
    for places in pairs.values():
        name, number = places[0]
        for at, (extent, _, _) in enumerate(getattr(p, name).modes[number]):
            for lower in dict.fromkeys((1, extent // 2, extent - 1)):
                if 1 <= lower < extent:
                    cut = {n: _with_extent(getattr(p, n), i, at, lower) for n, i in places}
                    yield replace(p, **cut)


def _with_extent(operand: Operand, number: int, at: int, extent: int) -> Operand:
    """Another extent of a leaf; memory stays as it is."""
    modes = [list(leaves) for leaves in operand.modes]
    _, to, step = modes[number][at]
    modes[number][at] = extent, to, step
    return replace(operand, modes=tuple(map(tuple, modes)))
