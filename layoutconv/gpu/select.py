"""Select the kernel of a GEMM view: its problem, its tile, and its ``KernelSpec``.

This module neither loads nor launches kernels, unless the user wants tiles to be measured;
``gpu.Plan`` calls it first.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from math import inf, prod
from typing import Any, NamedTuple, TypedDict

import torch

from ..algebra.int_tuple import flatten
from ..errors import ArgumentTypeError
from ..planning import legality
from ..planning.channel_padding import padded_channels, padded_lines
from ..planning.cost_model import Problem, choose, expected_time, ranked
from ..planning.group_model import GroupProblem
from ..planning.group_sums import GroupSumTile, GroupSumView, sum_vectors
from ..planning.group_tile import GroupTile, group_vectors
from ..planning.group_view import GroupView
from ..planning.halo_reuse import widened
from ..planning.kernel_key import index_buffer
from ..planning.kernel_spec import (
    ARCHES,
    BYTES,
    VECTOR_BYTES,
    KernelSpec,
    can_skip,
    kept_entries,
    run_of,
    skips_sums,
    staged_bytes,
    stores_whole_rows,
    suits_warpgroups,
    vectors_of,
)
from ..planning.machine import Machine
from ..planning.structural_zeros import KTileRun, k_tile_runs, leaves_bounds
from ..planning.tile import LINE_BYTES, TileConfig, specialized
from ..planning.tile_table import WARPGROUP_TYPES
from ..planning.tma_im2col import is_mapped
from ..planning.view_rules import UnsupportedViewError, check_bounds
from ..tensors.expected_tensors import ExpectedTensor, expected
from ..tensors.packed_int4 import INT4
from ..view.epilogue import counts_rows, is_by_row
from ..view.gemm_view import GemmView, locate, stages, through_coordinates
from . import machines, tuning_hook
from .folding_choice import unfolded
from .measured_choices import find, key_of, wanted

_WHOLE = ("int8", INT4)  # data with integer sums
_ANY_TILE = TileConfig((64, 64, 16))
_ALL_COLUMNS = TileConfig((128, 256, 16), (2, 4))  # to ask whether rows adjoin
MOST_ROWS = 2**31
GAIN_OF_LINES = 0.9  # expected time of padded lines over that without: no GPU has timed them yet
ALIGNED = (16, 16, 16)  # byte alignment of the starts of A, B and D


class KernelOptions(TypedDict, total=False):
    """Options of a kernel beside its view and types, as for :func:`choose_kernel`."""

    precision: str
    atomic: bool
    structure: str
    aligned: tuple[int, int, int]
    tile: TileConfig | None
    splits: int | None
    sizes: tuple[int, int] | None


class KernelChoice(NamedTuple):
    """The kernel that runs a view.

    Args:
        view: the view that the kernel runs; with halo reuse, the widened one.
        spec: of the kernel, with the tile.
        splits: number of split-K slices of a sum.
        sums: the dtype of these slices.
        machine, problem: the kernel was chosen for these.
        key: of a measured choice (``layoutconv.tuning``).
    """

    view: GemmView
    spec: KernelSpec
    splits: int
    sums: torch.dtype
    machine: Machine
    problem: Problem
    key: str


def choose_kernel(
    view: GemmView,
    dtype: torch.dtype,
    device: int | Machine,
    out_dtype: torch.dtype | None = None,
    *,
    precision: str = "tf32",
    atomic: bool = False,
    structure: str = "",
    aligned: tuple[int, int, int] = ALIGNED,
    tile: TileConfig | None = None,
    splits: int | None = None,
    sizes: tuple[int, int] | None = None,
    measures: bool = True,
) -> KernelChoice:
    """Return the measured choice (``layoutconv.tuning``), or else the cost model's.

    The arguments and errors are those of ``gpu.Plan``; ``device`` may be a ``Machine`` that is
    absent. ``measures``: without a measured choice, measure now if the user wants that.
    """
    view = through_coordinates(view)
    machine = device if isinstance(device, Machine) else machines.machine_of(device)
    kind, out_kind = kernel_type(dtype, precision), _name(out_dtype or dtype)
    _check_machine(kind, machine)
    vectors, along = vectors_of(view, kind, out_kind, aligned)
    if not view.k:  # empty sums: no operand is read
        vectors, along = (1, 1, vectors[2]), (1, 1)
    check_bounds(view, along)
    of_any_tile = KernelSpec(
        kind, out_kind, _ANY_TILE, machine.arch, vectors, along, epilogue=structure
    )
    problem = _problem_of(view, of_any_tile, atomic=atomic, aligned=aligned[2])
    plain = None if tile or problem.zero_tiles or problem.zero_tiles_halo else unfolded(view)
    if plain is not None:  # no tile would skip structural zeros
        return choose_kernel(
            plain, dtype, device, out_dtype, precision=precision, atomic=atomic,
            structure=structure, aligned=aligned, splits=splits, sizes=sizes, measures=measures,
        )  # fmt: skip
    if tile is None or tile.warp_specialized:
        view, problem = _of_whole_taps(view, problem, of_any_tile, machine, aligned[2])
    key = key_of(view, problem, out_kind, vectors, along)
    plan = machines.planned()
    measured = plan.choices.get(key) if plan else find(key, problem, machine)
    chooses = tile is None and splits is None and not isinstance(device, Machine)
    if measured is None and measures and chooses and _tunes():
        measured = tuning_hook.tune_at_need(
            view, dtype, out_dtype=out_dtype, device=device, precision=precision,
            structure=structure, aligned=aligned,
        )  # fmt: skip
    if measured is None and sizes is not None:
        problem = replace(problem, m=sizes[0], groups=sizes[1])
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    pairs = chain([measured] if measured else [], ranked(problem, machine))
    for chosen, parts in pairs:  # the first one that a kernel runs
        parts = splits if splits and problem.splittable else parts
        kernel = _kernel_of(
            view, _for_tile(view, of_any_tile, tile or chosen, aligned), parts, _name(sums),
            atomic=atomic, aligned=aligned[2],
        )  # fmt: skip
        if tile is not None:
            legality.check(*kernel[:2], machine.smem_per_cta)
        if tile is not None or not legality.reasons(*kernel[:2], machine.smem_per_cta):
            break
    return KernelChoice(*kernel, sums, machine, problem, key)


def _access_bytes(spec: KernelSpec) -> tuple[int, int, int]:
    sizes = BYTES[spec.dtype], BYTES[spec.dtype], BYTES[spec.out_dtype]
    a, b, d = (vector * size for vector, size in zip(spec.vectors, sizes, strict=True))
    return a, b, d


def _of_whole_taps(
    view: GemmView, problem: Problem, spec: KernelSpec, machine: Machine, aligned: int
) -> tuple[GemmView, Problem]:
    """Return the view with padded channels and its problem, if TMA can then load what threads would
    have to copy, and this is expected to be faster; else return both unchanged.
    """
    size = BYTES[problem.dtype]
    hopper = machine.arch == "sm_90a" and problem.dtype in WARPGROUP_TYPES and size > 1
    plain = problem.zero_tiles or problem.zero_tiles_halo or problem.gathered or not problem.wgmma
    if not hopper or plain:
        return view, problem
    along_k = spec.along != (0, 0)
    if along_k:
        padded = padded_channels(view, 64 // size)
    elif problem.tma or size != 2 or spec.epilogue:
        padded = None
    else:
        padded = padded_lines(view, LINE_BYTES // size)
    if padded is None:
        return view, problem
    # Products beyond the channels are zero times zero: any tile may compute them. Slices of sums
    # have D's memory, all of which is written.
    other = replace(
        _problem_of(padded, spec, atomic=False, aligned=aligned),
        zero_tiles=False,
        zero_tiles_halo=False,
        stored_channels=problem.channels,
        line_channels=0 if along_k else int(flatten(view.b.shape[0])[0]),
        splittable=problem.splittable,
        clusters=problem.clusters,
        persistent=problem.persistent,
    )
    times = [expected_time(p, *choose(p, machine), machine) for p in (problem, other)]
    most = times[0] * (1.0 if along_k else GAIN_OF_LINES)
    faster = (other.tma or other.tma_halo) and times[1] < most
    return (padded, other) if faster else (view, problem)


def _problem_of(view: GemmView, spec: KernelSpec, *, atomic: bool, aligned: int) -> Problem:
    """Return the cost model's problem of a view; ``spec`` may have any tile."""
    kind, out_kind, vectors, along = spec.dtype, spec.out_dtype, spec.vectors, spec.along
    whole = expected(view).writes_all and _is_dense(view.d)
    counts = "statistics" in spec.epilogue.split()
    gathered, skips = index_buffer(view.a) is not None, can_skip(view, along, _ANY_TILE)
    return Problem(
        view.m, view.n, _summed(view, along),
        channels=_channels(view, along),
        dtype=kind,
        staged_bytes=staged_bytes(kind, out_kind, spec.epilogue),
        groups=view.l,
        skips_taps=gathered and skips,
        gathered=gathered,
        # Slices are reduced in floating point, and stored without saturation.
        splittable=whole and not spec.epilogue and kind not in _WHOLE and BYTES[out_kind] > 1,
        moved=_moved(view, kind, out_kind),
        clusters=not (counts or atomic),
        # Gathered operands that are both transposed were not raced.
        wgmma=suits_warpgroups(kind, vectors)
        and not (gathered and kind == "tfloat32" and along == (0, 0)),
        tma=_has_tma(view, spec),
        zero_tiles=bool(_runs(view, spec)),
        persistent=not atomic and len(view.a.shape) == 2 and not skips,
        register_store=(
            BYTES[out_kind] in legality.REGISTER_STORE_BYTES
            and vectors[2] * BYTES[out_kind] == VECTOR_BYTES and not is_by_row(spec.epilogue)
            and (not counts or stores_whole_rows(view))
        ),
        statistics=counts,
        access_bytes=_access_bytes(spec),
        stored_bytes=BYTES[out_kind],
        b_along_k=along[1] == 1,
        pointwise=_is_pointwise(view, spec),
        rows_adjoin=run_of(view, replace(spec, tile=_ALL_COLUMNS), aligned) > 0,
        **_shared_rows(view, spec),
        **_group_of(view, spec, atomic=atomic),
    )  # fmt: skip


