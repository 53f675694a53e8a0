"""Kernel maps by ``indice_key``, which layers leave for later layers."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from ....sparse import Coordinates, KernelMap, strided_map, submanifold_map, transposed_map
from ....sparse.coords.known_cells import version_of
from ..core import ConvAlgo
from ..version import INTERFACE
from .ops import get_deconv_output_size

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """The geometry of a layer's kernel map: its sizes, one per spatial mode, and its kind."""

    ksize: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    output_padding: list[int]
    subm: bool = False
    transposed: bool = False

    def map_of(self, cells: Coordinates) -> KernelMap:
        """Return the kernel map, found or made."""
        ksize, dilation = tuple(self.ksize), tuple(self.dilation)  # which maps are kept under
        if self.subm:
            return submanifold_map(cells, ksize, dilation)
        sizes = ksize, tuple(self.stride), tuple(self.padding)
        if not self.transposed:
            return strided_map(cells, *sizes, dilation)
        shape = get_deconv_output_size(
            cells.spatial_shape, *sizes, self.dilation, self.output_padding
        )
        return transposed_map(
            cells, *sizes, self.output_padding, self.dilation, spatial_shape=shape
        )

    def __str__(self) -> str:
        sizes = f"kernel size {self.ksize}, dilation {self.dilation}"
        if self.subm:
            return f"a submanifold layer of {sizes}"
        kind = "transposed" if self.transposed else "strided"
        sizes += f", stride {self.stride}, padding {self.padding}"
        more = f", output padding {self.output_padding}" if any(self.output_padding) else ""
        return f"a {kind} layer of {sizes}{more}"

    def like(self, other: Geometry) -> bool:
        """Return whether both have the same map; for a submanifold map, padding and stride do not
        matter. In the interface of 1.2 the other may have the first taps of this one.
        """
        if self.subm and other.subm:
            if INTERFACE.is_1x:
                return prod(self.ksize) >= prod(other.ksize)
            return self.ksize == other.ksize and self.dilation == other.dilation
        return self == other


class IndiceData:
    """A kernel map and the geometry of the layer that made it.

    Attributes:
        map: the kernel map.
        geometry: of the layer.
        algo: that of the layer, for programs that read it.
    """

    def __init__(self, map: KernelMap, geometry: Geometry, algo: Any = None) -> None:
        self.map, self.geometry = map, geometry
        self.algo = ConvAlgo.MaskImplicitGemm if algo is None else algo
        inputs, outputs = map.inputs, map.outputs
        self.in_version = version_of(inputs.cells)
        same = outputs is inputs
        self.out_version = self.in_version if same else version_of(outputs.cells)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle; versions become their lag, 0 if nobody wrote to the cells."""
        map = self.map
        return {
            **self.__dict__,
            "in_version": self.in_version - version_of(map.inputs.cells),
            "out_version": self.out_version - version_of(map.outputs.cells),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.in_version += version_of(self.map.inputs.cells)
        self.out_version += version_of(self.map.outputs.cells)

    # -- spconv's names --------------------------------------------------------------------------

    @property
    def indices(self) -> Tensor:
        """int32 (inputs, 1 + rank)."""
        return self.map.inputs.cells

    @property
    def out_indices(self) -> Tensor:
        """int32 (outputs, 1 + rank)."""
        return self.map.outputs.cells

    @property
    def spatial_shape(self) -> list[int]:
        return list(self.map.inputs.spatial_shape)

    @property
    def out_spatial_shape(self) -> list[int]:
        return list(self.map.outputs.spatial_shape)

    @property
    def pair_fwd(self) -> Tensor:
        """int32 (taps, outputs): the row of the inputs that a tap reads, -1 for none."""
        return self.map.index.T

    @property
    def pair_bwd(self) -> Tensor:
        """int32 (taps, inputs): the row of the outputs that a tap feeds, -1 for none."""
        return self.map.inverse.index.T

    @property
    def indice_pairs(self) -> Tensor:
        """int32 (2, taps, inputs): rows of the inputs and outputs that each tap multiplies, -1
        after the last pair. In the order of the inputs' rows."""
        fed = self.pair_bwd
        order = torch.argsort((fed < 0).int(), dim=1, stable=True)
        fed = fed.gather(1, order)
        return torch.stack([torch.where(fed < 0, -1, order.int()), fed])

    @property
    def indice_pair_num(self) -> Tensor:
        """int32 (taps,): how many pairs each tap has."""
        return (self.pair_bwd >= 0).sum(1).int()

    @property
    def is_subm(self) -> bool:
        return self.geometry.subm

    @property
    def ksize(self) -> list[int]:
        return self.geometry.ksize

    @property
    def stride(self) -> list[int]:
        return self.geometry.stride

    @property
    def padding(self) -> list[int]:
        return self.geometry.padding

    @property
    def dilation(self) -> list[int]:
        return self.geometry.dilation


ImplicitGemmIndiceData = IndiceData  # there is only one kind
