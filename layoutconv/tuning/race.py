"""A race between the tiles that may run a view: compile them, run them, remember the fastest."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from ..base.devices import why_no_gpu
from ..base.gpu_clock import gpu_microseconds
from ..base.processes import Tick
from ..base.progress import Progress
from ..errors import ArgumentError, ArgumentTypeError, are_several, shown
from ..gpu import map_views
from ..gpu.dry_run import Need
from ..gpu.fp32_precision import multiplied_as
from ..gpu.measured_choices import Choice, remember
from ..gpu.plan import Plan, forget_plans
from ..gpu.select import ALIGNED
from ..ops import dense_calls, dense_passes, sparse_calls
from ..planning.cost_model import shortlist
from ..planning.tile import TileConfig
from ..planning.view_rules import UnsupportedViewError
from ..tensors.tensor_checks import OUTPUTS, PAIRS, PRECISIONS, Stored, expected
from ..view.gemm_view import GemmView
from .precompile import check_processes, compile_kernels

Measure = Callable[[Plan], float]
MARGIN = 0.98  # of the model's time: what wins by less is noise, and the model's pick stays
BATCH, BATCHES = 1000.0, 5  # microseconds of a batch of launches, and how many are measured


@dataclass(frozen=True)
class Trial:
    """A tile, a number of parts, and its time; or why it could not run."""

    tile: TileConfig
    splits: int
    microseconds: float
    error: str = ""


@dataclass(frozen=True)
class Tuned:
    """The outcome of a race: the choice that is remembered now, and every trial, fastest first."""

    choice: Choice
    trials: tuple[Trial, ...]


def tune(
    view: GemmView,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None = None,
    *,
    device: int | None = None,
    precision: str | None = None,
    structure: str = "",
    aligned: tuple[int, int, int] = ALIGNED,
    tiles: Sequence[TileConfig] = (),
    processes: int | None = None,
    measure: Measure | None = None,
    tick: Tick | None = None,
) -> Tuned:
    """Time the legal tiles of a view on this GPU, and keep the fastest for similar views.

    The tiles are those of the family that fit the GPU, with the numbers of parts of a sum that the
    cost model finds sensible. Views of the same kernel, of sizes that round to the same powers of
    two, take the winner with no trial run: this one at its next call, dense convolutions too, and
    all in processes to come. What has run before and is kept elsewhere, as with the kernel maps of
    a sparse tensor, stays as it is. The environment variable LAYOUTCONV_TUNE=1 does this for every
    view at its first call::

        view = lc.conv.fprop_view(lc.conv.ConvProblem((2, 32, 64, 64, 64), (64, 3, 3, 3)))
        lc.tune(view, torch.float16).choice.tile

    Args:
        view: any view that ``lc.execute`` takes; tensors are made for the race.
        dtype: of A and B, ``out_dtype`` of D.
        device: number of a GPU, the current one if None.
        precision: of float32, "tf32" or "fp32", as of ``lc.execute``.
        structure: of the epilogue that is to come, ``Epilogue.structure``: it decides which tiles
            fit. The race runs without one.
        aligned: bytes that the starts of A, B and D are multiples of.
        tiles: of your own, which race beside those of the family.
        processes: that compile kernels, as many as there are cores if None.
        measure: microseconds of a plan; launches between events, if None.
        tick: ``tick(done, total)`` is called as kernels are compiled, and then measured; if None,
            a terminal shows it.

    Raises ``ArgumentError`` that names the argument, ``device`` without a GPU, ``DeviceError`` for
    the number of a GPU that is not here, ``UnsupportedViewError`` for a tile of ``tiles`` that
    cannot run the view, which says why, ``RuntimeError`` where no tile runs.
    """
    check_processes(processes)
    for name, given in (("measure", measure), ("tick", tick)):
        if given is not None and not callable(given):
            raise ArgumentTypeError(name, "a function, or None", shown(given))
    race = Race(
        view, dtype, out_dtype, device=device, precision=precision, structure=structure,
        aligned=aligned, tiles=tiles,
    )  # fmt: skip

    def run(tick: Tick) -> Tuned:
        compile_kernels(race.needs, processes, tick)
        return race.run(measure, tick)

    if tick:
        return run(tick)
    with Progress().step(f"Tuning {race.words}") as step:
        return run(step.tick)


class Race:
    """The tiles that may run a view, before they have run. Arguments and errors as of :func:`tune`.

    Attributes:
        words: the problem.
        key, machine: what a choice is remembered by.
        problem: what the cost model is asked about the view.
        needs: the kernels, to be compiled before it is run; many races' at once, if need be.
    """

    def __init__(
        self,
        view: GemmView,
        dtype: torch.dtype,
        out_dtype: torch.dtype | None = None,
        *,
        device: int | None = None,
        precision: str | None = None,
        structure: str = "",
        aligned: tuple[int, int, int] = ALIGNED,
        tiles: Sequence[TileConfig] = (),
    ) -> None:
        aligned = _checked(view, dtype, out_dtype, device, precision, structure, aligned)
        if device is None:
            if not torch.cuda.is_available():
                raise ArgumentError(
                    "device", "a GPU to measure on", f"none: torch sees no GPU, {why_no_gpu()}"
                )
            device = torch.cuda.current_device()
        out_dtype = out_dtype or OUTPUTS.get(dtype)
        if out_dtype is None or (dtype, out_dtype) not in PAIRS:
            raise ArgumentTypeError("dtype", "types that `execute` takes", f"{dtype}, {out_dtype}")
        if view.m == view.n == 1 and len(view.a.shape) == 3:
            raise ArgumentError("view", "matrix products: depthwise kernels have no tiles", view.a)
        self.view, self._of = view, (dtype, device, out_dtype)
        self._options: dict[str, Any] = {
            "precision": multiplied_as(dtype, precision) or "tf32",
            "structure": structure,
            "aligned": aligned,
        }
        chooser = Plan(view, *self._of, **self._options, bind=False)
        self.key, self.machine, self.problem = chooser.key, chooser.machine, chooser.problem
        offered, self.words = shortlist(chooser.problem, chooser.machine), _words(chooser)
        # Parts of a sum have no epilogue, and a race has none: the kernels of both are without.
        self._options["structure"] = ""
        self._pairs = [pair for pair in offered if self._is_legal(pair)] or offered
        for tile in tiles if are_several(tiles) else (tiles,):
            if not isinstance(tile, TileConfig):
                raise ArgumentTypeError("tiles", "a sequence of TileConfig", repr(tile))
            self._plan((tile, 1), bind=False)  # which says why, if it cannot run
            self._pairs += [(tile, 1)] * ((tile, 1) not in self._pairs)

    @property
    def needs(self) -> list[Need]:
        return [(self.view, self._plan(pair, bind=False).spec) for pair in self._pairs]

    def run(self, measure: Measure | None, tick: Tick, *, keep: bool = True) -> Tuned:
        """Measure all of them, and remember the fastest, if it is to ``keep``."""
        dtype, device, out_dtype = self._of
        time = measure or _on_gpu(self.view, dtype, out_dtype, device)
        trials = []
        for done, pair in enumerate(self._pairs):
            tick(done, len(self._pairs))
            trials.append(_try(lambda pair: time(self._plan(pair, bind=True)), pair))
        choice = _winner(trials, self.words)
        tuned = Tuned(choice, tuple(sorted(trials, key=lambda trial: trial.microseconds)))
        if not keep:
            return tuned
        try:
            remember(self.key, self.machine, choice)
        except OSError as error:
            warnings.warn(
                f"a tuned choice cannot be kept: {error}; it is measured again, unless"
                " LAYOUTCONV_CACHE_DIR names a folder with room",
                stacklevel=2,
            )
        forget_plans(self.view)  # bound to what was chosen before
        for kept in (dense_calls, dense_passes, sparse_calls, map_views):
            kept.forget()
        return tuned

    def _is_legal(self, pair: tuple[TileConfig, int]) -> bool:
        try:
            self._plan(pair, bind=False)
        except UnsupportedViewError:
            return False
        return True

    def _plan(self, pair: tuple[TileConfig, int], *, bind: bool) -> Plan:
        tile, splits = pair
        view = replace(self.view)
        return Plan(view, *self._of, **self._options, tile=tile, splits=splits, bind=bind)


def _checked(
    view: Any,
    dtype: Any,
    out_dtype: Any,
    device: Any,
    precision: Any,
    structure: Any,
    aligned: Any,
) -> tuple[int, int, int]:
    """Raise ``ArgumentError`` for arguments of a race that are of no kind that it takes; the
    alignments, as a tuple."""
    if not isinstance(view, GemmView):
        raise ArgumentTypeError("view", "a GemmView", type(view).__name__)
    for name, given in (("dtype", dtype), ("out_dtype", out_dtype)):
        if not isinstance(given, torch.dtype) and (given is not None or name == "dtype"):
            raise ArgumentTypeError(name, "a torch.dtype", shown(given))
    if device is not None and (isinstance(device, bool) or not isinstance(device, Integral)):
        raise ArgumentTypeError("device", "the number of a GPU, or None", shown(device))
    if not (isinstance(precision, str | None) and precision in (*PRECISIONS, "int4")):
        raise ArgumentError("precision", "None, 'tf32' or 'fp32'", shown(precision))
    if not isinstance(structure, str):
        raise ArgumentTypeError("structure", "that of an Epilogue, a str", shown(structure))
    found = tuple(aligned) if are_several(aligned) else ()
    whole = [int(each) for each in found if isinstance(each, Integral) and int(each) > 0]
    if len(found) != 3 or len(whole) != 3:
        raise ArgumentError("aligned", "3 numbers of bytes >= 1, of A, B and D", shown(aligned))
    return whole[0], whole[1], whole[2]


def tune_at_need(
    view: GemmView, dtype: torch.dtype, **options: Any
) -> tuple[TileConfig, int] | None:
    """The winner of a race, for a program that asked for something else than a race.

    Where it cannot be held, for want of memory, say, that is a warning, and None.
    """
    try:
        choice = tune(view, dtype, **options).choice
    except RuntimeError as error:
        warnings.warn(f"not tuned: {error}", stacklevel=2)
        return None
    return choice.tile, choice.splits


def _try(time: Callable[[tuple[TileConfig, int]], float], pair: tuple[TileConfig, int]) -> Trial:
    try:
        return Trial(*pair, time(pair))
    except (RuntimeError, ValueError) as error:  # of the compiler, of the driver: the others run
        return Trial(*pair, float("inf"), str(error).strip().partition("\n")[0] or repr(error))


def _winner(trials: list[Trial], problem: str) -> Choice:
    """The fastest; the first, which the model expected to win, unless it loses clearly."""
    first, best = trials[0], min(trials, key=lambda trial: trial.microseconds)
    if best.error:
        raise RuntimeError(f"no tile runs {problem}: {first.error}")
    if best.microseconds > MARGIN * first.microseconds:
        best = first
    # A pick that did not run was no faster than what won.
    model = best.microseconds if first.error else first.microseconds
    return Choice(best.tile, best.splits, problem, best.microseconds, model)


def _words(plan: Plan) -> str:
    problem = plan.problem
    groups = f" l={problem.groups}" if problem.groups > 1 else ""
    kind = " sparse" if problem.skips_taps else ""
    return f"m={problem.m} n={problem.n} k={problem.k}{groups} {problem.dtype}{kind}"


def _on_gpu(view: GemmView, dtype: torch.dtype, out_dtype: torch.dtype, device: int) -> Measure:
    """Median microseconds of a launch of a plan, over tensors that are made here."""
    want = expected(view)
    where = torch.device("cuda", device)
    a, b = _scratch(want.a, dtype, where), _scratch(want.b, dtype, where)
    out = _scratch(want.d, out_dtype, where)

    def measure(plan: Plan) -> float:
        with torch.cuda.device(device):
            once = min(gpu_microseconds(lambda: plan(a, b, out)) for _ in range(3))
            count = max(1, min(100, int(BATCH / max(once, 1.0))))
            # A graph: of a short kernel, launches would take as long as the host is busy.
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(count):
                    plan(a, b, out)
            graph.replay()
            return statistics.median(gpu_microseconds(graph.replay) / count for _ in range(BATCHES))

    return measure


def _scratch(stored: Stored, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Noise in the memory that an operand takes: what tensors hold decides how fast a GPU runs."""
    last = sum((n - 1) * abs(d) for n, d in zip(stored.shape, stored.stride, strict=True))
    if dtype in (torch.int8, torch.int32):
        memory = torch.randint(-8, 8, (1 + last,), dtype=dtype, device=device)
    else:
        wide = dtype if dtype.itemsize > 1 else torch.float16
        memory = torch.randn(1 + last, dtype=wide, device=device).to(dtype)
    return memory.as_strided(stored.shape, stored.stride)
