"""A race between the tiles that can run a view: compile them, time them, keep the fastest."""

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
from ..gpu.measured_choices import MeasuredChoice, remember
from ..gpu.plan import Plan, forget_plans
from ..gpu.select import ALIGNED
from ..ops import dense_calls, dense_passes, sparse_calls
from ..planning.cost_model import expected_ratio, shortlist
from ..planning.tile import TileConfig
from ..planning.view_rules import UnsupportedViewError
from ..tensors.expected_tensors import ExpectedTensor, expected
from ..tensors.tensor_checks import OUTPUTS, PAIRS, PRECISIONS
from ..view.gemm_view import GemmView
from . import precompile

Measure = Callable[[Plan], float]
MARGIN = 0.98  # of the time of the model's pick: a smaller win is noise, and the pick stays
BATCH, BATCHES = 1000.0, 5  # microseconds per batch of launches; number of batches


@dataclass(frozen=True)
class Trial:
    """A tile, its split-K slices, and its time; or why it could not run."""

    tile: TileConfig
    splits: int
    microseconds: float
    error: str = ""


@dataclass(frozen=True)
class Tuned:
    """The outcome of a race: the winning choice, and every trial, fastest first."""

    choice: MeasuredChoice
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

    The candidates are the tiles of the tile table that fit the GPU, with the numbers of split-K
    slices that the cost model finds sensible. Views of the same kernel, whose sizes round to the
    same powers of two, use the winner without a trial run: this view and dense convolutions at
    their next call, and all views in later processes. Plans kept elsewhere, such as with the kernel
    maps of a sparse tensor, stay as they are. The environment variable LAYOUTCONV_TUNE=1 does this
    for every view at its first call::

        view = lc.conv.fprop_view(lc.conv.ConvProblem((2, 32, 64, 64, 64), (64, 3, 3, 3)))
        lc.tune(view, torch.float16).choice.tile

    Args:
        view: any view that ``lc.execute`` takes; tensors are made for the race.
        dtype: of A and B, ``out_dtype`` of D.
        device: index of a GPU; if None, the current one.
        precision: of float32, "tf32" or "fp32", as for ``lc.execute``.
        structure: ``Epilogue.structure`` of the later calls' epilogue: it decides which tiles fit.
            The race itself runs without an epilogue.
        aligned: byte alignment of the starts of A, B and D.
        tiles: more candidates beside those of the tile table.
        processes: number of processes that compile; if None, one per core.
        measure: returns the microseconds of a plan; if None, CUDA events time launches.
        tick: ``tick(done, total)`` is called as kernels are compiled, and then measured; if None, a
            terminal shows a progress bar.

    Raises ``ArgumentError`` that names the argument, ``device`` without a GPU; ``DeviceError`` for
    the index of an absent GPU; ``UnsupportedViewError``, which says why, for a tile of ``tiles``
    that cannot run the view; ``RuntimeError`` if no tile runs.
    """
    precompile.check_processes(processes)
    for name, given in (("measure", measure), ("tick", tick)):
        if given is not None and not callable(given):
            raise ArgumentTypeError(name, "a function, or None", shown(given))
    race = Race(
        view, dtype, out_dtype, device=device, precision=precision, structure=structure,
        aligned=aligned, tiles=tiles,
    )  # fmt: skip

    def run(tick: Tick) -> Tuned:
        precompile.compile_kernels(race.needs, processes, tick)
        return race.run(measure, tick)

    if tick:
        return run(tick)
    with Progress().step(f"Tuning {race.words}") as step:
        return run(step.tick)


class Race:
    """The candidate tiles of a view, before they run. Arguments and errors as for :func:`tune`.

    Attributes:
        words: the problem, for messages.
        key, machine: the key under which the choice is kept.
        problem: the view as the cost model takes it.
        needs: the kernels, to compile before it runs, together with those of other races if you
            like.
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
            raise ArgumentError(
                "view", "a view of matrix products, as depthwise kernels have no tiles", view.a
            )
        self.view, self._of = view, (dtype, device, out_dtype)
        self._options: dict[str, Any] = {
            "precision": multiplied_as(dtype, precision) or "tf32",
            "structure": structure,
            "aligned": aligned,
        }
        chooser = Plan(view, *self._of, **self._options, bind=False)
        self.key, self.machine, self.problem = chooser.key, chooser.machine, chooser.problem
        self._offered = shortlist(chooser.problem, chooser.machine)
        self.words = _words(chooser)
        # Split-K slices run without an epilogue, and so does a race.
        self._options["structure"] = ""
        legal = [pair for pair in self._offered if self._is_legal(pair)]
        self._pairs = legal or [*self._offered]
        for tile in tiles if are_several(tiles) else (tiles,):
            if not isinstance(tile, TileConfig):
                raise ArgumentTypeError("tiles", "a sequence of TileConfig", repr(tile))
            self._plan((tile, 1), bind=False)  # raises, and says why, if it cannot run
            self._pairs += [(tile, 1)] * ((tile, 1) not in self._pairs)

    @property
    def needs(self) -> list[Need]:
        return [(self.view, self._plan(pair, bind=False).spec) for pair in self._pairs]

    def run(self, measure: Measure | None, tick: Tick, *, keep: bool = True) -> Tuned:
        """Measure all candidates, and remember the fastest if ``keep``."""
        dtype, device, out_dtype = self._of
        time = measure or _on_gpu(self.view, dtype, out_dtype, device)
        trials = []
        for done, pair in enumerate(self._pairs):
            tick(done, len(self._pairs))
            trials.append(_try(lambda pair: time(self._plan(pair, bind=True)), pair))
        choice = self._with_expected(_winner(trials, self.words))
        tuned = Tuned(choice, tuple(sorted(trials, key=lambda trial: trial.microseconds)))
        if not keep:
            return tuned
        try:
            remember(self.key, self.machine, choice)
        except OSError as error:
            warnings.warn(
                f"a tuned choice cannot be kept, and will be measured again: {error}; set"
                " LAYOUTCONV_CACHE_DIR to a folder with room",
                stacklevel=2,
            )
        forget_plans(self.view)  # they are bound to the old choice
        for kept in (dense_calls, dense_passes, sparse_calls, map_views):
            kept.forget()
        return tuned

    def _with_expected(self, choice: MeasuredChoice) -> MeasuredChoice:
        """Return the choice with what the model expects of it, which tells where it holds; as it
        is if the model does not know the tile.
        """
        of = choice.tile, choice.splits
        if of not in self._offered:
            return choice
        return replace(choice, expected=expected_ratio(self.problem, *of, self.machine))

    def _is_legal(self, pair: tuple[TileConfig, int]) -> bool:
        try:
            self._plan(pair, bind=False)
        except UnsupportedViewError:
            return False
        return True

    def _plan(self, pair: tuple[TileConfig, int], *, bind: bool) -> Plan:
        tile, splits = pair
        view = replace(self.view, place=None)  # no kernel before it whose wait it could share
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
    """Raise ``ArgumentError`` for invalid arguments of a race; return the alignments as a tuple."""
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
        raise ArgumentTypeError(
            "structure", "the structure of an Epilogue, a str", shown(structure)
        )
    found = tuple(aligned) if are_several(aligned) else ()
    whole = [int(each) for each in found if isinstance(each, Integral) and int(each) > 0]
    if len(found) != 3 or len(whole) != 3:
        raise ArgumentError("aligned", "3 numbers of bytes >= 1, of A, B and D", shown(aligned))
    return whole[0], whole[1], whole[2]


