"""The kernel for tiles of several groups: one patch of A in shared memory serves all taps.

The template runs a CTA per group, on tiles of 32 columns or more: with groups of 4 channels, seven
of eight products are padding, and each tap reads A again. Here a CTA takes a box of rows and all
channels of several groups. Its mainloop has neither stages nor k-tiles, so it is a separate kernel;
it shares operands, epilogue, arguments and launches with the template.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, TFloat32, const_expr

from layoutconv.planning.group_tile import BLOCK, GroupTile, cells_between_atoms

from ..common.pdl import dependence
from ..common.runtime_integers import RuntimeIntegers
from .block_diagonal import CHUNK_BYTES, DiagonalPiece, Factor, pieces_of
from .epilogue.column_entries import ColumnEntries
from .epilogue.smem_store import EpilogueIO, SmemStore
from .gemm_kernel import KernelLaunch, LaunchArguments
from .group_operands import BoxOperand, GroupKernel, Patch, RowBox, SharedFilter
from .mma_atoms import load_matrices, multiply_words, round_to_tf32
from .operand import Operand

WARP_ROWS = 16
Place = tuple[int, int]  # of an atom's rows: number of a known row address, and bytes from it


class GroupedConv(GroupKernel):
    """The kernel of grouped views of one structure, with a ``GroupTile``.

    Warp roles: all warps load, multiply and store. Timeline of a CTA::

        place of the box | wait for the kernel before (PDL) | load patch, filter | taps | epilogue

    Constraints: ``planning/group_tile.py``.
    """

    def start(self, given: LaunchArguments) -> KernelLaunch:
        args, boxes = self.boxes(given)
        kernel = self.kernel(*given.memory, args, given.place, *given.reads)
        return KernelLaunch(kernel, [boxes * self.n_tiles, 1, 1], self.pdl)

    @cute.kernel
    def kernel(
        self,
        a: Any,
        b: Any,
        d: Any,
        args: RuntimeIntegers,
        place: Any,
        numbers: Any,
        columns: Any,
        sources: Any,
    ) -> None:
        tile, spec, of = self.tile, self.spec, self.of
        smem = cutlass.memory.SmemAllocator()
        base = smem.allocate_array(Int64, spec.smem_bytes // 8, byte_alignment=1024)
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        box = RowBox(of, tile, args, cta // self.n_tiles)
        n_tile = cta % self.n_tiles
        n0 = n_tile * tile.columns
        of_b = Operand(
            of.b, args, b, None, group=None, along=spec.along[1], vector=spec.vectors[1],
            column_tile=tile.filter[1],
        )  # fmt: skip
        of_d = Operand(
            of.d, args, d, None, group=None, along=1, vector=spec.vectors[2], column_tile=tile.n
        )
        cut = tile.columns < tile.n or of_d.ragged
        last = cutlass.min(Int32(n0 + tile.columns), Int32(of_d.col_count)) if cut else None
        at_patch = Int32(base.toint())
        at_filter = at_patch + tile.patch_bytes(self.data.bytes)
        patch = Patch(of, tile, args, self.data.element)
        filter = SharedFilter(of, tile, self.data.element, of_b, tid & 31)
        others = dependence(self.pdl, place)
        others.begin()
        patch.load(a, at_patch, box, n_tile * tile.groups, spec.vectors[0])
        filter.load(at_filter, n0)
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        products = Products(self, patch, filter, tid)
        sums = products.by_column(products.sum(box, at_patch, at_filter))
        others.summed()
        cute.arch.sync_threads()  # the epilogue's tile overwrites the operands
        turn = SumsOverThreads(tile)
        acc = turn.accumulators(sums, tid)
        extras = self._epilogue_io((numbers, columns, sources))
        self._make_epilogue()(acc, turn, BoxOperand.of(of_d, box, last), base, 0, n0, tid, extras)
        others.end()

    def _make_epilogue(self) -> SmemStore:
        return SmemStore(
            self.tile, self.out.element, self.data.accumulator, self.spec.vectors[2], self.steps,
            atomic=False,
        )  # fmt: skip

    def _epilogue_io(self, reads: tuple[Any, Any, Any]) -> EpilogueIO:
        # Empty tuples cannot cross the kernel boundary; None stands for them.
        numbers, columns, sources = (found or () for found in reads)
        every = self.of.columns * self.of.groups
        return EpilogueIO(
            numbers, columns, sources, None, ColumnEntries(self.view, 0), first_column=0,
            all_columns=every,
        )  # fmt: skip


class Products:
    """The products of a warp, tap by tap: its rows of the box times its groups' filters."""

    def __init__(self, kernel: GroupedConv, patch: Patch, filter: SharedFilter, tid: Any) -> None:
        self.patch, self.filter = patch, filter
        tile, of, self.data = kernel.tile, kernel.of, kernel.data
        self.arch = kernel.spec.arch_number
        warps_m, warps_n = tile.warps
        self.of, self.atoms, self.count = of, tile.atoms, tile.m
        self.groups = tile.groups // warps_n
        elements = CHUNK_BYTES // self.data.bytes
        self.pieces = pieces_of(self.groups, of.channels, of.columns, elements)
        self.chunks = self.groups * of.channels // elements
        warp, self.lane = tid >> 5, tid & 31
        self.row0 = warp % warps_m * (tile.atoms * WARP_ROWS)
        self.warp_n = warp // warps_m
        self.half = self.lane >> 1 & 1  # the half of a chunk that this lane holds
        # masks[h] is all ones in the lanes that hold half h.
        self.masks = [Int32(self.half) - 1, -Int32(self.half)]

    def sum(self, box: RowBox, at_patch: Any, at_filter: Any) -> list[list[list[Any]]]:
        """Return the sums over all taps: four registers per atom of rows and piece."""
        rows = self._rows(box, at_patch)
        column = self.warp_n * (self.groups * self.of.columns)
        starts = [self.filter.start(at_filter, column, half=half) for half in (False, True)]
        apart = cells_between_atoms(self.of, self.patch.tile) * self.patch.pitch
        # Per atom: the row address to start from, and the bytes from there.
        places_of = [(0, i * apart) if apart else (i, 0) for i in range(self.atoms)]
        sums = [[[Float32(0.0)] * 4 for _ in self.pieces] for _ in rows]
        products = [(p, f) for p, piece in enumerate(self.pieces) for f in piece.factors]
        # A's registers by place: rows of an atom that several taps reach are read once.
        found: dict[Place, list[Any]] = {}
        masked: dict[tuple[Place, int, int], list[Any]] = {}
        for tap, cells in self._taps():
            wanted = [self._wanted(self.pieces[p], factor, tap) for p, factor in products]
            words = self.filter.words(starts, [key for keys in wanted for key in keys])
            places = [(row, offset + cells * self.patch.pitch) for row, offset in places_of]
            for place in places:
                if place not in found:
                    found[place] = self._matrices(rows[place[0]] + place[1])
            for (p, factor), keys in zip(products, wanted, strict=True):
                right = self._right([words[key] for key in keys], factor)
                for i, place in enumerate(places):
                    left = self._left(found, masked, place, factor)
                    sums[i][p] = multiply_words(self.data.element, left, right, sums[i][p])
        return sums

    def _taps(self) -> list[tuple[int, int]]:
        """Return each tap and its cells from the first tap; along a box's lines run slowest."""
        cells = self.of.tap_cells(self.patch.tile.patch)
        along = int(self.of.taps[0].extent) if self.of.taps else 1
        order = sorted(range(len(cells)), key=lambda tap: (tap % along, tap // along))
        return [(tap, cells[tap]) for tap in order]

    def by_column(self, sums: list[list[list[Any]]]) -> list[Any]:
        """Return the sums by block, atom and register; each column takes its own group's."""
        found = []
        for block in range(self.pieces[-1].block + 1):
            here = [(p, piece) for p, piece in enumerate(self.pieces) if piece.block == block]
            for of_atom in sums:
                (first, _), *others = here
                words = of_atom[first]
                for second, _ in others:  # a second group has the upper half of the block
                    pairs = zip(of_atom[second], words, strict=True)
                    words = [cutlass.select_(self.half > 0, b, a) for b, a in pairs]
                found += words
        return found

    def _rows(self, box: RowBox, at_patch: Any) -> list[Any]:
        """Return the smem address of this lane's row of each atom at the first tap."""
        found = []
        last = 1
        for extent in box.tile.box:
            last = last * extent
        for i in range(self.atoms):
            number = self.row0 + i * WARP_ROWS + (self.lane & 15)
            number = cutlass.min(Int32(number), Int32(last - 1))
            digits, _ = box.digits(number)
            cell = self.patch.cell(digits) * self.patch.pitch
            channels = self.warp_n * (self.chunks * CHUNK_BYTES)
            found.append(Int32(at_patch + cell + channels + (self.lane >> 4) * CHUNK_BYTES))
        return found

    def _matrices(self, row: Any) -> list[Any]:
        """Load A's registers for all chunks, two per chunk."""
        found = []
        for chunk in range(0, self.chunks, 2):
            count = 2 * min(2, self.chunks - chunk)
            words = load_matrices(row + chunk * CHUNK_BYTES, count, transposed=False)
            found += self._rounded(words)
        return found

    def _left(
        self,
        found: dict[Place, list[Any]],
        masked: dict[tuple[Place, int, int], list[Any]],
        place: Place,
        factor: Factor,
    ) -> list[Any]:
        """Return A's registers for a factor; for half a chunk, the other half is zeroed."""
        first = 2 * factor.chunk
        words = found[place][first : first + 2 * factor.count]
        if factor.half is None:
            return words
        key = place, factor.chunk, factor.half
        if key not in masked:
            masked[key] = [word & self.masks[factor.half] for word in words]
        return masked[key]

    def _wanted(self, piece: DiagonalPiece, factor: Factor, tap: int) -> list[tuple[int, bool]]:
        """Return the keys of B's registers for a factor, as ``SharedFilter.words`` takes them."""
        elements = CHUNK_BYTES // self.data.bytes
        first = factor.first + tap * self.of.channels
        return [
            (self.filter.offset(first + i * elements, piece.block * BLOCK), factor.half is not None)
            for i in range(factor.count)
        ]

    def _right(self, words: list[Any], factor: Factor) -> list[Any]:
        """Return B's registers for a factor; for half a chunk, the other half is zeroed."""
        if factor.half is not None:
            words = [word & self.masks[factor.half] for word in words]
        return self._rounded(words)

    def _rounded(self, words: list[Any]) -> list[Any]:
        if const_expr(self.data.element is not TFloat32):
            return words
        return [round_to_tf32(word, self.arch) for word in words]


class SumsOverThreads:
    """The distribution of a tile's sums over threads, in place of the epilogue's tiled MMA."""

    def __init__(self, tile: GroupTile) -> None:
        self.tile = tile
        warps_m, warps_n = tile.warps
        self.blocks = tile.n // BLOCK // warps_n
        m, rows = tile.m, tile.atoms * WARP_ROWS
        threads = (4, 8, warps_m, warps_n), (2 * m, 1, rows, tile.n // warps_n * m)
        values = (2, 2, tile.atoms, self.blocks), (m, 8, WARP_ROWS, BLOCK * m)
        shape, stride = zip(threads, values, strict=True)
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyUniversalOp(), Float32, num_bits_per_copy=Float32.width
        )
        layout = cute.make_layout(tuple(shape), stride=tuple(stride))
        self.copy = cute.make_tiled_copy(atom, layout, (tile.m, tile.n))

    def get_slice(self, tid: Any) -> SumsOverThreads:
        self.thread = self.copy.get_slice(tid)
        return self

    def partition_C(self, tensor: Any) -> Any:
        return self.thread.partition_S(tensor)

    def accumulators(self, sums: Any, tid: Any) -> Any:
        """Return the sums as a tensor in ``partition_C`` order; columns without a group are 0."""
        tile = self.tile
        like = cute.make_identity_tensor((tile.m, tile.n))
        shape = self.get_slice(tid).partition_C(like).shape
        acc = cute.make_rmem_tensor(shape, Float32)
        acc.fill(0.0)
        for i, value in enumerate(sums):
            acc[i] = value
        return acc
