"""Fixed filters with a readable response, mixed over channels like a network's.

A cloud has few *signals* per voxel; a convolution has many channels. Matrices with orthonormal
columns lift both sides, ``features = signals @ lift`` and ``weight = mix @ taps @ lift``, so the
sum of squares over the K output channels is the sum of squares of the stencils' responses, while
every channel of every tap takes part in the product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .errors import ArgumentError
from .sparse.coords.voxels import Voxels
from .sparse.maps.taps import tap_offsets

SIGNALS = 2  # occupancy, and centred brightness
RESPONSES = 4  # voxels on or under others; the slope of the brightness along x, y, z


def lift(voxels: Voxels, channels: int) -> Tensor:
    """Return features of voxels, float32 (rows, channels): occupancy and brightness, mixed.

    Brightness is column 3 of the points (intensity, or red), scaled to [-1/2, 1/2]; without such a
    column it is the height.
    """
    columns = voxels.features.float()
    brightness = columns[:, min(3, columns.shape[1] - 1)]
    dark, bright = torch.quantile(brightness, brightness.new_tensor([0.02, 0.98]))
    brightness = ((brightness - dark) / (bright - dark).clamp(min=1e-6)).clamp(0, 1) - 0.5
    signals = torch.stack([torch.ones_like(brightness), brightness], dim=1)
    return signals @ _orthonormal(channels, SIGNALS).T.to(signals)


def stencil_weight(channels: int) -> Tensor:
    """Return weights, float32 (K, T, R, S, C) with K = C = ``channels`` and 3 x 3 x 3 taps.

    Raises ``ArgumentError`` for fewer channels than there are responses.

    >>> weight = stencil_weight(8)
    >>> tuple(weight.shape), round(float(weight[..., 1, 1, 1, :].abs().max()), 6)
    ((8, 3, 3, 3, 8), 0.0)
    """
    if channels < RESPONSES:
        raise ArgumentError("channels", f"{RESPONSES} or more", channels)
    dz, dy, dx = torch.tensor(tap_offsets(3), dtype=torch.float64).T
    near = torch.exp(-(dx**2 + dy**2 + dz**2) / 2)
    upright = near * dz.abs()
    taps = torch.zeros(RESPONSES, SIGNALS, 27, dtype=torch.float64)
    taps[0, 0] = upright / upright.sum()
    for axis, offset in enumerate((dx, dy, dz)):
        taps[1 + axis, 1] = 0.7 * near * offset / (near * offset**2).sum()
    mix, lifted = _orthonormal(channels, RESPONSES), _orthonormal(channels, SIGNALS)
    weight = torch.einsum("kr,rst,cs->ktc", mix, taps, lifted)
    return weight.reshape(channels, 3, 3, 3, channels).float().contiguous()


def _orthonormal(rows: int, columns: int) -> Tensor:
    """Return the first columns of the cosine transform (DCT-II), float64 (rows, columns)."""
    row = torch.arange(rows, dtype=torch.float64)[:, None] + 0.5
    column = torch.arange(columns, dtype=torch.float64)
    basis = torch.cos(torch.pi * row * column / rows)
    return basis / basis.norm(dim=0)
