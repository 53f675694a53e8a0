"""Modules that call their children in turn."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch

from .containers import Sequential

# Forward passes of containers that call their modules in turn. A package above adds its own.
SEQUENCES: set[Any] = {torch.nn.Sequential.forward, Sequential.forward}


def is_sequence(module: Any) -> TypeGuard[torch.nn.Sequential]:
    """Return whether a module is a container that calls its children in turn.

    >>> is_sequence(torch.nn.Sequential()), is_sequence(torch.nn.ReLU())
    (True, False)
    """
    return type(module).forward in SEQUENCES
