"""A loaded pack: a network to call with tensors, whose kernels come from the file."""

from __future__ import annotations

import json
import platform
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..base.devices import why_no_gpu
from ..base.paths import file_name_of
from ..base.processor import missing_instructions
from ..errors import ArgumentError, DeviceError
from ..gpu import machines
from ..kernels.compile import linked, toolchains
from ..kernels.compile.packed import PackedKernels, add_pack, remove_pack
from ..planning.machine import Machine
from ..planning.tile_json import tile_from_json
from .pack_file import KERNELS, PROGRAM, UNREADABLE, WEIGHTS, read_pack, weights_of
from .program import NetworkProgram, ProgramRunner

_AS_IS: AbstractContextManager[None] = nullcontext()


def load_pack(path: str | Path, device: str | torch.device | None = None) -> PackedNetwork:
    """Load a file that :func:`pack` wrote, in milliseconds: a network to call with tensors.

    Args:
        path: of the file. It holds machine code that this process runs: load packs only from people
            whose programs you would run.
        device: where to run, a GPU of the pack's architecture, or "cpu", where torch convolves and
            no kernel is loaded. If None, the GPU if there is one.

    Raises :class:`~layoutconv.errors.ArgumentError`, of ``path``, for a file that is no pack or is
    damaged, and for a pack of another version or architecture, or made on a processor with
    instructions that this one lacks; of ``device``, for one that is not cpu or cuda, or for cuda
    without a GPU. Raises ``OSError`` for a file that cannot be read.

    >>> try:
    ...     load_pack(__file__)
    ... except ArgumentError as error:
    ...     print(str(error).split(",")[0])
    argument `path`: expected a complete pack that `lc.pack` wrote
    """
    path = file_name_of(path)
    about, parts = read_pack(path)
    where = _device(device)
    with _reading(path):
        if about["layoutconv"] != __version__:
            raise _refused(path, f"a pack of layoutconv {__version__}", about["layoutconv"])
        ours, _ = toolchains.compiled_with()
        if toolchains.sources_of(about["toolchain"]) != toolchains.sources_of(ours):
            raise _refused(
                path, "a pack that these sources of layoutconv made", "one that others made"
            )
        if where.type == "cuda":
            _check_gpu(path, about, where)
        plan, program = _plan_of(about), NetworkProgram(*json.loads(parts[PROGRAM]))
        about["kernels"], arch = dict(about["kernels"]), about["arch"]
        if not isinstance(arch, str):
            raise TypeError(f"arch is {arch!r}")
        runner = ProgramRunner(program, weights_of(parts[WEIGHTS]), where)
    return PackedNetwork(about, plan, runner, parts[KERNELS])


@contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """Refuse, as no pack, a file whose contents differ from those that :func:`pack` writes."""
    try:
        yield
    except ArgumentError:
        raise
    except UNREADABLE as error:
        got = f"other contents: {type(error).__name__}: {error}".partition("\n")[0]
        raise _refused(path, "a complete pack that `lc.pack` wrote", got) from error


class PackedNetwork:
    """A packed network on a device; call it with tensors, like the original.

    Results have no gradient, and keep the network's own precision under autocast. A call of other
    sizes than the example's may need a kernel that the pack lacks: it is compiled as for any
    network; without the CuTe DSL the call raises ``DeviceError``.

    Attributes:
        arch: of its kernels, such as "sm_90a".
        kernels: the names of the kernels, as functions of the library in the pack.
        inputs: the ``name``, ``dtype`` and ``shape`` of each tensor.
    """

    def __init__(
        self,
        about: dict[str, Any],
        plan: machines.PackMachine,
        runner: ProgramRunner,
        library: bytes,
    ) -> None:
        self.arch: str = about["arch"]
        self.kernels: tuple[str, ...] = tuple(sorted(about["kernels"].values()))
        self.inputs: list[dict[str, Any]] = runner.inputs
        self._runner, self._plan = runner, plan
        if runner.device.type == "cuda" and library:
            linked.share_cuda_runtime()
            self._add(about, linked.opened(library))

    def __call__(self, *inputs: Tensor) -> Any:
        try:
            with torch.no_grad(), machines.planned_as(self._plan), self._as_packed():
                return self._runner(*inputs)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "cutlass":
                raise
            raise DeviceError(
                "this call needs a kernel that the pack lacks, and the CuTe DSL, which compiles"
                " it, is not installed: pack the network with an example of this size, or"
                " `pip install nvidia-cutlass-dsl`"
            ) from error

    def __repr__(self) -> str:
        names = ", ".join(each["name"] for each in self.inputs)
        where = self._runner.device
        return f"PackedNetwork({names}) of {len(self.kernels)} kernels for {self.arch}, on {where}"

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError(
            "a PackedNetwork cannot be pickled or copied, as its kernels belong to this process: "
            "call load_pack in each process, with the path of the pack"
        )

    def _as_packed(self) -> AbstractContextManager[Any]:
        """Switch autocast off: it would ask for kernels of another dtype than those in the pack."""
        kind = self._runner.device.type
        return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else _AS_IS

    def _add(self, about: dict[str, Any], get: Any) -> None:
        names = frozenset(about["kernels"])
        kernels = PackedKernels(about["toolchain"], about["processor"], names, get)
        add_pack(kernels)
        weakref.finalize(self, remove_pack, kernels)


def _device(device: str | torch.device | None) -> torch.device:
    usable = torch.cuda.is_available()
    try:
        found = torch.device(("cuda" if usable else "cpu") if device is None else device)
    except (RuntimeError, TypeError, ValueError):  # torch's lists other device types
        raise ArgumentError("device", "cpu or cuda", repr(device)) from None
    if found.type not in ("cpu", "cuda"):
        raise ArgumentError("device", "cpu or cuda", repr(device))
    if found.type == "cuda" and not usable:
        raise ArgumentError("device", "a GPU for cuda", f"none: {why_no_gpu()}; or use cpu")
    return found


def _plan_of(about: dict[str, Any]) -> machines.PackMachine:
    form, measured = about["choices"]["format"], about["choices"]["measured"]
    choices = {key: (tile_from_json(tile, form), parts) for key, (tile, parts) in measured.items()}
    return machines.PackMachine(Machine(**about["planned_for"]), choices)


def _check_gpu(path: str | Path, about: dict[str, Any], where: torch.device) -> None:
    """Raise if a pack's kernels cannot run on this GPU, or their host code on this machine."""
    here = machines.present(torch.cuda.current_device() if where.index is None else where.index)
    if here.arch != about["arch"]:
        raise _refused(path, f"a pack for {here.arch}, as this GPU is", f"one for {about['arch']}")
    host = about["host"]
    if host["machine"] != platform.machine():
        raise _refused(
            path, f"a pack made on {platform.machine()}", f"one made on {host['machine']}"
        )
    missing = missing_instructions(host["flags"])
    if missing:
        expected = "a pack made on a processor with no more instructions than this one"
        raise _refused(path, expected, f"one that may use {', '.join(missing)}")


def _refused(path: str | Path, expected: str, got: str) -> ArgumentError:
    return ArgumentError("path", expected, f"{path}: {got}")
