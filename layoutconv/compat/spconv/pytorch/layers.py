"""The common base of convolutions and pooling: geometry, key, and voxel count."""

from __future__ import annotations

from collections.abc import Hashable
from math import prod
from typing import Any

import torch

from ....errors import ArgumentError, ArgumentTypeError
from ..core import ConvAlgo
from .core import SparseConvTensor
from .indice_data import Geometry
from .modules import SparseModule

_COUNT = "max_num_voxels_during_training"


class GeometricLayer(SparseModule):
    """A layer that finds its kernel map by its sizes and its ``indice_key``."""

    def __init__(
        self,
        ndim: int,
        geometry: Geometry,
        indice_key: Any,
        algo: ConvAlgo | None,
        limit: int,
        record_voxel_count: bool,
        counts: bool,
        name: str | None,
        device: Any = None,
    ) -> None:
        super().__init__(name=name)
        _check_geometry(geometry)
        self.ndim = ndim
        self.geometry = geometry
        self.kernel_size, self.stride = geometry.ksize, geometry.stride
        self.padding, self.dilation = geometry.padding, geometry.dilation
        self.subm = geometry.subm
        if not isinstance(indice_key, Hashable):
            raise ArgumentTypeError("indice_key", "a name, or another key of a dict", indice_key)
        self.indice_key = indice_key
        if algo is None:  # spconv's default
            few = prod(geometry.ksize) <= limit
            algo = ConvAlgo.MaskImplicitGemm if few else ConvAlgo.Native
        self.algo = algo
        self.record_voxel_count = record_voxel_count
        if record_voxel_count and counts:
            self.register_buffer(_COUNT, torch.zeros(1, dtype=torch.int32, device=device))

    def get_max_num_voxels(self) -> torch.Tensor | None:
        """Return the most rows of a result, int32 (1,), if ``record_voxel_count`` is set."""
        return getattr(self, _COUNT, None)

    def _count(self, rows: int) -> None:
        if self.record_voxel_count:
            most = self.get_max_num_voxels()
            if most is not None:
                most.clamp_(min=rows)

    def _sizes(self) -> str:
        text = f"kernel_size={self.kernel_size}, stride={self.stride}"
        for name, usual in (("padding", 0), ("dilation", 1)):
            value = getattr(self, name)
            if value != [usual] * self.ndim:
                text += f", {name}={value}"
        return text if self.indice_key is None else f"{text}, indice_key={self.indice_key!r}"

    def extra_repr(self) -> str:
        return self._sizes()


def features_added(add_input: Any) -> torch.Tensor:
    """Return the features that are added to a layer's sums."""
    if not isinstance(add_input, SparseConvTensor):
        raise ArgumentTypeError("add_input", "a SparseConvTensor", type(add_input).__name__)
    return add_input.features


def _check_geometry(geometry: Geometry) -> None:
    """Raises :class:`~layoutconv.errors.ArgumentError` for sizes that no layer can have."""
    sizes = (
        ("kernel_size", geometry.ksize, 1),
        ("stride", geometry.stride, 1),
        ("padding", geometry.padding, 0),
        ("dilation", geometry.dilation, 1),
        ("output_padding", geometry.output_padding, 0),
    )
    for name, values, least in sizes:
        if min(values) < least:
            raise ArgumentError(name, f"every entry >= {least}", values)


def check_rows(input: SparseConvTensor, y: torch.Tensor, past: torch.Tensor | None) -> None:
    """Raise unless features have one row per cell, and a residual needs no broadcast.

    Raises :class:`~layoutconv.errors.ArgumentError`. Traced sizes are not checked, as the graph
    must serve other sizes.
    """
    if torch.compiler.is_compiling():
        return
    if len(y) != len(input.indices):
        expected = f"{len(input.indices)} rows of features, one per row of indices"
        raise ArgumentError("input", expected, f"{len(y)} rows")
    if past is not None and past.shape != y.shape:
        raise ArgumentError("add_input", f"features {tuple(y.shape)}", tuple(past.shape))
