"""Cached launches of sparse operators, by signature, which skip the operators' checks.

Graphs of ``torch.compile`` call operators, with new kernel maps for every cloud. The launch of a
call does not depend on the number of rows: the first call of a signature makes all checks, later
ones read the addresses of their maps, and launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from ..base import devices
from ..gpu.launch import BoundLaunch, launch_over_map
from ..gpu.map_passes import MapConv, conv_pass, index_tables, pair_tables, pairs_pass
from ..sparse.maps.tap_pairs import Pairs
from .call_cache import sparse
from .chunk_sums import sum_chunks
from .epilogue_args import EpilogueArgs

if TYPE_CHECKING:
    from torch import Tensor

_MAPS = 7  # tensors of a kernel map
# Groups, transposed, mirrored and the epilogue: the dispatcher drops trailing defaults.
_DEFAULTS = 1, False, False, *EpilogueArgs()


class SparseLaunch:
    """The launch of one signature, over any map. It holds no tensor."""

    def __init__(
        self, x: Tensor, of: MapConv, ending: EpilogueArgs, out_dtype: torch.dtype
    ) -> None:
        self.launch = BoundLaunch(
            tuple, x, out_dtype, ending.epilogue(), of.w if of.transposed else ()
        )
        self.describe, self.transposed = partial(conv_pass, of), of.transposed
        self.first = 2 if of.transposed and not of.mirrored else 0
        self.stride = of.channels, 1

    def run(
        self, maps: tuple[Tensor, ...], rows: int, x: Tensor, w: Tensor, ending: tuple[Any, ...]
    ) -> Tensor | None:
        """Return the result; None for a map that must be checked, since it may be wrong."""
        index, residual, count = maps[self.first], ending[2], x.size(0)
        if (
            index.dim() != 2
            or index.size(0) != rows
            or index.device != x.device
            or min(rows, count) < 2  # one row may be a dot product
            or (residual is not None and residual.size(0) != rows)
        ):
            return None
        of_map = (rows, count) if self.transposed else (count, rows)
        tables = index_tables(maps, *of_map, self.first)
        launch = launch_over_map(
            self.launch, self.describe, tables, (rows, self.stride[0]), self.stride
        )
        return launch.result(x, w, *ending)


class PairsLaunch:
    """The launch of one signature of ``sparse_wgrad``, over the pairs of any map."""

    def __init__(self, y: Tensor, K: int, C: int, groups: int) -> None:
        exact = torch.promote_types(y.dtype, torch.float32)
        self.launch = BoundLaunch(tuple, y, exact, None)
        self.describe = partial(pairs_pass, K=K, C=C, groups=groups)
        self.shape = K, C // groups

    def run(
        self, maps: tuple[Tensor, ...], taps: Sequence[int], y: Tensor, x: Tensor
    ) -> Tensor | None:
        """Return the gradient; None for pairs that must be checked, or made."""
        *_, outputs, inputs, lengths = maps
        if (
            outputs.dim() != 2
            or lengths.numel() != prod(taps)
            or not (outputs.device == inputs.device == lengths.device == y.device)
            or min(y.size(0), x.size(0)) < 2
        ):
            return None
        tables = pair_tables(Pairs(outputs, inputs, lengths, 0), y.size(0), x.size(0))
        K, C = self.shape
        parts = outputs.size(0), K, C
        launch = launch_over_map(self.launch, self.describe, tables, parts, (K * C, C, 1))
        return sum_chunks(launch.result(y, x), lengths, taps, x.dtype)


def kept_gradient(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return ``sparse_wgrad`` of real tensors as :func:`kept` does."""

    def run(y: Tensor, x: Tensor, *numbers: Any) -> Tensor:
        if not devices.runs_kernels(x):
            return function(y, x, *numbers)
        maps, taps, groups = numbers[:_MAPS], numbers[_MAPS], (*numbers[_MAPS + 1 :], 1)[0]
        key, rowless = ("operator", tuple(taps), groups), x[:0]  # for any number of rows
        call: PairsLaunch | None = sparse.find(key, None, y, rowless)
        if call is not None:
            found = call.run(maps, taps, y, x)
            if found is not None:
                return found
        result = function(y, x, *numbers)
        if call is None and y.is_contiguous() and x.is_contiguous():
            make = partial(PairsLaunch, y, y.shape[1], x.shape[1], groups)
            sparse.keep(make, key, None, y, rowless)
        return result

    return run


def kept(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return ``sparse_conv`` of real tensors as a kept launch from a signature's second call on.

    ``function`` is the pass with all its checks. Autograd records nothing below the operator.
    """

    def run(x: Tensor, w: Tensor, *numbers: Any) -> Tensor:
        if not devices.runs_kernels(x):
            return function(x, w, *numbers)
        maps, rows, rest = numbers[:_MAPS], numbers[_MAPS], numbers[_MAPS + 1 :]
        rest = *rest, *_DEFAULTS[len(rest) :]
        groups, transposed, mirrored, *given = rest
        bias, scale, residual, activation, slope, out_dtype = given
        key = "operator", groups, transposed, mirrored, activation, slope
        tensors = x, w, bias, scale, residual
        call: SparseLaunch | None = sparse.find(key, out_dtype, *tensors)
        if call is not None:
            found = call.run(maps, rows, x, w, (bias, scale, residual))
            if found is not None:
                return found
        result = function(x, w, *numbers)
        if call is None and all(t is None or t.is_contiguous() for t in tensors):
            of = MapConv(tuple(w.shape), groups, transposed, mirrored)
            ending = EpilogueArgs(*given)
            make = partial(SparseLaunch, x, of, ending, result.dtype)
            sparse.keep(make, key, out_dtype, *tensors)
        return result

    return run
