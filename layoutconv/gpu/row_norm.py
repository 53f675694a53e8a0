"""Launch batch norms over rows, in training (``kernels/pointwise/row_norm.py``)."""

from __future__ import annotations

from dataclasses import replace
from struct import pack, unpack
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..base.caches import remembered
from ..base.dry_hooks import dry_hooks
from ..base.memory import maker
from ..base.torch_internals import in_shape, increment_versions
from ..planning.norm_schedule import BYTES, PARTS, NormShape, Schedule, columns_per_load, schedule
from . import machines

if TYPE_CHECKING:
    from torch import Tensor

    from ..base.ranks import Ranks
    from ..kernels.maps.per_rank import Chain

_new: Any = tuple.__new__  # a NamedTuple's own takes a call of Python
_address = torch.Tensor.data_ptr
TYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})  # of features and parameters
ACTIVATIONS = frozenset({"relu", "relu6", "silu", "hardswish"})
# Bounds of numbers in float32. An eps of 0 is excluded: torch gives a constant column zeros then.
LEAST, MOST = 1e-30, 1e30
# Elements from which a separate kernel merges moments and sums. Hiding the latency of loads takes
# this many parts, and each CTA would take as long to merge them as to read its rows.
LARGE, MANY_PARTS = 1 << 23, 512
# Shape and strides of a packed tensor with the elements of the rows, in their order.
Memory = tuple[tuple[int, ...], tuple[int, ...]]


class Norm(NamedTuple):
    """A batch norm in training, as kernels take it.

    Attributes:
        weight, bias: (C,), or None, both or neither.
        running: running mean and variance (C,), updated with ``momentum``, or None.
        there: which rows count, bool (rows,); None if all do.
        past: a tensor like the features that is added to the result, or None.
        activation: the name of the activation, or None; only a ReLU if something is added.
        counted: the number of batches so far, int64 (), incremented by the norm, or None.
        ranks: the ranks whose rows it covers, or None.
    """

    weight: Tensor | None
    bias: Tensor | None
    running: tuple[Tensor, Tensor] | None
    momentum: float
    eps: float
    there: Tensor | None = None
    past: Tensor | None = None
    activation: str | None = None
    counted: Tensor | None = None
    ranks: Ranks | None = None


def takes(x: Tensor, norm: Norm) -> bool:
    """Return whether kernels can compute a norm of features ``x``, by dtypes and shapes."""
    if x.dim() != 2 or x.dtype not in TYPES:
        return False
    rows, C = x.shape
    # Ranks take part in the exchange even without rows.
    if not C or rows >= 1 << 31 or not (rows or norm.ranks):
        return False
    if not (LEAST < norm.eps < MOST and abs(norm.momentum) < MOST):
        return False
    device = x.device
    pairs = (norm.weight, norm.bias), norm.running or (None, None)
    for one, other in pairs:
        if (one is None) is not (other is None):
            return False
        for tensor in (one, other):
            if tensor is not None and (
                tensor.dtype not in TYPES
                or tensor.dtype is not one.dtype  # type: ignore[union-attr]
                or tensor.shape != (C,)
                or not tensor.is_contiguous()
                or tensor.device != device
            ):
                return False
    past, there, counted = norm.past, norm.there, norm.counted
    if counted is not None and (
        counted.dtype is not torch.int64 or counted.dim() or counted.device != device
    ):
        return False
    if there is not None:
        known = there.dtype is torch.bool and there.shape == x.shape[:1] and there.device == device
        if not (known and there.is_contiguous()):
            return False
    last = norm.activation
    if last is not None and last not in (ACTIVATIONS if past is None else ("relu",)):
        return False
    return past is None or (
        past.dtype is x.dtype and past.shape == x.shape and past.device == device
    )


class NormPlan(NamedTuple):
    """The kernels of a norm, and the schedule of their launch."""

    kernels: NormKernels
    schedule: Schedule

    def back(self) -> NormPlan:
        """Return the plan for the gradients of this norm."""
        return _new(NormPlan, (self.kernels.back(), self.schedule))  # type: ignore[no-any-return]


