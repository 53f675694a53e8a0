"""A CPU that stands in for an H200: calls choose, compile and launch as there, and run no kernel.

Tensors of numbers say that they are on a GPU; those of indices, int32 and int64, stay on the CPU,
so that kernel maps are made there. A process that installs this does nothing else.

- ``count``: kernels are known by their digests, and none is compiled;
- ``compile``: those that are missing are compiled and kept, for a machine with a GPU.
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
PROCESSOR = "processor.json"  # beside kernels, of the machine that compiled them


def pretend(like: Machine | None = None) -> None:
    """From now on tensors are on an H200, or a GPU ``like`` another, as far as the library asks."""
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
    # Rows in the order of their taps, and pairs in a GPU's chunks, though cells are on the CPU.
    executor: Any = sparse_operators
    executor._stands_in = True


def install(device: str, kernel: Callable[[str], object], like: Machine | None = None) -> None:
    """Stand in; ``kernel`` is told the digest of every kernel, the first time that it is asked for.

    ``device`` is "count" or "compile"; ``like``: the GPU that is stood in for, an H200 by default.
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
    """A kernel that does not run."""


# -- kernels from another machine ------------------------------------------------------------------


def note_processor(folder: Path) -> None:
    """Write down beside kernels what processor their host code is for."""
    from layoutconv.kernels.compile import store

    own: Any = store
    folder.mkdir(parents=True, exist_ok=True)
    about = {"processor": own._processor(), "flags": flags()}
    temporary = folder / f"{PROCESSOR}.{os.getpid()}"
    temporary.write_text(json.dumps(about))
    temporary.replace(folder / PROCESSOR)


def adopt(folder: Path) -> str:
    """Take kernels that a machine with fewer instructions has compiled; say what became of it.

    The name of a kept kernel has the processor that its host code was compiled for, since that has
    all instructions of it. A processor that has them too runs it: then kernels are looked for, and
    kept, under the name of the other.
    """
    from layoutconv.kernels.compile import store

    own: Any = store
    path = folder / PROCESSOR
    if not path.is_file():
        return ""
    about = json.loads(path.read_text())
    if about["processor"] == own._processor():
        return "kernels of this processor"
    missing = missing_instructions(about["flags"])
    if missing:
        return f"kernels of another processor are passed over: this one has no {', '.join(missing)}"
    own._processor = lambda: about["processor"]
    own._toolchain.cache_clear()
    return "kernels of a processor with fewer instructions"
