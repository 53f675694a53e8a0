"""Networks as CUDA graphs: clouds of any size, images of a few sizes, one launch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from ..sparse.coords.row_plan import RowCount
from .graph_arguments import ArgumentMemory, CallArguments, versions
from .graph_bucket import Bucket, Eager
from .graph_calls import GraphedCalls, check_options
from .graph_recorder import wrapper_of_ranks
from .nested import taken_apart


class Graphed(GraphedCalls, torch.nn.Module):
    """A network that runs as CUDA graphs: :func:`graphed` makes it.

    It shares the network's parameters, buffers and children, by name, and forwards other
    attributes.

    Attributes:
        module: the network.
    """

    module: torch.nn.Module

    def __init__(
        self,
        module: torch.nn.Module,
        factor: float = 1.25,
        buckets: int = 16,
        nbytes: int | None = None,
    ) -> None:
        super().__init__()
        own = self.__dict__
        own["module"] = module  # not a child, which would prefix names
        for name in "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set":
            own[name] = module.__dict__[name]
        self.training = module.training
        self._begin(factor, buckets, nbytes)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.module(*args, **kwargs)
        return self._responded(args, kwargs)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.training = self.module.training

    # -- the calls ---------------------------------------------------------------------------------

    def _plainly(self, args: Any, kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def _refuses(self, call: CallArguments) -> str:
        refused = super()._refuses(call)
        if refused:
            return refused
        if self.module.training:
            return "it is in training mode"
        if torch.is_grad_enabled() and (
            call.wants_gradient() or any(p.requires_grad for p in self.module.parameters())
        ):
            return "gradients are recorded: call it under torch.no_grad()"
        return ""

    def _observed(self, call: CallArguments, args: Any, kwargs: Any) -> Eager:
        wrapper = wrapper_of_ranks(self.module)
        if wrapper:
            why = f"it is a {wrapper}: give its module, and wrap the graphed network"
            return Eager(self.module(*args, **kwargs), None, [], why)
        before = self._versions(call)
        result = self.module(*args, **kwargs)
        structure, leaves = taken_apart(result)
        same = before == self._versions(call)
        why = "" if same else "it writes to its arguments, its parameters or its buffers"
        return Eager(result, structure, leaves, why)

    def _versions(self, call: CallArguments) -> list[int]:
        return versions(*call.tensors(), *self.module.buffers(), *self.module.parameters())

    def _new_bucket(
        self, call: CallArguments, capacities: Sequence[int], count: RowCount, groups: int
    ) -> Bucket:
        memory = ArgumentMemory(call, self._places[call.form], capacities[:groups])
        return Bucket(self.module, memory, count.keys, capacities[groups:])

    # -- the network's own attributes --------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["module"], name)

    def train(self, mode: bool = True) -> Graphed:
        """Set the mode of the network."""
        self.module.train(mode)
        self.training = mode
        return self

    def _save_to_state_dict(self, *args: Any) -> None:
        self.module._save_to_state_dict(*args)

    def _load_from_state_dict(self, *args: Any) -> None:
        self.module._load_from_state_dict(*args)

    def __deepcopy__(self, memo: Any) -> Graphed:
        return type(self)(copy.deepcopy(self.module, memo), *self._options)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.module, *self._options)

    def __repr__(self) -> str:
        return f"Graphed({self.module!r})"


def graphed(
    net: torch.nn.Module, *, factor: float = 1.25, buckets: int = 16, nbytes: int | None = None
) -> Graphed:
    """``net`` as CUDA graphs, kernel maps included: one launch per call, on new clouds.

    The first call of a kind is eager. It counts the rows of every level, and a graph is captured
    for ``factor`` times as many, a *bucket*. Later calls that fit are copied into the bucket's
    memory and replayed; their results have the rows of an eager call. A call that fits no bucket,
    or has more cells at some level, is eager, and makes a larger bucket.

    Args:
        net: any module of sparse tensors, of :mod:`layoutconv.nn` or of spconv's names, or a dense
            one, in evaluation mode and under ``torch.no_grad()``. It takes and returns sparse
            tensors, images, or tensors of features and cells that it builds a sparse tensor from,
            nested in tuples, lists and dicts. A dense one has a bucket for each shape and memory
            order.
        factor: rows of a bucket, relative to the call that it was made for; 1 or more.
        buckets: the most that are kept. Those used last stay, half of them at least.
        nbytes: the most memory of all buckets; by default a quarter of the GPU's.

    Calls that cannot be captured are eager, and ``graphed(net).report()`` says why: gradients and
    training mode, which :func:`graphed_step` is for, Python that reads values of the GPU, a result
    that depends on padding. Before the capture the network runs once with rows of NaN as padding,
    and its result is compared with the eager one. On a CPU every call is eager.

    In a ``with`` statement, ``with graphed(net) as fast:``, graphs and their memory live until its
    end, which also restores the modes, and which parameters want gradients, of its beginning.

    Results are copies. Those at cells of an argument share its coordinates; others come without
    kernel maps. Parameters may be changed in place; replaced parameters and changed modes are
    detected. Parameters, buffers and ``state_dict`` are those of ``net``, under the same names.

    Raises :class:`~layoutconv.errors.ArgumentError`.

    >>> import layoutconv as lc
    >>> net = graphed(lc.nn.Sequential(lc.nn.SubmConv2d(1, 4, 3), torch.nn.ReLU()).eval())
    >>> with torch.no_grad():
    ...     y = net(lc.SparseTensor.from_dense(torch.eye(4).view(1, 4, 4, 1)))
    >>> y.features.shape, sorted(net.state_dict())
    (torch.Size([4, 4]), ['0.bias', '0.weight'])
    >>> print(net.report())
    0 calls replayed a graph, 0 warmed one up
    1 calls were eager: there are no CUDA graphs on a cpu
    """
    check_options(net, factor, buckets, nbytes)
    return Graphed(net, factor, buckets, nbytes)
