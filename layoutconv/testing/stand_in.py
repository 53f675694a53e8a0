"""A CPU that stands in for an H200: calls choose and compile kernels as on it, but run none.

Data tensors claim to be on a GPU; index tensors, int32 and int64, stay on the CPU, so that kernel
maps are made there. A process that installs this does nothing else.

- ``count``: kernels are reported by their digests, and none is compiled;
- ``compile``: missing kernels are compiled and kept, for a machine with a GPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from layoutconv.base.processor import flags, missing_instructions

if TYPE_CHECKING:
    from layoutconv.planning.machine import Machine

INDICES = (torch.int32, torch.int64, torch.bool)
PROCESSOR = "processor.json"  # beside kernels: the processor that compiled them


def pretend(like: Machine | None = None) -> None:
    """Let tensors claim, from now on, to be on an H200, or on the GPU ``like``."""
    from layoutconv.gpu import machines
    from layoutconv.ops import sparse_operators
    from layoutconv.planning.machine import MACHINES

    def on_gpu(tensor: torch.Tensor) -> bool:
        return tensor.dtype not in INDICES

    tensor: Any = torch.Tensor
    tensor.is_cuda = property(on_gpu)
    tensor.is_cpu = property(lambda tensor: not on_gpu(tensor))
    cuda: Any = torch.cuda
    cuda.current_device = lambda: -1
    machines.stand_in(like or MACHINES["sm_90a"])
    # Sort rows by taps, and cut pairs into a GPU's chunks, although cells are on the CPU.
    executor: Any = sparse_operators
    executor._stands_in = True


def install(device: str, kernel: Callable[[str], object], like: Machine | None = None) -> None:
    """Stand in; ``kernel`` is called with the digest of every kernel when it is first asked for.

    ``device`` is "count" or "compile"; ``like``: the GPU to stand in for, an H200 by default.
    """
    from layoutconv.kernels.compile import store
    from layoutconv.kernels.maps import per_rank
    from layoutconv.planning.machine import MACHINES

    pretend(like)
    own: Any = store
    rank: Any = per_rank
    arch = (like or MACHINES["sm_90a"]).arch
    rank.launch = lambda chain, *_: rank.load_per_rank(chain, arch)

    def load(digest: str, compile: Callable[[], Any], about: dict[str, str]) -> Any:
        path = own._path(own.cache_directory(), digest)
        if device == "count":
            kernel(digest)
        elif own._content(path) is None:
            kernel(digest)
            own._keep(compile(), path, about)
        return nothing

    own._kept = load
    if device == "compile":
        note_processor(own.cache_directory())


def nothing(*_: Any) -> None:
    """Do nothing, in place of a kernel."""


# -- kernels from another machine ------------------------------------------------------------------


def note_processor(folder: Path) -> None:
    """Record, beside kernels, the processor that their host code is for."""
    from layoutconv.kernels.compile.toolchains import this_processor

    folder.mkdir(parents=True, exist_ok=True)
    about = {"processor": this_processor(), "flags": flags()}
    temporary = folder / f"{PROCESSOR}.{os.getpid()}"
    temporary.write_text(json.dumps(about))
    temporary.replace(folder / PROCESSOR)


def adopt(folder: Path) -> str:
    """Use kernels that a machine with fewer instructions compiled; return the outcome as text.

    The name of a kept kernel includes the processor that compiled its host code, since that may use
    all its instructions. A processor that has these, too, can run the code: then kernels are looked
    up, and kept, under the other processor's name.
    """
    from layoutconv.kernels.compile import toolchains

    own: Any = toolchains
    path = folder / PROCESSOR
    if not path.is_file():
        return ""
    about = json.loads(path.read_text())
    if about["processor"] == own.this_processor():
        return "kernels of this processor"
    missing = missing_instructions(about["flags"])
    if missing:
        return f"kernels of another processor are passed over: this one has no {', '.join(missing)}"
    own.this_processor = lambda: about["processor"]
    own.this_toolchain.cache_clear()
    return "kernels of a processor with fewer instructions"
