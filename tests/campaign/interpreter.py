"""Kernels of a stand-in H200 run in the simulator in ``tools/ptx_sim``: tiny problems, no GPU.

Kernels are chosen, compiled and launched as on an H200, and their PTX is interpreted on the memory
of CPU tensors: what reads out of bounds, waits too little or writes twice is a fault. Kernels of
clouds are not among them, as indices stay on the CPU; ``tests/kernels`` runs these.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from layoutconv.testing.stand_in import pretend
from tools.ptx_sim import DeviceTensor, Memory, launch_of, parse, run

GEMM = "implicit_gemm"
# Of other kinds of kernels, which arguments they write.
WRITES = {
    "dot": (2,), "gather": (6, 7), "pack lines": (1,), "segment sum": (2,), "reduce": (1,),
    "voxel runs": (1,),
}  # fmt: skip
ADDRESSES = {"dot": (5, 6)}  # and which are tuples of addresses that they read
COLUMNS, SOURCES, STATISTICS = 8, 9, 10  # arguments of the template

_spans: dict[int, int] = {}  # bytes from an address, as the tensor had that was last asked for it


def install(kernel: Callable[[str], object]) -> None:
    """Stand in; ``kernel`` is told the digest of every kernel that is compiled."""
    from layoutconv.gpu import launch as gpu_launch
    from layoutconv.gpu import plan as gpu_plan
    from layoutconv.kernels.compile import store

    pretend()
    tensor: Any = torch.Tensor
    data_ptr = tensor.data_ptr

    def noted(self: torch.Tensor) -> int:
        address: int = data_ptr(self)
        modes = zip(self.shape, self.stride(), strict=True)
        span = 1 + sum((s - 1) * d for s, d in modes) if self.numel() else 0
        _spans[address] = span * self.itemsize
        return address

    tensor.data_ptr = noted
    own: Any = store
    for module in gpu_launch, gpu_plan:  # which have it by another name
        module.__dict__["_address"] = noted

    def load(digest: str, compile: Callable[[], Any], about: dict[str, str]) -> Any:
        kernel(digest)
        return Interpreted(about["kernel"], compile)

    own._kept = load


class Interpreted:
    """A kernel as host code and PTX; calling it runs all its CTAs."""

    def __init__(self, name: str, compile: Callable[[], Any]) -> None:
        import cutlass.cute as cute

        self.name, module = name, cute
        plain = module.compile
        with tempfile.TemporaryDirectory() as folder:

            def keeping(*arguments: Any, options: str = "", **rest: Any) -> Any:
                kept = f"{options} --keep-ptx --keep-cubin --dump-dir {folder}"
                return plain(*arguments, options=kept, **rest)

            module.compile = keeping
            try:
                self.function = compile()
            finally:
                module.compile = plain
            self.program = parse(self.function.__ptx__)

    def __call__(self, *arguments: Any) -> None:
        memory = Memory()
        ready = (self._template if self.name == GEMM else self._other)(memory, arguments)
        asked = launch_of(self.program, self.function, *ready)
        run(
            self.program, memory, asked.arguments, asked.grid, shared_bytes=asked.shared_bytes,
            cluster=asked.cluster,
        )  # fmt: skip

    def _other(self, memory: Memory, arguments: tuple[Any, ...]) -> list[Any]:
        """Tensors, and tuples of addresses; numbers as they are."""
        ready = list(arguments)
        for i, given in enumerate(arguments):
            if isinstance(given, torch.Tensor):
                ready[i] = self._tensor(memory, str(i), given, i in WRITES[self.name])
            elif i in ADDRESSES.get(self.name, ()) and given is not None:
                ready[i] = _places(memory, i, given)
        return ready

    def _template(self, memory: Memory, arguments: tuple[Any, ...]) -> list[Any]:
        """Addresses of operands and index buffers; D is a tensor."""
        ready = list(arguments)
        for i, name in enumerate(("a", "b", "d", "index a", "index b", "index d")):
            if i == 2:
                ready[i] = self._tensor(memory, name, arguments[i], True)
            elif arguments[i] is not None:
                ready[i] = _place(memory, name, arguments[i], False)
        for i in (COLUMNS, SOURCES):
            if arguments[i] is not None:
                ready[i] = _places(memory, i, arguments[i])
        if arguments[STATISTICS] is not None:
            ready[STATISTICS] = _place(memory, "statistics", arguments[STATISTICS], True)
        return ready

    def _tensor(self, memory: Memory, name: str, t: torch.Tensor, written: bool) -> DeviceTensor:
        address = _place(memory, name, t.data_ptr(), written)
        dtype = str(t.dtype).removeprefix("torch.")
        return DeviceTensor(address, tuple(t.shape), dtype, tuple(t.stride()))


def _places(memory: Memory, argument: int, addresses: tuple[int, ...]) -> tuple[int, ...]:
    """The simulator's addresses of what an argument reads."""
    of = enumerate(addresses)
    return tuple(_place(memory, f"{argument} {at}", address, False) for at, address in of)


def _place(memory: Memory, name: str, address: int, written: bool) -> int:
    """The simulator's address of memory here, as far from a multiple of 16 bytes as it is."""
    before = address % 16
    size = before + _spans[address]
    held = (ctypes.c_uint8 * size).from_address(address - before)
    array = np.ctypeslib.as_array(held) if size else np.empty(0, np.uint8)
    return memory.add(array, name, writable=written, output=written) + before
