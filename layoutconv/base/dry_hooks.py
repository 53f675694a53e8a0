"""Hooks of a dry run: the kernels that its calls would load are noted, and none runs.

Kernels of the template have a source of their own, :mod:`layoutconv.gpu.kernel_source`; these are
the others: of kernel maps, norms, sums and whatever is no product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class DryHooks:
    """Functions that rooms call, which a dry run replaces.

    Attributes:
        load: ``load(key, compile, writes)`` is asked for a kernel in place of the folder; it
            returns one, or None, and the kernel is loaded. None outside of a dry run.
        covers: ``covers(tensor)``: does a dry run make the maps of these cells? Then torch makes
            them, and whoever would launch kernels calls ``note`` with the function that does.
        note: ``note(make, *arguments)`` notes the kernels that a function launches on a GPU to make
            a kernel map or a part of it.
    """

    def __init__(self) -> None:
        self.load: Callable[..., Any] | None = None
        # Every warm call asks: a method of C, always False, as a function of Python takes 0.1 us.
        self.covers: Callable[[Any], bool] = ().__contains__
        self.note: Callable[..., Any] = _ignore


def _ignore(make: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Note nothing, outside of a dry run."""


dry_hooks = DryHooks()
