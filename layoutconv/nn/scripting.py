"""Errors for ``torch.jit.script``, which cannot compile these modules: they name what can."""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import ArgumentTypeError

INSTEAD = (
    "torch's own modules: TorchScript cannot compile those of layoutconv. torch.export.export or "
    "lc.pack take them, torch.jit.trace records dense ones, and lc.nn.revert gives torch's own "
    "layers back in place of dense ones"
)


def refuse_scripting(module: Any) -> NoReturn:
    """Refuse as ``__prepare_scriptable__`` of modules, which ``torch.jit.script`` calls first.

    >>> import torch
    >>> from layoutconv.nn import Conv2d
    >>> torch.jit.script(Conv2d(4, 8, 3))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `obj`: expected torch's own modules: ...
    """
    raise ArgumentTypeError("obj", INSTEAD, type(module).__name__)
