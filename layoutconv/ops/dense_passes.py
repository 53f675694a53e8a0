"""What the passes of a dense convolution compute, on tensors in the order of memory.

Here is no dispatcher and no gradient: ``autograd`` registers these functions as operators of torch,
``direct`` calls what they consist of.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..conv import ConvProblem, dgrad_views, wgrad_view
from ..conv.depthwise_views import depthwise_dgrad_views, depthwise_fprop_view, depthwise_wgrad_view
from ..gpu.filter_choice import as_read, worth_turning
from ..gpu.folding_choice import arranged_fprop, line_for
from ..gpu.phase_choice import arranged_dgrad, columns_for
from ..tensors.tensor_checks import OUTPUTS, as_stored
from ..view.epilogue import Activation, Bias, Epilogue, Residual, Scale, Step
from ..view.gemm_view import GemmView
from .execute import execute

if TYPE_CHECKING:
    from torch import Tensor

Ints = Sequence[int]


class Pass(NamedTuple):
    """The views that together write a result of ``shape``; ``zeroed`` says: all but zeros.

    ``turned`` is the shape of a filter that had better be turned before, where kernels read it
    along the sum alone; empty of one that had not.
    """

    views: tuple[GemmView, ...]
    shape: tuple[int, ...]
    zeroed: bool = False
    turned: tuple[int, ...] = ()

    @property
    def is_depthwise(self) -> bool:
        """Whether nothing is summed over channels."""
        return self.views[0].m == self.views[0].n == 1 and len(self.views[0].a.shape) == 3


def fprop_pass(
    x: Ints,
    w: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
    *,
    line: int = 0,
) -> Pass:
    """The forward pass of tensors of shapes (N, D, H, W, C) and (K, T, R, S, C / groups).

    ``line``: so many elements of a row are copied at once where lines may be folded.

    >>> fprop_pass((1, 8, 8, 4), (16, 3, 3, 4), [1, 1], [1, 1, 1, 1], [1, 1]).shape
    (1, 8, 8, 16)
    """
    problem = _problem(x, w[:-1], stride, padding, dilation, groups)
    if _is_depthwise(problem):
        return Pass((depthwise_fprop_view(problem),), problem.output)
    return Pass((arranged_fprop(problem, line),), problem.output)


def dgrad_pass(
    y: Ints,
    w: Ints,
    spatial: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
    *,
    ends: bool = False,
    columns: int = 0,
) -> Pass:
    """The gradient of the activation, of ``spatial`` cells: shapes (N, Z, P, Q, K), that of ``w``.

    ``ends`` says whether anything comes after the sums: what becomes of an empty one need not be
    zero, so that the cells that no window covers have views then. ``columns``: so many may be
    filled by residues side by side, if columns are not told apart by what comes after.

    >>> [len(dgrad_pass((1, 3, 4), (4, 1, 2), [7], [3], [0, 0], [1], ends=e).views) for e in (0, 1)]
    [1, 3]
    """
    shape = (y[0], *spatial, w[-1] * groups)
    problem = _problem(shape, w[:-1], stride, padding, dilation, groups)
    if _is_depthwise(problem):
        views = depthwise_dgrad_views(problem)
    else:
        views = arranged_dgrad(problem, columns) if columns and not ends else dgrad_views(problem)
    needed = views if ends else tuple(view for view in views if view.k)
    turns = not _is_depthwise(problem) and worth_turning(prod(y[:-1]), w, groups)
    return Pass(needed, shape, len(needed) < len(views), tuple(w) if turns else ())


@lru_cache(maxsize=1024)
def _checked(
    activation: Any, filter: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> ConvProblem:
    pairs = tuple(zip(padding[::2], padding[1::2], strict=True))
    return ConvProblem(activation, filter, stride, pairs, dilation, groups)


def _problem(
    activation: Ints, filter: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> ConvProblem:
    numbers = tuple(stride), tuple(padding), tuple(dilation)
    return _checked(tuple(activation), tuple(filter), *numbers, groups)


def _is_depthwise(problem: ConvProblem) -> bool:
    """Whether every channel is a group: no products of matrices, but of elements."""
    return problem.groups > 1 and problem.groups == problem.C


def epilogue_of(
    bias: Tensor | None = None,
    scale: Tensor | float | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    slope: float = 0.01,
    statistics: bool = False,
) -> Epilogue | None:
    """``activation(scale * sum + bias + residual)`` as an epilogue, None where it is ``sum``."""
    steps: list[Step] = []
    if scale is not None:
        steps.append(Scale(scale.contiguous() if isinstance(scale, torch.Tensor) else scale))
    if bias is not None:
        steps.append(Bias(bias.contiguous()))
    if residual is not None:
        steps.append(Residual(residual.contiguous()))
    if activation is not None:
        steps.append(Activation(activation, slope))
    return Epilogue(tuple(steps), statistics) if steps or statistics else None


def fprop(
    x: Tensor,
    w: Tensor,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    slope: float = 0.01,
    out_dtype: torch.dtype | None = None,
    statistics: bool = False,
) -> Any:
    """The forward pass, (N, Z, P, Q, K); with ``statistics`` also those of its channels."""
    numbers = stride, padding, dilation, groups
    found = fprop_pass(x.shape, w.shape, *numbers, line=line_for(x))
    epilogue = epilogue_of(bias, scale, residual, activation, slope, statistics)
    y = x.new_empty(found.shape, dtype=out_dtype or OUTPUTS.get(x.dtype))
    sums = run(found.views, x.contiguous(), w.contiguous(), y, epilogue)
    return (y, sums) if statistics else y


def fprop_statistics(x: Tensor, w: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """The forward pass and its statistics, fp32 (2, K)."""
    options["statistics"] = True
    return fprop(x, w, *args, **options)


def dgrad(
    y: Tensor,
    w: Tensor,
    spatial: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    slope: float = 0.01,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """The gradient of the activation, or the transposed convolution, (N, D, H, W, C)."""
    epilogue = epilogue_of(bias, scale, residual, activation, slope)
    numbers = spatial, stride, padding, dilation, groups
    found = dgrad_pass(
        y.shape, w.shape, *numbers, ends=epilogue is not None, columns=columns_for(y)
    )
    allocate = y.new_zeros if found.zeroed else y.new_empty
    x = allocate(found.shape, dtype=out_dtype or OUTPUTS.get(y.dtype))
    run(found.views, y.contiguous(), w.contiguous(), x, epilogue, turns=bool(found.turned))
    return x


def wgrad(
    y: Tensor,
    x: Tensor,
    taps: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
) -> Tensor:
    """The gradient of the filter, (K, T, R, S, C / groups)."""
    filter = (y.shape[-1], *taps)
    problem = _problem(x.shape, filter, stride, padding, dilation, groups)
    view = (depthwise_wgrad_view if _is_depthwise(problem) else wgrad_view)(problem)
    return execute(view, y.contiguous(), x.contiguous())


def run(
    views: Sequence[GemmView],
    a: Tensor,
    b: Tensor,
    out: Tensor,
    epilogue: Epilogue | None,
    *,
    turns: bool = False,
) -> Tensor | None:
    """Run the views of a pass, which together write ``out``; returns the statistics of one.

    ``turns``: ``b`` is a filter that had better be turned before, as ``Pass.turned`` says.
    """
    if turns:
        views, b = as_read(views, a, b)
    for view in views:
        found = execute(view, as_stored(view, a), b, out, epilogue=epilogue)
    return found[1] if epilogue is not None and epilogue.statistics else None
