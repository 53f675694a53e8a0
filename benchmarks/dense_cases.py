"""A row of ``bench_dense.py`` as calls: ours, the peer's, and how far each is from float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan, prod
from typing import Any

import torch
from dense_workloads import Job, Workload
from timing import relative_error
from torch import Tensor

import layoutconv as lc
from layoutconv import pointwise as pw
from layoutconv.conv.depthwise_views import (
    depthwise_dgrad_views,
    depthwise_fprop_view,
    depthwise_wgrad_view,
)
from layoutconv.conv.patches import patches_of
from layoutconv.gpu.few_terms_choice import few_terms_dgrad, few_terms_fprop
from layoutconv.gpu.filter_choice import as_read, worth_k_major
from layoutconv.gpu.folding_choice import arranged_fprop, arranged_wgrad, line_for
from layoutconv.gpu.packing_choice import (
    Multiplied,
    Packed,
    multiplied_for,
    packed_dgrad,
    packed_fprop,
    packed_wgrad,
)
from layoutconv.gpu.phase_choice import COLUMNS, arranged_dgrad, columns_for
from layoutconv.tensors.tensor_checks import as_stored, expected
from layoutconv.view.gemm_view import GemmView

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

        [view] = conv.views
        a, b, options = *conv.operands, conv.options
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
        self.kind = job.kind
        self.options: dict[str, Any] = (
            {"precision": job.dtype} if self.dtype == torch.float32 else {}
        )
        work = job.workload
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

    @cached_property
    def multiplied(self) -> Multiplied | None:
        """The kind of products for which a user's call may take other views, if there are any."""
        of = multiplied_for(self.x)
        if of is None or self.workload.depthwise or self.dtype in OUTPUTS:
            return None
        return of._replace(**self.options, by_tiles=self.kind == "statistics")

    @cached_property
    def few(self) -> GemmView | None:
        """The view of a pass whose few channels threads sum, if a user's call takes it."""
        of, problem = self.multiplied, self.workload.problem
        if self.direction == "fprop":
            return few_terms_fprop(problem, of)
        return few_terms_dgrad(problem, of) if self.direction == "dgrad" else None

    @cached_property
    def views(self) -> Sequence[GemmView]:
        """All that have something to sum; the others would write zeros."""
        if self.few is not None:
            return [self.few]
        machine = columns_for(self.x) or COLUMNS, line_for(self.x)
        return [view for view in _views(self.workload, self.direction, *machine) if view.k]

    @property
    def operands(self) -> tuple[Tensor, Tensor]:
        pairs = {"fprop": (self.x, self.w), "dgrad": (self.y, self.w), "wgrad": (self.y, self.x)}
        return pairs[self.direction]

    @cached_property
    def k_major(self) -> bool:
        """Return True if a user's call transposes the filter first, to read it along k alone."""
        work = self.workload
        rows = work.N * prod(work.voxels)
        return (
            self.direction == "dgrad"
            and self.few is None
            and not work.depthwise
            and worth_k_major(rows, self.w.shape, work.groups)
        )

    @cached_property
    def packed(self) -> Packed | None:
        """The pass of packed channels that a user's call takes instead, if it does."""
        of, work = self.multiplied, self.workload
        if of is None or self.few is not None:
            return None
        problem, columns = patches_of(work.problem).problem, columns_for(self.x) or COLUMNS
        if self.direction == "fprop":
            return packed_fprop(problem, self.views, of)
        if self.direction == "wgrad":
            return packed_wgrad(problem, self.views, of)

        def views_of(K: int) -> tuple[GemmView, ...]:
            filter = K, *work.problem.taps
            return arranged_dgrad(replace(work.problem, filter=filter), columns)

        return packed_dgrad(problem, self.views, views_of, of)

    def ours(self, **more: Any) -> Any:
        """Write ``out``, and return what ``execute`` does; copies of operands are part of it."""
        if sum(view.m * view.n * view.l for view in self.views) < self.out.numel():
            self.out.zero_()
        result, (a, b), views = self.out, self.operands, self.views
        stored = expected(views[0])
        out = self.out.view(stored.d.shape)
        if self.packed is not None:
            written, shapes = self.packed.written(out), expected(self.packed.views[0])
            a, b = self.packed.operands(a, b)
            b, target = b.view(shapes.b.shape), written.view(shapes.d.shape)
            for view in self.packed.views:
                packed = as_stored(view, a)
                result = lc.execute(view, packed, b, target, **self.options, **more)
            self.packed.finish(written, out)
            return result
        b = b.view(stored.b.shape)
        if self.k_major:
            views, b = as_read(views, a, b, **self.options)
        for view in views:
            result = lc.execute(view, as_stored(view, a), b, out, **self.options, **more)
        return result

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


def _views(work: Workload, direction: str, columns: int, line: int) -> tuple[GemmView, ...]:
    problem = work.problem
    if direction == "fprop":
        return (depthwise_fprop_view(problem) if work.depthwise else arranged_fprop(problem, line),)
    if direction == "dgrad":
        if work.depthwise:
            return depthwise_dgrad_views(problem)
        return arranged_dgrad(problem, columns)
    if work.depthwise:
        return (depthwise_wgrad_view(problem),)
    return (arranged_wgrad(problem),)


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
    from layoutconv.view.epilogue import Activation, Bias

    bias = torch.linspace(-1, 1, conv.workload.K, device=conv.out.device).to(conv.dtype)
    steps = Bias(bias), Activation("relu")

    def error() -> float:
        poison(conv.out)
        conv.ours(epilogue=steps)
        expected = (conv.reference + bias[conv._some[2]].double()).relu()
        return conv.error_of(conv.out, expected)

    return lambda: conv.ours(epilogue=steps), error


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
    from layoutconv.view.epilogue import Epilogue

    epilogue = Epilogue((), statistics=True)

    def error() -> float:
        poison(conv.out)
        out, statistics = conv.ours(epilogue=epilogue)
        rows = out.flatten(0, -2)
        sums = torch.stack([rows.sum(0, dtype=torch.float64), rows.double().square().sum(0)])
        # A sum of numbers of both signs is held against the sum of their sizes.
        sizes = torch.stack([rows.double().abs().sum(0), sums[1]])
        wrong = (
            (statistics.double() - sums).abs() > 1e-4 * sizes
        ).any() or statistics.isnan().any()
        return nan if wrong else conv.error_of(out)

    return lambda: conv.ours(epilogue=epilogue), error


def _random(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    device = generator.device
    if dtype == torch.int8:
        return torch.randint(-8, 8, shape, dtype=dtype, device=device, generator=generator)
    wide = dtype if dtype.itemsize > 1 else torch.float16
    return torch.randn(shape, dtype=wide, device=device, generator=generator).to(dtype)
