"""Programmatic dependent launch (PDL): a kernel starts while the one before it ends.

From Hopper on, a GPU starts a dependent kernel once every CTA of the kernel before it has called
``let_dependents_start`` or has exited. The dependent calls ``wait_for_others`` before it touches
memory: it returns when all work before it in the stream is done and visible. Work without memory
accesses, such as rows and their masks, goes before that wait.

The template's kernels and the split-K reduction do both. Kernels of other libraries do neither, and
run as always.
"""

from __future__ import annotations

from .dsl import cute


def starts_early(arch: str) -> bool:
    """Return whether a GPU has programmatic dependent launch; without it, launches are plain.

    >>> starts_early("sm_90a"), starts_early("sm_120"), starts_early("sm_89")
    (True, True, False)
    """
    return int(arch.removeprefix("sm_").rstrip("a")) >= 90


def let_dependents_start(early: bool) -> None:
    """Let the next kernel in the stream start, once all CTAs have called this."""
    if early:
        cute.arch.griddepcontrol_launch_dependents()


def wait_for_others(early: bool) -> None:
    """Wait until all kernels before this one are done and their writes are visible."""
    if early:
        cute.arch.griddepcontrol_wait()
