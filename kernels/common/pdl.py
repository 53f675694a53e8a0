"""Programmatic dependent launch (PDL): a kernel starts while the one before it ends.

From Hopper on, a GPU starts a dependent kernel once every CTA of the kernel before it has called
``let_dependents_start`` or has exited. The dependent calls ``wait_for_others`` before it touches
memory: it returns when all work before it in the stream is done and visible. Work without memory
accesses, such as rows and their masks, goes before that wait.

The template's kernels and the split-K reduction do both. Kernels of other libraries do neither, and
run as always.

Kernels of one pass that write parts of one result, those of stride phases, are concurrent: CTAs of
the next one run on SMs that the one before leaves idle (``Concurrent``).
"""

from __future__ import annotations

from typing import Any

from .dsl import cute
from .predicated import predicated


def let_dependents_start(early: bool) -> None:
    """Let the next kernel in the stream start, once all CTAs have called this."""
    if early:
        cute.arch.griddepcontrol_launch_dependents()


def wait_for_others(early: bool) -> None:
    """Wait until all kernels before this one are done and their writes are visible."""
    if early:
        cute.arch.griddepcontrol_wait()


def wait_if(condition: Any, early: bool) -> None:
    """Wait as ``wait_for_others`` does, in threads for which the condition holds."""
    if early:
        predicated("griddepcontrol.wait", condition, "~{memory}")


class Dependent:
    """Programmatic dependent launch: wait for the kernel before, and let the next one start.

    ``begin`` comes before the first access to memory, ``summed`` once products are formed, and
    ``end`` last. ``early``: whether the GPU has PDL.
    """

    def __init__(self, early: bool) -> None:
        self.early = early

    def begin(self) -> None:
        """Wait."""
        wait_for_others(self.early)

    def summed(self) -> None:
        """Let the next kernel start: its CTAs take the place of this kernel's."""
        let_dependents_start(self.early)

    def end(self) -> None:
        """Do nothing."""


class Concurrent(Dependent):
    """Programmatic dependent launch of kernels that read one memory and write different parts.

    They follow one another in a stream. The first waits for what was before it, and only then lets
    the second start, which therefore need not wait; nor need the third, since the second starts
    before it. But each ends after the one before, for which one of its threads waits, so that
    whoever waits for the last waits for all::

        first   | wait | tiles .................... |
        second         | tiles, on idle SMs ........... | wait
        third          | tiles ........ | wait .........|

    ``place``: the kernel's among them, from 0, an argument of the launch.
    """

    def __init__(self, early: bool, place: Any) -> None:
        super().__init__(early)
        self.place = place

    def begin(self) -> None:
        wait_if(self.place == 0, self.early)
        let_dependents_start(self.early)

    def summed(self) -> None:
        """Do nothing: the next kernel was let start at the beginning."""

    def end(self) -> None:
        (tid, _, _), (x, y, z) = cute.arch.thread_idx(), cute.arch.block_idx()
        wait_if(self.place * (tid + x + y + z == 0), self.early)


def dependence(early: bool, place: Any) -> Dependent:
    """Return the ``Dependent`` of a kernel, a ``Concurrent`` one if it has a place."""
    return Dependent(early) if place is None else Concurrent(early, place)