def planned(x: Tensor, norm: Norm, *, alone: bool = True) -> NormPlan:
    """Return the kernels of a norm of features ``x`` (rows, C), and the schedule of their launch.

    ``alone``: the kernels serve other numbers of rows, too, as for a sparse layer.
    """
    weight, running = norm.weight, norm.running
    of_parameters = None if weight is None else weight.dtype
    of_running = None if running is None else running[0].dtype
    follows = norm.there is not None, norm.past is not None, norm.counted is not None
    early = x.is_cuda and machines.starts_early(x.get_device())
    rows, C = x.shape
    large = not alone and rows * C >= LARGE
    merges = large or norm.ranks is not None
    last = norm.activation or ""
    remakes = last not in ("", "relu") or (not alone and last == "relu" and norm.past is None)
    types = x.dtype, C, of_parameters, of_running
    kernels = _kernels_of(*types, last, *follows, early, merges, remakes)
    most = MANY_PARTS if large else PARTS
    plan = schedule(max(rows, 1), C, kernels.shape.vector, most)
    made = kernels, plan if rows else plan._replace(rows=0)
    return _new(NormPlan, made)  # type: ignore[no-any-return]


def normalised(
    x: Tensor, norm: Norm, plan: NormPlan | None = None, memory: Memory | None = None
) -> tuple[Tensor, Tensor]:
    """Return the norm of features ``x`` (rows, C) on a GPU, and the tensor for the backward pass.

    The latter has mean and inverse standard deviation of every column, and the number of rows that
    counted, float32 (2 C + 1,); if the backward pass recomputes results, also scale and offset,
    (4 C + 1,). Updates running statistics and the batch count. ``takes`` must accept ``x``;
    ``plan`` is from :func:`planned`; ``memory`` overrides the shape and strides of the result.
    """
    kernels, cut = plan or planned(x, norm)
    weight, bias, running, momentum, eps, there, past, _, counted, ranks = norm
    mean, variance = running or (None, None)
    if x.data_ptr() & (BYTES - 1) or not x.is_contiguous():
        x = _whole(x)
    if past is not None and (past.data_ptr() & (BYTES - 1) or not past.is_contiguous()):
        past = _whole(past)
    C, make = cut.columns, maker(x.device)
    width = 2 * C + 1
    out = make(*(memory or ((cut.rows, C), (C, 1))), x.dtype)
    if dry_hooks.load is not None:  # a dry run writes nothing
        out.zero_()
    left = 2 * width - 1 if kernels.shape.remakes else width
    kept = make((left,), (1,), torch.float32)
    size = cut.parts * width
    words = make((1, size), (size, 1), torch.int32)  # moments, the first tensor of launches
    merged, chain = words, "forward"
    numbers: tuple[int, ...] = *cut, bits(eps), bits(momentum)
    rows = words if there is None else there
    if kernels.shape.ranks:
        merged, chain = make((1, width), (width, 1), torch.float32), "normalise"
        _launch("moments", kernels, words, (x, rows, words, merged), (*cut, bits(eps)))
        if ranks is not None:
            merged = ranks.gathered(in_shape(merged, (width,), (1,)))
        numbers = *numbers, len(merged)
    tensors = (
        x, rows, merged,
        words if weight is None else weight, words if bias is None else bias,
        words if past is None else past, out, kept,
        words if mean is None else mean, words if variance is None else variance,
        words if counted is None else counted,
    )  # fmt: skip
    found = kernels.chains.get(chain) or kernels.chain(chain)
    _per_rank().launch(found, (words, *tensors), (*map(_address, tensors),), numbers)
    written = []
    for tensor in (mean, variance, counted):
        if tensor is not None and not tensor.is_inference():
            written.append(tensor)
    increment_versions(written)
    return out, kept


