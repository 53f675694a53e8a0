"""The kernels of clouds in the machine; and what they find, by a Python dictionary."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from layoutconv.kernels.maps import build_map, level_maps, map_stages, per_rank
from layoutconv.kernels.maps.block_table import Fill, Insert, Reserve, Settle
from layoutconv.kernels.maps.box_inverse import KeysOfBoxInverse, RowsOfBoxInverse
from layoutconv.kernels.maps.build_map import HashTable
from layoutconv.kernels.maps.cooperative import CooperativeKernel
from layoutconv.kernels.maps.inverse import Scatter
from layoutconv.kernels.maps.job_stages import Jobs, OneOf
from layoutconv.kernels.maps.level_cells import CountLevels, MarkLevels, WriteLevels
from layoutconv.kernels.maps.occupancy_bitmap import CountBits, Mark, WriteCells
from layoutconv.kernels.maps.output_coords import Reach, Unpack
from layoutconv.kernels.maps.pairs import CountPairs, WritePairs
from layoutconv.kernels.maps.parents import KeysOfParents, RowsOfParents
from layoutconv.kernels.maps.per_rank import Chain, PerRank, build
from layoutconv.kernels.maps.probe import Search
from layoutconv.kernels.maps.row_order import Count, Gather, Sizes, Windows
from layoutconv.kernels.maps.sort_keys import Keys, KeysOfIndex
from layoutconv.kernels.pointwise.channel_norm import ChannelNorm
from layoutconv.kernels.pointwise.column_sums import MergeColumns, PartSums
from layoutconv.kernels.pointwise.group_norm import (
    GroupGradient,
    GroupSums,
    MergeGroups,
    MergeGroupSums,
    NormaliseGroups,
)
from layoutconv.kernels.pointwise.row_norm import (
    Gradient,
    GradientSums,
    MergeMoments,
    MergeSums,
    Normalise,
    Statistics,
)
from layoutconv.sparse.maps import row_orders
from tools.ptx_sim import DeviceTensor, Memory, launch_of, run

from .draws import draws
from .simulated import to_simulate

# Of few bits: small clouds have several windows, chunks and places of each CTA.
SIZES = Sizes(place=7, window=7, chunk=7, threads=64)
OF_RANK = {
    "fill": Fill,
    "reach": Reach,
    "unpack": Unpack,
    "mark": Mark,
    "count bits": CountBits,
    "write cells": WriteCells,
    "search near": lambda rank: Search(rank, True),
    "search far": lambda rank: Search(rank, False),
    "search known": lambda rank: Search(rank, True, (0, 1)),
}
# Of a kernel's tensors: those it updates, and those it writes and never reads.
UPDATES: dict[type[PerRank], tuple[int, ...]] = {
    Insert: (1, 3), Reserve: (0, 2), Settle: (3,), Count: (2,), Reach: (1,), Mark: (1,),
    CountBits: (2,), Normalise: (8, 9, 10), MarkLevels: (1,), CountLevels: (2,),
}  # fmt: skip
WRITES: dict[type[PerRank], tuple[int, ...]] = {
    Insert: (2,), Keys: (3,), KeysOfIndex: (2,), Count: (0, 1),
    Windows: (3,), Search: (5,), Gather: (2,), Reach: (3,), Unpack: (1,), CountPairs: (1,),
    WritePairs: (2, 3, 4), CountBits: (1,), WriteCells: (3,), Statistics: (2,), Normalise: (6, 7),
    GradientSums: (5,), MergeMoments: (1,), MergeSums: (2, 3),
    PartSums: (1,), MergeColumns: (1,), MergeGroups: (1,), NormaliseGroups: (4,), GroupSums: (5,),
    MergeGroupSums: (2,), GroupGradient: (6,), ChannelNorm: (3,), KeysOfParents: (3,),
    RowsOfParents: (5,), KeysOfBoxInverse: (3,), RowsOfBoxInverse: (5,), CountLevels: (1,),
}  # fmt: skip

Cell = tuple[int, ...]
_compiled: dict[Any, Any] = {}


def compiled(kernel: PerRank) -> Any:
    if kernel.key not in _compiled:
        _compiled[kernel.key] = to_simulate(build, kernel, "sm_80")
    return _compiled[kernel.key]


def pieces_of(tensors: tuple[Tensor, ...], addresses: tuple[int, ...]) -> list[Any]:
    """The bytes at each address, up to the next one, or to the end of the tensor that it is in; of
    a tensor without elements, which is nowhere, none.
    """
    found = []
    for address in addresses:
        if not address:
            assert any(not tensor.numel() for tensor in tensors)
            found.append(np.empty(0, np.uint8))
            continue
        (end,) = {
            tensor.data_ptr() + tensor.numel() * tensor.itemsize
            for tensor in tensors
            if tensor.data_ptr() <= address < tensor.data_ptr() + tensor.numel() * tensor.itemsize
        }
        end = min((other for other in addresses if address < other < end), default=end)
        memory = (ctypes.c_uint8 * (end - address)).from_address(address)
        found.append(np.ctypeslib.as_array(memory))
    return found


def piece_at(tensors: tuple[Tensor, ...], address: int, size: int) -> Any:
    """So many bytes of one of the tensors."""
    (end,) = {
        tensor.data_ptr() + tensor.numel() * tensor.itemsize
        for tensor in tensors
        if tensor.data_ptr() <= address < tensor.data_ptr() + tensor.numel() * tensor.itemsize
    }
    assert address + size <= end
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def is_one_piece(kernel: PerRank, integers: Sequence[int]) -> bool:
    """Return whether a kernel fills one piece of memory."""
    return isinstance(kernel, Fill) and integers[0] > kernel.behind and not integers[1]


class Launches:
    """Launches in the machine: warps and CTAs in an order that ``seed`` decides."""

    def __init__(self) -> None:
        self.seed = 0
        self.ctas = 2  # of a cooperative launch
        self.together = True  # maps of all levels are made by one launch
        self.kinds: list[type[PerRank]] = []
        self.keys: list[Any] = []  # of what is launched
        self.executed = Counter[str]()  # instructions of warps, by opcode

    def __call__(
        self,
        kernel: PerRank | Chain,
        tensors: tuple[Tensor, ...],
        addresses: tuple[int, ...],
        integers: tuple[int, ...],
    ) -> None:
        self.keys.append(kernel.key)
        assert len(addresses) == len(kernel.tensors())
        assert tensors[0].dtype == torch.int32
        assert tensors[0].ndim == 2
        pieces = pieces_of(tensors, addresses)
        if isinstance(kernel, Chain):
            assert len(integers) == kernel.integers()
            for part, places, numbers in kernel.parts:
                own, of_part = [pieces[place] for place in places], [integers[n] for n in numbers]
                if is_one_piece(part, of_part) and len(set(places)) == 1:
                    size = 16 * (of_part[0] - part.behind)
                    own = 3 * [piece_at(tensors, addresses[places[0]], size)]
                self.run(part, own, tuple(of_part))
        else:
            self.run(kernel, pieces, integers)

    def run(self, kernel: PerRank, pieces: list[Any], integers: tuple[int, ...]) -> None:
        kind = type(kernel)
        self.kinds += [type(part) for part, _ in parts_of(kernel)]
        function, program = compiled(kernel)
        memory = Memory()
        addresses: list[int] = []
        updates, writes = touched(kernel, integers)
        for i, (piece, (_, aligned)) in enumerate(zip(pieces, kernel.tensors(), strict=True)):
            if i in writes and kind is not Reach:
                piece[...] = POISON & 0xFF
            # Whoever writes what others wrote before, in a phase before, is no output's writer.
            one = writes.get(i) == 1 and i not in updates
            changes = i in writes or i in updates
            addresses.append(memory.add(piece, f"piece {i}", writable=changes, output=one))
            assert piece.ctypes.data % min(aligned, 8) == 0
        of = DeviceTensor(addresses[0], (1, 1), "int32")
        asked = launch_of(program, function, of, tuple(addresses), integers)
        assert asked.cooperative == isinstance(kernel, CooperativeKernel)
        random = np.random.default_rng(self.seed)
        across, down, deep = asked.grid
        order = map(int, random.permutation(across * down * deep))
        ctas = [(i % across, i // across % down, i // (across * down)) for i in order]
        # CTAs that wait for each other run at the same time, as those of a cluster do.
        stats = run(
            program, memory, asked.arguments, asked.grid, seed=self.seed, ctas=ctas,
            shared_bytes=asked.shared_bytes, cluster=asked.grid if asked.cooperative else None,
        )  # fmt: skip
        self.executed.update(stats.opcodes)
        for place, count in writes.items():
            if count > 1 or place in updates:
                continue
            written = memory.written(addresses[place])
            expected = written.size
            if kind is Reach:
                expected = 8 * int(pieces[1].view(np.int64)[-1] + 1)
            elif kind is WritePairs and place > 2:
                expected = 4 * integers[5]
            assert written[:expected].all()
            assert not written[expected:].any()


def parts_of(kernel: PerRank) -> list[tuple[PerRank, tuple[int, ...]]]:
    """A kernel, or the parts of one, with the numbers of their addresses."""
    found: list[tuple[PerRank, tuple[int, ...]]] = []
    own = kernel.parts if isinstance(kernel, CooperativeKernel) else ((kernel, (*range(99),), ()),)
    for part, places, number in (job for place in own for job in jobs_of(*place)):
        if isinstance(part, Count):
            found.append((one_of(part.keys, number), tuple(places[3:])))
        if isinstance(part, Windows):
            found.append((one_of(part.then, number), tuple(places[4:])))
        found.append((part, tuple(places)))
    return found


def one_of(part: Any, number: int) -> Any:
    """A part; of several that take the same arguments, that of a job."""
    return part.parts[number] if isinstance(part, OneOf) else part


def jobs_of(
    part: Any, places: tuple[int, ...], numbers: tuple[int, ...]
) -> list[tuple[Any, tuple[int, ...], int]]:
    """A part of a stage, its addresses, and which of several parts it runs; those of each job."""
    if not isinstance(part, Jobs):
        return [(part, places, 0)]
    assert part.place[1:] == (places, numbers)
    return [
        (turn.part, addresses, fixed[-1] if fixed else 0)
        for turn in part.turns
        for (addresses, _), fixed in zip(turn.jobs, turn.fixed, strict=True)
    ]


def touched(kernel: PerRank, integers: tuple[int, ...]) -> tuple[set[int], dict[int, int]]:
    """The numbers of addresses where a kernel updates, and where it writes, by how many parts."""
    if isinstance(kernel, Scatter):  # to some of what was filled
        return {2}, {}
    if is_one_piece(kernel, integers):
        return {1, 2}, {}  # one piece of memory
    if isinstance(kernel, Gradient):
        return set(), dict.fromkeys((7, 8, 9) if kernel.shape.added else (7, 9), 1)
    if isinstance(kernel, Fill):  # a table, or a barrier's word alone
        return set(), dict.fromkeys((0, 1, 2) if integers[1] else (2,), 1)
    if isinstance(kernel, WriteLevels):
        return set(), dict.fromkeys(range(3, 3 + kernel.levels), 1)
    updates, writes = set(), Counter[int]()
    for part, places in parts_of(kernel):
        updates |= {places[i] for i in UPDATES.get(type(part), ())}
        writes.update(places[i] for i in WRITES.get(type(part), ()))
    if isinstance(kernel, CooperativeKernel):
        updates.add(kernel.word)
    return updates, dict(writes)


@contextmanager
def with_sizes(sizes: Sizes, windows: int = 3) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(map_stages, "SIZES", sizes)
    patch.setattr(row_orders, "PLACE_BITS", sizes.place)
    patch.setattr(row_orders, "WINDOWS", row_orders.RowWindows(windows, 32, sizes.window))
    forget_plans()
    yield
    patch.undo()
    forget_plans()


def forget_plans() -> None:
    build_map._plan.cache_clear()
    build_map._sorted_plan.cache_clear()


@contextmanager
def in_the_machine() -> Iterator[Launches]:
    """Launches of kernels of clouds, in the simulator."""
    launches = Launches()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(per_rank, "launch", launches)
        yield launches


@contextmanager
def launches_of_maps() -> Iterator[Launches]:
    """Launches of maps in the simulator, with few CTAs and few bits to sort by."""
    with pytest.MonkeyPatch.context() as patch, in_the_machine() as launches, with_sizes(SIZES):
        for module in (build_map, level_maps):
            patch.setattr(module, "ctas_for", lambda rows, device: launches.ctas)
        patch.setattr(map_stages, "FEWEST_OF_CHUNK", 32)
        yield launches


class Work(TorchDispatchMode):
    """Notes which of torch's operations run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


