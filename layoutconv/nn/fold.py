"""Fold batch norms and activations into the convolution before them, for inference."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from ..errors import ArgumentError, ArgumentTypeError
from .called_pairs import activation_of, after_norm, called_in_a_row
from .causal import CausalConv3d
from .containers import Features
from .layer_kinds import DenseLayers, TransposedLayers, kind_of_layer
from .modules import to_channels_last
from .own_padding import OWN_PADDING
from .padded_norm import is_hooked
from .reached_modules import reached_modules
from .residual import Residual, working
from .rewritten_class import restore_class, rewritten_class, why_not_changed
from .sequences import is_sequence
from .sparse_modules import SparseConvolution
from .sum_chains import rewritten

_DENSE: Any = (CausalConv3d, *DenseLayers.kinds, *TransposedLayers.kinds)
Module = TypeVar("Module", bound=torch.nn.Module)


def fold_batch_norms(module: Module) -> Module:
    """Fold batch norms and activations into the convolutions before them; returns the model.

    A convolution of :mod:`layoutconv.nn`, dense or sparse, absorbs the batch norm, the activation,
    or one and then the other, that follow it into its weight, its bias and its fused activation.
    This happens in every ``Sequential``, torch's or this package's, and where a module's forward
    pass calls them one after another, like those of ResNets. ``torch.fx`` records such passes; what
    it cannot record stays. ``torch.nn.Identity`` replaces each folded module, so that names and
    numbers of the others stay.

    If such a pass adds a tensor to the result of a dense convolution, or of a ``Sequential`` that
    ends in one, the sum and a ReLU after it become part of the launch: the module gets a subclass
    of its class, until an attribute of it is set. The result is equal but for rounding, and for
    inference alone: folded modules can no longer be trained separately.

    In a :class:`~layoutconv.nn.Residual` whose body ends in a sparse convolution, that convolution
    also absorbs the sum and the activation, and a ``torch.nn.Linear`` in the shortcut its batch
    norm.

    Left as they are: a convolution that is used at two places, or shares a parameter, or has a
    forward pass of its own; modules with hooks or parametrizations; a batch norm without running
    statistics; modules that a forward pass other than their parent's calls, or that one reads
    parameters of, as far as ``torch.fx`` can run it. Calls from outside the model are not seen.

    Raises :class:`~layoutconv.errors.ArgumentError` for a module in training mode.

    >>> from .modules import Conv2d
    >>> net = torch.nn.Sequential(Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).eval()
    >>> fold_batch_norms(net)
    Sequential(
      (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), activation=relu)
      (1): Identity()
      (2): Identity()
    )
    """
    if not isinstance(module, torch.nn.Module):
        raise ArgumentTypeError("module", "a torch.nn.Module", type(module).__name__)
    for name, part in module.named_modules():
        # Copying rebuilds some modules of einops, in training mode: without state, the mode is
        # irrelevant.
        if part.training and (part._modules or part._parameters or part._buffers):
            expected = "a module in evaluation mode: call eval() first"
            raise ArgumentError(
                "module", expected, f"`{name or type(part).__name__}` in training mode"
            )
    seen = reached_modules(module)
    once = used_once(module) - seen
    for part in reversed(list(module.modules())):  # inner modules first
        if "forward" in part.__dict__:
            continue
        if is_sequence(part):
            _fold(part, once, seen)
        elif any(map(_takes_norms, part._modules.values())):
            _fold_called(part, once)
    for part in list(module.modules()):
        if type(part) is Residual and not is_hooked(part):
            _fuse(part, once, seen)
    for part in list(module.modules()):
        _end_in_sums(part)
    return module


def _end_in_sums(part: Any) -> None:
    """Let convolutions add what their module adds to their results, and apply a ReLU after that."""
    if is_sequence(part) or not any(map(_takes_norms, part.modules())):
        return
    restore_class(part)
    code = None if why_not_changed(part) else rewritten(part)
    if code is not None:
        kind: Any = type(part)
        part.__class__ = rewritten_class(kind, code, False)


def _fuse(block: Residual, once: set[int], seen: set[int]) -> None:
    """Let the last convolution of a block add the shortcut, and apply the activation."""
    body, past, ending = block.body, block.past, block.activation
    if block.is_fused or not is_sequence(body) or is_hooked(body):
        return
    last = next(reversed(working(body)), None)
    if not isinstance(last, SparseConvolution) or id(last) not in once or is_hooked(last):
        return
    if is_sequence(past):  # of features, one row per cell: no other mode has channels
        _fold(past, once, seen, lambda module: isinstance(module, torch.nn.Linear))
    activation = None if is_hooked(ending) else activation_of(ending)
    if last.activation is not None or (
        activation is None and type(ending) is not torch.nn.Identity
    ):
        return
    block.is_fused = True
    if activation is not None:
        last.activation, last.slope = activation
        block.activation = torch.nn.Identity().eval()


def _takes_norms(module: Any) -> bool:
    home = kind_of_layer(module)
    return home is not None and home.folds(module)


def _fold(
    sequence: torch.nn.Module, once: set[int], seen: set[int], takes: Any = _takes_norms
) -> None:
    """Fold neighbours in a sequence, except modules that are ``seen`` from elsewhere."""
    found: Any = None  # the convolution that can absorb the next module
    for name, part in list(sequence._modules.items()):
        inner: Any = part.module if type(part) is Features and not is_hooked(part) else part
        if type(inner) is torch.nn.Identity:
            continue
        last = _last(inner, once)
        if takes(last):
            found = last if _can_fold(last, once) else None
        elif seen & {id(part), id(inner)}:
            found = None
        else:
            found = None if found is None else _taken_up(found, inner, sequence, name)


def _last(module: Any, once: set[int]) -> Any:
    """Return the last working module of a sequence, nested ones included; another module itself."""
    while is_sequence(module) and id(module) in once and not is_hooked(module):
        parts = list(working(module))
        if not parts:
            break
        module = parts[-1]
    return module


def _fold_called(module: torch.nn.Module, once: set[int]) -> None:
    """Fold what a module's own forward pass calls one after another."""
    for called in called_in_a_row(module, _takes_norms):
        conv: Any = module.get_submodule(called.conv)
        conv = conv if _can_fold(conv, once) else None
        for name in called.after:
            inner = module.get_submodule(name)
            if conv is None or id(inner) not in once:
                break
            above, _, last = name.rpartition(".")
            conv = _taken_up(conv, inner, module.get_submodule(above), last)


