"""Replace the convolutions and norms of an existing model, and undo it."""

from __future__ import annotations

import sys
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, NamedTuple, TypeVar, overload

import torch
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrize import is_parametrized

from ..base.caches import remembered
from ..errors import ArgumentError, ArgumentTypeError, truth_of
from ..ops.guard import PLAIN
from . import modules
from .dense_norm import NORMS
from .made_class import subclass
from .own_convolution import Redirected, on_meta, why_not_redirected
from .own_norm import CONVERTED_FROM as _RECORD
from .own_norm import OWN_NORM, recognised
from .own_padding import OWN_PADDING, RecognisedPadding, overriding, recognised_padding
from .rewritten_class import restore_class

_OURS: dict[type, type] = {
    getattr(torch.nn, name): getattr(modules, name)
    for name in (f"{kind}{rank}d" for kind in ("Conv", "ConvTranspose") for rank in (1, 2, 3))
}
# A module with an attribute of these names would fuse or call it.
_OWN_NAMES = "activation", "slope", "_function", "_activate"
_SLOTS = "__dict__", "__weakref__"  # attributes that every class defines itself

Module = TypeVar("Module", bound=torch.nn.Module)


@dataclass(frozen=True)
class ConversionReport:
    """The convolutions of a model that were swapped, and those that were not.

    Attributes:
        swapped: names of modules, as ``named_modules`` has them: "" is the model itself.
        left: the others, each with the reason.
        norms: names of norms that were swapped.

    >>> print(ConversionReport(("stem", "body.0"), {"head": "it overrides forward"}))
    2 of 3 convolutions swapped
    left `head`: it overrides forward
    """

    swapped: tuple[str, ...]
    left: dict[str, str]
    norms: tuple[str, ...] = ()

    def __str__(self) -> str:
        count = len(self.swapped)
        head = f"{count} of {count + len(self.left)} convolutions swapped"
        if self.norms:
            head += f", and {len(self.norms)} norm{'s' * (len(self.norms) > 1)}"
        return "\n".join([head, *(f"left `{name}`: {why}" for name, why in self.left.items())])


@overload
def convert(
    module: Module, *, inplace: bool = True, return_report: Literal[False] = False
) -> Module: ...


@overload
def convert(
    module: Module, *, inplace: bool = True, return_report: Literal[True]
) -> tuple[Module, ConversionReport]: ...