def _for_tile(
    view: GemmView, spec: KernelSpec, tile: TileConfig, aligned: tuple[int, int, int]
) -> KernelSpec:
    """Return the spec with a tile; for a tile of several groups, with vectors of their channels."""
    kinds = spec.dtype, spec.out_dtype, aligned
    if isinstance(tile, GroupSumTile):
        sums = GroupSumView.of(view)
        return replace(spec, tile=tile, vectors=sum_vectors(sums, *kinds)) if sums else spec
    group = GroupView.of(view) if isinstance(tile, GroupTile) else None
    if group is not None:
        vectors, along = group_vectors(group, *kinds)
        spec = replace(spec, vectors=vectors, along=along)
    return replace(spec, tile=tile)


def _group_of(view: GemmView, spec: KernelSpec, *, atomic: bool) -> dict[str, Any]:
    """Return the groups of a problem, as arguments, if a tile may hold several of them."""
    group: GroupView | None = None
    if spec.along == (0, 0):
        group = None if atomic or spec.epilogue else GroupSumView.of(view)
    elif spec.along[0] == 1 and not atomic:
        words = "statistics" in spec.epilogue.split() or counts_rows(spec.epilogue)
        group = None if words else GroupView.of(view)
    if group is None:
        return {}
    staged = staged_bytes(spec.dtype, spec.out_dtype, spec.epilogue)
    return {"group": GroupProblem(group, spec.dtype, spec.along[1], staged)}


