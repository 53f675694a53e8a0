"""K-major filters: which dgrads copy their filter to K-major first, in tf32 on Hopper."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ..base import devices
from ..conv.k_major_filter import k_major_view
from ..planning.machine import Machine
from ..view.gemm_view import GemmView
from . import machines
from .fp32_precision import multiplied_as
from .k_major_copy import k_major_copy

VECTOR = 4  # numbers of 16 bytes, which lie side by side in a copy


class LeastWork(NamedTuple):
    """The least work that pays for a K-major copy of a filter.

    ``rows``: rows that each element is multiplied by. ``products``: multiplications in all.
    ``channels``: K of a group, the summed channels.
    """

    rows: int
    products: int
    channels: int = 20


# On an H200, 62 of 74 gradients of 0.1 to 10 * 10^9 products have as much work as this: a copy and
# its product take 0.49 to 1.07 of the time, 0.73 in the mean. A row of K-major channels that is no
# longer than 64 bytes is slow by TMA: 16 channels to 32 took 1.3 times as long.
LEAST = LeastWork(rows=512, products=3 << 27)
# Over a kernel map, whose taps are mostly missing; less was not measured.
LEAST_OF_MAP = LeastWork(rows=2048, products=1 << 31, channels=VECTOR)


def worth_k_major(
    rows: int, filter: Sequence[int], groups: int = 1, *, over_map: bool = False
) -> bool:
    """Return whether a K-major copy of the filter costs less than it saves.

    ``rows`` are those of the gradient that is read, N * Z * P * Q or, ``over_map``, the rows of a
    kernel map; ``filter`` is a shape (K, T, R, S, C / groups).

    >>> worth_k_major(512, (256, 3, 3, 3, 256)), worth_k_major(511, (256, 3, 3, 3, 256))
    (True, False)
    >>> worth_k_major(65536, (16, 3, 3, 3, 32)), worth_k_major(65536, (30, 3, 3, 3, 128))
    (False, False)
    """
    least, channels = LEAST_OF_MAP if over_map else LEAST, filter[0] // groups
    enough = rows >= least.rows and rows * prod(filter) >= least.products
    return enough and channels >= least.channels and channels % VECTOR == 0


def reads_k_major(a: Tensor, precision: str | None = None) -> bool:
    """Return whether kernels for ``a`` need K-major operands: fp32 as tf32, by ``wgmma``.

    ``precision`` is as of ``execute``.
    """
    if not devices.runs_kernels(a) or a.dtype is not torch.float32:
        return False
    return reads_along_sums(a.dtype, precision, machines.machine_of(a.get_device()))


def reads_along_sums(dtype: torch.dtype, precision: str | None, machine: Machine) -> bool:
    """Return :func:`reads_k_major` for data of ``dtype`` on a machine."""
    if dtype is not torch.float32:
        return False
    return multiplied_as(dtype, precision) == "tf32" and machine.arch == "sm_90a"


def with_k_major_filter(
    views: Sequence[GemmView], a: Tensor, b: Tensor, precision: str | None = None
) -> tuple[Sequence[GemmView], Tensor]:
    """Return the views of a dgrad and its filter ``b``, both K-major if kernels on ``a``'s device
    need that; else unchanged.

    The caller has checked that ``b`` is :func:`worth_k_major`. It is copied once for all views.
    """
    if not reads_k_major(a, precision):
        return views, b
    return tuple(map(k_major_view, views)), k_major_copy(b)
