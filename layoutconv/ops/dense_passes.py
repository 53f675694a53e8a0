"""The passes of a dense convolution, fprop, dgrad and wgrad, as views and functions of tensors.

There is no dispatcher and no gradient here: ``dense_operators`` registers these functions as torch
operators, and ``dense_calls`` binds their views to launches. Functions take and return torch's
shapes, (N, C, D, H, W), results in ``channels_last`` memory; views have the order of memory,
(N, D, H, W, C).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..base.caches import BoundedCache, kept_in
from ..conv import ConvProblem, dgrad_views
from ..conv.dense_views import VIEWS
from ..conv.depthwise_views import depthwise_dgrad_views, depthwise_fprop_view, depthwise_wgrad_view
from ..conv.patches import patches_of
from ..conv.stride_phases import reached_residues
from ..cpu.torch_convolution import TorchConvolution, is_torchs, with_epilogue
from ..gpu.empty_phases import writes_empty_sums
from ..gpu.few_terms_choice import ends_in_tiles, few_terms_dgrad, few_terms_fprop
from ..gpu.filter_choice import with_k_major_filter, worth_k_major
from ..gpu.folding_choice import arranged_fprop, arranged_wgrad, line_for
from ..gpu.joined_phases import joined_phases
from ..gpu.packing_choice import (
    Multiplied,
    Packed,
    multiplied_for,
    packed_dgrad,
    packed_fprop,
    packed_wgrad,
)
from ..gpu.phase_choice import arranged_dgrad, columns_for, concurrent, phases_of
from ..tensors.channels_last import channels_last_stride
from ..tensors.expected_tensors import expected
from ..tensors.tensor_checks import OUTPUTS, as_stored
from ..view.epilogue import Epilogue
from ..view.gemm_view import GemmView
from .empty_sums import write_empty_sums
from .epilogue_args import EpilogueArgs
from .execute import execute

if TYPE_CHECKING:
    from torch import Tensor

Ints = Sequence[int]
Numbers = Sequence[Any]  # stride, padding, dilation and groups
VIEW = "view"  # the executor that runs views even where torch has a convolution
_PASSES: BoundedCache[Any, Any] = BoundedCache("dense passes", entries=1024, nbytes=12 << 20)


def in_memory_order(tensor: Tensor) -> Tensor:
    """View (N, C, D, H, W) as (N, D, H, W, C), of the same memory."""
    return tensor.movedim(1, -1)


def _shape_in_memory(tensor: Tensor) -> tuple[int, ...]:
    first, channels, *modes = tensor.shape
    return first, *modes, channels


def new_result(like: Tensor, shape: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Return a new tensor (N, C, D, H, W) with memory of the ``shape`` (N, D, H, W, C).

    It is no view, since an operator should not return one. Its dtype is ``dtype``, by default that
    of sums over ``like``.

    >>> made = new_result(torch.zeros(1, dtype=torch.int8), (2, 5, 3))
    >>> made.shape, made.stride(), made.dtype
    (torch.Size([2, 3, 5]), (15, 1, 3), torch.int32)
    """
    first, *modes, channels = shape
    shape = first, channels, *modes
    stride = channels_last_stride(shape)
    return like.new_empty_strided(shape, stride, dtype=dtype or OUTPUTS.get(like.dtype))


