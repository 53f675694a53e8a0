"""PTX and machine code that the compiler makes of the template, on every architecture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations, product
from typing import Any, NamedTuple

import pytest
import torch

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, gather_fprop_view, wgrad_view
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.tile import REGISTERS, TileConfig
from layoutconv.planning.tile_table import shapes, tile_of
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import GemmView

from .launcher import DTYPES, NAMES, compile_view, dtype_name, half_line, unspilled

# C in 64 bytes, and K: k-tiles of 128-byte lines, of 64-byte lines, of parts of several taps beside
# columns that no tile divides.
CHANNELS = {"lines": (4, 256), "half lines": (1, 256), "straddling": (0.75, 248)}


class Choice(NamedTuple):
    """One kernel, all of whose machine code is looked at."""

    tile: TileConfig
    arch: str
    dtype: torch.dtype
    kind: str
    channels: str

    def __str__(self) -> str:
        tile = f"{self.tile.m}x{self.tile.n}x{self.tile.k}" + (
            "p" if self.tile.warp_specialized else ""
        )
        return f"{tile} {self.arch} {dtype_name(self.dtype)} {self.kind} {self.channels}"


def index(entries: int) -> torch.Tensor:
    return torch.zeros(entries, dtype=torch.int32)


def gradient(C: int, K: int) -> GemmView:
    """The view for the gradient of an input of K channels, from an output of C."""
    return dgrad_views(ConvProblem((1, 3, 3, 3, K), (C, 3, 3, 3), padding=1))[0]


def grid(C: int, K: int) -> GemmView:
    problem = ConvProblem((1, 3, 3, 3, C), (K, 3, 3, 3), padding=1)
    return gather_fprop_view(problem, index(27), index(27))


VIEWS = {
    "dense": lambda C, K: fprop_view(ConvProblem((1, 3, 3, 3, C), (K, 3, 3, 3), padding=1)),
    "125 taps": lambda C, K: fprop_view(ConvProblem((1, 3, 3, 3, C), (K, 5, 5, 5), padding=2)),
    "65 taps": lambda C, K: fprop_view(ConvProblem((1, 3, C), (K, 65), padding=32)),
    "grid": grid,
    "gradient": gradient,
    "kernel map": lambda C, K: kernel_map_view(index(27 * 2).view(27, 2).T, C, K),
}


def choice(shape: tuple[int, int, int, int], *rest: str | torch.dtype) -> Choice:
    """A kernel of the family with the ``k`` and the stages that ``choose`` gives these channels."""
    arch, dtype, kind, channels = rest
    assert isinstance(dtype, torch.dtype)
    half = half_line(dtype)
    tile = tile_of(shape, 2 * half if channels == "lines" else half, half)
    return Choice(tile, str(arch), dtype, str(kind), str(channels))


def fits(c: Choice) -> bool:
    size = c.dtype.itemsize
    # Of gradients tf32's alone are others: there, on Hopper, threads turn and round the filter.
    turned = c.dtype == torch.float32 and c.tile.producer_threads and c.tile.n >= 32
    if c.kind == "gradient" and not turned:
        return False
    return c.tile.smem_bytes(size, size) <= MACHINES[c.arch].smem_per_cta


MATRIX = list(
    filter(
        fits,
        (
            choice(shape, arch, dtype, *rest)
            for arch, dtype, *rest in product(MACHINES, DTYPES, VIEWS, CHANNELS)
            for shape in shapes(arch, NAMES[dtype])
        ),
    )
)


@cache
def pairs(c: Choice) -> set[tuple]:
    """Any two of a choice's tile, architecture, dtype, view and channels."""
    tile = c.tile.m, c.tile.n, c.tile.producer_threads
    if (
        c.tile.producer_threads
    ):  # whose loop is the same for all kinds of views: each is in one of them
        # There are loops of their own for tf32 that threads round, B or A: every tile is looked at.
        own = (
            (tile, c.channels),
            ("producers", c.kind),
            (c.dtype, c.kind == "gradient" and tile),
            ("registers", c.dtype == torch.float32 and c.channels == "straddling" and tile),
        )
        return set(own)
    return set(combinations(enumerate((tile, c.arch, c.dtype, c.kind, c.channels)), 2))


