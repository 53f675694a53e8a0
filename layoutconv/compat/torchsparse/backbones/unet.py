"""The U-Net of segmentation: four levels down, and back to every level's cells."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from ..operators import cat
from ..tensor import SparseTensor
from .modules import SparseConvBlock, SparseConvTransposeBlock, SparseResBlock

__all__ = ["SparseResUNet42"]


class SparseResUNet(nn.Module):
    """A ``stem``, ``encoders`` and ``decoders``, four of each.

    A call returns the results of the stem, the encoders and the decoders. ``width_multiplier``
    scales all channels.
    """

    def __init__(
        self,
        stem_channels: int,
        encoder_channels: Sequence[int],
        decoder_channels: Sequence[int],
        *,
        in_channels: int = 4,
        width_multiplier: float = 1.0,
    ) -> None:
        super().__init__()
        self.stem_channels, self.in_channels = stem_channels, in_channels
        self.encoder_channels, self.decoder_channels = encoder_channels, decoder_channels
        self.width_multiplier = width_multiplier
        stem, *widths = (
            int(width_multiplier * channels)
            for channels in (stem_channels, *encoder_channels, *decoder_channels)
        )
        down, up = [stem, *widths[:4]], [widths[3], *widths[4:]]
        self.stem = nn.Sequential(
            *SparseConvBlock(in_channels, stem, 3), *SparseConvBlock(stem, stem, 3)
        )
        self.encoders = nn.ModuleList(
            nn.Sequential(SparseConvBlock(c, c, 2, 2), *_residual(c, k)) for c, k in pairwise(down)
        )
        self.decoders = nn.ModuleList(
            nn.ModuleDict(
                {
                    "upsample": SparseConvTransposeBlock(c, k, 2, 2),
                    "fuse": nn.Sequential(*_residual(k + beside, k)),
                }
            )
            for (c, k), beside in zip(pairwise(up), down[-2::-1], strict=True)
        )

    def forward(self, x: SparseTensor) -> list[SparseTensor]:
        levels = [self.stem(x)]
        for encoder in self.encoders:
            levels.append(encoder(levels[-1]))
        found = list(levels)
        for decoder, beside in zip(self.decoders, levels[-2::-1], strict=True):
            parts: Any = decoder
            found.append(parts["fuse"](cat([parts["upsample"](found[-1]), beside])))
        return found


def _residual(channels: int, filters: int) -> tuple[SparseResBlock, SparseResBlock]:
    return SparseResBlock(channels, filters, 3), SparseResBlock(filters, filters, 3)


class SparseResUNet42(SparseResUNet):
    """A stem of 32 channels, down to 256 and up to 96."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(32, [32, 64, 128, 256], [256, 128, 96, 96], **kwargs)
