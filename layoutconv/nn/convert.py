"""Swap the convolutions of a model that exists."""

from __future__ import annotations

from typing import TypeVar

import torch

from ..errors import ArgumentTypeError
from . import modules

_OURS: dict[type, type] = {
    getattr(torch.nn, name): getattr(modules, name)
    for name in (f"{kind}{rank}d" for kind in ("Conv", "ConvTranspose") for rank in (1, 2, 3))
}

Module = TypeVar("Module", bound=torch.nn.Module)


def convert(module: Module) -> Module:
    """Let this package compute the convolutions of a model, in place; returns the model.

    Modules that are of torch's ``Conv*d`` and ``ConvTranspose*d`` types themselves become those of
    :mod:`layoutconv.nn`, ``module`` included. They stay the same objects with the same parameters,
    so an optimizer, a hook or a shared weight goes on working; weights move to ``channels_last``
    memory. Subclasses of torch's modules are left as they are.

    Lazy modules are such until their first call, so convert a model after it.

    Raises :class:`~layoutconv.errors.ArgumentTypeError` for what is no module.

    >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3, groups=8))
    >>> [type(layer).__module__ for layer in convert(net)]
    ['layoutconv.nn.modules', 'layoutconv.nn.modules']
    """
    if not isinstance(module, torch.nn.Module):
        raise ArgumentTypeError("module", "a torch.nn.Module", type(module).__name__)
    for layer in module.modules():
        ours = _OURS.get(type(layer))
        if ours is not None:
            layer.__class__ = ours
            modules.to_channels_last(layer.weight)  # type: ignore[arg-type]
    return module
