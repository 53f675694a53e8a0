"""Passes of sparse convolutions on a CPU by the pairs of a kernel map, with epilogues.

The rows that each tap multiplies are found once per map and kept with its index, as a
:class:`~layoutconv.cpu.gather_products.GatherPlan`. Integers and fp8 are multiplied by their views
in :mod:`~layoutconv.cpu.cpu_executor`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..tensors.epilogue_in_torch import Finish, accumulator_dtype
from ..view.epilogue import Epilogue
from .finished_rows import finish_rows
from .gather_products import GatherPlan

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def is_gathered(a: Tensor) -> bool:
    """Return whether passes over kernel maps with such operands are gathered products.

    >>> is_gathered(torch.ones(1)), is_gathered(torch.ones(1, dtype=torch.int8))
    (True, False)
    """
    return a.dtype in _FLOATS and a.device.type == "cpu"


def plan_of(index: Tensor, rows: int) -> GatherPlan:
    """Return the plan of an index, int32 (outputs, taps) of ``rows`` inputs, kept with that tensor.

    All layers over a map share one index, also in graphs of ``torch.compile`` and ``torch.export``.
    It is planned once, and again if torch recorded a write to it.

    Raises :class:`~layoutconv.errors.ArgumentError` for an entry outside ``[-1, rows)``.

    >>> index = torch.tensor([[1], [-1]], dtype=torch.int32)
    >>> first = plan_of(index, 2)
    >>> plan_of(index, 2) is first, index.zero_() is index, plan_of(index, 2) is first
    (True, True, False)
    """
    version = -1 if index.is_inference() else index._version
    kept: _Kept | None = getattr(index, "_layoutconv_plan", None)
    if kept is None or (kept.rows, kept.version) != (rows, version):
        kept = _Kept(GatherPlan(index, rows), rows, version)
        index._layoutconv_plan = kept  # type: ignore[attr-defined]
    plan: GatherPlan = kept.plan
    return plan


class _Kept:
    """The plan as an attribute of an index tensor; copies and pickles of the tensor lose it, and
    pickles have the name of this class.
    """

    def __init__(self, plan: Any = None, rows: int = -1, version: int = -1) -> None:
        self.plan, self.rows, self.version = plan, rows, version

    def __reduce__(self) -> tuple[Any, ...]:
        return _Kept, ()


@torch.no_grad()
def forward(
    plan: GatherPlan,
    x: Tensor,
    w: Tensor,
    groups: int = 1,
    epilogue: Epilogue | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    transposed: bool = False,
) -> Tensor:
    """Run the forward pass: ``x`` (inputs, C) and ``w`` (K, *taps, C / groups) to (outputs, K).

    ``transposed`` goes from (outputs, K) to (inputs, C). Sums are in fp32, for fp64 in fp64.

    >>> index = torch.tensor([[1, -1], [0, 1]], dtype=torch.int32)
    >>> x, w = torch.tensor([[1.0], [2.0]]), torch.tensor([[[10.0], [100.0]]])
    >>> forward(GatherPlan(index, 2), x, w, transposed=True)
    tensor([[ 20.],
            [210.]])
    """
    kind, dtype = accumulator_dtype(x.dtype, 1), out_dtype or x.dtype
    # Contiguous operands give products the same bits, whatever their original strides.
    x, w = x.to(kind).contiguous(), w.to(kind).contiguous()
    sums = (plan.backward if transposed else plan.forward)(x, w.flatten(1, -2), groups)
    finish = Finish(epilogue, x.dtype, dtype)
    if finish.nothing and sums.dtype == dtype:
        return sums
    out = sums if sums.dtype == dtype else torch.empty_like(sums, dtype=dtype)
    finish_rows(finish, sums, out, finish.sources)
    return out


@torch.no_grad()
def filter_gradient(plan: GatherPlan, y: Tensor, x: Tensor, taps: Any, groups: int = 1) -> Tensor:
    """Return the filter gradient (K, *taps, C / groups) from ``y`` (outputs, K) and ``x``.

    >>> index = torch.tensor([[1, -1], [0, 1]], dtype=torch.int32)
    >>> y, x = torch.tensor([[1.0], [2.0]]), torch.tensor([[10.0], [100.0]])
    >>> filter_gradient(GatherPlan(index, 2), y, x, [2])
    tensor([[[120.],
             [200.]]])
    """
    kind = accumulator_dtype(x.dtype, 1)
    found = plan.filter(y.to(kind).contiguous(), x.to(kind).contiguous(), groups)
    return found.view(len(found), *taps, found.shape[-1]).to(x.dtype)


@torch.no_grad()
def gradients(
    plan: GatherPlan, y: Tensor, x: Tensor, w: Tensor, groups: int = 1
) -> tuple[Tensor, Tensor]:
    """Return the gradients of inputs and filter at once, for one dtype.

    >>> index = torch.tensor([[1, -1], [0, 1]], dtype=torch.int32)
    >>> y, x, w = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]), torch.ones(1, 2, 1)
    >>> [found.flatten().tolist() for found in gradients(GatherPlan(index, 2), y, x, w)]
    [[2.0, 3.0], [10.0, 8.0]]
    """
    kind = accumulator_dtype(x.dtype, 1)
    y, left, right = (t.to(kind).contiguous() for t in (y, x, w))
    dx, dw = plan.gradients(y, left, right.flatten(1, -2), groups)
    return dx.to(x.dtype), dw.view(w.shape).to(w.dtype)
