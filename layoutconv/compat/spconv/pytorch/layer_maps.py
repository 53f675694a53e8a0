"""The kernel map of a layer: that of its ``indice_key``, or a new one."""

from __future__ import annotations

from typing import Any

from ....errors import ArgumentError
from ....sparse import Coordinates, KernelMap
from ....sparse.coords.known_cells import version_of
from ..version import INTERFACE
from .core import SparseConvTensor
from .indice_data import Geometry, IndiceData


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
