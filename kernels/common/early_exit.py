"""Early exit of CTAs that have no work."""

from __future__ import annotations

from typing import Any

from .predicated import predicated


def exit_if(condition: Any) -> None:
    """Exit the threads for which a condition holds: all of a CTA, and of its cluster, or none.

    Exited threads take part in no later barrier, and a dependent kernel (PDL) need not wait for
    them.
    """
    predicated("exit", condition)
