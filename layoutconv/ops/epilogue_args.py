"""The epilogue of a convolution as one value, below the public functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..view.epilogue import Activation, Bias, Epilogue, EpilogueStep, Pointwise, Residual, Scale

if TYPE_CHECKING:
    from torch import Tensor

# The last arguments of an operator: the fields of ``EpilogueArgs``.
SCHEMA = (
    "Tensor? bias=None, Tensor? scale=None, Tensor? residual=None, "
    "str? activation=None, float slope=0.01, ScalarType? out_dtype=None"
)


class EpilogueArgs(NamedTuple):
    """``activation(scale * sum + bias + residual)``, in the dtype ``out_dtype``.

    Warm calls construct none: that takes half a microsecond. An activation is a name, or a user's
    function; torch operators take names only, as their schemas say.
    """

    bias: Tensor | None = None
    scale: Any = None  # a tensor; before public functions have checked it, also a number
    residual: Tensor | None = None
    activation: str | Pointwise | None = None
    slope: float = 0.01
    out_dtype: torch.dtype | None = None

    def of(self, bias: Tensor | None, scale: Any, residual: Tensor | None) -> EpilogueArgs:
        """Replace the tensors; torch 2.8 does not compile ``_replace``."""
        return EpilogueArgs(bias, scale, residual, self.activation, self.slope, self.out_dtype)

    def like_result(self, change: Callable[[Tensor], Tensor]) -> EpilogueArgs:
        """Apply ``change`` to all tensors that have the result's shape."""
        residual, activation = self.residual, self.activation
        if isinstance(activation, Pointwise):
            activation = sources_changed(activation, change)
        elif residual is None:
            return self
        residual = None if residual is None else change(residual)
        return EpilogueArgs(self.bias, self.scale, residual, activation, self.slope, self.out_dtype)

    @property
    def ends(self) -> bool:
        """Return whether anything but a dtype follows the sums."""
        no_tensors = self.bias is None and self.scale is None and self.residual is None
        return not (no_tensors and self.activation is None)

    def epilogue(self, *, statistics: bool = False) -> Epilogue | None:
        """Return the steps, without the dtype; None if there are none."""
        return epilogue_of(*self[:5], statistics)


def tensors_in(ending: EpilogueArgs) -> tuple[Tensor | None, Any, Tensor | None]:
    """Return the tensors; torch 2.6 compiles neither a slice nor a property of a tuple."""
    return ending.bias, ending.scale, ending.residual


def epilogue_of(
    bias: Tensor | None = None,
    scale: Tensor | float | None = None,
    residual: Tensor | None = None,
    activation: str | Pointwise | None = None,
    slope: float = 0.01,
    statistics: bool = False,
) -> Epilogue | None:
    """Return ``activation(scale * sum + bias + residual)`` as an epilogue; None for ``sum``."""
    steps: list[EpilogueStep] = []
    if scale is not None:
        steps.append(Scale(scale.contiguous() if isinstance(scale, torch.Tensor) else scale))
    if bias is not None:
        steps.append(Bias(bias.contiguous()))
    if residual is not None:
        steps.append(Residual(residual.contiguous()))
    if isinstance(activation, Pointwise):
        steps.append(sources_changed(activation, torch.Tensor.contiguous))
    elif activation is not None:
        steps.append(Activation(activation, slope))
    return Epilogue(tuple(steps), statistics) if steps or statistics else None


def sources_changed(function: Pointwise, change: Callable[[Tensor], Tensor]) -> Pointwise:
    """Apply ``change`` to the tensors of a user's function that have the result's shape."""
    if not function.sources:
        return function
    return function.with_tensors(
        function.per_column, function.per_row, map(change, function.like_d)
    )
