"""Tensors of problems: integers whose sums are exact, or Gaussian numbers; in any memory, guarded.

A tensor lies in memory of its own, with a *guard* of NaN (of integers, the greatest number) before
and behind it, and in its gaps: what reads out of bounds shows in results, and what writes there in
the guard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, prod, sqrt

import torch
from torch import Tensor

from .draws import Draw
from .oracle import WrongResultError

GUARD = 256  # bytes before and behind
# The greatest odd integer up to which a type has all integers.
WHOLE = {
    torch.float16: 2047, torch.bfloat16: 255, torch.float32: 2047, torch.float64: 2**20 - 1,
    torch.int8: 127, torch.float8_e4m3fn: 15, torch.float8_e5m2: 7,
}  # fmt: skip
REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
ORDERS = ("last", "first", "permuted", "sliced", "spread", "expanded")


@dataclass
class Memory:
    """Tensors of a problem on a device, and what their memory held when they were made."""

    device: torch.device
    seed: int
    _held: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)
    _count: int = 0

    def generator(self) -> torch.Generator:
        """Another stream of random numbers for each call."""
        self._count += 1
        number = (self.seed * 1009 + self._count) % 2**62
        return torch.Generator(self.device).manual_seed(number)

    def integers(self, shape: Sequence[int], top: int, share: float = 1.0) -> Tensor:
        """Integers from ``-top`` to ``top`` but 0; all but a ``share`` of them are 0."""
        of = {"generator": self.generator(), "device": self.device}
        sign = 2 * torch.randint(0, 2, tuple(shape), **of) - 1
        values = torch.randint(1, top + 1, tuple(shape), **of) * sign
        if share < 1:
            values = values * (torch.rand(tuple(shape), **of) < share)
        return values.double()

    def normal(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Numbers of a normal distribution, rounded to ``dtype``, in float64."""
        of = {"generator": self.generator(), "device": self.device}
        values = torch.randn(tuple(shape), **of, dtype=torch.float64)
        return (16 * values).round().clamp(-127, 127).double() if dtype == torch.int8 else (
            values.to(dtype).double()
        )  # fmt: skip

    def place(
        self, name: str, values: Tensor, dtype: torch.dtype, strides: Sequence[int], start: int = 0
    ) -> Tensor:
        """``values`` in guarded memory with ``strides``, ``start`` elements past 16 bytes."""
        itemsize = dtype.itemsize
        modes = zip(values.shape, strides, strict=True)
        span = 1 + sum((s - 1) * d for s, d in modes) if values.numel() else 0
        before = GUARD + start * itemsize
        whole = torch.full((before + span * itemsize + GUARD,), 255, device=self.device)
        held = whole.to(torch.uint8)
        if not dtype.is_floating_point and not dtype.is_complex:
            held.fill_(127)
        made = held[before : before + span * itemsize].view(dtype)
        made = made.as_strided(values.shape, tuple(strides))
        if 0 in strides and values.numel():  # memory that several elements share
            once = tuple(slice(0, 1) if d == 0 else slice(None) for d in strides)
            made[once].copy_(values[once])
        else:
            made.copy_(values)
        self._held.append((name, held, held.clone()))
        return made

    def check_untouched(self) -> None:
        """Raise ``WrongResultError`` for a tensor whose memory, or whose guard, was written."""
        for name, held, before in self._held:
            if not torch.equal(held, before):
                what = "memory that is only read, or beside it, was written"
                raise WrongResultError(f"{name}: {what}")


def strides_of(shape: Sequence[int], order: str, draw: Draw) -> tuple[int, ...]:
    """Strides of a tensor (N, C, *spatial) in an order of memory.

    "last": channels fastest; "first": contiguous; "permuted": modes in any order, and any stride
    where the extent is 1; "sliced": channels of a wider tensor; "spread": every other cell of the
    last mode; "expanded": one image for all.
    """
    rank = len(shape)
    modes = [1, *range(rank - 1, 1, -1), 0]  # the fastest first
    if order == "first":
        modes = [*range(rank - 1, -1, -1)]
    elif order == "permuted":
        modes = draw.shuffled(modes)
    gaps = [1] * rank
    if order == "sliced":
        gaps[1] = 1 + draw.int(1, 9)
    strides, reach = [0] * rank, 1
    for mode in modes:
        if order == "spread" and mode == rank - 1:
            reach *= 2
        strides[mode] = reach
        reach *= max(shape[mode], 1)
        reach += gaps[mode] - 1
    if order == "permuted":
        strides = [draw.int(1, 9) if s == 1 else d for s, d in zip(shape, strides, strict=True)]
    if order == "expanded":
        strides[0] = 0
    return tuple(strides)


def alike(values: Tensor, strides: Sequence[int]) -> Tensor:
    """``values`` as memory with ``strides`` has them: equal along modes of stride 0."""
    for mode, step in enumerate(strides):
        if step == 0 and values.shape[mode] > 1:
            values = values.narrow(mode, 0, 1).expand_as(values)
    return values


@dataclass(frozen=True)
class Sizes:
    """Magnitudes of integers in two or three tensors, whose sums are exact.

    Args:
        tops: the greatest magnitude in each.
        share: of the numbers of the first tensor that are not 0.
    """

    tops: tuple[int, ...]
    share: float = 1.0


def exact_sizes(
    draw: Draw,
    dtype: torch.dtype,
    terms: Sequence[int],
    tensors: int,
    most: float,
    typical: float = inf,
) -> Sizes:
    """Magnitudes so that sums of ``terms`` products stay below ``most`` in every partial sum.

    Results are about ``typical`` at most. One tensor, drawn, has numbers as large as its type and
    the sums allow: all bits of a factor take part. The others have small ones. If even products of
    1 are too many, some are 0.
    """
    longest = max([*terms, 1])
    product = min(most / longest, typical / sqrt(longest))  # of two factors
    small = [draw.of((1, 2, 3, 4)) for _ in range(tensors)]
    while prod(sorted(small)[-2:]) > product and max(small) > 1:
        small[small.index(max(small))] -= 1
    if draw.chance(0.8):
        at = draw.int(0, tensors - 1)
        others = max(small[:at] + small[at + 1 :])
        small[at] = max(small[at], min(WHOLE[dtype], int(product / others)))
    return Sizes(tuple(small), min(1.0, product))
