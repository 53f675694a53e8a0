"""A row of ``bench_dense.py`` as calls: ours, the peer's, and how far each is from float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import Any

import torch
from dense_workloads import Job, Workload
from timing import relative_error
from torch import Tensor

import layoutconv as lc
from layoutconv import pointwise as pw
from layoutconv.ops import dense_passes
from layoutconv.ops.dense_passes import PassViews, pass_maker
from layoutconv.ops.epilogue_args import EpilogueArgs

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "fp32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "int8": torch.int8,
}
OUTPUTS = {torch.float8_e4m3fn: torch.float16, torch.float8_e5m2: torch.float16}
OUTPUTS |= {torch.int8: torch.int32}
CHANNELS = 8  # of a mode that are compared, about
BARE = EpilogueArgs()


@dataclass(frozen=True)
class Case:
    """One timed call, and the run that is compared with float64 before."""

    ours: Callable[[], Any]
    error: Callable[[], float] | None
    peer: str = ""
    theirs: Callable[[], Any] | None = None
    peer_error: Callable[[], float] | None = None


def case_of(job: Job, device: str = "cuda") -> Case:
    """The calls of a row, over data that is made for it; sets cuDNN's switches for its type."""
    torch.backends.cudnn.allow_tf32 = job.dtype == "tf32"
    torch.backends.cudnn.benchmark = True
    conv = Convolution(job, device)
    own: dict[str, Any] = {"peer": "ours, bare", "theirs": conv.ours, "peer_error": conv.error}
    if job.kind == "bias+relu":
        return Case(*_with_bias(conv), **own)
    if job.kind == "statistics":
        return Case(*_with_statistics(conv), **own)
    if job.kind == "clamp":
        bare, x, w = _public(conv), conv.x.movedim(-1, 1), conv.w.movedim(-1, 1)
        own["theirs"] = lambda: bare(x, w)
        return Case(*_with_clamp(conv), **own)
    if job.kind == "no loads":
        from upper_bound import without_loads

        [view] = conv.run.views
        a, b = conv.operands
        options: dict[str, Any] = {"precision": job.dtype} if conv.dtype == torch.float32 else {}
        bound = without_loads(view, a, b, conv.out, **options)
        own["peer"] = "ours, with loads"
        return Case(lambda: lc.execute(bound, a, b, conv.out, **options), None, **own)
    if conv.dtype in OUTPUTS:  # torch has no such convolution
        return Case(conv.ours, conv.error)
    return Case(conv.ours, conv.error, "cuDNN", conv.theirs, lambda: conv.error_of(conv.theirs()))


