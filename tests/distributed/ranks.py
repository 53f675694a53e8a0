"""Processes that run one function together, on gloo: what tests of several ranks start with."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

_PATIENCE = timedelta(seconds=30)  # for ranks that never come: tests end, and say so


def together(ranks: int, checks: dict[str, Callable[[], None]], folder: Path) -> dict[str, str]:
    """Run the checks one after the other in so many processes: what failed, and where.

    Processes take seconds to start, so one start serves many checks. A check is a function of a
    module. One that fails on one rank would leave the others waiting for it, so that nothing after
    it is run.
    """
    mp.spawn(_rank, (ranks, checks, str(folder)), nprocs=ranks)
    found = {}
    for path in sorted(folder.glob("*.failed")):
        name, rank, _ = path.name.split(".")
        found[f"{name} on rank {rank}"] = path.read_text()
    return found


def _rank(rank: int, ranks: int, checks: dict[str, Any], folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = f"file://{folder}/store"
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=ranks, timeout=_PATIENCE
    )
    for name, check in checks.items():
        try:
            check()
            failed = torch.zeros(1)
        except Exception:
            (Path(folder) / f"{name}.{rank}.failed").write_text(traceback.format_exc())
            failed = torch.ones(1)
        dist.all_reduce(failed)
        if failed:
            break
    dist.destroy_process_group()
