"""The passes of a dense convolution by their definition: a product for every tap, in float64.

A convolution is a sum over (image, voxel of the output, tap, channels) of three factors: one of the
activation ``x`` (N, C, *spatial), one of the filter ``w`` (K, C / groups, *taps), one of the output
``y`` (N, K, *voxels). Each pass gives two of them and sums over what the third does not have. A
voxel ``v`` and a tap ``t`` meet the cell ``v * stride + t * dilation - near`` of the padded input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """The windows of a convolution, and the extents of its tensors.

    ``spatial`` are those of the activation, ``padding`` (near, far) of each mode; a far one may be
    negative: no window reads these cells.
    """

    spatial: tuple[int, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    groups: int = 1

    @property
    def voxels(self) -> tuple[int, ...]:
        """The extents of the output."""
        modes = zip(self.spatial, self.taps, self.stride, self.dilation, self.padding, strict=True)
        return tuple((e + n + f - d * (t - 1) - 1) // s + 1 for e, t, s, d, (n, f) in modes)

    def windows(self) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
        """Yield each tap, the cells of the activation that it reads, the voxels that read them."""
        for tap in product(*map(range, self.taps)):
            cells, voxels = [], []
            for mode, t in enumerate(tap):
                step = self.stride[mode]
                start = t * self.dilation[mode] - self.padding[mode][0]
                first = max(0, -(start // step))
                last = min(self.voxels[mode], -((start - self.spatial[mode]) // step))
                voxels.append(slice(first, max(first, last)))
                begin = first * step + start
                count = max(0, last - first)
                cells.append(
                    slice(begin, begin + max(0, (count - 1) * step + 1) * (count > 0), step)
                )
            if all(v.stop > v.start for v in voxels):
                yield tap, tuple(cells), tuple(voxels)

    def _grouped(self, t: Tensor) -> Tensor:
        """(N, C, *cells) as (groups, cells of all images, C / groups)."""
        N, C, *cells = t.shape
        split = t.reshape(N, self.groups, C // self.groups, prod(cells))
        return split.permute(1, 0, 3, 2).reshape(self.groups, N * prod(cells), C // self.groups)

    def _ungrouped(self, t: Tensor, images: int, cells: tuple[int, ...]) -> Tensor:
        split = t.reshape(self.groups, images, prod(cells), t.shape[-1])
        return split.permute(1, 0, 3, 2).reshape(images, self.groups * t.shape[-1], *cells)

    def _tap(self, w: Tensor, tap: tuple[int, ...]) -> Tensor:
        """(groups, K / groups, C / groups)."""
        one = w[(slice(None), slice(None), *tap)]
        return one.reshape(self.groups, -1, one.shape[1])

    def fprop(self, x: Tensor, w: Tensor) -> Tensor:
        y = x.new_zeros(x.shape[0], w.shape[0], *self.voxels)
        for tap, cells, voxels in self.windows():
            read = x[(slice(None), slice(None), *cells)]
            sums = self._grouped(read) @ self._tap(w, tap).transpose(1, 2)
            y[(slice(None), slice(None), *voxels)] += self._ungrouped(
                sums, x.shape[0], read.shape[2:]
            )
        return y

    def dgrad(self, y: Tensor, w: Tensor) -> Tensor:
        x = y.new_zeros(y.shape[0], w.shape[1] * self.groups, *self.spatial)
        for tap, cells, voxels in self.windows():
            read = y[(slice(None), slice(None), *voxels)]
            sums = self._grouped(read) @ self._tap(w, tap)
            x[(slice(None), slice(None), *cells)] += self._ungrouped(
                sums, y.shape[0], read.shape[2:]
            )
        return x

    def wgrad(self, y: Tensor, x: Tensor) -> Tensor:
        C = x.shape[1] // self.groups
        w = y.new_zeros(y.shape[1], C, *self.taps)
        for tap, cells, voxels in self.windows():
            left = self._grouped(y[(slice(None), slice(None), *voxels)])
            right = self._grouped(x[(slice(None), slice(None), *cells)])
            w[(slice(None), slice(None), *tap)] = (left.transpose(1, 2) @ right).reshape(-1, C)
        return w


@dataclass(frozen=True)
class Sums:
    """Sums of products, the same of their absolute values, and the root of that of their squares.

    ``terms``: the most products that one of them has.
    """

    value: Tensor
    s1: Tensor
    s2: Tensor
    terms: int

    @classmethod
    def of(
        cls, multiply: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, terms: int
    ) -> Sums:
        """``multiply`` is bilinear. Complex numbers count by their modulus."""
        p, q = a.abs(), b.abs()
        return cls(multiply(a, b), multiply(p, q), multiply(p * p, q * q).sqrt(), terms)


def terms_of(pass_: str, geometry: Geometry, images: int, C: int, K: int) -> int:
    """The most products that a result of a pass is a sum of."""
    if pass_ == "fprop":
        return C // geometry.groups * prod(geometry.taps)
    if pass_ == "dgrad":
        return K // geometry.groups * prod(geometry.taps)
    return images * prod(geometry.voxels)


def real_type(dtype: torch.dtype) -> torch.dtype:
    """The type of a complex number's parts; of a real one, itself."""
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)
