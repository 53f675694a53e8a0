"""Hooks of a dry run: the kernels that its calls would load are noted, and none runs.

Kernels of the template have a source of their own, :mod:`layoutconv.gpu.kernel_source`; these are
the others: of kernel maps, norms, sums and whatever is no product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class DryHooks:
    """Functions that rooms ask during a dry run; None at any other time.

    Attributes:
        load: ``load(key, compile, writes)`` is asked for a kernel in place of the folder; it
            returns one, or None, and the kernel is loaded.
        ask: ``ask(make, *arguments)`` notes the kernels that a function launches on a GPU to make a
            kernel map or a part of it.
        stands_in: whether that is asked of cells on a CPU, too.
    """

    load: Callable[..., Any] | None = None
    ask: Callable[..., Any] | None = None
    stands_in = False

    def asks(self, cells: Any) -> bool:
        """Return whether kernels of the maps of these cells are noted, and torch makes the maps.

        To find out that no dry run is on, look at ``ask``, which is no call.
        """
        return self.ask is not None and (self.stands_in or cells.is_cuda)


dry_hooks = DryHooks()
