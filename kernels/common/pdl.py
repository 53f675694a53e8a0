"""Kernels whose CTAs start while those of the kernel before them end: little time is in between.

Hopper launches a *dependent* before the kernel that it depends on is done, once every CTA of that
has said ``let_dependents_start`` or has ended. The dependent says ``wait_for_others`` before it
touches memory, and goes on when all that came before it in its stream is done, and can be seen.
What needs no memory, such as rows and their masks, is ready then.

The template's kernels and the sums after them are both: each starts beside the end of another. To
kernels of others they are kernels like all: those neither start early, nor say when they might.
"""

from __future__ import annotations

from .dsl import cute


def starts_early(arch: str) -> bool:
    """Return whether a GPU launches dependents; for others these are kernels like all.

    >>> starts_early("sm_90a"), starts_early("sm_120"), starts_early("sm_89")
    (True, True, False)
    """
    return int(arch.removeprefix("sm_").rstrip("a")) >= 90


def let_dependents_start(early: bool) -> None:
    if early:
        cute.arch.griddepcontrol_launch_dependents()


def wait_for_others(early: bool) -> None:
    if early:
        cute.arch.griddepcontrol_wait()
