"""The template: ``D[m, n, l] = sum_k A[m, k, l] * B[n, k, l]`` over three layouts.

Dense convolution and its gradients, gather/scatter and kernel maps differ only in the layouts of
their operands (``Operand``). Each runs the same prologue, one of two mainloops (sm_80, sm_90) and
one epilogue. ``l`` is the group. A CTA (thread block) computes one tile of D; a persistent CTA
loops over several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from layoutconv.algebra.int_tuple import map_leaves, product
from layoutconv.planning.halo_reuse import halo_of
from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.planning.structural_zeros import k_tile_runs
from layoutconv.planning.tile import registers_given
from layoutconv.view.gemm_view import GemmView

from ..common.early_exit import exit_if
from ..common.pdl import Dependent, dependence
from ..common.plain_types import AnyTuple
from ..common.runtime_integers import RuntimeIntegers
from .active_taps import active_k_tiles
from .epilogue.column_entries import ColumnEntries
from .epilogue.register_store import RegisterStore
from .epilogue.smem_store import EpilogueIO, SmemStore
from .gemm_kernel import GemmKernel, KernelLaunch, LaunchArguments
from .k_tiles import KTiles
from .loads import LoadKinds, Loads
from .mainloop_sm80 import MainloopSm80
from .mainloop_sm90 import MainloopSm90
from .operand import Operand
from .scheduler import SingleTile, StaticPersistent
from .smem_index import SmemRows, keep_index

SEVERAL_WAVES = 320  # CTAs, times CTAs per SM, that make more than one wave on any GPU
ONE_WAVE = 132  # CTAs that make one wave on an H100 or H200, at one per SM


class ImplicitGemm(GemmKernel):
    """The kernel of a ``KernelSpec`` for all views of one structure and the same static integers.

    Runtime integers of the view (image count, spatial extents, rows) are launch arguments.

    Warp roles: set by the mainloop. ``MainloopSm80`` is multistage: all warps load, multiply and
    store. ``MainloopSm90`` is warp-specialised: a producer loads, consumers multiply and store.

    Timeline of a CTA::

        rows, masks | wait for the kernel before (PDL) | active taps | mainloop | epilogue

    Grid: (output tiles, split-K slices times ``cluster_k``, groups). Tiles that share rows of A are
    neighbours. A persistent kernel launches as many CTAs as fit the GPU, and its
    ``StaticPersistent`` scheduler loops over tiles.

    Constraints: ``planning/legality.py`` checks before compiling that the tile can run the view.
    """

    def __init__(self, view: GemmView, spec: KernelSpec) -> None:
        super().__init__(view, spec)
        self.tile, self.ctas_per_sm = spec.tile, spec.ctas_per_sm
        self.kinds = LoadKinds(view, spec, self.data)
        self.runs = k_tile_runs(view, spec)

    def start(self, given: LaunchArguments) -> KernelLaunch:
        grid_limit, of_view = None, given.integers
        if self.tile.persistent:
            grid_limit, *of_view = of_view
        values = self.values_of(of_view)
        fast = {
            name: cute.fast_divmod_create_divisor_v2(Int32(values[name])) for name in self.dividing
        }
        args = RuntimeIntegers(values, fast)
        shapes = self.view.a.shape
        m = product(map_leaves(lambda s: args.integer(s, Int64), shapes[0]))
        groups = product(map_leaves(lambda s: args.integer(s, Int32), shapes[2:]))
        n_tiles = -(-self.view.n // self.tile.n)
        m_tiles = Int32((m + self.tile.m - 1) // self.tile.m)
        ctas = m_tiles * n_tiles
        if self.tile.persistent:
            ctas = cutlass.min(ctas, Int32(grid_limit))
        pointer_a, pointer_b, _ = given.memory
        atom_a = self.kinds.atom_of_a(pointer_a, args)
        atom_b, coordinates_b = self.kinds.atom_of_b(pointer_b, args)
        splits, cluster_k = Int32(given.splits), self.tile.cluster_k
        return KernelLaunch(
            self.kernel(
                *given.memory,
                *given.indices,
                args,
                (splits, Int64(given.split_stride)),
                given.place,
                *given.reads,
                given.statistics,
                atom_a,
                atom_b,
                coordinates_b,
            ),
            [ctas, splits * cluster_k, groups],
            self._starts_early(m_tiles * n_tiles * splits * groups),
            [1, cluster_k, 1] if cluster_k > 1 else None,
        )

    @cute.kernel
    def kernel(
        self,
        a: Any,
        b: Any,
        d: Any,
        index_a: Any,
        index_b: Any,
        index_d: Any,
        args: RuntimeIntegers,
        split: AnyTuple,
        place: Any,
        numbers: Any,
        columns: Any,
        sources: Any,
        statistics: Any,
        atom_a: Any,
        atom_b: Any,
        coordinates_b: Any,
    ) -> None:
        tile, spec = self.tile, self.spec
        smem = cutlass.memory.SmemAllocator()
        epilogue_smem = None
        if cutlass.const_expr(tile.persistent and not spec.stores_registers):
            size = tile.epilogue_bytes(spec.staged_bytes)
            epilogue_smem = smem.allocate_array(Int64, size // 8, byte_alignment=1024)
        mainloop, (tid, _, _) = self._make_mainloop(smem), cute.arch.thread_idx()
        last_first = spec.skip and spec.along[0] == 1 and index_a is not None
        single = SingleTile(tile, self.view.n, last_first=last_first)
        group = single.group
        of_a, of_b = self._operands(args, (a, b), (index_a, index_b), group)
        if cutlass.const_expr(spec.split == "partial"):  # each split-K slice has its own D
            d = d + cute.assume(Int64(single.rank) * split[1], divby=spec.vectors[2])
        of_d = Operand(
            self.view.d, args, d, index_d, group=group, along=1, vector=spec.vectors[2],
            column_tile=tile.n,
        )  # fmt: skip
        atoms, reads = (atom_a, atom_b, coordinates_b), (numbers, columns, sources)
        loads = Loads(self.kinds, mainloop, (of_a, of_b), atoms, group, tid)
        acc, others = mainloop.multiplier.accumulators(tile), dependence(self.pdl, place)
        if cutlass.const_expr(tile.persistent):
            k_tiles = self._k_tiles(of_a, of_b)
            others.begin()
            extras = self._epilogue_io(reads, statistics, group)
            self._run_persistent(mainloop, loads, k_tiles, acc, of_d, epilogue_smem, extras)
            others.summed()
        else:
            if cutlass.const_expr(self.steps.statistics):
                all_columns = self.view.n * cute.arch.grid_dim()[2]
                statistics = statistics + Int64(single.m_tile) * (2 * all_columns)
            epilogue = self._make_epilogue()
            extras = self._epilogue_io(reads, statistics, group)
            extras = self._with_held_columns(epilogue, extras, mainloop, of_d, tid)
            fetch = partial(epilogue.fetch, of_d, extras, single.n0)
            keep = partial(keep_index, spec, smem, d=of_d, first=single.m0, tid=tid)
            beside = others, keep, fetch
            is_empty, rows = self._run_mainloop(mainloop, loads, beside, single, split, acc)
            others.summed()
            extras = replace(extras, rows=rows)
            self._run_epilogue(mainloop, acc, of_d, single, is_empty, epilogue, extras)
        others.end()

    # -- the mainloop and the epilogue of a CTA --------------------------------------------------

    def _run_mainloop(
        self,
        mainloop: MainloopSm80 | MainloopSm90,
        loads: Loads,
        beside: tuple[Dependent, Callable[[Any], SmemRows | None], Callable[[], None]],
        single: SingleTile,
        split: tuple[Any, Any],
        acc: Any,
    ) -> tuple[Any, SmemRows | None]:
        """Run the mainloop for one output tile.

        ``beside``: the PDL of this kernel; what keeps index-buffer entries in shared memory; and
        what loads the epilogue's per-column values meanwhile.

        Return whether the tile has no k-tiles, and D's scatter rows if shared memory holds them.
        """
        others, keep, fetch = beside
        tile, spec, rank = self.tile, self.spec, single.rank
        if self.view.k == 0 and spec.along[0] == 1:  # K = 0: D is zero before the epilogue
            acc.fill(0)
            others.begin()
            fetch()
            return cutlass.Boolean(False), None
        k_tiles, rows = self._k_tiles(*loads.operands), None
        load_a, load_b = loads(single.m0, single.n0)
        if isinstance(mainloop, MainloopSm90):
            mainloop.prepare(load_a, load_b, loads.tid)
        others.begin()  # first access to global memory comes after this
        if spec.skip and spec.along[0] == 0:
            exit_if(loads.operands[0].lacks_first)
        elif spec.skip:
            if spec.kept:
                rows = keep(load_a)
            k_tiles = active_k_tiles(mainloop, k_tiles, load_a, single.m0, loads.tid)
        if tile.cluster_k > 1:
            k_tiles = k_tiles.of_part(tile.cluster_k, rank)
        begin, count = 0, k_tiles.count
        if spec.split:
            share = (count + split[0] - 1) // split[0]
            begin = rank * share
            count = cutlass.max(0, cutlass.min(Int32(share), Int32(count - begin)))
        is_empty = Int32(count) == 0
        if tile.cluster_k > 1:  # one without k-tiles multiplies one; ``_run_epilogue`` discards it
            count = cutlass.max(Int32(count), Int32(1))
        mainloop(load_a, load_b, k_tiles, begin, count, loads.tid, acc, fetch)
        return is_empty, rows

    @cute.jit
    def _run_epilogue(
        self,
        mainloop: MainloopSm80 | MainloopSm90,
        acc: Any,
        d: Operand,
        single: SingleTile,
        is_empty: Any,
        epilogue: SmemStore,
        extras: EpilogueIO,
    ) -> None:
        """Run the epilogue of one output tile; if the tile allows, the producer warps compute the
        column statistics.
        """
        tile, (tid, _, _) = self.tile, cute.arch.thread_idx()
        base, mma = mainloop.s_a.base, mainloop.multiplier.mma
        if cutlass.const_expr(not tile.warp_specialized) or tid < tile.mma_threads:
            if cutlass.const_expr(tile.cluster_k > 1) and is_empty:
                acc.fill(0)
            epilogue(acc, mma, d, base, single.m0, single.n0, tid, extras)
        if cutlass.const_expr(epilogue.sums_beside):
            epilogue.sum_beside(d, base, single.n0, tid - tile.mma_threads, extras)

    def _run_persistent(
        self,
        mainloop: MainloopSm80 | MainloopSm90,
        loads: Loads,
        k_tiles: KTiles,
        acc: Any,
        d: Operand,
        epilogue_smem: Any,
        extras: EpilogueIO,
    ) -> None:
        """Run mainloop and epilogue for all output tiles of a persistent CTA."""
        assert isinstance(mainloop, MainloopSm90)  # legality: a persistent tile has producers
        tid, epilogue = loads.tid, self._make_epilogue()
        results = acc, mainloop.multiplier.mma, d
        if self.spec.stores_registers:
            epilogue.start(cute.arch.block_idx()[0], tid)
            store = partial(epilogue, *results)
        else:
            store = partial(epilogue, *results, epilogue_smem, tid=tid)
        extras = self._with_held_columns(epilogue, extras, mainloop, d, tid % self.tile.mma_threads)
        store, fetch = partial(store, extras=extras), partial(epilogue.fetch, d, extras)
        tiles = StaticPersistent(self.tile, d.row_count, self.view.n)
        tiles.run(mainloop, loads, k_tiles, tid, acc, store, fetch)
        if self.steps.statistics:
            epilogue.end(d, extras)

    # -- their parts -----------------------------------------------------------------------------

    def _make_mainloop(self, smem: Any) -> MainloopSm80 | MainloopSm90:
        if not self.tile.warp_specialized:
            return MainloopSm80(self.spec, self.data, smem)
        halo = halo_of(self.view, self.tile)
        return MainloopSm90(self.spec, self.data, smem, halo, self.kinds.tma, self.runs)

    def _operands(
        self, args: RuntimeIntegers, pointers: tuple[Any, Any], indices: tuple[Any, Any], group: Any
    ) -> tuple[Operand, Operand]:
        """Return A and B as operands; a k-contiguous operand hoists its row offsets."""
        tile, view, spec = self.tile, self.view, self.spec
        sides = (view.a, tile.m), (view.b, tile.n)
        of_a, of_b = (
            Operand(
                layout, args, pointer, index, group=group, along=along, vector=vector,
                column_tile=tile.k if along else side,
            )
            for (layout, side), pointer, index, along, vector in zip(
                sides, pointers, indices, spec.along, spec.vectors, strict=False
            )
        )  # fmt: skip
        return of_a, of_b

    def _k_tiles(self, a: Operand, b: Operand) -> KTiles:
        found = KTiles.of(a, b, self.tile.k, self.tile.halo_taps)
        return found.in_order() if self.runs else found

    def _make_epilogue(self) -> Any:
        return (RegisterStore if self.spec.stores_registers else SmemStore)(
            self.tile, self.out.element, self.data.accumulator, self.spec.vectors[2], self.steps,
            atomic=self.spec.split == "atomic", run=self.spec.run,
        )  # fmt: skip

    def _epilogue_io(self, reads: tuple[Any, Any, Any], statistics: Any, group: Any) -> EpilogueIO:
        # Empty tuples cannot cross the kernel boundary; None stands for them.
        numbers, columns, sources = (found or () for found in reads)
        return EpilogueIO(
            numbers, columns, sources, statistics,
            entries=ColumnEntries(self.view, group),
            first_column=group * self.view.n,
            all_columns=self.view.n * cute.arch.grid_dim()[2],
        )  # fmt: skip

    def _with_held_columns(
        self,
        epilogue: SmemStore,
        extras: EpilogueIO,
        mainloop: MainloopSm80 | MainloopSm90,
        d: Operand,
        tid: Any,
    ) -> EpilogueIO:
        """Return ``extras`` with registers that hold the per-column values that thread ``tid``
        reads in the epilogue.
        """
        registers = registers_given(self.ctas_per_sm, self.tile.threads)
        return replace(
            extras, held=epilogue.hold(mainloop.multiplier.mma, tid, d, extras, registers)
        )

    def _starts_early(self, ctas: Any) -> Any:
        """Return whether this kernel starts while the one before it ends (PDL).

        Early CTAs crowd onto the SMs that become free first. A small grid with several CTAs per SM
        took a third longer; TMA im2col with fewer CTAs than SMs, a sixth longer. Kernel maps never
        lost: their first accesses wait for memory anyway.
        """
        if not self.pdl:
            return False
        if self.spec.kept or self.spec.concurrent:
            return True
        if self.ctas_per_sm > 1:
            return ctas > SEVERAL_WAVES * self.ctas_per_sm
        return ctas >= ONE_WAVE if any(self.kinds.im2col) else True