def tune_at_need(
    view: GemmView, dtype: torch.dtype, **options: Any
) -> tuple[TileConfig, int] | None:
    """Return the winner of a race, for a caller that did not ask for a race.

    If the race fails, for lack of memory, say, it warns and returns None.
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
    except (RuntimeError, ValueError) as error:  # from the compiler or driver
        return Trial(*pair, float("inf"), str(error).strip().partition("\n")[0] or repr(error))


def _winner(trials: list[Trial], problem: str) -> MeasuredChoice:
    """Return the fastest; but the first, the model's pick, unless it loses clearly."""
    first, best = trials[0], min(trials, key=lambda trial: trial.microseconds)
    if best.error:
        raise RuntimeError(f"no tile runs {problem}: {first.error}")
    if best.microseconds > MARGIN * first.microseconds:
        best = first
    # A pick that failed to run gets the winner's time.
    model = best.microseconds if first.error else first.microseconds
    return MeasuredChoice(best.tile, best.splits, problem, best.microseconds, model)


def _words(plan: Plan) -> str:
    problem = plan.problem
    groups = f" l={problem.groups}" if problem.groups > 1 else ""
    kind = " sparse" if problem.skips_taps else ""
    return f"m={problem.m} n={problem.n} k={problem.k}{groups} {problem.dtype}{kind}"


def _on_gpu(view: GemmView, dtype: torch.dtype, out_dtype: torch.dtype, device: int) -> Measure:
    """Return a measure: the median microseconds of a plan's launch, on tensors made here."""
    want = expected(view)
    where = torch.device("cuda", device)
    a, b = _scratch(want.a, dtype, where), _scratch(want.b, dtype, where)
    out = _scratch(want.d, out_dtype, where)

    def measure(plan: Plan) -> float:
        with torch.cuda.device(device):
            once = min(gpu_microseconds(lambda: plan(a, b, out)) for _ in range(3))
            count = max(1, min(100, int(BATCH / max(once, 1.0))))
            # Capture a graph: for a short kernel, host overhead would dominate the time.
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(count):
                    plan(a, b, out)
            graph.replay()
            return statistics.median(gpu_microseconds(graph.replay) / count for _ in range(BATCHES))

    return measure


def _scratch(stored: ExpectedTensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return an operand filled with noise: the values of tensors decide how fast a GPU runs."""
    last = sum((n - 1) * abs(d) for n, d in zip(stored.shape, stored.stride, strict=True))
    if dtype in (torch.int8, torch.int32):
        memory = torch.randint(-8, 8, (1 + last,), dtype=dtype, device=device)
    else:
        wide = dtype if dtype.itemsize > 1 else torch.float16
        memory = torch.randn(1 + last, dtype=wide, device=device).to(dtype)
    return memory.as_strided(stored.shape, stored.stride)