def gradients(
    x: Tensor,
    norm: Norm,
    out: Tensor | None,
    kept: Tensor,
    grad: Tensor,
    plan: NormPlan | None = None,
    memory: Memory | None = None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the gradients of the features, of the added tensor, and of weight and bias, float32
    (2, C), from the gradient of the result.

    ``out`` is the result, needed if there is an activation whose input the kernels do not
    recompute. ``plan`` is ``planned(...).back()``; ``memory`` overrides the shape and strides of
    the first two gradients. The added tensor's is None if it equals ``grad``: without an activation
    after the sum, and if all rows count.

    With several ranks, the gradients of weight and bias cover only this rank's rows.
    """
    kernels, cut = plan or planned(x, norm).back()
    weight, there, ranks = norm.weight, norm.there, norm.ranks
    if x.data_ptr() & (BYTES - 1) or not x.is_contiguous():
        x = _whole(x)
    if grad.data_ptr() & (BYTES - 1) or not grad.is_contiguous():
        grad = _whole(grad)
    C, make = cut.columns, maker(x.device)
    features = *(memory or ((cut.rows, C), (C, 1))), x.dtype
    dx = make(*features)
    dpast = make(*features) if kernels.shape.added else None
    if dry_hooks.load is not None:  # a dry run writes nothing
        dx.zero_()
        if dpast is not None:
            dpast.zero_()
    of_parameters = make((2, C), (C, 1), torch.float32)
    size = cut.parts * 2 * C
    words = make((1, size), (size, 1), torch.int32)
    merged, chain, numbers = words, "backward", tuple(cut)
    written = of_parameters
    read = x, words if there is None else there, words if out is None else out, grad, kept
    if kernels.shape.ranks:
        merged, chain = torch.empty_like(of_parameters), "gradient"
        _launch("sums", kernels, words, (*read, words, of_parameters, merged), numbers)
        merged = merged if ranks is None else ranks.summed(merged)
        numbers = *cut, 1
        written = torch.empty_like(of_parameters)  # the sums over all ranks, unused
    of_norm = words if weight is None else weight, dx, words if dpast is None else dpast, written
    found, tensors = kernels.chains.get(chain) or kernels.chain(chain), (*read, merged, *of_norm)
    _per_rank().launch(found, (words, *tensors), (*map(_address, tensors),), numbers)
    return dx, dpast, of_parameters


def _launch(
    chain: str,
    kernels: NormKernels,
    words: Tensor,
    tensors: tuple[Tensor, ...],
    numbers: tuple[int, ...],
) -> None:
    """Launch kernels on tensors; ``words`` stands in for arguments that are not read."""
    found = kernels.chains.get(chain) or kernels.chain(chain)
    _per_rank().launch(found, (words, *tensors), (*map(_address, tensors),), numbers)


def _whole(x: Tensor) -> Tensor:
    """Return contiguous features, aligned for vectors."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() & (BYTES - 1) else x


class NormKernels:
    """The kernels of norms of one shape, each loaded at its first launch."""

    def __init__(self, shape: NormShape) -> None:
        self.shape = shape
        self.chains: dict[str, Chain] = {}
        self._back: NormKernels | None = None

    def chain(self, name: str) -> Chain:
        """Return the chain of kernels that one call launches."""
        found = self.chains.get(name)
        if found is None:
            found = self.chains[name] = _chain(self.shape, name)
        return found

    def back(self) -> NormKernels:
        """Return the kernels of the gradients, whose shape omits what only forward passes do: also
        the sum, if the added tensor's gradient is that of the result.
        """
        if self._back is None:
            added = self.shape.added and bool(self.shape.activation or self.shape.masked)
            self._back = NormKernels(replace(self.shape, running="", counts=False, added=added))
        return self._back


@remembered(256)
def _kernels_of(
    dtype: torch.dtype, C: int, parameters: Any, running: Any, activation: str, *options: bool
) -> NormKernels:
    names = (
        "" if kind is None else str(kind).removeprefix("torch.")
        for kind in (dtype, parameters, running)
    )  # fmt: skip
    name, of_parameters, of_running = names
    vector = columns_per_load(C, dtype.itemsize)
    masked, added, counts, early, ranks, remakes = options
    follows = masked, activation, added, counts, early, ranks
    shape = NormShape(name, vector, of_parameters, of_running, *follows, remakes=remakes)
    return NormKernels(shape)


@remembered(128)
def _chain(shape: NormShape, name: str) -> Chain:
    from ..kernels.pointwise import row_norm as kernels

    found: Chain = getattr(kernels, name)(_of_chain(shape, name))
    return found


def _of_chain(shape: NormShape, name: str) -> NormShape:
    """Return the shape of a chain; for one that ends before ranks exchange, without the fields that
    do not change its code, so that norms of a network which differ in these compile it once.
    """
    if name not in ("moments", "sums"):
        return shape
    of_sums = name == "sums"
    return replace(
        shape, parameters="", running="", added=False, counts=False,
        activation=shape.activation if of_sums else "", remakes=shape.remakes and of_sums,
    )  # fmt: skip


@remembered(64)
def bits(number: float) -> int:
    """Return the bits of a number as float32, an integer argument of kernels."""
    found: int = unpack("<i", pack("<f", number))[0]
    return found


@remembered(1)
def _per_rank() -> Any:
    """Return the launching module, which imports the DSL."""
    from ..kernels.maps import per_rank

    return per_rank
