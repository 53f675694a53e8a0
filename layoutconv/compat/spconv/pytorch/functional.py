"""Functions of sparse tensors."""

from __future__ import annotations

import torch

from ....errors import ArgumentError, ArgumentTypeError
from ....sparse import Coordinates
from ....sparse.coords.rows import add_rows
from ..absent import explain
from .core import SparseConvTensor

__all__ = ["sparse_add", "sparse_add_hash_based"]


def sparse_add(*tens: SparseConvTensor) -> SparseConvTensor:
    """Return the sum of tensors at different cells of one grid, over the union of their cells.

    All rows of a repeated cell are added. If one of the tensors has all these cells, each once, the
    result has its rows and its kernel maps; else rows are in lexicographic order, without kernel
    maps. Results have the same bits in every run.

    Raises :class:`~layoutconv.errors.ArgumentError` for tensors of different grids or channels.

    >>> x = SparseConvTensor.from_dense(torch.eye(2)[None, :, :, None])
    >>> y = SparseConvTensor.from_dense(torch.tensor([[5.0, 3.0], [0.0, 0.0]])[None, :, :, None])
    >>> sparse_add(x, y).dense()[0, 0]
    tensor([[6., 3.],
            [0., 1.]])
    """
    if not tens:
        raise ArgumentError("tens", "one or more tensors", "none")
    first = tens[0]
    for x in tens:
        if not isinstance(x, SparseConvTensor):
            raise ArgumentTypeError("tens", "SparseConvTensors", type(x).__name__)
    for x in tens:
        own = x.spatial_shape, x.batch_size, x.features.shape[1]
        wanted = first.spatial_shape, first.batch_size, first.features.shape[1]
        if own != wanted:
            expected = "tensors that agree in spatial_shape, batch_size and channels"
            raise ArgumentError("tens", expected, f"{wanted} and {own}")
    keys = [x.coordinates.check().keys() for x in tens]
    cells, rows = torch.unique(torch.cat(keys), return_inverse=True)
    places = rows.split([len(key) for key in keys])
    largest = max(range(len(tens)), key=lambda i: len(keys[i]))
    whole = tens[largest]
    if len(cells) == len(keys[largest]) and whole.coordinates.valid:
        own_rows = torch.empty_like(places[largest])
        own_rows[places[largest]] = torch.arange(len(cells), device=cells.device)
        places = tuple(own_rows[place] for place in places)
        found, known = whole.coordinates, whole.indice_dict
    else:
        found = Coordinates.of_keys(cells, first.spatial_shape, first.batch_size)
        known = {}
    dtype = first.features.dtype
    for x in tens[1:]:
        dtype = torch.promote_types(dtype, x.features.dtype)
    # Tensor by tensor, and a cell's rows in their order: sums have a fixed order.
    total = first.features.new_zeros((len(cells), first.features.shape[1]), dtype=dtype)
    for x, place in zip(tens, places, strict=True):
        features = x.features.to(dtype)
        if x.coordinates.valid:
            total = total.index_add(0, place, features)
        else:
            total = total + add_rows(features, place, len(cells))
    return first.on(total, found, known)


sparse_add_hash_based = sparse_add

__getattr__ = explain(__name__)