def values(c: Choice) -> set[tuple]:
    """A choice's tile, architecture, dtype, view and channels, of both main loops apart."""
    loop = c.tile.producer_threads > 0
    tile = c.tile.m, c.tile.n, c.tile.producer_threads
    turned = loop and c.dtype == torch.float32 and c.kind
    return set(
        enumerate((tile, *((loop, x) for x in (c.arch, c.dtype, c.kind, c.channels)), turned))
    )


def cover(of: Callable[[Choice], set[tuple]], choices: Sequence[Choice]) -> list[Choice]:
    """Few of some choices, which have between them all that these have, chosen greedily."""
    chosen: list[Choice] = []
    missing = {c: set(of(c)) for c in choices}  # of each, what no chosen one has
    while any(missing.values()):
        best = max(missing, key=lambda c: len(missing[c]))
        found = missing.pop(best)
        chosen.append(best)
        missing = {c: rest for c, has in missing.items() if (rest := has - found)}
    return chosen


@cache
def covering() -> list[Choice]:
    """Few kernels of the matrix in which every pair is."""
    return cover(pairs, MATRIX)


def covered() -> list[Any]:
    """Return those, of which few that have every value always run; the others are deep."""
    few = cover(values, covering())
    return [c if c in few else pytest.param(c, marks=pytest.mark.deep) for c in covering()]


