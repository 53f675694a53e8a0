"""A pass of a layer of a real network as calls: ours, as users call it, torch's, and the error.

Forward passes are ``lc.conv3d`` and its like, gradients what its backward pass calls, so that
whatever kernels users get are measured. Operands lie in ``channels_last`` memory on both sides. A
convolution has no bias here, since torch adds one by a kernel of its own; a transposed one has the
layer's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import inf, nan
from typing import Any

import torch
from dense_cases import DTYPES
from torch import Tensor
from zoo_layers import ZooJob

import layoutconv as lc
from layoutconv.ops import dense_passes

# Relative to the norm: results are rounded (2^-11 or 2^-8, over 12^0.5), tf32 rounds operands, and
# tensor cores cut long sums off.
LIMITS = {"fp16": 1.0e-3, "bf16": 6e-3, "tf32": 1.5e-3, "fp32": 2e-5}
WORST = 6.0  # times the limit: the largest error, relative to the largest element
EXACT = 2e9  # flop of a reference in float64; of more it is in float32
COMPARED = 8  # channels of a mode, about
_FUNCTIONS = {
    False: (lc.conv1d, lc.conv2d, lc.conv3d),
    True: (lc.conv_transpose1d, lc.conv_transpose2d, lc.conv_transpose3d),
}


class ZooCase:
    """The calls of a row over random data, or over memory alone if it is ``empty``.

    ``x``, ``w`` and ``y`` are those of the problem, in torch's order: a transposed layer takes
    ``y`` and gives ``x``. The one that is the result lends its shape.
    """

    def __init__(self, job: ZooJob, device: str = "cuda", *, empty: bool = False) -> None:
        self.job, self.layer, self.problem = job, job.layer, job.layer.problem(job.N)
        self.dtype = DTYPES[job.dtype]
        transposed = self.layer.transposed
        result = {"fprop": "yx"[transposed], "dgrad": "xy"[transposed], "wgrad": "w"}[job.kind]
        self.result = result
        self._generator = None if empty else torch.Generator(device).manual_seed(self.layer.id)
        self._where: dict[str, Any] = {"dtype": self.dtype, "device": device}
        problem = self.problem
        shapes = {"x": problem.activation, "w": problem.stored_filter, "y": problem.output}
        self.x, self.w, self.y = (
            self._made(shape, noise=name != result).movedim(-1, 1) for name, shape in shapes.items()
        )
        adds = transposed and self.layer.bias and job.kind == "fprop"
        self.bias = self._made((self.layer.K,)) if adds else None

    def _made(self, shape: tuple[int, ...], *, noise: bool = True) -> Tensor:
        if noise and self._generator is not None:
            return torch.randn(shape, generator=self._generator, **self._where)
        return torch.empty(shape, **self._where)

    def ours(self) -> Tensor:
        """Return the result of this package, in torch's order."""
        layer, kind, problem = self.layer, self.job.kind, self.problem
        if kind == "fprop":
            call: Any = _FUNCTIONS[layer.transposed][len(layer.taps) - 1]
            data = self.y if layer.transposed else self.x
            last: tuple[Any, ...] = (layer.dilation, layer.groups)
            if layer.transposed:
                last = (layer.output_padding, layer.groups, layer.dilation)
            made: Tensor = call(data, self.w, self.bias, layer.stride, layer.padding, *last)
            return made
        sides = [side for pair in problem.padding for side in pair]
        numbers = list(problem.stride), sides, list(problem.dilation), problem.groups
        if kind == "wgrad":
            return dense_passes.wgrad(self.y, self.x, problem.taps, *numbers)
        if layer.transposed:
            return dense_passes.fprop(self.x, self.w, *numbers)
        return dense_passes.dgrad(self.y, self.w, problem.spatial, *numbers)

    def theirs(self) -> Tensor:
        """Return torch's result."""
        return self._of_torch(self.x, self.w, self.y, self.bias)

    def _of_torch(self, x: Tensor, w: Tensor, y: Tensor, bias: Tensor | None) -> Tensor:
        layer, kind = self.layer, self.job.kind
        numbers = (
            list(layer.stride), list(layer.padding), list(layer.dilation), layer.transposed,
            list(layer.output_padding), layer.groups,
        )  # fmt: skip
        into, out = (y, x) if layer.transposed else (x, y)
        if kind == "fprop":
            return torch.ops.aten.convolution(into, w, bias, *numbers)
        mask = [kind == "dgrad", kind == "wgrad", False]
        found = torch.ops.aten.convolution_backward(out, into, w, None, *numbers, mask)
        result: Tensor = found[mask.index(True)]
        return result

    # -- the comparison ----------------------------------------------------------------------------

    def error(self, call: Callable[[], Tensor]) -> tuple[float, float]:
        """Errors of what a call gives, in memory that held NaN before: :meth:`errors_of`."""
        shape = getattr(self, self.result).shape
        torch.full(shape, nan, **self._where)  # the allocator hands it to the next of this size
        return self.errors_of(call())

    def errors_of(self, result: Tensor) -> tuple[float, float]:
        """Return the error's norm relative to the result's, and its largest to the largest element.

        Both are infinite where an element is not finite, of those that are not compared too.
        """
        if result.shape != getattr(self, self.result).shape or not bool(result.isfinite().all()):
            return inf, inf
        expected = self.reference
        off = result[self._some[self.result]].to(expected.dtype) - expected
        norm, most = float(expected.norm()), float(expected.abs().max())
        return float(off.norm()) / norm, float(off.abs().max()) / most

    def is_right(self, errors: tuple[float, float]) -> bool:
        """Return whether errors are those of rounding."""
        limit = LIMITS[self.job.dtype]
        return errors[0] <= limit and errors[1] <= WORST * limit

    @cached_property
    def _some(self) -> dict[str, tuple[slice, slice]]:
        """The part of each tensor that is compared: some images, and some channels of the result.

        Sums are whole: channels that are summed over are all there.
        """
        images, c, k = (slice(None),) * 3
        if self.result != "w":
            images = slice(None, None, max(1, self.job.N - 1))
        if self.problem.groups == 1:
            step_c, step_k = (max(1, n // COMPARED) for n in (self.problem.C, self.problem.K))
            c = slice(None, None, step_c) if self.result in "xw" else c
            k = slice(None, None, step_k) if self.result in "yw" else k
        return {"x": (images, c), "w": (k, c), "y": (images, k)}

    @cached_property
    def reference(self) -> Tensor:
        """The compared part of the result, in float64, or float32 without tensor cores."""
        x, w, y = (t[self._some[n]] for n, t in zip("xwy", (self.x, self.w, self.y), strict=True))
        flop = 2 * y.numel() * w[0].numel()
        kind = torch.float64 if flop <= EXACT else torch.float32
        bias = None if self.bias is None else self.bias[self._some["x"][1]].to(kind)
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
            return self._of_torch(x.to(kind), w.to(kind), y.to(kind), bias)
