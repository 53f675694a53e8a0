"""The cost model's time of layers of real networks beside a floor: ``--zoo FILE --predict``.

No GPU is needed. A layer far above its floor is a suspect: its tiles are padded, its sums are too
few for a GPU, or no TMA brings its rows. Where the model itself is wrong, only a run shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from dense_cases import DTYPES
from zoo_layers import FAMILIES, ZooJob
from zoo_report import geometric_mean

from layoutconv.gpu.packing_choice import copies_time, multiplied_on
from layoutconv.gpu.select import choose_kernel
from layoutconv.planning.cost_model import expected_time
from layoutconv.planning.machine import Machine
from layoutconv.planning.view_rules import UnsupportedViewError
from layoutconv.tuning.tuned_problems import copies_filter, pass_on, views_run

# What has been reached on an H200: flop and bytes in a microsecond, and microseconds of a launch.
REACHED = {"fp16": 700e6, "bf16": 700e6, "tf32": 370e6}
BANDWIDTH, START = 4.0e6, 3.0
COPY, COPY_OF_MILLION = 4.0, 3.4  # microseconds of a K-major copy, and of 10^6 of its elements


@dataclass(frozen=True)
class Prediction:
    """A row's expected and least microseconds, and the kernels, in words."""

    job: ZooJob
    expected: float
    floor: float
    kernels: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """The floor in what is expected: 1 is best."""
        return self.floor / self.expected

    def __str__(self) -> str:
        words = "; ".join(dict.fromkeys(self.kernels))
        return (
            f"{self.ratio:5.2f} {self.expected:8.1f} us, floor {self.floor:8.1f}  "
            f"{self.job.kind} {self.job.dtype} {self.job.layer.id} {self.job.layer}: {words}"
        )


def floor_of(job: ZooJob) -> float:
    """Microseconds that the products and the bytes of a row take at least, with a launch."""
    moved = job.elements * DTYPES[job.dtype].itemsize
    return max(job.flop / REACHED[job.dtype], moved / BANDWIDTH) + START


def predict(job: ZooJob, machine: Machine) -> Prediction | None:
    """Return what the cost model expects of a row; None for one that no tiles run.

    Such are those of depthwise layers, and of few channels that threads sum.
    """
    problem, dtype = job.layer.problem(job.N), DTYPES[job.dtype]
    kind = job.kind
    if job.layer.transposed:
        kind = {"fprop": "dgrad", "dgrad": "fprop", "wgrad": "wgrad"}[kind]
    of = multiplied_on(dtype, machine, "tf32")
    found = pass_on(problem, kind, of)
    if found.by_threads:
        return None
    packed, time, kernels = found.packed, 0.0, list[str]()
    slower = 1.0 if packed is None else packed.slower
    if packed is not None:
        time += copies_time(packed, of)
    elif copies_filter(found, of):
        time += COPY + 1e-6 * COPY_OF_MILLION * prod(problem.stored_filter)
    for view in views_run(found, of):
        if not view.k:
            continue
        try:
            choice = choose_kernel(view, dtype, machine, precision="tf32")
        except UnsupportedViewError as error:
            kernels.append(f"refused: {error}")
            continue
        tile, sizes = choice.spec.tile, choice.problem
        time += slower * expected_time(sizes, tile, choice.splits, machine)
        brought = "TMA" if sizes.tma else "no TMA" if not sizes.tma_halo else "TMA halo"
        kernels.append(
            f"m {sizes.m} n {sizes.n} k {sizes.k} {brought}, {tile}, {choice.splits} splits"
        )
    return Prediction(job, time, floor_of(job), tuple(kernels))


def print_predictions(jobs: Sequence[ZooJob], machine: Machine, worst: int = 5) -> None:
    """Print the geometric mean of each family and pass, and the rows that are farthest off."""
    found = [p for p in (predict(job, machine) for job in jobs) if p is not None and p.expected]
    for family in FAMILIES:
        for kind, dtype in dict.fromkeys((p.job.kind, p.job.dtype) for p in found):
            some = [
                p for p in found
                if (p.job.layer.family, p.job.kind, p.job.dtype) == (family, kind, dtype)
            ]  # fmt: skip
            if not some:
                continue
            mean = geometric_mean(p.ratio for p in some)
            print(f"{family}, {kind} {dtype}: {len(some)} rows, floor / expected {mean:.2f}")
            for prediction in sorted(some, key=lambda p: p.ratio)[:worst]:
                print(f"  {prediction}")
