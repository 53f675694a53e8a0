"""Rows of a benchmark one after another, in a process that a fault of a kernel may take along."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import torch

Job = TypeVar("Job")
Row = TypeVar("Row")


def measured(
    jobs: Sequence[Job], measure: Callable[..., Row], *arguments: Any
) -> Iterator[Row | str]:
    """Yield the row of each job, ``measure(job, *arguments)``, or what went wrong.

    They are measured in a process of their own: a kernel that faults takes its process's GPU along,
    and the rows after it are measured in another one.
    """
    pool = None
    try:
        for job in jobs:
            pool = pool or ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
            try:
                row, alive = pool.submit(_attempt, job, measure, arguments).result()
            except Exception as error:  # BrokenProcessPool: the process died
                row, alive = f"{type(error).__name__}: {first_line(error)}", False
            if not alive:
                pool.shutdown()
                pool = None
            yield row
    finally:
        if pool:
            pool.shutdown()


def _attempt(job: Job, measure: Callable[..., Row], arguments: Any) -> tuple[Row | str, bool]:
    """A row or what went wrong, and whether this process can measure another."""
    try:
        return measure(job, *arguments), True
    except Exception as error:  # whatever it is, the other rows are wanted
        message = f"{type(error).__name__}: {first_line(error)}"
    if not torch.cuda.is_available():
        return message, True
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return message, False
    return message, True


def first_line(error: Any) -> str:
    """Return what an error says first."""
    return str(error).strip().partition("\n")[0]