def convert(module: Module, *, inplace: bool = True, return_report: bool = False) -> Any:
    """Replace torch's convolutions of a model by this package's; returns the model.

    Modules of torch's ``Conv*d`` and ``ConvTranspose*d`` become those of :mod:`layoutconv.nn`,
    ``module`` included. So do modules of subclasses whose forward pass is inherited or calls that
    of ``super()``: they stay instances of the subclass. All stay the same objects with the same
    parameters, so optimizers, hooks and shared weights keep working. Weights move to
    ``channels_last`` memory; momenta of a fused optimizer do not follow (``docs/trouble.md``).
    :func:`revert` undoes it.

    Modules of torch's ``GroupNorm`` and ``InstanceNorm*d`` become those of :mod:`layoutconv.nn`,
    too, which do not copy ``channels_last`` images: torch's would, before and after each norm.
    Batch norms stay; use :func:`fuse_batch_norms` to train with them. Modules of any class that
    normalise over channels, like RMS norms of video autoencoders, keep their class, but run as one
    kernel if no gradient is wanted. To recognise them, a copy of each module whose forward pass
    names ``normalize`` is called on the CPU.

    A forward pass that only pads its input with zeros, or puts the frames of a cache before it,
    like causal convolutions of video autoencoders, is recognised by its results: the convolution
    then pads as it reads, and an input and a cache are copied once.

    A forward pass that calls ``torch.nn.functional.conv2d`` or a similar function, not that of
    ``super()``, runs unchanged, but this package computes those calls. Such a module is no instance
    of a class of :mod:`layoutconv.nn`, and nothing is folded into it. To recognise it, a copy
    without data is called once, on the meta device.

    Args:
        module: the model, or a convolution.
        inplace: convert ``module`` itself; else a deep copy, with parameters of its own.
        return_report: return a pair of the model and a :class:`ConversionReport`.

    The report names each convolution that is left as it is, and the reason: it overrides the
    forward pass and calls neither that of ``super()`` nor a function of torch's; it is lazy
    (convert a model after its first call); or it has an attribute that means a fused activation
    here. A parametrized one, by weight norm say, is converted, before its parametrization or after.

    Raises :class:`~layoutconv.errors.ArgumentTypeError` if ``module`` is no module, and
    :class:`~layoutconv.errors.ArgumentError` if it is or has a ``DistributedDataParallel``, which
    would give moved weights wrong gradients, or a ``FullyShardedDataParallel``: convert first.

    >>> class Named(torch.nn.Conv2d):
    ...     pass
    >>> class Positive(torch.nn.Conv2d):
    ...     def forward(self, input):
    ...         return torch.nn.functional.conv2d(input, self.weight.abs())
    >>> class Pointwise(torch.nn.Conv2d):
    ...     def forward(self, input):
    ...         return torch.einsum("kcrs,nchw->nkhw", self.weight, input)
    >>> layers = Named(3, 8, 3), Positive(8, 8, 3), Pointwise(8, 4, 1)
    >>> net, report = convert(torch.nn.Sequential(*layers), return_report=True)
    >>> print(report)  # doctest: +ELLIPSIS
    2 of 3 convolutions swapped
    left `2`: Pointwise overrides forward, which calls neither that of super() nor a convolution ...
    >>> isinstance(net[0], Named), [isinstance(layer, modules.Conv2d) for layer in net]
    (True, [True, False, False])
    """
    return _swap(module, inplace, return_report, _why_not, _to_ours, _norm_to_ours)


@overload
def revert(
    module: Module, *, inplace: bool = True, return_report: Literal[False] = False
) -> Module: ...


@overload
def revert(
    module: Module, *, inplace: bool = True, return_report: Literal[True]
) -> tuple[Module, ConversionReport]: ...


def revert(module: Module, *, inplace: bool = True, return_report: bool = False) -> Any:
    """Undo :func:`convert` and :func:`fuse_batch_norms`: torch computes the convolutions and norms
    of a model again; returns the model.

    Modules get back their classes, and weights the memory order that they had. Weights keep their
    current values, after any training. Modules that were not converted stay as they are, and so do
    those with a folded activation, which torch's modules lack.

    ``inplace``, ``return_report`` and the errors are those of :func:`convert`. Copies of a model,
    and models that were pickled and loaded, can be reverted, too.

    >>> net = convert(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)))
    >>> type(revert(net)[0]) is torch.nn.Conv2d
    True
    """
    return _swap(module, inplace, return_report, _why_not_back, _to_theirs, _norm_to_theirs)


def _swap(
    module: Any, inplace: bool, return_report: bool, why_not: Any, swap: Any, swap_norm: Any
) -> Any:
    """Swap the norms of a model, and the convolutions that have no reason against it."""
    if not isinstance(module, torch.nn.Module):
        raise ArgumentTypeError("module", "a torch.nn.Module", type(module).__name__)
    inplace, return_report = (
        truth_of("inplace", inplace),
        truth_of("return_report", return_report),
    )
    module = module if inplace else deepcopy(module)
    _refuse_recorded_strides(module, why_not)
    swapped, left, norms = [], {}, []
    for name, layer in module.named_modules():
        if swap_norm(layer):
            norms.append(name)
        elif isinstance(layer, _ConvNd):
            reason = why_not(layer)
            if reason is None:
                swap(layer)
                swapped.append(name)
            else:
                left[name] = reason
    report = ConversionReport(tuple(swapped), left, tuple(norms))
    return (module, report) if return_report else module


