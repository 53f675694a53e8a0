"""Where problems run: a device, memory that is poisoned before calls, and a report of how far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .limits import Arithmetic, arithmetic
from .oracle import Expected, WrongResultError, check

LADDER = tuple(1 << bits for bits in range(9, 22))  # bytes


@dataclass
class Bench:
    """A device, and what is known of the problem that runs on it.

    Args:
        name: "cuda", "cpu", or what stands in for the first on the second.
        device: where tensors are.
        tensor_cores: whether products are summed as those do.
        stage: is told what begins, so that a crash says where.
        runs: whether kernels run, so that results mean something.
        fault: what becomes of the results of a call, of which it is given the operands too: they
            stay as they are, but where an oracle is to find what is wrong with them.
    """

    name: str
    device: torch.device
    tensor_cores: bool = False
    stage: Callable[[str], object] = lambda name: None
    runs: bool = True
    fault: Callable[..., Any] = lambda results, *operands: results
    passes: dict[str, float] = field(default_factory=dict)
    _begun: float = field(default_factory=time.perf_counter)

    def arithmetic(self, dtype: torch.dtype, precision: str) -> Arithmetic:
        return arithmetic(dtype, precision, tensor_cores=self.tensor_cores)

    def check(self, name: str, got: Tensor, want: Expected, dtype: torch.dtype) -> None:
        """Compare; note the worst error over its limit under ``name``."""
        try:
            found = check(name, got, want, dtype)
        except WrongResultError as wrong:
            self.passes[name] = wrong.ratio
            raise
        self.passes[name] = max(found, self.passes.get(name, 0.0))

    def wait(self, name: str) -> None:
        """Wait for the device: what went wrong in a kernel is raised here."""
        self.stage(name)
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begun


def poison(device: torch.device, sizes: Iterable[int]) -> None:
    """Fill memory that the allocator will hand out next with NaN (of integers, -1).

    ``sizes`` are bytes of the results that are awaited. torch's allocator gives a request the
    smallest free block that holds it, the one that was freed last.
    """
    blocks = [
        torch.empty(size, dtype=torch.uint8, device=device).fill_(255)
        for size in (*sizes, *sizes, *LADDER)
        if size
    ]
    del blocks


def check_same(name: str, first: Tensor, second: Tensor) -> None:
    """Raises ``WrongResultError`` unless both have the same bits; NaN is like any other NaN."""
    if first.dtype != second.dtype or first.shape != second.shape:
        raise WrongResultError(f"{name}: {_of(first)} the first time, {_of(second)} the second")
    one, two = (torch.view_as_real(t) if t.is_complex() else t for t in (first, second))
    different = (one != two) & ~((one != one) & (two != two)) if one.numel() else None
    if different is not None and different.any():
        raise WrongResultError(
            f"{name}: {int(different.sum())} of {one.numel()} differ from call to call"
        )


def _of(tensor: Tensor) -> str:
    return f"{tensor.dtype} of {tuple(tensor.shape)}"
