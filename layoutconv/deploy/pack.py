"""Packs: a network, its weights, its kernels and what was chosen for it, in one file.

The network is exported, and called once on what stands in for the GPU, which tells what kernels it
asks for; those are compiled in several processes, and linked into one library.
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
from ..kernels.compile import linked, store
from ..ops.sparse_operators import rows_as_on_gpus
from ..planning.machine import MACHINES, Machine
from ..planning.tile_json import FORMAT, tile_to_json
from ..tuning.precompile import check_processes, precompile
from .pack_file import write_pack
from .program import Program, Runner, exported


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

    The file has the network as ``torch.export`` has it, its weights, the machine code of every
    kernel that a call like the example asks for, linked into one library, and what was chosen for
    them: nothing is tuned, traced or compiled where :func:`load_pack` loads it. Returns how many
    kernels there are.

    Args:
        net: in evaluation; folded, and in the precision that is served.
        example: what it is called with, a tensor or a tuple of them; or a list of such, of sizes
            that will come. Kernels are those of these calls; the first is exported.
        path: of the file, which is replaced at once, or not at all.
        arch: the GPU's, "sm_80", "sm_86", "sm_89" or "sm_90a", which need not be here; if None,
            that of this machine, with the choices that :func:`tune` measured there.
        dynamic_shapes: as of ``torch.export.export``, of the tensors of the example.
        processes: that compile at once; as many as there are cores, if None.

    A C compiler links, named by ``CC`` or the system's; loading needs none. Host code is for
    processors that have the instructions of this one. A sparse network is given the features and
    the cells of a cloud; kernels that make its maps are in the file.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument, ``FileNotFoundError``
    without a C compiler, ``OSError`` for a file that cannot be written. A whole pack is made on the
    page about deploying; what trains is refused:

    >>> try:
    ...     pack(torch.nn.Linear(3, 2), torch.ones(1, 3), "net.pack", arch="sm_90a")
    ... except ArgumentError as error:
    ...     print(error)
    argument `net`: expected a network in evaluation, net.eval(), got one in training: Linear
    """
    path = file_name_of(path)
    if not Path(path).absolute().parent.is_dir():  # rather than when all kernels are compiled
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path)
    if Path(path).is_dir():
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), path)
    if not isinstance(net, torch.nn.Module):
        raise ArgumentTypeError("net", "a torch.nn.Module", type(net).__name__)
    if isinstance(example, list) and not example:
        raise ArgumentError("example", "one example or more in a list", "none")
    if not isinstance(dynamic_shapes, dict | list | tuple | None):
        expected = "None, or what torch.export.export takes"
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
        raise OSError(f"{len(lost)} kernels are not kept in {cache_directory()}: packs need them")
    toolchain, processor = store.compiled_with()
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
            expected = "a tensor, or a tuple of tensors (the features and coords that a forward of "
            expected += "yours makes a sparse tensor of)"
            raise ArgumentTypeError("example", expected, type(each).__name__)
    return given


class PackedCall:
    """A program with its weights, as another process can be sent it; called with the inputs of
    several calls of the network, it makes these.
    """

    def __init__(self, program: Program, weights: dict[str, Tensor], device: str) -> None:
        self.program, self.weights, self.device = program, weights, device

    def __call__(self, *calls: tuple[Tensor, ...]) -> None:
        self.make(Runner(self.program, self.weights, self.device), calls)

    def make(self, runner: Runner, calls: Iterable[tuple[Tensor, ...]]) -> None:
        """Make the calls by a runner of this program."""
        with torch.no_grad():
            for inputs in calls:
                runner(*(each.to(self.device) for each in inputs))


def _asked_for(
    call: PackedCall, calls: list[tuple[Tensor, ...]], arch: str | None
) -> tuple[list[str], Machine, dict[str, Any]]:
    """Return the names of the kernels that calls ask for, the GPU that they are for, and the
    measured choices among them.

    In a process that has asked for nothing before.
    """
    with TemporaryDirectory(prefix="layoutconv-") as folder:
        found = Path(folder, "found")
        sent = pickle.dumps((call, [tuple(each.cpu() for each in given) for given in calls]))
        # On the GPU that is here it is a new process: none that has asked for GPUs may be forked.
        new: dict[str, Any] = (
            {"forks": False} if arch is None else {"ready": store.ready_to_compile}
        )
        (wrong,) = in_processes(_look, [(str(found), arch, sent)], 1, **new)
        if wrong is not None:
            raise wrong
        names, machine, choices = pickle.loads(found.read_bytes())
    return names, machine, choices


def _look(request: tuple[str, str | None, bytes]) -> None:
    """Run calls, on a stand-in if an architecture is named, and leave behind what it asked for."""
    path, arch, sent = request
    call, calls = pickle.loads(sent)
    runner = Runner(call.program, call.weights, call.device)
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