POISON = 0x5A5A5A5A  # of what no kernel wrote yet


# -- definitions ----------------------------------------------------------------------------------


def is_inside(cell: Cell, grid: Cell) -> bool:
    return all(0 <= c < extent for c, extent in zip(cell, grid, strict=True))


def rows_of(indices: Tensor, grid: Cell) -> dict[Cell, int]:
    """The lowest row of every cell."""
    found: dict[Cell, int] = {}
    for row, cell in enumerate(map(tuple, indices.tolist())):
        if is_inside(cell, grid):
            found.setdefault(cell, row)
    return found


def search(rows: dict[Cell, int], centres: Tensor, stride: Cell, offsets: list[Cell]) -> Tensor:
    index = torch.full((len(centres), len(offsets)), -1, dtype=torch.int32)
    for i, (batch, *centre) in enumerate(centres.tolist()):
        for t, offset in enumerate(offsets):
            cell = [c * s + o for c, s, o in zip(centre, stride, offset, strict=True)]
            index[i, t] = rows.get((batch, *cell), -1)
    return index


def status(indices: Tensor, grid: Cell) -> list[int]:
    cells = list(map(tuple, indices.tolist()))
    again = [i for i, c in enumerate(cells) if is_inside(c, grid) and c in cells[:i]]
    outside = [i for i, c in enumerate(cells) if c[0] >= 0 and not is_inside(c, grid)]
    return [next((i + 1 for i in found), 0) for found in (again, outside)]