class PassViews(NamedTuple):
    """The views that together write a result, (N, *spatial, channels).

    Attributes:
        views: run one after the other; each writes a part of the result.
        shape: of the result, in the order of memory.
        zeroed: whether cells that no view writes, empty sums, are written first.
        k_major: the shape of a filter that is copied to K-major first, if kernels read only the
            summed index contiguous; empty if that does not pay.
        packed: other views, of packed channels, that compute the same faster.
    """

    views: tuple[GemmView, ...]
    shape: tuple[int, ...]
    zeroed: bool = False
    k_major: tuple[int, ...] = ()
    packed: Packed | None = None

    @property
    def by_threads(self) -> bool:
        """Return whether threads sum, not tiles: depthwise layers, and few channels."""
        return all(view.m == view.n == 1 and len(view.a.shape) == 3 for view in self.views[:1])

    def compute(
        self,
        a: Tensor,
        b: Tensor,
        ending: EpilogueArgs,
        result: Tensor | None = None,
        *,
        statistics: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the result, in new memory or that of ``result``, and its statistics if asked for.

        Tensors are in torch's order.
        """
        a, b = in_memory_order(a), in_memory_order(b)
        if result is None:
            result = new_result(a, self.shape, ending.out_dtype)
        out, ending = in_memory_order(result), _in_memory(ending)
        if self.zeroed:
            write_empty_sums(out, ending.epilogue(), a.dtype)
        if not self.views:
            return result, None
        a, b = a.contiguous(), b.contiguous()
        if self.packed is None:
            return result, _run(self.views, a, b, out, ending, statistics, bool(self.k_major))
        out = out.view(expected(self.views[0]).d.shape)
        written = self.packed.written(out)
        a, b = self.packed.operands(a, b)
        found = _run(self.packed.views, a, b, written, ending, statistics)
        self.packed.finish(written, out)
        return result, found


class TorchPass(NamedTuple):
    """A pass on a CPU as a call of torch; ``compute`` is as for :class:`PassViews`.

    ``recorded``: the same sums, which autograd records as torch's own convolution, if it can.
    """

    sums_of: Callable[..., Tensor]
    zeroed: bool = False
    recorded: Callable[..., Tensor] | None = None

    def compute(
        self,
        a: Tensor,
        b: Tensor,
        ending: EpilogueArgs,
        result: Tensor | None = None,
        *,
        statistics: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the result, in new memory or that of ``result``, and its statistics if asked for.

        Tensors are in torch's order.
        """
        epilogue = _in_memory(ending).epilogue(statistics=statistics)
        found = a.new_zeros((2, b.shape[0]), dtype=torch.float64) if statistics else None
        made = with_epilogue(self.sums_of, a, b, epilogue, ending.out_dtype, found)
        if result is not None:
            made = result.copy_(made)
        return made, None if found is None else found.float()


def fprop_pass(
    x: Ints,
    w: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
    *,
    line: int = 0,
    of: Multiplied | None = None,
) -> PassViews:
    """Return the forward pass of tensors of shapes (N, D, H, W, C) and (K, T, R, S, C / groups).

    ``line``: how many elements of a row are copied at once if stride folding may be used. ``of``:
    the kind of products, if few channels may be packed.

    >>> fprop_pass((1, 8, 8, 4), (16, 3, 3, 4), [1, 1], [1, 1, 1, 1], [1, 1]).shape
    (1, 8, 8, 16)
    """
    numbers = tuple(stride), tuple(padding), tuple(dilation), groups
    return _fprop_pass(tuple(x), tuple(w), *numbers, line, of)


def forget() -> None:
    """Drop the views of passes, and with them their plans."""
    _PASSES.clear()
    VIEWS.clear()


@kept_in(_PASSES)
def _fprop_pass(x: Any, w: Any, *numbers: Any) -> PassViews:
    *of_problem, line, of = numbers
    problem = _problem(x, w[:-1], *of_problem)
    if _is_depthwise(problem):
        return PassViews((depthwise_fprop_view(problem),), problem.output)
    few = few_terms_fprop(problem, of)
    if few is not None:
        return PassViews((few,), problem.output)
    views = (arranged_fprop(problem, line),)
    patches, _ = patches_of(problem)
    return PassViews(views, problem.output, packed=packed_fprop(patches, views, of))


def dgrad_pass(
    y: Ints,
    w: Ints,
    spatial: Ints,
    numbers: Numbers,
    *,
    ends: bool = False,
    columns: int = 0,
    of: Multiplied | None = None,
) -> PassViews:
    """Return dgrad to ``spatial`` cells, from the shapes of the gradient (N, Z, P, Q, K) and ``w``.

    ``ends`` says whether an epilogue follows: an empty sum then need not become zero, so that cells
    that no window covers have views, if these are not too many. ``columns``: how many columns
    concatenated stride phases fill if channels are few. ``of`` is as for :func:`fprop_pass`.

    >>> numbers = [3], [0, 0], [1], 1
    >>> [len(dgrad_pass((1, 3, 4), (4, 1, 2), [7], numbers, ends=e).views) for e in (0, 1)]
    [1, 3]
    """
    *modes, groups = numbers
    every = tuple(spatial), *map(tuple, modes), groups
    return _dgrad_pass(tuple(y), tuple(w), *every, bool(ends), columns, of)


@kept_in(_PASSES)
def _dgrad_pass(y: Any, w: Any, spatial: Any, *numbers: Any) -> PassViews:
    *of_problem, ends, columns, of = numbers
    groups = of_problem[-1]
    shape = (y[0], *spatial, w[-1] * groups)
    problem = _problem(shape, w[:-1], *of_problem)
    if _is_depthwise(problem):
        empty = writes_empty_sums(problem, ends=ends)
        views = depthwise_dgrad_views(problem, empty=empty)
        return PassViews(views, shape, not empty and not _covers(problem, ()))
    few = few_terms_dgrad(problem, of)
    if few is not None:
        return PassViews((few,), shape)
    patches, merged = patches_of(problem)
    w = (*patches.filter, patches.C // groups)
    k_major = worth_k_major(prod(y[:-1]), w, groups)
    empty = writes_empty_sums(patches, of, ends=ends, k_major=k_major)
    together, _ = phases_of(patches, columns, empty=empty)

    def views_of(K: int) -> tuple[GemmView, ...]:
        of_width = replace(problem, filter=(K, *problem.taps))
        return arranged_dgrad(of_width, columns, empty=empty)

    views = arranged_dgrad(problem, columns, empty=empty)
    joined = joined_phases(patches, views, of, k_major=k_major) if merged == 1 else ()
    if joined:
        views, together = dgrad_views(patches, side_by_side=joined, empty=empty), joined
    zeroed = not empty and not _covers(patches, together)
    packed = packed_dgrad(patches, views, views_of, of)
    packed = packed and replace(packed, views=concurrent(packed.views))
    return PassViews(concurrent(views), shape, zeroed, w if k_major else (), packed)


def _covers(problem: ConvProblem, together: tuple[int, ...]) -> bool:
    """Return whether some tap reaches every stride phase; modes ``together`` are one phase."""
    return all(
        mode in together
        or len(reached_residues(problem, mode)) == min(problem.stride[mode], problem.spatial[mode])
        for mode in range(problem.rank)
    )


def wgrad_pass(
    y: Ints, x: Ints, taps: Ints, numbers: Numbers, *, of: Multiplied | None = None
) -> PassViews:
    """Return wgrad of a filter of ``taps``, from the shapes of the gradient and the activation."""
    return _wgrad_pass(tuple(y), tuple(x), tuple(taps), *map(tuple, numbers[:3]), numbers[3], of)


@kept_in(_PASSES)
def _wgrad_pass(y: Any, x: Any, taps: Any, *numbers: Any) -> PassViews:
    *of_problem, of = numbers
    problem = _problem(x, (y[-1], *taps), *of_problem)
    if _is_depthwise(problem):
        return PassViews((depthwise_wgrad_view(problem),), problem.stored_filter)
    patches, _ = patches_of(problem)
    views = (arranged_wgrad(problem),)
    return PassViews(views, problem.stored_filter, packed=packed_wgrad(patches, views, of))


def _problem(
    activation: Any, filter: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> ConvProblem:
    """Return the problem of a pass, :meth:`ConvProblem.reduced`."""
    sides = tuple(zip(padding[::2], padding[1::2], strict=True))
    return ConvProblem(activation, filter, stride, sides, dilation, groups).reduced()


def _is_depthwise(problem: ConvProblem) -> bool:
    """Return whether every channel is a group of its own."""
    return problem.groups > 1 and problem.groups == problem.C


def is_torchs_pass(a: Tensor, b: Tensor, numbers: Sequence[Any]) -> bool:
    """Return whether torch computes a pass: on a CPU, unless the caller asked for views.

    torch takes no argument beyond 32 bits, and no negative padding, which a rank's part of a
    distributed convolution may have.
    """
    *modes, _, executor = numbers
    if executor == VIEW or not is_torchs(a, b):
        return False
    short = all(number < 1 << 31 for mode in modes for number in mode)  # not max, for compilers
    return short and all(cells >= 0 for cells in numbers[-4])


def torch_pass(name: str, a: Tensor, b: Tensor, numbers: Sequence[Any]) -> TorchPass:
    """Return the pass "fprop", "dgrad" or "wgrad" of two tensors, in torch's order, as torch's own.

    ``numbers`` are as for :func:`pass_maker`.
    """
    first, second = _shape_in_memory(a), _shape_in_memory(b)
    *numbers, groups, _ = numbers
    if name == "fprop":
        x, filter = first, second[:-1]
    elif name == "dgrad":
        spatial, *numbers = numbers
        x, filter = (first[0], *spatial, second[-1] * groups), second[:-1]
    else:
        taps, *numbers = numbers
        x, filter = second, (first[-1], *taps)
    convolution = _torch_convolution(x, filter, *map(tuple, numbers), groups)
    records = name == "fprop" and len(first) > 3
    recorded = convolution.recorded if records else None
    return TorchPass(getattr(convolution, name), recorded=recorded)


@kept_in(_PASSES)
def _torch_convolution(x: Any, filter: Any, *numbers: Any) -> TorchConvolution:
    return TorchConvolution(_problem(x, filter, *numbers))


def pass_of(
    name: str, a: Tensor, b: Tensor, numbers: Sequence[Any], *, by_tiles: bool = False
) -> PassViews | TorchPass:
    """Return the pass "fprop", "dgrad" or "wgrad"; arguments are as for :func:`pass_maker`."""
    if is_torchs_pass(a, b, numbers):
        return torch_pass(name, a, b, numbers)
    return pass_maker(name, a, b, numbers, by_tiles=by_tiles)()


def pass_maker(
    name: str,
    a: Tensor,
    b: Tensor,
    numbers: Sequence[Any],
    *,
    ends: bool = False,
    by_tiles: bool = False,
) -> Callable[[], PassViews]:
    """Return a function that makes the pass "fprop", "dgrad" or "wgrad" of two tensors.

    It holds no tensor. ``numbers`` are the arguments of the operator between the two tensors and
    its epilogue; ``ends`` says whether an epilogue follows, ``by_tiles`` whether only tiles end the
    pass in one kernel.
    """
    first, second = _shape_in_memory(a), _shape_in_memory(b)
    numbers, of = numbers[:-1], multiplied_for(a)
    of = of and of._replace(by_tiles=by_tiles)
    if name == "fprop":
        return partial(fprop_pass, first, second, *numbers, line=line_for(a), of=of)
    if name == "dgrad":
        spatial, *others = numbers
        return partial(
            dgrad_pass, first, second, spatial, others, ends=ends, columns=columns_for(a), of=of
        )
    return partial(wgrad_pass, first, second, numbers[0], numbers[1:], of=of)


def fprop(
    x: Tensor,
    w: Tensor,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
    executor: str | None = None,
    *ending: Any,
) -> Tensor:
    """Run the forward pass, (N, K, Z, P, Q); ``ending`` has the fields of ``EpilogueArgs``."""
    args, numbers = EpilogueArgs(*ending), (stride, padding, dilation, groups, executor)
    found = pass_of("fprop", x, w, numbers, by_tiles=ends_in_tiles(args.out_dtype))
    return found.compute(x, w, args)[0]


def fprop_statistics(
    x: Tensor,
    w: Tensor,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
    executor: str | None = None,
    *ending: Any,
) -> tuple[Tensor, Any]:
    """Run the forward pass; also return its statistics, fp32 (2, K)."""
    numbers = stride, padding, dilation, groups, executor
    found = pass_of("fprop", x, w, numbers, by_tiles=True)
    return found.compute(x, w, EpilogueArgs(*ending), statistics=True)


def dgrad(
    y: Tensor,
    w: Tensor,
    spatial: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
    executor: str | None = None,
    *ending: Any,
) -> Tensor:
    """Run the gradient of the activation, or the transposed convolution, (N, C, D, H, W)."""
    args, numbers = EpilogueArgs(*ending), (spatial, stride, padding, dilation, groups, executor)
    if is_torchs_pass(y, w, numbers):
        return torch_pass("dgrad", y, w, numbers).compute(y, w, args)[0]
    # First, so that a result too large for memory makes no view.
    result = new_result(y, (y.shape[0], *spatial, w.shape[1] * groups), args.out_dtype)
    by_tiles = ends_in_tiles(args.out_dtype)
    found = pass_maker("dgrad", y, w, numbers, ends=args.ends, by_tiles=by_tiles)()
    return found.compute(y, w, args, result)[0]


def wgrad(
    y: Tensor,
    x: Tensor,
    taps: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
    executor: str | None = None,
    *ending: Any,
) -> Tensor:
    """Run the gradient of the filter, (K, C / groups, T, R, S); ``ending`` may give a dtype."""
    found = pass_of("wgrad", y, x, (taps, stride, padding, dilation, groups, executor))
    return found.compute(y, x, EpilogueArgs(*ending))[0]


def _in_memory(ending: EpilogueArgs) -> EpilogueArgs:
    """Return the epilogue with its result-like tensors in the order of memory."""
    return ending.like_result(in_memory_order)


def _run(
    views: Sequence[GemmView],
    a: Tensor,
    b: Tensor,
    out: Tensor,
    ending: EpilogueArgs,
    statistics: bool,
    k_major: bool = False,
) -> Tensor | None:
    """Call :func:`run` with tensors reshaped to the views."""
    stored = expected(views[0])
    ending = ending.like_result(lambda tensor: tensor.reshape(stored.d.shape))
    epilogue, out = ending.epilogue(statistics=statistics), out.view(stored.d.shape)
    return run(views, a, b.view(stored.b.shape), out, epilogue, k_major=k_major)


def run(
    views: Sequence[GemmView],
    a: Tensor,
    b: Tensor,
    out: Tensor,
    epilogue: Epilogue | None,
    *,
    k_major: bool = False,
) -> Tensor | None:
    """Run the views of a pass, which together write ``out``; return the statistics, if any.

    ``k_major``: copy ``b``, a filter, to K-major first, as ``PassViews.k_major`` says.
    """
    if k_major:
        views, b = with_k_major_filter(views, a, b)
    for view in views:
        found = execute(view, as_stored(view, a), b, out, epilogue=epilogue)
    return found[1] if epilogue is not None and epilogue.statistics else None
