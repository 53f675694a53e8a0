"""Convolutions with a norm after them that ran as one launch before: the findings of those calls.

Calls of a module differ in features and kernel map. So a module keeps the kind of its calls, with a
guard over its tensors, and finds it without a look-up in the call cache. The arguments of norms and
activations are compared at every call, and kernels get the tensors of the call: no tensor that a
kernel reads is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..ops import sparse_calls
from ..ops.call_cache import sparse
from ..ops.guard import guard_of

if TYPE_CHECKING:
    from torch import Tensor

    from ..sparse import KernelMap

is_grad_enabled = torch.is_grad_enabled
get_autocast_dtype = torch.get_autocast_dtype
WARM = "_layoutconv_warm"  # the attribute of a module that holds its warm layers
_FEW = 4  # layers of a module: it meets several norms, activations, dtypes and devices


class LayerCall(NamedTuple):
    """A call of a convolution with a norm, a sum and an activation after it.

    Attributes:
        kind: of the convolution.
        modules: the norm and the activation; each may be None.
        tensors: features, weight, a bias if there is one, and the norm's.
        past: the tensor that is added, or None.
    """

    kind: sparse_calls.SparseSignature
    modules: tuple[Any, Any]
    tensors: tuple[Tensor, ...]
    past: Tensor | None


class KeptLayer:
    """A kind of calls of a convolution with ``norm``, a sum and ``last`` after it, and guards over
    their tensors.
    """

    def __init__(self, call: LayerCall) -> None:
        self.kind, (self.norm, self.last), tensors, past = call
        self.era = sparse.era
        self.added, self.count, self.device = past is not None, len(tensors), tensors[0].device.type
        self.alike = guard_of(*tensors, rows=True)
        # Separate, as it may be the features: torch's guards do not accept a tensor twice.
        self.past_alike = None if past is None else guard_of(past, rows=True)


class WarmLayer(KeptLayer):
    """Calls in evaluation, each one launch.

    ``lowers`` is the dtype to which autocast lowers the filter, and which the features already
    have; None if autocast is off.
    """

    def __init__(self, call: LayerCall, slope: float, lowers: torch.dtype | None = None) -> None:
        super().__init__(call)
        self.eps, self.slope, self.lowers = self.norm.eps, slope, lowers
        self.grad = is_grad_enabled()

    def run(
        self,
        tensors: tuple[Tensor, ...],
        past: Tensor | None,
        slope: float,
        groups: int,
        found: KernelMap,
    ) -> Tensor | None:
        """Compute a call; None if it is of another kind.

        ``tensors`` are features, weight, a bias if there is one, and the norm's.
        """
        lowers = self.lowers
        if (
            self.era is not sparse.era
            or len(tensors) != self.count
            or self.norm.eps != self.eps
            or slope != self.slope
            or groups != self.kind.groups
            or is_grad_enabled() is not self.grad
            or (lowers is not None and lowers is not get_autocast_dtype(self.device))
        ):
            return None
        for tensor in tensors:
            if tensor.is_nested:  # torch's guard would crash the process
                return None
        if not self.alike(*tensors):
            return None
        if past is not None and (past.is_nested or not self.past_alike(past)):  # type: ignore[misc]
            return None
        bound = sparse_calls.launch_over(self.kind, found)
        if bound is None:
            return None
        launch, in_rows, out_rows = bound
        x, weight = tensors[:2]
        weight = weight if lowers is None else weight.to(lowers)
        if x.shape[0] != in_rows or (past is not None and past.shape[0] != out_rows):
            return None
        return launch.followed(x, weight, tensors[2:], () if past is None else (past,))


class _KeptLayers(list[KeptLayer]):
    """The layers of a module; copies and pickles of it are empty."""

    def __reduce__(self) -> tuple[Any, ...]:  # type: ignore[override]
        return tuple, ()


def keep_warm(module: Any, layer: KeptLayer, name: str = WARM) -> None:
    """Keep a layer with its module, before others that are still valid."""
    others = [other for other in module.__dict__.get(name, ()) if other.era is layer.era]
    module.__dict__[name] = _KeptLayers([layer, *others[: _FEW - 1]])