def _kernel_of(
    view: GemmView, spec: KernelSpec, parts: int, sums: str, *, atomic: bool, aligned: int
) -> tuple[GemmView, KernelSpec, int]:
    """Return view and spec for the spec's tile, and the number of split-K slices, none empty."""
    tile = spec.tile
    if tile.halo_taps > 1:
        view = _widened(view, tile)
    if isinstance(tile, GroupTile):
        parts = _parts_of_boxes(view, tile, parts)
    else:
        parts = _without_empty_parts(view.k // tile.halo_taps, tile, parts)
    split = "" if parts == 1 else "atomic" if atomic else "partial"
    if split:
        vectors = (*spec.vectors[:2], min(spec.vectors[2], 16 // BYTES[sums]))
        spec = replace(spec, out_dtype=sums, vectors=vectors)
    skip = can_skip(view, spec.along, tile) or skips_sums(view, spec.along)
    skip = skip and not split and tile.halo_taps == 1
    skip = skip and not isinstance(tile, GroupTile)
    spec = replace(spec, split=split, skip=skip)
    kept, run = kept_entries(view, spec), run_of(view, spec, aligned)
    return view, replace(spec, kept=kept, run=run), parts


def _tunes() -> bool:
    """Return whether to measure now: not while a graph is captured, as a race launches kernels, and
    not in a call of a pack, which has its own choices.
    """
    return machines.planned() is None and wanted() and not torch.cuda.is_current_stream_capturing()


def kernel_type(dtype: torch.dtype, precision: str) -> str:
    """Return the kernel's name of a dtype; fp32 is one tf32 product, or three of them."""
    kinds = {(torch.float32, "tf32"): "tfloat32", (torch.int8, INT4): INT4}
    return kinds.get((dtype, precision), _name(dtype))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shared_rows(view: GemmView, spec: KernelSpec) -> dict[str, Any]:
    """Return halo reuse, as arguments of a problem: the taps that share the rows of a tile, the
    growth of rows, and whether TMA loads these tiles.

    It is empty if the view would have more rows than a kernel counts; on lines of one cell, rows
    grow threefold.
    """
    wide = widened(view) if spec.along[0] == 1 else None
    if wide is None or not 0 < wide.m < MOST_ROWS:
        return {}
    taps = int(flatten(wide.a.shape[1])[-1])
    runs = _runs(wide, spec, taps)
    half_lines = -(-wide.k // taps // (64 // BYTES[spec.dtype]))
    return {
        "halo_taps": taps,
        "halo_growth": wide.m / view.m,
        "tma_halo": _has_tma(wide, spec, taps),
        "zero_tiles_halo": bool(runs),
        "k_tiles": sum(run.k_tiles for run in runs) or half_lines,
    }


def _widened(view: GemmView, tile: TileConfig) -> GemmView:
    """Return the view whose rows serve the taps of a tile."""
    wide = widened(view)
    if wide is None or flatten(wide.a.shape[1])[-1] != tile.halo_taps:
        raise UnsupportedViewError(f"{tile}: expected a view with {tile.halo_taps} halo taps")
    return wide


def _without_empty_parts(k: int, tile: TileConfig, splits: int) -> int:
    """Return the number of nonempty slices if all but the last have equally many k-tiles."""
    k_tiles = max(1, -(-k // tile.k))
    return -(-k_tiles // -(-k_tiles // splits))


def _parts_of_boxes(view: GemmView, tile: GroupTile, splits: int) -> int:
    """Return the same for sums over boxes of voxels; other group tiles have one slice."""
    sums = GroupSumView.of(view) if isinstance(tile, GroupSumTile) else None
    if sums is None:
        return 1
    boxes = prod(-(-int(r.extent) // b) for r, b in zip(sums.rows, tile.box, strict=True))
    return -(-boxes // -(-boxes // splits))


def _check_machine(kind: str, machine: Machine) -> None:
    least, most = ARCHES.get(kind, (80, inf))
    number = int(machine.arch.removeprefix("sm_").rstrip("a"))
    if not least <= number <= most:
        range_of = f"{least / 10} or more" if most == inf else f"{least / 10} to {most / 10}"
        instead = "; unpack_int4 makes int8 of it" if kind == INT4 else ""
        expected_capability = f"a GPU of compute capability {range_of} for {kind}{instead}"
        raise ArgumentTypeError("a", expected_capability, f"one of {number / 10}")


def _summed(view: GemmView, along: tuple[int, int]) -> int:
    """Return the length of the sums without the taps that tiles skip; for a kernel map with all
    taps, since the times of its tiles count the active share.
    """
    if index_buffer(view.a) is not None or not can_skip(view, along, _ANY_TILE):
        return view.k
    channels, *_ = flatten(stages(view.a)[0].layout.shape[1])
    rows = torch.arange(0, view.m, max(1, view.m // 4096))
    a = view.at(0).a if len(view.a.shape) > 2 else view.a  # groups have the same taps
    _, there = locate(a, rows[:, None], torch.arange(0, view.k, int(channels))[None])
    return max(1, int(view.k * float(torch.as_tensor(there).double().mean())))


def _moved(view: GemmView, kind: str, out_kind: str) -> int:
    """Return the bytes that a view reads and writes, each once; 0 for a gathered view."""
    if index_buffer(view.a) is not None:
        return 0
    want, groups = expected(view), view.l
    a = min(_elements(want.a), view.m * view.k * groups)
    b = min(_elements(want.b), view.n * view.k * groups)
    return (a + b) * BYTES[kind] + view.m * view.n * groups * BYTES[out_kind]


def _elements(stored: ExpectedTensor) -> int:
    """Return the number of elements of a tensor, whose modes may overlap."""
    spans = zip(stored.shape, stored.stride, strict=True)
    return min(prod(stored.shape), 1 + sum((extent - 1) * step for extent, step in spans))


def _is_pointwise(view: GemmView, spec: KernelSpec) -> bool:
    """Return whether A is a matrix, of whole vectors, on Hopper: a pointwise layer.

    Its data are 16-bit, or tf32 contiguous along k, as ``wgmma`` reads them. Other layers of one
    tap, strided ones and stride phases, were not raced.
    """
    raced = BYTES[spec.dtype] == 2 or (spec.dtype == "tfloat32" and spec.along == (1, 1))
    whole = raced and set(_access_bytes(spec)) == {VECTOR_BYTES}
    matrix = len(stages(view.a)[-1].layout.shape) == 2 and index_buffer(view.a) is None
    return whole and matrix and view.l == 1 and spec.arch == "sm_90a"


def _channels(view: GemmView, along: tuple[int, int]) -> int:
    """Return the length of the contiguous mode of k, 0 if k is contiguous in neither operand."""
    for layout, mode in zip((view.a, view.b), along, strict=True):
        if mode == 1:
            return int(flatten(stages(layout)[0].layout.shape[1])[0])
    return 0


def _has_tma(view: GemmView, spec: KernelSpec, taps: int = 1) -> bool:
    """Return whether TMA can load both operands of a tile.

    If several ``taps`` share the rows of the tile, its k-tiles are of half a line.
    """
    return spec.arch == "sm_90a" and is_mapped(view, _with_tile(view, spec, taps))


def _runs(view: GemmView, spec: KernelSpec, taps: int = 1) -> tuple[KTileRun, ...]:
    """Return the runs of k-tiles that skip zeros of B, for such a tile with all columns."""
    columns = next((n for n in (32, 64, 128, 256) if view.n <= n), 0)
    if spec.arch != "sm_90a" or not columns or not leaves_bounds(view):
        return ()
    return k_tile_runs(view, _with_tile(view, spec, taps, columns))


def _with_tile(view: GemmView, spec: KernelSpec, taps: int, columns: int = 128) -> KernelSpec:
    line = 128 // BYTES[spec.dtype]
    k = line if taps == 1 and _channels(view, spec.along) % line == 0 else line // 2
    return replace(spec, tile=specialized((128, columns, k), (8, 1), 4, halo_taps=taps))


def _is_dense(layout: Any) -> bool:
    """Return whether memory has no gaps, so that split-K slices have the result's layout."""
    memory = stages(layout)[-1].layout
    pairs = sorted(zip(flatten(memory.stride), flatten(memory.shape), strict=True))
    reach = 1
    for stride, extent in pairs:
        if extent > 1 and stride != reach:
            return False
        reach *= int(extent)
    return list(flatten(memory.stride)) == sorted(flatten(memory.stride), reverse=True)
