"""Hashes of the rows of integer arrays, as point-cloud libraries use in data loaders."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ArgumentError


def _rows(array: Any) -> Any:
    found = np.asarray(array)
    if found.ndim != 2:
        raise ArgumentError("arr", "an array (rows, columns)", found.shape)
    return found


def ravel_hash_vec(arr: Any) -> Any:
    """Return the place of each row, uint64 (rows,), in the bounding grid of ``arr`` (rows,
    columns), the last column fastest.

    Raises :class:`~layoutconv.errors.ArgumentError` for another number of modes.

    >>> ravel_hash_vec(np.array([[-1, 0], [1, 2], [0, 1]])).tolist()
    [0, 8, 4]
    """
    rows = _rows(arr)
    places = (rows - rows.min(0)).astype(np.uint64)
    extents = places.max(0) + np.uint64(1)
    keys = np.zeros(len(rows), np.uint64)
    for place, extent in zip(places.T, extents, strict=True):
        keys = keys * extent + place
    return keys


def fnv_hash_vec(arr: Any) -> Any:
    """Return FNV-64 over the columns of ``arr``, uint64 (rows,): a product, then XOR, for each.

    Raises :class:`~layoutconv.errors.ArgumentError` for another number of modes.

    >>> hashed = fnv_hash_vec(np.array([[1, 2], [1, 2], [2, 1]]))
    >>> hashed.dtype, bool(hashed[0] == hashed[1]), bool(hashed[0] == hashed[2])
    (dtype('uint64'), True, False)
    """
    columns = _rows(arr).astype(np.int64).astype(np.uint64).T
    hashed = np.full(columns.shape[1:], 14695981039346656037, np.uint64)
    for column in columns:
        hashed = hashed * np.uint64(1099511628211) ^ column
    return hashed
