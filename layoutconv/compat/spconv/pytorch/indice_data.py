"""Kernel maps by ``indice_key``, which layers leave for later layers."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from ....errors import ArgumentError
from ....sparse import Coordinates, KernelMap, strided_map, submanifold_map, transposed_map
from ....sparse.coords.known_cells import version_of
from ..core import ConvAlgo
from ..version import INTERFACE
from .ops import get_deconv_output_size

if TYPE_CHECKING:
    from torch import Tensor

    from .core import SparseConvTensor


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


def map_of_layer(layer: Any, x: SparseConvTensor) -> tuple[KernelMap, dict[Any, IndiceData], int]:
    """Return the kernel map of a convolution of ``x``, all known maps, and the outputs' version."""
    if layer.inverse:
        data = map_back(x, layer.kernel_size, layer.indice_key)
        return data.map.inverse, x.indice_dict, data.in_version
    data, known = map_for(x, layer.geometry, layer.indice_key, layer.algo)
    return data.map, known, data.out_version


def map_for(
    x: SparseConvTensor, geometry: Geometry, key: Any, algo: Any = None
) -> tuple[IndiceData, dict[Any, IndiceData]]:
    """Return the map of a layer for the input ``x``, and the maps that are known afterwards.

    Raises :class:`~layoutconv.errors.ArgumentError` if the key's map is that of a different layer.
    """
    found = None if key is None else x.indice_dict.get(key)
    if found is None:
        data = IndiceData(geometry.map_of(x.coordinates), geometry, algo)
        known = x.indice_dict
        if INTERFACE.is_1x and key is not None:
            known[key] = data  # for all tensors that share the dict
            return data, known
        return data, known if key is None else {**known, key: data}
    if geometry is not found.geometry and not geometry.like(found.geometry):
        expected = f"{found.geometry}, with which {key!r} was made"
        raise ArgumentError("indice_key", expected, geometry)
    if x.coordinates is not found.map.inputs:
        _check_cells(x, found.map.inputs, found.in_version, key, "read")
    return found, x.indice_dict


def map_back(x: SparseConvTensor, ksize: list[int], key: Any) -> IndiceData:
    """Return the map that an inverse layer reverses.

    Raises :class:`~layoutconv.errors.ArgumentError` if there is none, or it has other sizes.
    """
    found = x.find_indice_pair(key)
    if found is None:
        expected = "the key of a strided convolution or pooling that the input passed through"
        raise ArgumentError("indice_key", expected, f"{key!r}; known: {list(x.indice_dict)}")
    if found.is_subm:
        expected = "the key of a strided convolution or pooling"
        raise ArgumentError("indice_key", expected, f"{key!r}, of a submanifold layer")
    if found.ksize != ksize:
        expected = f"{found.ksize}, as in the layer that made {key!r}"
        raise ArgumentError("kernel_size", expected, ksize)
    _check_cells(x, found.map.outputs, found.out_version, key, "computed")
    return found


def _check_cells(x: SparseConvTensor, cells: Coordinates, version: int, key: Any, did: str) -> None:
    """Return whether ``x`` is at the cells that the layer of a key read, or computed."""
    own = x.coordinates
    if own is cells:
        return
    where = f"a tensor at the cells that the layer of indice_key {key!r} {did}"
    if version_of(cells.cells) != version:
        raise ArgumentError("input", where, "a tensor whose cells were written to since")
    there, here = (len(cells), list(cells.spatial_shape)), (len(own), list(own.spatial_shape))
    if there != here:
        expected = f"{where}: {there[0]} rows in a grid of {there[1]}"
        raise ArgumentError("input", expected, f"{here[0]} rows in a grid of {here[1]}")
    if own.device != cells.device:
        raise ArgumentError("input", f"{where}, on {cells.device}", str(own.device))
    if own.cells is not cells.cells and not bool((own.cells == cells.cells).all()):
        raise ArgumentError("input", where, f"{here[0]} other cells")
