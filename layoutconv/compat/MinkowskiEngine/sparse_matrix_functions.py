"""MinkowskiEngine's product of a sparse matrix, ``(row, column, value)``, and a dense one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import ArgumentError
from ...sparse.coords.rows import add_rows
from ..tensor_arguments import as_numbers, check_places, check_tensors
from ..whole_numbers import whole_numbers


def spmm(
    rows: Tensor,
    cols: Tensor,
    vals: Tensor,
    size: Sequence[int],
    mat: Tensor,
    is_sorted: bool = False,
    cuda_spmm_alg: int = 1,
) -> Tensor:
    """The product (size[0], C) of a matrix of ``size`` and ``mat`` (size[1], C); differentiable.

    ``rows``, ``cols`` and ``vals`` are (entries,); entries at one place are added up. Sums have
    the same bits in every run; ``is_sorted`` and ``cuda_spmm_alg`` have no effect.

    Raises :class:`~layoutconv.errors.ArgumentError` if their lengths differ or a place is outside
    ``size``, and :class:`~layoutconv.errors.ArgumentTypeError` for an argument that is not a
    tensor.

    >>> place = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])
    >>> spmm(*place, torch.tensor([1.0, 2.0, 3.0]), (3, 2), torch.tensor([[10.0], [1.0]])).T
    tensor([[12.,  3.,  0.]])
    """
    height, _ = _checked_size(size, mat)
    rows, cols = check_places("rows", rows, height), check_places("cols", cols, len(mat))
    vals = as_numbers("vals", vals, "(entries,)")
    if not len(rows) == len(cols) == len(vals):
        lengths = len(rows), len(cols), len(vals)
        raise ArgumentError("rows", "as many entries as `cols` and `vals`", lengths)
    values = mat.index_select(0, cols) * vals[:, None]
    return add_rows(values, rows, height)


def _checked_size(size: Any, mat: Any) -> list[int]:
    """Return the rows and columns of the sparse matrix, and check the dense one against them."""
    found = whole_numbers("size", size, 0, "(rows, columns)")
    if len(found) != 2:
        raise ArgumentError("size", "(rows, columns)", size)
    check_tensors(mat=mat)
    if mat.ndim != 2 or len(mat) != found[1]:
        raise ArgumentError("mat", f"({found[1]}, C), a row per column of `size`", tuple(mat.shape))
    as_numbers("mat", mat)
    return found


def spmm_average(
    rows: Tensor, cols: Tensor, size: Sequence[int], mat: Tensor, cuda_spmm_alg: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean, at each of ``rows``, of the rows ``cols`` of ``mat``; and the averaging
    matrix's entries (2, entries), sorted by rows, and their values.

    >>> place = torch.tensor([2, 0, 2]), torch.tensor([0, 1, 1])
    >>> spmm_average(*place, (3, 2), torch.tensor([[10.0], [1.0]]))[0].T
    tensor([[1.0000, 0.0000, 5.5000]])
    """
    height, width = _checked_size(size, mat)
    rows, cols = check_places("rows", rows, height), check_places("cols", cols, width)
    if len(rows) != len(cols):
        raise ArgumentError("rows", "as many entries as `cols`", (len(rows), len(cols)))
    order = rows.argsort(stable=True)
    rows, cols = rows[order], cols[order]
    vals = (1 / torch.bincount(rows, minlength=height)[rows]).to(mat.dtype)
    return spmm(rows, cols, vals, size, mat), torch.stack([rows, cols]), vals


class MinkowskiSPMMFunction:
    """:func:`spmm`, as ``apply(rows, cols, vals, size, mat)``."""

    @staticmethod
    def apply(
        rows: Tensor,
        cols: Tensor,
        vals: Tensor,
        size: Sequence[int],
        mat: Tensor,
        cuda_spmm_alg: int = 1,
    ) -> Tensor:
        return spmm(rows, cols, vals, size, mat)


class MinkowskiSPMMAverageFunction:
    """The result of :func:`spmm_average`, as ``apply(rows, cols, size, mat)``."""

    @staticmethod
    def apply(
        rows: Tensor, cols: Tensor, size: Sequence[int], mat: Tensor, cuda_spmm_alg: int = 1
    ) -> Tensor:
        return spmm_average(rows, cols, size, mat)[0]
