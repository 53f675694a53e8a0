"""THE template: ``D[m, n, l] = sum_k A[m, k, l] * B[n, k, l]``, three operands that are layouts.

Dense convolution and its gradients, gather/scatter, kernel maps: what differs is read off the
operands' layouts (``Operand``); there is one prologue, one main loop and one epilogue.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from layoutconv.algebra.int_tuple import map_leaves, product
from layoutconv.planning.halo_reuse import halo_of
from layoutconv.planning.kernel_key import divisors, runtime_integers
from layoutconv.planning.kernel_spec import BYTES, Spec
from layoutconv.planning.legality import check
from layoutconv.planning.schedule import WARP
from layoutconv.planning.structural_zeros import runs_of
from layoutconv.planning.tma_im2col import im2col_of_a, im2col_of_b
from layoutconv.planning.tma_tiled import memory_of_b
from layoutconv.view.gemm_view import GemmView

from ..common.arguments import Arguments
from ..common.pdl import let_dependents_start, starts_early, wait_for_others
from .active_taps import units_of_index, units_of_rows
from .cp_async import CpAsyncLoad
from .epilogue.ops import Steps
from .epilogue.register_store import RegisterEpilogue
from .epilogue.smem_store import Epilogue, Extras
from .k_tiles import KTiles
from .mainloop_sm80 import MainloopSm80
from .mainloop_sm90 import MainloopSm90
from .mma_atoms import MULTIPLY, OUTPUT
from .operand import Operand
from .scheduler import StaticPersistent
from .smem_index import SmemIndex, SmemRows
from .tma import TmaLoad, tiled_tma_atom
from .tma_im2col_copy import im2col_tma_atom

CROWD = 320  # CTAs, for each that a multiprocessor holds, which fill any GPU more than once
FEW = 132  # CTAs that fill a GPU once


class ImplicitGemm:
    """The kernel of one kind of ``GemmView``: its structure and static integers, and a ``Spec``.

    The values of the view's runtime integers (image count, spatial extents, rows) do not matter.
    """

    def __init__(self, view: GemmView, spec: Spec) -> None:
        check(view, spec)
        self.view, self.spec, self.tile = view, spec, spec.tile
        self.memory_of_b = memory_of_b(view, spec)
        self.im2col = im2col_of_a(view, spec), im2col_of_b(view, spec)
        self.maps = self.im2col[0] is not None, bool(self.memory_of_b or self.im2col[1])
        self.runs = runs_of(view, spec)
        self.data, self.out = MULTIPLY[spec.dtype], OUTPUT[spec.out_dtype]
        self.steps = Steps(spec.epilogue)
        self.resident, self.early = spec.ctas_per_sm, starts_early(spec.arch)
        self.names = list(runtime_integers(view))
        self.dividing = divisors(view)

    @cute.jit
    def __call__(
        self,
        a: Any,
        b: Any,
        d: cute.Tensor,
        index_a: Any,
        index_b: Any,
        index_d: Any,
        integers: tuple,
        numbers: Any,
        columns: Any,
        sources: Any,
        statistics: Any,
        stream: Any,
    ):
        splits, split_stride, *of_view = integers
        if cutlass.const_expr(self.tile.persistent):
            most, *of_view = of_view
        values = {name: Int64(v) for name, v in zip(self.names, of_view, strict=True)}
        fast = {
            name: cute.fast_divmod_create_divisor_v2(Int32(values[name])) for name in self.dividing
        }
        args = Arguments(values, fast)
        shapes = self.view.a.shape
        m = product(map_leaves(lambda s: args.integer(s, Int64), shapes[0]))
        groups = product(map_leaves(lambda s: args.integer(s, Int32), shapes[2:]))
        n_tiles = -(-self.view.n // self.tile.n)
        m_tiles = Int32((m + self.tile.m - 1) // self.tile.m)
        ctas = m_tiles * n_tiles
        if cutlass.const_expr(self.tile.persistent):
            ctas = cutlass.min(ctas, Int32(most))
        pointer_a, pointer_b = (_pointer(t, self.data.element) for t in (a, b))
        pixels = self._map_of_a(pointer_a, args)
        copy, boxes = self._map_of_b(pointer_b, args)
        self.kernel(
            pointer_a,
            pointer_b,
            _pointer(d.iterator, self.out.element),
            _pointer(index_a, Int32),
            _pointer(index_b, Int32),
            _pointer(index_d, Int32),
            args,
            (Int32(splits), Int64(split_stride)),
            numbers,
            columns,
            sources,
            statistics,
            pixels,
            copy,
            boxes,
        ).launch(
            grid=[ctas, Int32(splits) * self.tile.cluster_k, groups],
            block=[self.tile.threads, 1, 1],
            cluster=[1, self.tile.cluster_k, 1] if self.tile.cluster_k > 1 else None,
            min_blocks_per_mp=self.resident,
            preferred_smem_carveout=self.spec.carveout(self.resident),
            smem=self.spec.smem_bytes,
            stream=stream,
            use_pdl=self._early(m_tiles * n_tiles * Int32(splits) * groups),
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
        args: Arguments,
        split: tuple,
        numbers: Any,
        columns: Any,
        sources: Any,
        statistics: Any,
        pixels: Any,
        copy: Any,
        boxes: Any,
    ):
        tile, spec = self.tile, self.spec
        smem = cutlass.memory.SmemAllocator()
        beside = None
        if cutlass.const_expr(tile.persistent and not tile.pingpong):
            size = tile.epilogue_bytes(spec.staged_bytes)
            beside = smem.allocate_array(Int64, size // 8, byte_alignment=1024)
        mainloop = self._mainloop(smem)
        tid, _, _ = cute.arch.thread_idx()
        cta, part, group = cute.arch.block_idx()
        # CTAs that share rows of A run side by side: their gathers meet in L2.
        n_tiles = -(-self.view.n // tile.n)
        m_tile, n_tile = cta // n_tiles, cta % n_tiles
        if cutlass.const_expr(spec.skip and index_a is not None):
            # Rows with many taps come last in a kernel map: they start first, or all wait for them.
            m_tile = cute.arch.grid_dim()[0] // n_tiles - 1 - m_tile
        m0, n0 = m_tile * tile.m, n_tile * tile.n

        vector_a, vector_b, vector_d = spec.vectors
        along_a, along_b = spec.along
        operand_a = Operand(
            self.view.a, args, a, index_a, group=group, along=along_a, vector=vector_a,
            column_tile=tile.k if along_a else tile.m, hoist_rows=along_a == 1,
        )  # fmt: skip
        operand_b = Operand(
            self.view.b, args, b, index_b, group=group, along=along_b, vector=vector_b,
            column_tile=tile.k if along_b else tile.n, hoist_rows=along_b == 1,
        )  # fmt: skip
        splits, split_stride = split
        if cutlass.const_expr(spec.split == "partial"):  # a result of its own for every part
            d = d + cute.assume(Int64(part) * split_stride, divby=vector_d)
        operand_d = Operand(
            self.view.d, args, d, index_d, group=group, along=1, vector=vector_d,
            column_tile=tile.n, hoist_rows=True,
        )  # fmt: skip

        acc, nothing = mainloop.multiplier.accumulators(tile), cutlass.Boolean(False)
        kept_rows = None
        if cutlass.const_expr(self.view.k == 0 and along_a == 1):  # sums of nothing
            acc.fill(0)
            wait_for_others(self.early)
        elif cutlass.const_expr(tile.persistent):
            k_tiles = self._k_tiles(operand_a, operand_b)
            of = mainloop, operand_a, operand_b, (pixels, copy, boxes), group, tid
            wait_for_others(self.early)
            extras = self._extras(numbers, columns, sources, statistics, group)
            epilogue: Any = self._epilogue()
            results = acc, mainloop.multiplier.mma, operand_d
            if cutlass.const_expr(tile.pingpong):
                epilogue.start(cta, tid)
                store = partial(epilogue, *results, extras=extras)
            else:
                store = partial(epilogue, *results, beside, tid=tid, extras=extras, kept=None)
            tiles = StaticPersistent(tile, operand_d.row_count, self.view.n)
            tiles.run(mainloop, partial(self._loads, *of), k_tiles, tid, acc, store)
            if cutlass.const_expr(self.steps.statistics):
                epilogue.end(operand_d, extras)
        else:
            k_tiles = self._k_tiles(operand_a, operand_b)
            of = mainloop, operand_a, operand_b, (pixels, copy, boxes), group, tid
            load_a, load_b = self._loads(*of, m0, n0)
            wait_for_others(self.early)  # no memory is touched before
            if cutlass.const_expr(spec.skip):
                if cutlass.const_expr(spec.kept):
                    kept_rows = self._keep(smem, load_a, operand_d, m0, tid)
                k_tiles = self._present(mainloop, k_tiles, load_a, m0, tid)
            if cutlass.const_expr(tile.cluster_k > 1):
                k_tiles = k_tiles.of_part(tile.cluster_k, part)
            begin, count = 0, k_tiles.count
            if cutlass.const_expr(spec.split):
                share = (count + splits - 1) // splits
                begin = part * share
                count = cutlass.max(0, cutlass.min(Int32(share), Int32(count - begin)))
            nothing = Int32(count) == 0
            if cutlass.const_expr(
                tile.cluster_k > 1
            ):  # some k-tile is multiplied then, and forgotten
                count = cutlass.max(Int32(count), Int32(1))
            mainloop(load_a, load_b, k_tiles, begin, count, tid, acc)
        let_dependents_start(self.early)
        if cutlass.const_expr(not tile.persistent):
            all_columns = self.view.n * cute.arch.grid_dim()[2]
            if cutlass.const_expr(self.steps.statistics):
                statistics = statistics + Int64(m_tile) * (2 * all_columns)
            extras = self._extras(numbers, columns, sources, statistics, group)
            epilogue = self._epilogue()
            base, mma = mainloop.s_a.base, mainloop.multiplier.mma
            if cutlass.const_expr(not tile.warp_specialized) or tid < tile.mma_threads:
                if cutlass.const_expr(tile.cluster_k > 1) and nothing:
                    acc.fill(0)
                epilogue(acc, mma, operand_d, base, m0, n0, tid, extras, kept_rows)
            if cutlass.const_expr(epilogue.sums_beside):
                epilogue.sum_beside(operand_d, base, n0, tid - tile.mma_threads, extras)

    def _k_tiles(self, a: Operand, b: Operand) -> KTiles:
        found = KTiles.of(a, b, self.tile.k, self.tile.halo_taps)
        return found.in_order() if self.runs else found

    def _extras(
        self, numbers: Any, columns: Any, sources: Any, statistics: Any, group: Any
    ) -> Extras:
        return Extras(
            _tuple(numbers), _tuple(columns), _tuple(sources), statistics,
            first_column=group * self.view.n,
            all_columns=self.view.n * cute.arch.grid_dim()[2],
        )  # fmt: skip

    def _epilogue(self) -> Any:
        return (Epilogue if not self.tile.pingpong else RegisterEpilogue)(
            self.tile, self.out.element, self.data.accumulator, self.spec.vectors[2], self.steps,
            atomic=self.spec.split == "atomic",
        )  # fmt: skip

    def _early(self, ctas: Any) -> Any:
        """Whether this kernel starts while the one before it ends.

        CTAs that do so crowd on the multiprocessors that are free first: that has cost a third of
        the time where there are few of them, and room for several on each. With copies of pixels,
        it has cost a sixth where there are fewer than multiprocessors. Of kernel maps, it never
        has: all of what they look up first is memory's to wait for.
        """
        if not self.early:
            return False
        if self.spec.kept:
            return True
        if self.resident > 1:
            return ctas > CROWD * self.resident
        return ctas >= FEW if any(self.im2col) else True

    def _mainloop(self, smem: Any) -> MainloopSm80 | MainloopSm90:
        if not self.tile.warp_specialized:
            return MainloopSm80(self.spec, self.data, smem)
        window = halo_of(self.view, self.tile)
        return MainloopSm90(self.spec, self.data, smem, window, self.maps, self.runs)

    def _map_of_a(self, pointer: Any, args: Arguments) -> Any:
        """What the kernel takes of A's tensor map, if there is one."""
        found, _ = self.im2col
        return found and im2col_tma_atom(found, args, pointer, self.spec, self.data, 0)

    def _map_of_b(self, pointer: Any, args: Arguments) -> tuple[Any, Any]:
        """What the kernel takes of B's tensor map, if there is one."""
        if self.memory_of_b is not None:
            return tiled_tma_atom(self.memory_of_b, pointer, self.spec, self.data)
        _, found = self.im2col
        return found and im2col_tma_atom(found, args, pointer, self.spec, self.data, 1), None

    def _loads(
        self,
        mainloop: MainloopSm80 | MainloopSm90,
        a: Operand,
        b: Operand,
        maps: tuple[Any, Any, Any],
        group: Any,
        tid: Any,
        m0: Any,
        n0: Any,
    ) -> tuple[CpAsyncLoad | TmaLoad, CpAsyncLoad | TmaLoad]:
        """A thread's share of copying the tiles of A and of B, from a row and a column on."""
        pixels, *boxes = maps
        return (
            self._load_a(mainloop, a, pixels, m0, group, tid),
            self._load_b(mainloop, b, tuple(boxes), n0, group, tid),
        )

    def _load_a(
        self,
        mainloop: MainloopSm80 | MainloopSm90,
        operand: Operand,
        atom: Any,
        first: Any,
        group: Any,
        tid: Any,
    ) -> CpAsyncLoad | TmaLoad:
        found, _ = self.im2col
        if found is None or isinstance(mainloop, MainloopSm80):
            return mainloop.cp_async_load(operand, mainloop.s_a, first, tid)
        of = found, operand.args, mainloop.s_a
        return mainloop.tma_im2col_load(atom, *of, first, group, tid)

    def _load_b(
        self,
        mainloop: MainloopSm80 | MainloopSm90,
        operand: Operand,
        made: tuple[Any, Any],
        first: Any,
        group: Any,
        tid: Any,
    ) -> CpAsyncLoad | TmaLoad:
        boxes, (_, pixels) = self.memory_of_b, self.im2col
        if isinstance(mainloop, MainloopSm90):
            if boxes is not None:
                return mainloop.tma_tiled_load(made, boxes, first, group, tid)
            if pixels is not None:
                of = pixels, operand.args, mainloop.s_b
                return mainloop.tma_im2col_load(made[0], *of, first, group, tid)
        return mainloop.cp_async_load(operand, mainloop.s_b, first, tid)

    def _keep(self, smem: Any, producer: Any, d: Operand, first: Any, tid: Any) -> SmemRows | None:
        """Shared memory for what the tile takes of index buffers; that of D is read.

        Behind the stages, and behind what the epilogue's tile takes beyond them.
        """
        tile, rows = self.tile, None
        behind = self.spec.own_bytes - tile.mainloop_bytes(BYTES[self.spec.dtype])
        if behind:
            smem.allocate_array(Int32, behind // 4)
        if d.gather:
            rows = SmemRows(smem, tile.m)
            rows.fill(d, first, tile.threads, tid)
        entries = self.spec.kept - (tile.m if d.gather else 0)
        channels = producer.operand.vector_extent
        producer.kept = SmemIndex(smem, entries, tile.m, producer.apart, channels)
        return rows

    def _present(
        self,
        mainloop: MainloopSm80 | MainloopSm90,
        k_tiles: KTiles,
        producer: Any,
        first: Any,
        tid: Any,
    ) -> KTiles:
        """Those of the taps that some row of the CTA's tile has."""
        operand, base, tile = producer.operand, producer.shared.base, self.tile
        warps = tile.threads // WARP
        if operand.gather:
            unit = KTiles.of_units(operand, tile.k, []).unit
            kept = producer.kept
            found = units_of_index(operand, first, tile.m, unit, base, warps, tid, kept)
        elif operand.fields:
            found = units_of_rows(producer.rows, base, warps, tid)
        else:  # no tap is ever outside
            return k_tiles
        own = found.own if operand.gather and mainloop.leaves_out else []
        return KTiles.of_units(operand, tile.k, found.all, own)


def _tuple(found: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """No empty tuple crosses the boundary of a kernel: it is None there."""
    return found or ()


def _pointer(address: Any, dtype: Any) -> Any:
    """Where memory starts, read as ``dtype`` (fp32 data as tf32)."""
    return None if address is None else cute.recast_ptr(address, dtype=dtype)
