"""Packs: a network, its weights, its kernels and the tile choices for it, in one file.

The network is exported and called once on a stand-in for the GPU, which notes the kernels that it
asks for. Several processes compile these, and the linker makes one library of them.
"""

from __future__ import annotations

import os
import pickle
import platform
from collections.abc import Iterable
from dataclasses import asdict
from errno import EISDIR, ENOENT
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..base.cache_folder import cache_directory
from ..base.paths import file_name_of
from ..base.processes import in_processes
from ..base.processor import flags
from ..errors import ArgumentError, ArgumentTypeError
from ..gpu import machines
from ..gpu.measured_choices import VARIABLE, noting_found
from ..kernels.compile import linked, store, toolchains
from ..ops.sparse_operators import rows_as_on_gpus
from ..planning.machine import MACHINES, Machine
from ..planning.tile_json import FORMAT, tile_to_json
from ..tuning.precompile import check_processes, precompile
from .pack_file import write_pack
from .program import NetworkProgram, ProgramRunner, exported


def pack(
    net: torch.nn.Module,
    example: Tensor | tuple[Tensor, ...] | list[Any],
    path: str | Path,
    *,
    arch: str | None = None,
    dynamic_shapes: Any = None,
    processes: int | None = None,
) -> int:
    """Write a network to a file that runs without its source, a compiler or the CuTe DSL.

    The file holds the network as exported by ``torch.export``, its weights, the measured tile
    choices, and the machine code of every kernel that a call like the example asks for, linked into
    one library. :func:`load_pack` tunes, traces and compiles nothing. Returns the number of
    kernels.

    Args:
        net: in evaluation mode; with norms folded, and in the precision to serve.
        example: the inputs of a call, a tensor or a tuple of tensors; or a list of such inputs, one
            for each size to serve. The pack has the kernels of these calls; the first is exported.
        path: of the file, which is replaced atomically.
        arch: of the GPU, "sm_80", "sm_86", "sm_89" or "sm_90a"; this machine needs no such GPU. If
            None, that of this machine's GPU, with the choices that :func:`tune` measured on it.
        dynamic_shapes: as in ``torch.export.export``, for the tensors of the example.
        processes: number of processes that compile; if None, one per core.

    Linking needs a C compiler, ``CC`` or the system's; loading needs none. Host code runs on
    processors that have the instructions of this one. A sparse network takes the features and the
    coords of a cloud; the file includes the kernels that make its maps.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument, ``FileNotFoundError``
    without a C compiler, ``OSError`` for a file that cannot be written. The page about deploying
    makes a whole pack; a network in training mode is refused:

    >>> try:
    ...     pack(torch.nn.Linear(3, 2), torch.ones(1, 3), "net.pack", arch="sm_90a")
    ... except ArgumentError as error:
    ...     print(error)
    argument `net`: expected a network in evaluation mode: call net.eval() first, got `Linear` in \
training mode
    """
    path = file_name_of(path)
    if not Path(path).absolute().parent.is_dir():  # fail before kernels are compiled
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path)
    if Path(path).is_dir():
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), path)
    if not isinstance(net, torch.nn.Module):
        raise ArgumentTypeError("net", "a torch.nn.Module", type(net).__name__)
    if isinstance(example, list) and not example:
        raise ArgumentError("example", "at least one example", "an empty list")
    if not isinstance(dynamic_shapes, dict | list | tuple | None):
        expected = "None, or dynamic_shapes of torch.export.export"
        raise ArgumentTypeError("dynamic_shapes", expected, type(dynamic_shapes).__name__)
    check_processes(processes)
    calls = [_inputs(each) for each in (example if isinstance(example, list) else [example])]
    if arch is None and not torch.cuda.is_available():
        known = ", ".join(sorted(MACHINES))
        raise ArgumentError("arch", f"one of {known}, as there is no GPU here", arch)
    with rows_as_on_gpus():
        program, weights = exported(net, calls[0], dynamic_shapes)
    device = "cuda" if arch is None else "cpu"
    call = PackedCall(program, weights, device)
    calls = [tuple(each.detach().to(device) for each in given) for given in calls]
    precompile(call, *calls, arch=arch, processes=processes)
    names, machine, choices = _asked_for(call, calls, arch)
    objects = {name: store.kept_object(name) for name in names}
    lost = [name for name, content in objects.items() if content is None]
    if lost:
        raise OSError(
            f"{len(lost)} compiled kernels, which a pack needs, could not be kept in "
            f"{cache_directory()}"
        )
    toolchain, processor = toolchains.compiled_with()
    about = {
        "layoutconv": __version__,
        "torch": torch.__version__,
        "arch": machine.arch,
        "kernels": {name: linked.short_name(name) for name in names},
        "about": {linked.short_name(name): store.what_is(name) for name in names},
        "host": {"machine": platform.machine(), "flags": flags()},
        "toolchain": toolchain,
        "processor": processor,
        "planned_for": asdict(machine),
        "choices": {"format": FORMAT, "measured": choices},
    }
    found = {name: content for name, content in objects.items() if content is not None}
    write_pack(path, about, program, weights, linked.link(found) if found else b"")
    return len(names)