class Convolution:
    """A pass over tensors in the order of memory: (N, *spatial, C), (K, *taps, C), (N, *voxels, K).

    The filter has C / groups channels.
    """

    def __init__(self, job: Job, device: str) -> None:
        self.workload, self.direction, self.dtype = job.workload, job.direction, DTYPES[job.dtype]
        self.kind, work = job.kind, job.workload
        shapes = {
            "x": (work.N, *work.spatial, work.C),
            "w": (work.K, *work.taps, work.C // work.groups),
            "y": (work.N, *work.voxels, work.K),
        }
        result = {"fprop": "y", "dgrad": "x", "wgrad": "w"}[self.direction]
        generator = torch.Generator(device).manual_seed(0)
        tensors = {
            name: torch.empty(shape, device=device, dtype=OUTPUTS.get(self.dtype, self.dtype))
            if name == result
            else _random(shape, self.dtype, generator)
            for name, shape in shapes.items()
        }
        self.x, self.w, self.y = tensors.values()
        self.out = tensors[result]

    # -- ours ----------------------------------------------------------------------------------

    @property
    def operands(self) -> tuple[Tensor, Tensor]:
        pairs = {"fprop": (self.x, self.w), "dgrad": (self.y, self.w), "wgrad": (self.y, self.x)}
        return pairs[self.direction]

    @cached_property
    def run(self) -> PassViews:
        """The pass that a user's call runs; views on a CPU, too, whose tests run them."""
        problem = self.workload.problem
        sides = [side for pair in problem.padding for side in pair]
        first = {"fprop": (), "dgrad": (problem.spatial,), "wgrad": (problem.taps,)}
        numbers = problem.stride, sides, problem.dilation, problem.groups, dense_passes.VIEW
        a, b = (tensor.movedim(-1, 1) for tensor in self.operands)
        every = (*first[self.direction], *numbers)
        return pass_maker(self.direction, a, b, every, by_tiles=self.kind == "statistics")()

    def ours(self, ending: EpilogueArgs = BARE, *, statistics: bool = False) -> Tensor | None:
        """Write ``out``, copies of operands included; return the statistics if asked for."""
        a, b, out = (tensor.movedim(-1, 1) for tensor in (*self.operands, self.out))
        return self.run.compute(a, b, ending, out, statistics=statistics)[1]

    def error(self) -> float:
        """Return the error of an output that was poisoned before."""
        poison(self.out)
        self.ours()
        return self.error_of(self.out)

    # -- torch's -------------------------------------------------------------------------------

    def theirs(self) -> Tensor:
        """torch's result, in our order of modes."""
        return _of_torch(self.workload, self.direction, self.x, self.w, self.y)

    # -- the comparison ------------------------------------------------------------------------

    @cached_property
    def _some(self) -> tuple[slice, slice, slice]:
        """Return the slices of images, C and K that are compared; sums are whole."""
        work = self.workload
        images = slice(None, None, max(1, work.N - 1))
        c, k = (max(1, n // CHANNELS) if work.groups == 1 else 1 for n in (work.C, work.K))
        return images, slice(None, None, c), slice(None, None, k)

    @cached_property
    def reference(self) -> Tensor:
        """The compared part of the result, in float64."""
        (images, c, k), (x, w, y) = self._some, (self.x, self.w, self.y)
        if self.direction == "fprop":
            x, w, y = x[images], w[k], y[images][..., k]
        elif self.direction == "dgrad":
            x, w, y = x[images][..., c], w[..., c], y[images]
        else:
            x, w, y = x[..., c], w[k][..., c], y[..., k]
        with torch.backends.cudnn.flags(enabled=True, benchmark=False):
            return _of_torch(self.workload, self.direction, *(t.double() for t in (x, w, y)))

    def part(self, result: Tensor) -> Tensor:
        """The compared part of a result."""
        images, c, k = self._some
        parts = {"fprop": (images, ..., k), "dgrad": (images, ..., c), "wgrad": (k, ..., c)}
        return result[parts[self.direction]]

    def error_of(self, result: Tensor, reference: Tensor | None = None) -> float:
        """Relative to float64; NaN where anything at all is."""
        if result.is_floating_point() and not result.isfinite().all():
            return nan
        return relative_error(self.part(result), self.reference if reference is None else reference)


def poison(out: Tensor) -> None:
    """Fill with what no result is."""
    out.fill_(nan if out.is_floating_point() else 0x55)


def _of_torch(work: Workload, direction: str, x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """A pass as torch's operators compute it; the result's own tensor lends its shape alone."""
    rank = len(work.spatial)
    numbers = *([n] * rank for n in (work.stride, work.padding, work.dilation)), False, [0] * rank
    x, w, y = (t.movedim(-1, 1) for t in (x, w, y))
    if direction == "fprop":
        result = torch.ops.aten.convolution(x, w, None, *numbers, work.groups)
    else:
        mask = [direction == "dgrad", direction == "wgrad", False]
        gradients = torch.ops.aten.convolution_backward(y, x, w, None, *numbers, work.groups, mask)
        result = gradients[mask.index(True)]
    return result.movedim(1, -1)


def _with_bias(conv: Convolution) -> tuple[Callable[[], Any], Callable[[], float]]:
    """Bias and ReLU in the pass."""
    bias = torch.linspace(-1, 1, conv.workload.K, device=conv.out.device).to(conv.dtype)
    ending = EpilogueArgs(bias=bias, activation="relu")

    def error() -> float:
        poison(conv.out)
        conv.ours(ending)
        expected = (conv.reference + bias[conv._some[2]].double()).relu()
        return conv.error_of(conv.out, expected)

    return lambda: conv.ours(ending), error


def clamp(x: Any, threshold: Any, slope: Any) -> Any:
    """Above a threshold of its own, a channel goes on with another slope: a user's function."""
    over = x - threshold
    gentle = threshold + slope * over
    return pw.where(over > 0.0, gentle, x)


def _with_clamp(conv: Convolution) -> tuple[Callable[[], Any], Callable[[], float]]:
    """A convolution as a user calls it, with a user's function and a learned threshold."""
    threshold = torch.linspace(-1, 1, conv.workload.K, device=conv.out.device)
    step = lc.Pointwise(clamp, columns={"threshold": threshold}, values={"slope": 0.1})
    call, x, w = _public(conv), conv.x.movedim(-1, 1), conv.w.movedim(-1, 1)

    def error() -> float:
        over = threshold[conv._some[2]].double()
        z = conv.reference
        expected = torch.where(z > over, over + 0.1 * (z - over), z)
        return conv.error_of(call(x, w, activation=step).movedim(1, -1), expected)

    return lambda: call(x, w, activation=step), error


def _public(conv: Convolution) -> Callable[..., Tensor]:
    """The function that users call."""
    work = conv.workload
    function = (lc.conv1d, lc.conv2d, lc.conv3d)[len(work.spatial) - 1]
    numbers = work.stride, work.padding, work.dilation, work.groups
    return lambda x, w, **more: function(x, w, None, *numbers, **more)


def _with_statistics(conv: Convolution) -> tuple[Callable[[], Any], Callable[[], float]]:
    """The sums and the sums of squares of every channel in the pass."""

    def error() -> float:
        poison(conv.out)
        statistics, rows = conv.ours(statistics=True), conv.out.flatten(0, -2)
        assert statistics is not None
        sums = torch.stack([rows.sum(0, dtype=torch.float64), rows.double().square().sum(0)])
        # A sum of numbers of both signs is held against the sum of their sizes.
        sizes = torch.stack([rows.double().abs().sum(0), sums[1]])
        wrong = (
            (statistics.double() - sums).abs() > 1e-4 * sizes
        ).any() or statistics.isnan().any()
        return nan if wrong else conv.error_of(conv.out)

    return lambda: conv.ours(statistics=True), error


def _random(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    device = generator.device
    if dtype == torch.int8:
        return torch.randint(-8, 8, shape, dtype=dtype, device=device, generator=generator)
    wide = dtype if dtype.itemsize > 1 else torch.float16
    return torch.randn(shape, dtype=wide, device=device, generator=generator).to(dtype)
