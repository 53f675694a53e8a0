"""Two networks in spconv's names, by their published architectures: a detector's backbone and a
U-Net.

``spconv`` is a module that has these names, ours or another. Both are as large as in the projects
that they are known from; ``width`` makes them narrower.

- :func:`residual_backbone`: OpenPCDet's VoxelResBackBone8x (Apache License 2.0), four resolutions
  of two residual blocks each, from 16 to 128 channels;
- :func:`segmentation_unet`: Pointcept's SpUNet (MIT), five resolutions, 23 residual blocks, from 32
  to 256 channels.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

norm_of = partial(nn.BatchNorm1d, eps=1e-3, momentum=0.01)


def _block(spconv: Any, C: int, K: int, key: str, *, bias: bool, project: bool) -> Any:
    """Two submanifold convolutions beside a shortcut, which is projected where channels change."""

    class Block(spconv.SparseModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            layer = partial(spconv.SubMConv3d, kernel_size=3, padding=1, bias=bias, indice_key=key)
            self.conv1, self.bn1 = layer(C, K), norm_of(K)
            self.conv2, self.bn2 = layer(K, K), norm_of(K)
            self.relu = nn.ReLU(inplace=True)
            self.shortcut = None
            if C != K:
                across = spconv.SubMConv3d(C, K, kernel_size=1, bias=False)
                self.shortcut = spconv.SparseSequential(across, norm_of(K))
            elif project:
                self.shortcut = spconv.SparseSequential(nn.Identity())

        def forward(self, x: Any) -> Any:
            out = self.conv1(x)
            out = out.replace_feature(self.bn1(out.features))
            out = out.replace_feature(self.relu(out.features))
            out = self.conv2(out)
            out = out.replace_feature(self.bn2(out.features))
            past = x if self.shortcut is None else self.shortcut(x)
            out = out.replace_feature(out.features + past.features)
            return out.replace_feature(self.relu(out.features))

    return Block()


def residual_backbone(spconv: Any, channels: int = 5, width: float = 1.0) -> nn.Module:
    """VoxelResBackBone8x: a sparse tensor of ``channels`` in, one of 128 out, an eighth as fine."""
    wide = [int(C * width) for C in (16, 16, 32, 64, 128)]
    between: Any = [0, 1, 1, (0, 1, 1)]  # paddings of strided layers

    def layer(make: Any, C: int, K: int, *sizes: Any, **options: Any) -> list[nn.Module]:
        return [make(C, K, *sizes, bias=False, **options), norm_of(K), nn.ReLU()]

    stages = []
    for level, (C, K) in enumerate(pairwise(wide), 1):
        first = []
        if level > 1:
            options = {"padding": between[level - 1], "indice_key": f"spconv{level}"}
            down = layer(spconv.SparseConv3d, C, K, 3, 2, **options)
            first = [spconv.SparseSequential(*down)]
        key = f"res{level}"
        blocks = [_block(spconv, K, K, key, bias=True, project=False) for _ in range(2)]
        stages.append(spconv.SparseSequential(*first, *blocks))
    stem = layer(spconv.SubMConv3d, channels, wide[0], 3, padding=1, indice_key="subm1")
    last = layer(
        spconv.SparseConv3d, wide[-1], wide[-1], (3, 1, 1), (2, 1, 1), indice_key="spconv_down2"
    )
    return nn.Sequential(spconv.SparseSequential(*stem), *stages, spconv.SparseSequential(*last))


def segmentation_unet(
    spconv: Any, channels: int = 6, classes: int = 13, width: float = 1.0
) -> nn.Module:
    """SpUNet: a sparse tensor of ``channels`` in, one of ``classes`` out, at the same cells."""
    wide = [int(C * width) for C in (32, 32, 64, 128, 256, 256, 128, 96, 96)]
    stem_of, down, up = wide[0], wide[1:5], wide[5:]
    depths = (2, 3, 4, 6), (2, 2, 2, 2)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = spconv.SparseSequential(
                spconv.SubMConv3d(channels, stem_of, 5, padding=1, bias=False, indice_key="stem"),
                norm_of(stem_of), nn.ReLU(),
            )  # fmt: skip
            self.down, self.encoder = nn.ModuleList(), nn.ModuleList()
            self.up, self.decoder = nn.ModuleList(), nn.ModuleList()
            C = stem_of
            for level, K in enumerate(down, 1):
                self.down.append(spconv.SparseSequential(
                    spconv.SparseConv3d(C, K, 2, 2, bias=False, indice_key=f"spconv{level}"),
                    norm_of(K), nn.ReLU(),
                ))  # fmt: skip
                self.encoder.append(self.blocks(K, K, f"subm{level}", depths[0][level - 1]))
                C = K
            skips = [stem_of, *down[:-1]]
            for at, K in enumerate(up):
                level = len(up) - at
                self.up.append(spconv.SparseSequential(
                    spconv.SparseInverseConv3d(C, K, 2, bias=False, indice_key=f"spconv{level}"),
                    norm_of(K), nn.ReLU(),
                ))  # fmt: skip
                joined = K + skips[level - 1]
                self.decoder.append(self.blocks(joined, K, f"subm{level - 1}", depths[1][at]))
                C = K
            self.final = spconv.SubMConv3d(C, classes, kernel_size=1, padding=1, bias=True)

        def blocks(self, C: int, K: int, key: str, depth: int) -> nn.Module:
            widths = [C] + [K] * depth
            return spconv.SparseSequential(*[
                _block(spconv, a, b, key, bias=False, project=True)
                for a, b in pairwise(widths)
            ])  # fmt: skip

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            skips = [x]
            for down, encoder in zip(self.down, self.encoder, strict=True):
                skips.append(encoder(down(skips[-1])))
            x = skips.pop()
            for up, decoder in zip(self.up, self.decoder, strict=True):
                x, skip = up(x), skips.pop()
                x = decoder(x.replace_feature(torch.cat((x.features, skip.features), dim=1)))
            return self.final(x)

    return UNet()
