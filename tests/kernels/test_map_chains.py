"""Kernels of clouds, and chains of them: what they compile to, and how they are kept."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from layoutconv.kernels.compile import store
from layoutconv.kernels.compile.cubin import read_cubin
from layoutconv.kernels.maps import build_map, cooperative, map_stages, per_rank
from layoutconv.kernels.maps.cooperative import SHARED_BYTES, bytes_of_arrays
from layoutconv.kernels.maps.output_coords import Unpack
from layoutconv.kernels.maps.per_rank import Chain, build, load_per_rank
from layoutconv.kernels.maps.probe import Search
from layoutconv.kernels.maps.row_order import Sizes
from layoutconv.sparse.maps.taps import Taps
from tools.ptx_sim.ptx import Instruction, Kernel

from ..grid_cover import with_deep
from ..watched import Watch
from .cloud_launcher import OF_RANK, compiled, with_sizes


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("kind", OF_RANK)
@pytest.mark.chessboard
def test_kernels_compile_for_every_architecture(kind: Any, arch: str) -> None:
    kernel = OF_RANK[kind](2)
    if arch == "sm_80":  # as the machine runs it
        assert compiled(kernel)
        return
    with tempfile.TemporaryDirectory() as folder:
        assert f".target {arch}" in build(kernel, arch, dump=folder).__ptx__


def sorted_chain(taps: Taps, empty: bool, wide: bool = False) -> Chain:
    with with_sizes(Sizes()):
        plan = build_map._sorted_plan(taps, len(taps.stride), torch.device("cpu"), wide)
        return plan.sorted(empty)


CHAINS = {
    "filled": map_stages.filled(3, Sizes().threads, False),
    "known": sorted_chain(Taps.centred(3, 3), True),
    "known, of wide keys": sorted_chain(Taps.centred(3, 3), True, True),
    "known, of a table that is there": sorted_chain(Taps.centred(2, 3), False),
    "near": sorted_chain(Taps.centred(3, offsets=[(0, 0, 0), (1, 0, 2)]), True),
    "far": sorted_chain(Taps.centred(3, 2, 900), True),
    "4-D": sorted_chain(Taps.centred(4, 2), True),
    "index": map_stages.sorted_index(Sizes()),
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", with_deep(CHAINS, "known, of wide keys", "4-D"))
@pytest.mark.chessboard
def test_chains_are_two_launches_that_fit_into_every_gpu(name: str, arch: str) -> None:
    """The second needs a multiprocessor for each CTA: 65,536 registers, 99 KB on most."""
    chain = CHAINS[name]
    with tempfile.TemporaryDirectory() as folder:
        built = build(chain, arch, dump=folder)
    assert built.__ptx__.count(".entry") == len(chain.parts) == 2
    assert ".nc" not in built.__ptx__  # of what others write, no cache may be trusted
    kernels = read_cubin(built.__cubin__)
    (launched,) = (kernel for name, kernel in kernels.items() if "CooperativeKernel" in name)
    assert launched.registers * chain.parts[1][0].threads <= 65_536
    # Of a submanifold filter nothing is spilled; of others what is found once, and kept.
    assert launched.stack <= (0 if name == "known" else 96)
    needs = [part.shared(chain.parts[1][0].threads) for part, *_ in chain.parts[1][0].parts]
    assert max(map(bytes_of_arrays, needs)) <= SHARED_BYTES == 99 * 1024


# Those that ask for the whole of a cell.
WHOLE = [kind for kind in OF_RANK if kind not in ("fill", "count bits")]


TABLE = 3  # the place of the table of taps among a search's addresses


def reads_of(program: Kernel, address: int) -> list[Instruction]:
    """The loads from memory that a kernel has at one of its addresses, or behind it."""
    behind, loads = {program.params[address].name}, list[Instruction]()
    for i in program.instructions:
        used = {getattr(getattr(x, "base", x), "name", "") for x in i.operands[1:]}
        if used & behind and i.opcode.startswith("ld.global"):
            loads.append(i)
        elif used & behind and i.opcode in ("ld.param.b64", "add.s64", "mov.b64"):
            behind.add(i.operands[0].name)  # type: ignore[union-attr]
    return loads


@pytest.mark.parametrize(("kind", "rank"), list(product(WHOLE, (1, 2, 3))))
def test_cells_are_read_at_once_where_they_are_a_vector(kind: str, rank: int) -> None:
    _, program = compiled(OF_RANK[kind](rank))
    word = {1: {"v2.b32"}, 3: {"v4.b32"}}.get(rank, set())
    move = "st.global." if kind in ("unpack", "write cells") else "ld.global."
    # A search reads its table of taps in vectors, too, as wide as the compiler likes.
    others = reads_of(program, TABLE) if kind.startswith("search") else []
    found = {
        i.opcode
        for i in program.instructions
        if i.opcode.startswith(move + "v") and i not in others
    }
    slot = {move + "v2.b64"} if kind.startswith(("search", "keys")) else set()
    assert found == {move + vector for vector in word} | slot


def test_kernels_are_kept_by_rank(kernel_folder: Path, watched: Watch) -> None:
    built = watched("build", per_rank)
    load: Callable[..., Any] = load_per_rank
    assert load(Search(1, True), "sm_80") is load(Search(1, True), "sm_80")
    assert load(Search(1, True), "sm_80") is not load(Search(2, True), "sm_80")
    assert load(Unpack(1), "sm_80") is not load(Search(1, True), "sm_80")
    store.unload()
    assert callable(load(Search(2, True), "sm_80"))  # from disk
    assert len(built) == len(list(kernel_folder.iterdir())) == 3


@pytest.mark.parametrize(
    ("rows", "ctas"), [(1, 16), (8192, 16), (8193, 17), (60_000, 118), (10**6, 132)]
)
def test_beside_other_kernels_a_launch_has_a_cta_for_512_rows(
    rows: int, ctas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cooperative, "sm_count", lambda device: 132)
    assert cooperative.ctas_for(rows, 0) == 132
    with cooperative.beside_others():
        with cooperative.beside_others():
            pass
        assert cooperative.ctas_for(rows, 0) == ctas
    assert cooperative.ctas_for(rows, 0) == 132