def reaches(
    indices: Tensor, stride: Cell, offsets: list[Cell], grid: Cell, transposed: bool
) -> list[Cell]:
    found = set()
    for (batch, *x), offset in product(indices.tolist(), offsets):
        if transposed:
            y = [c * s + o for c, s, o in zip(x, stride, offset, strict=True)]
        elif all((c - o) % s == 0 for c, s, o in zip(x, stride, offset, strict=True)):
            y = [(c - o) // s for c, s, o in zip(x, stride, offset, strict=True)]
        else:
            continue
        if is_inside((batch, *y), grid):
            found.add((batch, *y))
    return sorted(found)


def box(rank: int, size: int, dilation: int = 1) -> list[Cell]:
    return [
        tuple((tap - size // 2) * dilation for tap in taps)
        for taps in product(range(size), repeat=rank)
    ]


def table_of(indices: Tensor, grid: Cell) -> HashTable:
    return HashTable(indices, grid[1:], grid[0])


def cloud(seed: int, rows: int, grid: Cell, beyond: int = 0, again: float = 0.0) -> Tensor:
    """Random rows: some ``beyond`` the grid in any direction, some of them ``again``."""
    random = np.random.default_rng(seed)
    cells = random.integers([-beyond] * len(grid), [extent + beyond for extent in grid],
                            (rows, len(grid)))  # fmt: skip
    copied = random.random(rows) < again
    cells[copied] = cells[random.integers(0, max(rows, 1), int(copied.sum()))]
    if not beyond and not again:
        cells = random.permutation(np.unique(cells, axis=0))
    return torch.from_numpy(cells.astype(np.int32))


@st.composite
def grids(draw: Any) -> Cell:
    rank = draw(st.integers(1, 4))
    widest = {1: 200, 2: 20, 3: 8, 4: 5}[rank]
    return (draw(st.integers(1, 3)), *(draw(st.integers(1, widest)) for _ in range(rank)))


ROWS = st.sampled_from([0, 1, 5, 33, 70, 200])
SEEDS = st.integers(0, 10**6)
CTAS = st.integers(1, 3)
few = settings(
    max_examples=draws(5), deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


def tap_lists(draw: Any, rank: int, most: int = 9) -> list[Cell]:
    offset = st.tuples(*[st.integers(-3, 3)] * rank)
    return draw(st.lists(offset, max_size=most))


def sought(draw: Any, launches: Launches) -> tuple[Any, Tensor, Tensor, Cell, list[Cell]]:
    """Draw a grid, rows in it, the centres of windows, their stride and their taps, for launches
    in an order that is drawn, too.
    """
    grid = draw(grids())
    rank = len(grid) - 1
    beyond, again = draw(st.sampled_from([(0, 0.0), (1, 0.0), (0, 0.3), (2, 0.3)]))
    launches.seed, launches.ctas = draw(SEEDS), draw(CTAS)
    indices = cloud(draw(SEEDS), draw(ROWS), grid, beyond, again)
    centres = cloud(draw(SEEDS), draw(ROWS), grid, 2)
    stride = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    return grid, indices, centres, stride, tap_lists(draw, rank)
