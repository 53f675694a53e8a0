"""Kernels of clouds: one thread per row, compiled for a number of spatial axes.

The numbers of rows and taps, the extents of the grid and the offsets of taps are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from operator import index
from typing import Any

import torch
from torch import Tensor

from layoutconv.base.caches import remembered
from layoutconv.base.dry_hooks import dry_hooks
from layoutconv.base.torch_internals import is_capturing
from layoutconv.errors import ArgumentError, ArgumentTypeError

from ..common.compiled import compiled
from ..common.dsl import Int32, Int64, cute, make_fake_tensor
from ..common.plain_types import AnyTuple
from ..common.walk import TYPES
from ..compile import background
from ..compile.store import architecture, load
from .device_tables import Table, keep_for_graph

# Per CTA. Small, as the deep layers of a network have a few thousand rows for 132 SMs.
THREADS = 128

Functions = dict[int, Callable[..., None]]  # of a kernel, once loaded, by device


class _Travels:
    """A kernel that is pickled for a process that compiles it, without its loaded functions."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "functions": {}}


class PerRank(_Travels):
    """A kernel for a rank; subclasses declare their arguments."""

    threads = THREADS  # of a CTA
    per_cta = THREADS  # rows of a CTA

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.functions: Functions = {}

    @property
    def key(self) -> tuple[Any, ...]:
        """Everything that determines the kernel, except its architecture."""
        return type(self).__name__, self.rank

    def tensors(self) -> tuple[tuple[str, int], ...]:
        """Return the types at its addresses, each with its alignment in bytes."""
        raise NotImplementedError

    def integers(self) -> int:
        """Return how many integers it takes. The first is the number of rows."""
        raise NotImplementedError

    @cute.jit
    def __call__(self, of: Any, addresses: AnyTuple, integers: AnyTuple, stream: Any) -> None:
        self.start(pointers(self.tensors(), addresses), integers, stream)

    def start(self, pointers: Any, integers: Any, stream: Any) -> None:
        """Launch it; this is host code."""
        self.kernel(pointers, integers).launch(
            grid=[Int32((integers[0] + self.per_cta - 1) // self.per_cta), 1, 1],
            block=[self.threads, 1, 1],
            stream=stream,
        )

    def kernel(self, pointers: Any, integers: Any) -> Any:
        raise NotImplementedError

    def row_of_thread(self) -> tuple[Any, Any]:
        """Return a thread's row, and its number in the CTA; this is device code."""
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        return Int64(cta) * self.per_cta + tid, tid


class Chain(_Travels):
    """Kernels that one call launches in order, to pay the host overhead of Python only once.

    Args:
        parts: kernels, with the positions of their addresses, and of their integers, among the
            chain's.

    Each kernel needs work: a grid has at least one CTA.
    """

    def __init__(self, parts: Places) -> None:
        self.parts = parts
        self.rank = parts[0][0].rank
        self.key = tuple((kernel.key, *places) for kernel, *places in parts)
        self.functions: Functions = {}

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return types_of(self.parts)

    def integers(self) -> int:
        return 1 + max(place for _, _, places in self.parts for place in places)

    @cute.jit
    def __call__(self, of: Any, addresses: AnyTuple, integers: AnyTuple, stream: Any) -> None:
        self.start(pointers(self.tensors(), addresses), integers, stream)

    def start(self, pointers: Any, integers: Any, stream: Any) -> None:
        for kernel, of_tensors, of_integers in self.parts:
            own = tuple(integers[place] for place in of_integers)
            kernel.start([pointers[place] for place in of_tensors], own, stream)


# Kernels, or parts of one, with the positions of their addresses and of their integers.
Places = tuple[tuple[Any, tuple[int, ...], tuple[int, ...]], ...]


def types_of(parts: Places) -> tuple[tuple[str, int], ...]:
    """Return the types at addresses, each with the largest alignment that a part asks for."""
    found: dict[int, tuple[str, int]] = {}
    for part, places, _ in parts:
        for place, (dtype, aligned) in zip(places, part.tensors(), strict=True):
            found[place] = dtype, max(aligned, found.get(place, (dtype, 0))[1])
    return tuple(found[place] for place in range(len(found)))


def build(kernel: PerRank | Chain, arch: str, dump: str | None = None) -> Any:
    """Compile a kernel: return a TVM-FFI function ``f(of, addresses, integers)``.

    ``of``, any int32 tensor of two modes, selects the GPU and its stream. Memory is passed as
    addresses: a tensor argument has eight times the host overhead. With a folder ``dump``, the
    function has ``__ptx__`` (str) and ``__cubin__`` (bytes).
    """
    shape, stride = ((cute.sym_int64(), cute.sym_int64()) for _ in range(2))
    return compiled(
        kernel,
        make_fake_tensor(Int32, shape, stride),
        tuple(Int64(0) for _ in kernel.tensors()),
        tuple(Int64(0) for _ in range(kernel.integers())),
        arch=arch,
        dump=dump,
    )


def pointers(tensors: tuple[tuple[str, int], ...], addresses: Any) -> list[Any]:
    """Return typed pointers to the addresses; this is host code."""
    return [
        cute.make_ptr(TYPES[dtype], address, cute.AddressSpace.gmem, assumed_align=aligned)
        for (dtype, aligned), address in zip(tensors, addresses, strict=True)
    ]


def load_per_rank(kernel: PerRank | Chain, arch: str) -> Callable[..., None]:
    """Load a kernel that ``build`` makes: from memory, disk, or a compilation. Needs no GPU."""
    return load((*kernel.key, arch), partial(build, kernel, arch))


def are_at_hand(kernels: Sequence[PerRank | Chain], device: int) -> bool:
    """Return whether kernels can be launched on a GPU without compiling one first; those that must
    be compiled are, meanwhile, in other processes.
    """
    absent = [kernel for kernel in kernels if device not in kernel.functions]
    if not absent:
        return True
    arch = _arch(device)
    loads = (((*kernel.key, arch), partial(load_per_rank, kernel, arch)) for kernel in absent)
    return background.are_at_hand(list(loads))


def launch(
    kernel: PerRank | Chain,
    tensors: tuple[Tensor, ...],
    addresses: tuple[int, ...],
    integers: tuple[int, ...],
) -> None:
    """Launch a kernel on the GPU of its tensors, on torch's current stream there.

    Args:
        tensors: all whose memory it reads or writes. The first is int32, of two modes.
        addresses: positions in them; pieces of one tensor do not overlap.
    """
    device = tensors[0].get_device()
    if _several_gpus() and torch.cuda.current_device() != device:
        with torch.cuda.device(device):
            launch(kernel, tensors, addresses, integers)
        return
    function = kernel.functions.get(device)
    if function is None:
        function = load_per_rank(kernel, _arch(device))
        if dry_hooks.load is None:  # else it is a stand-in
            kernel.functions[device] = function
    if device >= 0 and is_capturing():
        keep_for_graph(tensors)
    function(tensors[0], addresses, integers)


def launch_nothing(kernel: PerRank | Chain, cells: Tensor) -> None:
    """Launch a kernel on the GPU of ``cells`` in a dry run, which loads it and runs none."""
    launch(kernel, (cells,), (), ())


@remembered(1)
def _several_gpus() -> bool:
    """Return whether the current device may differ from a tensor's."""
    return torch.cuda.device_count() > 1


@remembered(64)
def _arch(device: int) -> str:
    return architecture(torch.cuda.get_device_capability(device))


# -- checks of arguments --------------------------------------------------------------------------


def check_grid(spatial_shape: Sequence[int], batch_size: int) -> tuple[int, ...]:
    """Return ``(batch_size, *spatial_shape)``, after checking that its cells have int64 keys."""
    return _check_grid(tuple(spatial_shape), batch_size)


@remembered(1024)
def _check_grid(spatial_shape: tuple[int, ...], batch_size: int) -> tuple[int, ...]:
    grid = (int(batch_size), *(int(extent) for extent in spatial_shape))
    if not 2 <= len(grid) <= 5:
        raise ArgumentError("spatial_shape", "1 to 4 extents", spatial_shape)
    for name, extent in zip(("batch_size", *["spatial_shape"] * 4), grid, strict=False):
        if not 0 <= extent < 2**31:
            raise ArgumentError(name, "extents from 0 to 2**31 - 1", extent)
    if prod(grid) >= 2**63:
        raise ArgumentError("spatial_shape", "fewer than 2**63 cells in all", grid)
    return grid


def check_cells(name: str, cells: Tensor, rank: int, device: torch.device | None = None) -> Tensor:
    """Return int32 (rows, 1 + rank) as kernels read it: contiguous, and 16-byte aligned."""
    if not isinstance(cells, torch.Tensor) or cells.dtype is not torch.int32:
        got = getattr(cells, "dtype", type(cells))
        raise ArgumentTypeError(name, "a torch tensor of int32", got)
    shape = cells.shape
    if len(shape) != 2 or shape[1] != 1 + rank:
        raise ArgumentError(name, f"(rows, {1 + rank})", tuple(shape))
    if shape[0] >= 2**31:
        raise ArgumentError(name, "fewer than 2**31 rows", shape[0])
    if device is not None and cells.device != device:
        raise ArgumentError(name, f"a tensor on {device}, where the table is", cells.device)
    cells = cells.contiguous()
    return cells if cells.data_ptr() & 15 == 0 else cells.clone()


def check_per_axis(name: str, values: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return one positive int32 per axis."""
    found = _integers(name, values)
    if len(found) != rank or not all(0 < v < 2**31 for v in found):
        raise ArgumentError(name, f"{rank} integers from 1 to 2**31 - 1", values)
    return found


def check_table(name: str, rows: Sequence[Sequence[int]], rank: int) -> Table:
    """Return rows of one int32 per axis."""
    return _check_range(name, tuple(_integers(name, row) for row in rows), rank)


@remembered(128)
def _check_range(name: str, rows: Table, rank: int) -> Table:
    for row in rows:
        if len(row) != rank or not all(abs(v) < 2**31 for v in row):
            raise ArgumentError(name, f"{rank} integers of 32 bits a tap", row)
    return rows


def _integers(name: str, values: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(map(index, values))
    except TypeError:
        raise ArgumentTypeError(name, "integers", values) from None
