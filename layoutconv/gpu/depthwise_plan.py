"""Plans of views of one row and one column, all problems in a launch: depthwise convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentTypeError
from ..planning.depthwise_schedule import fuses, schedule_dot
from ..planning.loop_nest import Form, linear_forms
from ..planning.machine import Machine
from ..planning.view_rules import UnsupportedViewError
from ..tensors.epilogue_in_torch import apply_steps, column_statistics, convert
from ..tensors.expected_tensors import expected
from ..tensors.spans import flat_memory, span
from ..tensors.tensor_checks import columns_of
from ..view.epilogue import Epilogue
from ..view.gemm_view import GemmView

NO_READS = (None, None, None)  # no numbers, addresses of vectors, or addresses of tensors like D
STATISTICS = "statistics"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class DotPlan:
    """A view of one row and one column, bound to the CUDA-core kernels that run it.

    The kernel applies an epilogue to sums over taps. For other sums, and for 8-bit results, torch
    applies it to sums stored in fp32 (fp64 for float64). Torch also computes statistics.

    Raises ``ArgumentTypeError`` for a dtype that the kernels do not have, ``UnsupportedViewError``
    for a view that they cannot run, and for an epilogue in torch if columns or bounds of D cut
    across its loops.
    """

    def __init__(
        self,
        view: GemmView,
        dtype: torch.dtype,
        device: int,
        out_dtype: torch.dtype,
        machine: Machine,
        *,
        structure: str = "",
        aligned: tuple[int, int, int] = (16, 16, 16),
    ) -> None:
        if dtype not in DTYPES:
            kinds = "float16, bfloat16, float32 or float64 for a view of one row and one column"
            kinds += ", as of a depthwise convolution"
            raise ArgumentTypeError("a", kinds, str(dtype))
        self.device, self.structure = device, structure
        self.sums = torch.float64 if dtype == torch.float64 else torch.float32
        words = structure.split()
        self.steps = " ".join(word for word in words if word != STATISTICS)
        fused = launches_alone(view, out_dtype, ends=bool(self.steps))
        self.in_torch = not fused
        self._only_device = torch.cuda.device_count() < 2  # so it is the current one
        stored = out_dtype if fused else self.sums
        if self.in_torch or STATISTICS in words:
            self.place = _StridedPart.of_view(view)
        if self.in_torch:
            aligned = (*aligned[:2], 16)
        kind, stored_kind = (str(of).removeprefix("torch.") for of in (dtype, stored))
        from ..kernels.pointwise.loaders import load_dot

        plan = schedule_dot(
            view, kind, stored_kind, aligned, machine.sm_count, self.steps if fused else ""
        )
        self.kernels = load_dot(plan, machine.arch)

    def __call__(
        self,
        a: Tensor,
        b: Tensor,
        out: Tensor,
        epilogue: Epilogue | None = None,
        statistics: Tensor | None = None,
    ) -> None:
        with torch.cuda.device(self.device):
            if self.in_torch:
                self._finish_in_torch(a, b, out, epilogue)
            elif epilogue is None:
                self._launch(a, b, out)
            else:
                columns, sources = (
                    tuple(tensor.data_ptr() for tensor in found) or None
                    for found in (epilogue.vectors, epilogue.sources)
                )
                self._launch(a, b, out, (epilogue.numbers or None, columns, sources))
            if statistics is not None:
                statistics.copy_(column_statistics(self.place.of(out)))

    def _finish_in_torch(
        self, a: Tensor, b: Tensor, out: Tensor, epilogue: Epilogue | None
    ) -> None:
        # With D's strides: zeros_like() does not keep them if D is a part of a larger tensor.
        sums = torch.zeros(span(out), dtype=self.sums, device=out.device)
        sums = sums.as_strided(out.shape, out.stride())
        self._launch(a, b, sums)
        written = self.place.of(sums)
        if epilogue is not None:
            row = torch.zeros(1, dtype=torch.int64, device=out.device)
            sources = [self.place.of(source) for source in epilogue.sources]
            written = apply_steps(epilogue.steps, written, slice(None), sources, row)
        self.place.write(out, convert(written, out.dtype))

    def launch(
        self, a: Tensor, b: Tensor, out: Tensor, at_a: int, at_b: int, reads: Any = NO_READS
    ) -> None:
        """Launch as a ``gpu.Launcher``, if ``launches_alone`` holds and memory has no gaps."""
        assert not self.in_torch
        if not (a.numel() and b.numel()):  # empty sums: their operands have no address
            out.zero_()
            return
        a, b, out = (tensor.as_strided((tensor.numel(),), (1,)) for tensor in (a, b, out))
        if self._only_device:
            self._run(a, b, out, reads)
            return
        with torch.cuda.device(self.device):
            self._run(a, b, out, reads)

    def _launch(self, a: Tensor, b: Tensor, out: Tensor, reads: Any = NO_READS) -> None:
        if a.numel() and b.numel():
            self._run(flat_memory(a), flat_memory(b), flat_memory(out), reads)
        else:  # empty sums: their operands have no address
            out.zero_()

    def _run(self, a: Tensor, b: Tensor, out: Tensor, reads: Any) -> None:
        workspace = None
        if self.kernels.workspace:
            kind = getattr(torch, self.kernels.accumulator)
            workspace = torch.empty(self.kernels.workspace, dtype=kind, device=a.device)
        self.kernels(a, b, out, workspace, reads)


def launches_alone(view: GemmView, out_dtype: torch.dtype, *, ends: bool) -> bool:
    """Return whether kernels compute the whole result: they store ``out_dtype`` and, unless an
    operand is empty, fuse the epilogue of sums over taps. ``ends`` says whether there is one.
    """
    stored = expected(view)
    runs = min(prod(stored.a.shape), prod(stored.b.shape)) > 0
    return out_dtype in DTYPES and (not ends or (fuses(view) and runs))


@dataclass(frozen=True)
class _StridedPart:
    """The part of D's memory that a view writes, as torch strides: (others, columns).

    A phase of a transposed convolution may write only every second voxel, for instance. ``shape``
    and ``stride`` are those of the loops that torch runs, slowest first, columns last.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    columns: int

    @classmethod
    def of_view(cls, view: GemmView) -> _StridedPart:
        columns, left, loops = columns_of(view), columns_of(view), []
        extents, (written, *bounds) = linear_forms("d", 2, view.d)
        first, end = [0] * len(extents), list(extents)
        for bound in bounds:
            _clip(extents, first, end, bound)
        offset = written.offset
        for extent, low, high, step in zip(extents, first, end, written.outer, strict=True):
            own = gcd(extent, left)
            if own not in (extent, left) or low % own or high % own or step < 0:
                expected = f"{columns} columns of D in whole loops of positive stride"
                raise UnsupportedViewError(f"expected {expected}, got {view.d}")
            left //= own
            offset += low * step
            loops += [(own, step), (max(0, high - low) // own, step * own)]
        loops = [loop for loop in reversed(loops) if loop[0] != 1]
        shape, stride = zip(*loops, strict=True) if loops else ((), ())
        return cls(shape, stride, 0 if 0 in shape else offset, columns)

    def of(self, tensor: Tensor) -> Tensor:
        """Return this part of a tensor like D: (others, columns)."""
        return self._strided(tensor).reshape(-1, self.columns)

    def write(self, tensor: Tensor, values: Tensor) -> None:
        """Write values to this part of a tensor like D."""
        self._strided(tensor).copy_(values.view(self.shape))

    def _strided(self, tensor: Tensor) -> Tensor:
        first = tensor.storage_offset() + self.offset
        return tensor.as_strided(self.shape, self.stride, first)


def _clip(extents: list[int], first: list[int], end: list[int], bound: Form) -> None:
    """Shorten the loop that moves a coordinate of D to the range that is in bounds."""
    steps = [(i, step) for i, step in enumerate(bound.outer) if step and extents[i] > 1]
    if len(steps) > 1 or any(step < 0 for _, step in steps):
        raise UnsupportedViewError(
            "expected bounds of D that each limit one loop of positive stride"
        )
    if not steps and not 0 <= bound.offset < bound.bound:
        end[0] = 0  # the coordinate is out of bounds at every iteration
    for loop, step in steps:
        first[loop] = min(extents[loop], max(first[loop], -(bound.offset // step)))
        end[loop] = max(0, min(end[loop], -((bound.offset - bound.bound) // step)))