def _refuse_recorded_strides(module: Any, why_not: Any) -> None:
    """Refuse weights whose strides a wrapper for several processes has recorded.

    Without ``gradient_as_bucket_view``, ``DistributedDataParallel`` would give weights in other
    memory wrong gradients; ``FullyShardedDataParallel`` holds them as views of one vector.
    """
    sharded: Any = sys.modules.get("torch.distributed.fsdp")
    for wrapper in module.modules():
        if isinstance(wrapper, torch.nn.parallel.DistributedDataParallel):
            recorded = not wrapper.gradient_as_bucket_view
        else:
            recorded = bool(sharded) and isinstance(wrapper, sharded.FullyShardedDataParallel)
        layers = wrapper.modules() if recorded else ()
        if any(isinstance(layer, _ConvNd) and why_not(layer) is None for layer in layers):
            kind = type(wrapper).__name__
            expected = f"a network that is converted before {kind} wraps it"
            got = f"a {kind}, which has recorded the strides of the weights"
            raise ArgumentError("module", expected, got)


# -- to ours ---------------------------------------------------------------------------------------


class _Record(NamedTuple):
    """The state of a module before its conversion: class, and the weight's shape and strides."""

    kind: type
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def _base_of(kind: type) -> Any:
    """Return the torch class in the MRO that has a counterpart here; None if there is none."""
    return next((base for base in kind.__mro__ if base in _OURS), None)


def _kind_of(layer: Any) -> Any:
    """Return the class of a module, without the one that ``torch.nn.utils.parametrize`` adds."""
    kind = type(layer)
    return kind.__bases__[0] if is_parametrized(layer) else kind


def _set_kind(layer: Any, kind: Any) -> None:
    """Set a module's class, and keep the properties that parametrizations added to the old one."""
    made = type(layer)
    if is_parametrized(layer):
        own = {name: made.__dict__[name] for name in made.__dict__ if name not in _SLOTS}
        kind = type(made.__name__, (kind,), own)
    layer.__class__ = kind


def _why_not(layer: Any) -> str | None:
    """Return the reason not to convert a convolution; None if there is none."""
    kind = _kind_of(layer)
    base, name = _base_of(kind), kind.__name__
    if isinstance(layer, Redirected) or _is_ours(layer):
        return "layoutconv computes it already"
    if base is None:
        return f"there is no counterpart of {name}"
    if hasattr(kind.__init_subclass__, "__func__"):
        return f"{name} defines __init_subclass__, and would get a subclass"
    for method in ("forward", "_conv_forward"):
        if method in layer.__dict__:
            return f"{method} was replaced in the module"
    weight = _weight_like(layer)
    if torch.nn.parameter.is_lazy(weight):
        return "it is lazy: convert after the first call"
    if type(weight) not in PLAIN or weight.layout != torch.strided:
        return f"its weight is a {type(weight).__name__} of {weight.layout} layout"
    own = overriding(kind, base)
    if own is not None:
        reason = why_not_redirected(layer)
        return None if reason is None else f"{name} overrides {own}, which {reason}"
    taken = [name for name in _OWN_NAMES if hasattr(layer, name)]
    return f"its attribute `{taken[0]}` has another meaning here" if taken else None


def _weight_like(layer: Any) -> Any:
    """Return the weight of a module, or a meta tensor like it if parametrizations compute it.

    Computing it may change state, like the vectors of spectral norm in training, or draw random
    numbers.
    """
    if is_parametrized(layer, "weight"):
        with suppress(Exception), torch.no_grad():  # whatever another's code raises
            return on_meta(layer).weight
    return layer.weight


def _to_ours(layer: Any) -> None:
    kind: Any = _kind_of(layer)
    like = torch.empty_like(_weight_like(layer), device="meta")  # dense strides of the same shape
    layer.__dict__[_RECORD] = _Record(kind, tuple(like.shape), like.stride())
    if overriding(kind, _base_of(kind)) is not None:
        _set_kind(layer, _redirected(kind))
        return
    if _has_own_forward(kind):
        found = recognised_padding(layer, _base_of(kind))
        if found is not None:
            layer.__dict__[OWN_PADDING] = found
    _set_kind(layer, _OURS[kind] if kind in _OURS else _computed_here(kind))
    if not is_parametrized(layer, "weight"):
        modules.to_channels_last(layer.weight)