def _taken_up(conv: Any, inner: Any, parent: torch.nn.Module, name: str) -> Any:
    """Let a convolution absorb the norm or the activation after it, a child of ``parent``.

    Returns the convolution; None if it can absorb nothing more.
    """
    if getattr(conv, "activation", None) is not None or is_hooked(inner):
        return None
    last = after_norm(inner)
    activation = activation_of(inner if last is None else last)
    if not hasattr(conv, "activation"):
        activation = None
    if last is not None:
        take_up(conv, inner)
    elif activation is None:
        return None
    taken = activation is not None or type(last) is torch.nn.Identity
    if activation is not None:
        conv.activation, conv.slope = activation
    parent._modules[name] = torch.nn.Identity().eval() if taken else last
    return conv if taken else None


def take_up(conv: Any, norm: Any) -> None:
    """Fold ``gamma * (conv(x) - mean) / sqrt(variance + eps) + beta`` into the convolution.

    >>> conv, norm = torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2).eval()
    >>> norm.running_mean += 3
    >>> before = conv.bias.detach() - 3
    >>> take_up(conv, norm)
    >>> torch.allclose(conv.bias, before, atol=1e-4)
    True
    """
    home = kind_of_layer(conv)
    weight = conv.weight
    exact = torch.promote_types(weight.dtype, torch.float32)
    with torch.no_grad():
        factor = (norm.running_var.to(exact) + norm.eps).rsqrt()
        if norm.weight is not None:
            factor = factor * norm.weight.to(exact)
        shift = -norm.running_mean.to(exact) * factor
        if norm.bias is not None:
            shift = shift + norm.bias.to(exact)
        if conv.bias is not None:
            shift = shift + conv.bias.to(exact) * factor
        by_output = factor[:, None] if home is None else home.like_weight(conv, factor)
        folded = weight.to(exact) * by_output
    wanted = weight.requires_grad
    conv.weight = torch.nn.Parameter(folded.to(weight.dtype).contiguous(), wanted)
    conv.bias = torch.nn.Parameter(shift.to(weight.dtype), wanted)
    if isinstance(home, DenseLayers):
        to_channels_last(conv.weight)


def _can_fold(conv: Any, once: set[int]) -> bool:
    own = conv.__dict__["_parameters"]
    return (
        id(conv) in once
        and set(own) == {"weight", "bias"}
        and all(parameter is None or id(parameter) in once for parameter in own.values())
        and not conv.__dict__["_modules"]  # parametrizations
        and not is_hooked(conv)
        and _ends_in_its_sums(conv)
    )


def _ends_in_its_sums(conv: Any) -> bool:
    """Return whether no forward pass of a subclass adds anything after the convolution."""
    if OWN_PADDING in conv.__dict__ and conv.__dict__[OWN_PADDING].holds(conv):
        return True
    dense = next((kind for kind in type(conv).__mro__ if kind in _DENSE), None)
    return dense is None or all(
        getattr(type(conv), name, None) is getattr(dense, name, None)
        for name in ("forward", "_conv_forward")
    )


def used_once(module: torch.nn.Module) -> set[int]:
    """Return the ids of modules and parameters that have one place in a model."""
    times: dict[int, int] = {}
    for part in module.modules():
        for owned in (*part._modules.values(), *part._parameters.values()):
            if owned is not None:
                times[id(owned)] = times.get(id(owned), 0) + 1
    return {owned for owned, count in times.items() if count == 1}
