"""The start and the end of an example in several processes, one per GPU."""

from __future__ import annotations

import gc
import os

import torch
import torch.distributed as dist

from layoutconv.base.devices import choose_device


def start(choice: str) -> torch.device:
    """Join the processes that torchrun has started, one per GPU, and return this one's device."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    on_gpu = choice == "cuda" or (choice == "auto" and torch.cuda.device_count() >= here)
    device = torch.device("cpu")
    if on_gpu and not torch.cuda.is_available():
        choose_device(choice)  # says why there is none
    if on_gpu:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    return device


def end() -> None:
    """Leave the processes that :func:`start` joined, if there are several.

    Whoever lets go of their group last waits for Gloo's threads. ``DistributedDataParallel`` keeps
    the interpreter meanwhile, which these threads may want, and so it has to be gone before.
    """
    if dist.is_initialized():
        gc.collect()
        dist.barrier()
        dist.destroy_process_group()