def _inputs(example: Any) -> tuple[Tensor, ...]:
    given = example if isinstance(example, tuple) else (example,)
    for each in given:
        if not isinstance(each, torch.Tensor):
            expected = "a tensor, or a tuple of tensors (such as the features and coords of which "
            expected += "your forward makes a sparse tensor)"
            raise ArgumentTypeError("example", expected, type(each).__name__)
    return given


class PackedCall:
    """A program with its weights, which can be sent to another process. Call it with the inputs of
    several calls of the network to run them.
    """

    def __init__(self, program: NetworkProgram, weights: dict[str, Tensor], device: str) -> None:
        self.program, self.weights, self.device = program, weights, device

    def __call__(self, *calls: tuple[Tensor, ...]) -> None:
        self.make(ProgramRunner(self.program, self.weights, self.device), calls)

    def make(self, runner: ProgramRunner, calls: Iterable[tuple[Tensor, ...]]) -> None:
        """Run the calls with a runner of this program."""
        with torch.no_grad():
            for inputs in calls:
                runner(*(each.to(self.device) for each in inputs))


def _asked_for(
    call: PackedCall, calls: list[tuple[Tensor, ...]], arch: str | None
) -> tuple[list[str], Machine, dict[str, Any]]:
    """Return the names of the kernels that calls ask for, their GPU, and the measured choices used.

    They run in a new process, which has loaded no kernel before.
    """
    with TemporaryDirectory(prefix="layoutconv-") as folder:
        found = Path(folder, "found")
        sent = pickle.dumps((call, [tuple(each.cpu() for each in given) for given in calls]))
        # With this machine's GPU the process is spawned: one that has used CUDA must not be forked.
        new: dict[str, Any] = (
            {"forks": False} if arch is None else {"ready": store.ready_to_compile}
        )
        (wrong,) = in_processes(_look, [(str(found), arch, sent)], 1, **new)
        if wrong is not None:
            raise wrong
        names, machine, choices = pickle.loads(found.read_bytes())
    return names, machine, choices


def _look(request: tuple[str, str | None, bytes]) -> None:
    """Run calls, on a stand-in if an architecture is named; write what they asked for to a file."""
    path, arch, sent = request
    call, calls = pickle.loads(sent)
    runner = ProgramRunner(call.program, call.weights, call.device)
    if arch is not None:
        from ..testing import stand_in
        from .map_kernels import OPERATORS, asker

        os.environ[VARIABLE] = "0"
        stand_in.install("compile", lambda name: None, MACHINES[arch])
        for name in OPERATORS:
            runner.watch(name, asker(name, MACHINES[arch]))
    with noting_found() as found:
        call.make(runner, calls)
    choices = {key: (tile_to_json(tile), splits) for key, (tile, splits) in found.items()}
    machine = machines.machine_of(torch.cuda.current_device())
    Path(path).write_bytes(pickle.dumps((store.loaded_names(), machine, choices)))