def check_machine_code(c: Choice) -> None:
    vector = 16 // c.dtype.itemsize
    lines, K = CHANNELS[c.channels]
    C = int(lines * half_line(c.dtype))
    assert (C % c.tile.k != 0) == (c.channels == "straddling")
    assert C % vector == 0
    compiled = compile_view(VIEWS[c.kind](C, K), c.dtype, c.tile, c.arch)
    kernel = unspilled(compiled)
    opcodes = kernel.opcodes

    # A CTA's registers fit a multiprocessor, and so does its shared memory.
    assert kernel.registers <= 255
    allocated = -(-kernel.registers // 8) * 8
    assert allocated * c.tile.threads <= REGISTERS
    size = c.dtype.itemsize
    dynamic = c.tile.smem_bytes(size, size)
    assert kernel.static_shared + dynamic <= MACHINES[c.arch].smem_per_cta

    # Copies into shared memory are asynchronous, of 16 bytes, past L1.
    copies = re.findall(r"cp\.async\.c\S+ [^;]*;", compiled.ptx)
    form = r"cp\.async\.cg\.shared\.global \[%\w+(\+\d+)?\], \[%\w+(\+-?\d+)?\], 16, (%r\d+|16);"
    assert all(re.fullmatch(form, copy) for copy in copies)
    copying = c.tile.producer_threads or c.tile.mma_threads
    # Filters come to Hopper's instructions by TMA descriptors, as do dense inputs whose k-tiles
    # lie within a tap: a thread reads one of each for a k-tile. What else there is of tf32 is
    # rounded on its way: B before it is stored, A after that.
    turned = c.kind == "gradient"
    dense = c.kind in ("dense", "125 taps", "65 taps", "gradient") and c.channels != "straddling"
    mapped = bool(c.tile.producer_threads) and dense
    rounds = c.tile.producer_threads and c.dtype == torch.float32
    copied = (0 if mapped else c.tile.m), (0 if c.tile.producer_threads else c.tile.n)
    # Of 8 columns there are fewer vectors than threads.
    per_thread = sum(-(-rows * c.tile.k // vector // copying) for rows in copied)
    # In the prologue a k-tile for every stage but the last, in the loop one; producers have no
    # prologue. Of tf32 these bring two k-tiles in their loop if they are small, and hold B of both.
    small = c.tile.m * c.tile.n <= 128 * 128 and c.tile.n * c.tile.k <= 32 * copying
    held = 2 if turned and small else 1
    maps = re.findall(r"cp\.async\.bulk\.tensor\.\dd", compiled.ptx)
    assert len(maps) == held * mapped + bool(c.tile.producer_threads and not turned)
    pieces = held if c.tile.producer_threads else c.tile.stages
    assert len(copies) == opcodes["LDGSTS"] == pieces * per_thread

    # Tensor cores do all that there is to multiply, of operands that ldmatrix brings, or that
    # Hopper's read from shared memory: of the first k-tile, and in the loop.
    mma_k = 8 if c.dtype == torch.float32 else 16
    k_blocks = c.tile.k // mma_k
    rows, columns = c.tile.m // c.tile.warps[0], c.tile.n // c.tile.warps[1]
    fragments = rows // 16 + -(-columns // 16)  # of ldmatrix.x4, of 8 columns x2
    if c.tile.producer_threads:
        assert compiled.ptx.count("wgmma.mma_async") == 2 * k_blocks * (rows // 16)
        read = 2 * k_blocks * (rows // 16) if rounds and not mapped else 0
        assert (opcodes["HMMA"], opcodes["LDSM"]) == (0, read)
        loaded = 2 * held * c.tile.n * c.tile.k // vector // copying if turned else 0
        assert len(re.findall(r"ld\.global\.v4", compiled.ptx)) == loaded
    else:
        assert opcodes["HMMA"] == rows // 16 * (columns // 8) * k_blocks
        matrices = re.findall(r"ldmatrix\.sync\.aligned\.m8n8\.x([24])\.shared", compiled.ptx)
        assert len(matrices) == opcodes["LDSM"]
        assert ("2" in matrices) == (columns == 8)
        assert opcodes["LDSM"] == fragments * (k_blocks + 1)

    # Results leave in 16-byte vectors.
    stores = re.findall(r"st\.global\S*", compiled.ptx)
    assert set(stores) == {"st.global.v4.b32"}
    assert len(stores) == opcodes["STG"] == c.tile.m * c.tile.n // vector // c.tile.mma_threads


@pytest.mark.parametrize("c", covered(), ids=str)
def test_machine_code(c: Choice) -> None:
    check_machine_code(c)


@pytest.mark.slow
@pytest.mark.parametrize("c", MATRIX, ids=str)
def test_machine_code_of_everything(c: Choice) -> None:
    check_machine_code(c)


def test_sums_across_words_read_a_in_pairs() -> None:
    """Tiles of Ampere read words of B, and pairs of A, of a filter's gradient in tf32."""
    tile = TileConfig((128, 256, 32), (2, 4), 3)
    view = wgrad_view(ConvProblem((2, 9, 9, 128), (128, 3, 3), padding=1))
    compiled = compile_view(view, torch.float32, tile, "sm_90a")
    unspilled(compiled)
    rows, columns, k_blocks = tile.m // 2, tile.n // 4, tile.k // 8 + 1
    pairs = len(re.findall(r"ld\.shared\.v2", compiled.ptx))
    words = len(re.findall(r"ld\.shared\.b32", compiled.ptx))
    assert (pairs, words) == (rows // 8 * k_blocks, columns // 4 * k_blocks)


def test_the_covering_has_every_pair() -> None:
    assert set().union(*map(pairs, covering())) == set().union(*map(pairs, MATRIX))
    assert len(covering()) < len(MATRIX) // 20


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_tf32_is_rounded_by_one_instruction(arch: str) -> None:
    c = choice((64, 64, 2, 2), arch, torch.float32, "dense", "lines")
    ptx = compile_view(VIEWS[c.kind](64, 64), c.dtype, c.tile, arch).ptx
    rounds = Counter(re.findall(r"cvt\.\w+\.tf32\.f32", ptx))
    fragments = c.tile.k * (c.tile.m + c.tile.n) // 2 // 32
    assert rounds == {f"cvt.{'rn' if arch == 'sm_90a' else 'rna'}.tf32.f32": fragments}
