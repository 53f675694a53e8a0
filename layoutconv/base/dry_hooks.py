"""Hooks of a dry run, which notes the kernels that its calls would load, and runs none.

Kernels of the template have a source of their own, :mod:`layoutconv.gpu.kernel_source`. These hooks
are for the others: kernel maps, norms, sums and everything that is not a product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class DryHooks:
    """Functions that other modules call, and a dry run replaces.

    Attributes:
        load: ``load(key, compile, writes)`` replaces the search in the folder: it returns a kernel,
            or None to load it as usual. None outside of a dry run.
        covers: ``covers(tensor)``: does a dry run make the maps of these cells? Then torch makes
            them, and code that would launch kernels calls ``note`` with the function that does.
        note: ``note(make, *arguments)`` notes the kernels that a function launches on a GPU to make
            a kernel map or a part of it.
    """

    def __init__(self) -> None:
        self.load: Callable[..., Any] | None = None
        # Every warm call asks: a C method that is always False; a Python function takes 0.1 us.
        self.covers: Callable[[Any], bool] = ().__contains__
        self.note: Callable[..., Any] = _ignore


def _ignore(make: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Note nothing, outside of a dry run."""


dry_hooks = DryHooks()
