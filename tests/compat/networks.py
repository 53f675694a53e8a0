"""Networks in the manner of those that are written for spconv, of whatever module has its names."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def residual(spconv: Any, C: int, K: int, key: str) -> Any:
    """Two submanifold layers around a shortcut of one tap, in the manner of a SparseUNet."""

    class Residual(spconv.SparseModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.shortcut = spconv.SparseSequential(
                spconv.SubMConv3d(C, K, kernel_size=1, bias=False), nn.BatchNorm1d(K)
            )
            self.body = spconv.SparseSequential(
                spconv.SubMConv3d(C, K, 3, padding=1, bias=False, indice_key=key),
                nn.BatchNorm1d(K),
                nn.ReLU(),
                spconv.SubMConv3d(K, K, 3, padding=1, bias=False, indice_key=key),
                nn.BatchNorm1d(K),
            )

        def forward(self, x: Any) -> Any:
            y = self.body(x)
            return y.replace_feature(torch.relu(y.features + self.shortcut(x).features))

    return Residual()


def unet(spconv: Any) -> nn.Module:
    """Two levels down and up again; what comes up is joined to what went down."""

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = spconv.SparseSequential(
                spconv.SubMConv3d(3, 8, 5, padding=1, bias=False, indice_key="stem"),
                nn.BatchNorm1d(8),
                nn.ReLU(),
            )
            self.down = spconv.SparseSequential(
                spconv.SparseConv3d(8, 12, 2, stride=2, bias=False, indice_key="down"),
                nn.BatchNorm1d(12),
                nn.ReLU(),
                residual(spconv, 12, 12, "subm"),
            )
            self.up = spconv.SparseInverseConv3d(12, 8, 2, bias=False, indice_key="down")
            self.last = residual(spconv, 16, 8, "stem2")
            self.head = spconv.SubMConv3d(8, 5, kernel_size=1, padding=1, bias=True)

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            y = self.up(self.down(x))
            y = y.replace_feature(torch.cat([x.features, y.features], dim=1))
            return self.head(self.last(y))

    return UNet()


def detector(spconv: Any) -> nn.Module:
    """Strided stages, a stage of one tap, and the height folded into channels."""

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()

            def block(layer: Any, K: int) -> Any:
                return spconv.SparseSequential(layer, nn.BatchNorm1d(K, eps=1e-3), nn.ReLU())

            self.stages = spconv.SparseSequential(
                block(spconv.SubMConv3d(3, 6, 3, padding=1, bias=False, indice_key="a"), 6),
                block(spconv.SparseConv3d(6, 8, 3, 2, padding=1, bias=False, indice_key="b"), 8),
                block(spconv.SparseConv3d(8, 8, 1, bias=False), 8),
                block(spconv.SparseConv3d(8, 10, (3, 1, 1), (2, 1, 1), bias=False), 10),
            )

        def forward(self, x: Any) -> Any:
            y = self.stages(x)
            return y, y.dense().flatten(1, 2)

    return Detector()
