"""Processes that run the same functions together, on gloo: for tests of several ranks."""

from __future__ import annotations

import contextlib
import gc
import os
import traceback
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from layoutconv.errors import ArgumentError

from ..warm_process import WARM

_PATIENCE = timedelta(minutes=3)  # on a busy machine; a rank that fails ends the others at once


def together(ranks: int, checks: dict[str, Callable[[], None]], folder: Path) -> dict[str, str]:
    """Run the checks one after the other in so many processes: what failed, on which rank, and why.

    Processes take seconds to start, so one start serves many checks, functions of a module. The
    first that fails on a rank is the last, as the others would wait for that rank.
    """
    with contextlib.suppress(mp.ProcessRaisedException):  # it is in the folder
        mp.start_processes(
            _rank, (ranks, checks, str(folder)), ranks, start_method=WARM.get_start_method()
        )
    found = {path.stem: path.read_text() for path in folder.glob("*.failed")}
    done = len(list(folder.glob("*.done")))
    if done < ranks and not found:
        found["some rank"] = f"{done} of {ranks} ranks came to the end"
    return found


def _rank(rank: int, ranks: int, checks: dict[str, Callable[[], None]], folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = f"file://{folder}/store"
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=ranks, timeout=_PATIENCE
    )
    for name, check in checks.items():
        try:
            check()
        except Exception:
            (Path(folder) / f"{name} on rank {rank}.failed").write_text(traceback.format_exc())
            raise
    (Path(folder) / f"{rank}.done").touch()
    gc.collect()  # a reducer that goes last waits for threads that want what it keeps
    dist.barrier()
    dist.destroy_process_group()


def run_in_a_pair(cases: Iterable[Any], refused: Callable[[dist.ProcessGroup], object]) -> None:
    """Run cases in a group of two of three ranks; the third one's call with it is ``refused``."""
    pair = dist.new_group([2, 0])
    if dist.get_rank() == 1:
        with pytest.raises(ArgumentError, match="argument `group`"):
            refused(pair)
        return
    for case in cases:
        case.run(pair)


def run_each(cases: Mapping[str, Any]) -> None:
    """Run cases one after the other; an error says which."""
    for name, case in cases.items():
        try:
            case.run()
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error
