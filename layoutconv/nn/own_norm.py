"""Modules that normalise each voxel over its channels, as video decoders define them.

torch has no RMS norm of channels-first images: projects write ``torch.nn.functional.normalize(x,
dim=1) * scale * gamma``, which is seven passes over an image. To recognise such a module, a copy of
it is called in float64; no class or attribute names are known here. On a GPU, if no gradient is
wanted, one kernel then reads and writes ``channels_last`` images once; all else runs unchanged.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.parameter import is_lazy

from ..gpu import channel_norm
from ..gpu.channel_norm import ChannelNormArgs
from ..gpu.row_norm import TYPES
from ..ops.guard import is_plain, wants_gradient
from .recorded_pass import contents

CONVERTED_FROM = "_converted_from"  # the attribute of a converted module that revert reads
OWN_NORM = "_own_norm"  # the attribute of a converted module that says what it computes
_OF_ANY = frozenset(torch.nn.Module().__dict__) | {OWN_NORM, CONVERTED_FROM}
_VALUES = int, float, str
_LEAST = 1e-12  # ``normalize`` divides by at least this length
_CLOSE = 1e-9  # tolerance in float64


class OwnNorm(NamedTuple):
    """A forward pass that is ``normalize(x, dim=1) * scale * weight + bias``.

    Attributes:
        weight, bias: names of parameters; ``bias`` is "" without one.
        scale: a number.
    """

    weight: str
    bias: str
    scale: float

    def compute(self, module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Tensor | None:
        """Compute the result of a converted module; None if its own forward pass has to run."""
        if len(args) != 1 or named or torch.compiler.is_compiling():
            return None
        (input,) = args
        weight = getattr(module, self.weight)
        bias = getattr(module, self.bias) if self.bias else None
        tensors = (input, weight) if bias is None else (input, weight, bias)
        if not is_plain(*tensors) or wants_gradient(*tensors) or not input.is_cuda:
            return None
        if input.dim() != weight.dim() + 1:
            return None
        norm = ChannelNormArgs(weight, bias, self.scale, _LEAST)
        return channel_norm.normalised(input, norm) if channel_norm.takes(input, norm) else None


class Recognised(NamedTuple):
    """The norm of a converted module, valid while its ``attributes`` are unchanged."""

    norm: OwnNorm
    attributes: dict[str, Any]

    def compute(self, module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Tensor | None:
        """Compute the result of the module; None if its own forward pass has to run."""
        if torch.compiler.is_compiling() or not _are_same(_attributes_of(module), self.attributes):
            return None
        return self.norm.compute(module, args, named)


def recognised(module: Any) -> Recognised | None:
    """Return :func:`own_norm` of a module, and the attributes that its forward pass may read."""
    found = own_norm(module)
    return None if found is None else Recognised(found, _attributes_of(module))


def own_norm(module: Any) -> OwnNorm | None:
    """Return the norm that a module computes; None if it is no such norm.

    >>> class Norm(torch.nn.Module):
    ...     def __init__(self, C):
    ...         super().__init__()
    ...         self.scale, self.gamma = C**0.5, torch.nn.Parameter(torch.ones(C, 1, 1))
    ...     def forward(self, x):
    ...         return torch.nn.functional.normalize(x, dim=1) * self.scale * self.gamma
    >>> own_norm(Norm(4)), own_norm(torch.nn.GroupNorm(1, 4))
    (OwnNorm(weight='gamma', bias='', scale=2.0), None)
    """
    names = _parameters_of(module)
    if not names:
        return None
    random = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
            copied = deepcopy(module).to(device="cpu", dtype=torch.float64)
            found = {name: numbers(*copied._parameters[name].shape) for name in names}
            for name, values in found.items():
                copied._parameters[name] = torch.nn.Parameter(values)
            C, *ones = found[names[0]].shape
            # Voxels of all lengths; some are so short that an added epsilon would show.
            lengths = 10.0 ** torch.linspace(-14, 4, 2 * 3 ** len(ones)).double()
            x = numbers(2, C, *[3] * len(ones)) * lengths.view(2, 1, *[3] * len(ones))
            x[0, :, :1] = 0
            unit = normalize(x, dim=1)
            # This calls no hooks, which are copied too.
            before = contents(_attributes_of(copied))
            results = [copied.train(mode).forward(x) for mode in (True, False)]
            of_modes = {_found_out(unit, y, found) for y in results}
            if len(of_modes) > 1 or any(
                copied.to(dtype).forward(x.to(dtype)).dtype is not dtype for dtype in TYPES
            ):
                return None
            if contents(_attributes_of(copied)) != before:
                return None  # a pass that writes attributes has to run
            return of_modes.pop()
    except Exception:  # whatever somebody else's code raises
        return None


def _attributes_of(module: Any) -> dict[str, Any]:
    """Return the attributes of a module that ``torch.nn.Module`` does not define."""
    return {name: value for name, value in module.__dict__.items() if name not in _OF_ANY}


def _are_same(some: dict[str, Any], others: dict[str, Any]) -> bool:
    """Return whether attributes are the same objects, or equal numbers or strings."""
    return some.keys() == others.keys() and all(
        value is others[name] or (isinstance(value, _VALUES) and value == others[name])
        for name, value in some.items()
    )


def _parameters_of(module: Any) -> list[str]:
    """Return the names of the parameters if a module may be such a norm; else []."""
    forward = getattr(getattr(type(module), "forward", None), "__code__", None)
    if (
        forward is None
        or "normalize" not in forward.co_names  # others are not called
        or "forward" in module.__dict__
        or module._modules
        or module._buffers
        or any(isinstance(value, Tensor) for value in module.__dict__.values())
        or type(module).__reduce_ex__ is not object.__reduce_ex__
        or type(module).__reduce__ is not object.__reduce__  # like graphs of torch.fx
        or any(map(is_lazy, module._parameters.values()))
    ):
        return []
    names = [name for name, found in module._parameters.items() if found is not None]
    shapes = {tuple(module._parameters[name].shape) for name in names}
    if len(shapes) != 1 or len(names) > 2:
        return []
    (shape,) = shapes
    return names if 1 < len(shape) < 5 and set(shape[1:]) == {1} else []


def _found_out(unit: Tensor, y: Tensor, found: dict[str, Tensor]) -> OwnNorm | None:
    """Express ``y`` by ``unit`` and the parameters: return the weight, the bias and the scale; None
    if that is impossible.
    """
    for weight, values in found.items():
        others = [name for name in found if name != weight]
        bias = found[others[0]] if others else torch.zeros(1)
        product = unit * values
        at = product.abs().argmax()
        scale = ((y - bias).flatten()[at] / product.flatten()[at]).item()
        if torch.allclose(y, product * scale + bias, rtol=_CLOSE, atol=_CLOSE * abs(scale)):
            return OwnNorm(weight, others[0] if others else "", scale)
    return None