def _norm_to_ours(layer: Any) -> bool:
    """Swap a group or instance norm, or a module that normalises over channels.

    Returns whether it was swapped: a norm is left if it is of a subclass, or has a forward pass of
    its own or an attribute in ``_OWN_NAMES``.
    """
    theirs: Any = type(layer)
    kind = NORMS.get(theirs)
    if kind is None:
        found = recognised(layer)
        if found is None or hasattr(theirs.__init_subclass__, "__func__"):
            return False
        layer.__dict__[OWN_NORM], kind = found, _normed_here(theirs)
    elif "forward" in layer.__dict__ or any(hasattr(layer, name) for name in _OWN_NAMES):
        return False
    layer.__class__ = kind
    layer.__dict__[_RECORD] = theirs
    return True


def _is_ours(layer: Any) -> bool:
    return isinstance(layer, tuple(_OURS.values()))


@remembered(1024)
def _computed_here(kind: Any) -> Any:
    """Make a subclass of a subclass of torch's convolutions, with this package's forward pass."""

    def forward(self: Any, *args: Any, **named: Any) -> Any:
        found: RecognisedPadding | None = self.__dict__.get(OWN_PADDING)
        result = None if found is None else found.compute(self, args, named)
        return super(made, self).forward(*args, **named) if result is None else result

    methods = {"forward": forward} if _has_own_forward(kind) else {}
    made = subclass(kind, (kind, _OURS[_base_of(kind)]), _new, methods)
    return made


@remembered(1024)
def _redirected(kind: Any) -> Any:
    """Make a subclass that runs its forward pass with this package's functions for torch's."""
    return subclass(kind, (Redirected, kind), _new_redirected, {})


@remembered(1024)
def _normed_here(kind: Any) -> Any:
    """Make a subclass of a module that normalises over channels, which runs a kernel if it can."""

    @wraps(kind.forward)  # tracers look at the names of arguments
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        found = self.__dict__[OWN_NORM].compute(self, args, named)
        return super(made, self).forward(*args, **named) if found is None else found

    made = subclass(kind, (kind,), _new_normed, {"forward": forward})
    return made


def _has_own_forward(kind: Any) -> bool:
    return kind.forward is not _base_of(kind).forward


def _new(kind: type, *arguments: Any) -> Any:
    """Create a converted module of a subclass, without its state."""
    made = _computed_here(kind)
    return made.__new__(made, *arguments)


def _new_normed(kind: type, *arguments: Any) -> Any:
    """Create a converted module that normalises over channels, without its state."""
    made = _normed_here(kind)
    return made.__new__(made, *arguments)


def _new_redirected(kind: type, *arguments: Any) -> Any:
    """Create a converted module whose forward pass calls torch's functions, without its state."""
    made = _redirected(kind)
    return made.__new__(made, *arguments)


# -- and back --------------------------------------------------------------------------------------


def _why_not_back(layer: Any) -> str | None:
    """Return the reason not to revert a convolution; None if there is none."""
    if _RECORD not in layer.__dict__:
        return "it was not converted"
    if _is_ours(layer) and layer.activation is not None:
        return f"`{layer.activation}` was folded into it"
    return None


def _norm_to_theirs(layer: Any) -> bool:
    """Undo fusion, and the conversion of a norm; returns whether the norm had been converted."""
    restore_class(layer)
    if _RECORD not in layer.__dict__ or isinstance(layer, _ConvNd):
        return False
    for name in ("activation", "slope") if isinstance(layer, modules.Activated) else (OWN_NORM,):
        layer.__dict__.pop(name, None)
    _set_kind(layer, layer.__dict__.pop(_RECORD))
    return True


def _to_theirs(layer: Any) -> None:
    record: _Record = layer.__dict__.pop(_RECORD)
    for name in ("activation", "slope", OWN_PADDING) if _is_ours(layer) else ():
        layer.__dict__.pop(name, None)
    _set_kind(layer, record.kind)
    if is_parametrized(layer, "weight"):
        return
    data = layer.weight.data
    if data.shape == record.shape:
        layer.weight.data = data.new_empty_strided(record.shape, record.stride).copy_(data)
