"""A sparse matrix of ``(row, column, value)`` times a dense one, as MinkowskiEngine has it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import ArgumentError
from ...sparse.coords.rows import add_rows


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

    Raises :class:`~layoutconv.errors.ArgumentError` if they are not of one length.

    >>> place = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])
    >>> spmm(*place, torch.tensor([1.0, 2.0, 3.0]), (3, 2), torch.tensor([[10.0], [1.0]])).T
    tensor([[12.,  3.,  0.]])
    """
    if not len(rows) == len(cols) == len(vals):
        lengths = len(rows), len(cols), len(vals)
        raise ArgumentError("rows", "as many as `cols` and `vals`", lengths)
    if len(mat) != size[1]:
        raise ArgumentError("mat", f"({size[1]}, C), as `size` has columns", tuple(mat.shape))
    values = mat.index_select(0, cols.long()) * vals[:, None]
    return add_rows(values, rows.long(), size[0])


def spmm_average(
    rows: Tensor, cols: Tensor, size: Sequence[int], mat: Tensor, cuda_spmm_alg: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, at each of ``rows``, of the rows ``cols`` of ``mat``; the entries (2, entries) of
    that matrix, by rows, and their values.

    >>> place = torch.tensor([2, 0, 2]), torch.tensor([0, 1, 1])
    >>> spmm_average(*place, (3, 2), torch.tensor([[10.0], [1.0]]))[0].T
    tensor([[1.0000, 0.0000, 5.5000]])
    """
    order = rows.long().argsort(stable=True)
    rows, cols = rows.long()[order], cols.long()[order]
    vals = (1 / torch.bincount(rows, minlength=size[0])[rows]).to(mat.dtype)
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
