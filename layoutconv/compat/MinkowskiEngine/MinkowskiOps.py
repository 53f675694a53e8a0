"""Operations over several tensors, linear layers, and dense tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...errors import ArgumentError, ArgumentTypeError, shown
from ...nn.scripting import refuse_scripting
from ..tensor_arguments import check_tensors
from ..whole_numbers import whole_numbers
from .MinkowskiCommon import MinkowskiModuleBase, check_input
from .MinkowskiSparseTensor import SparseTensor
from .MinkowskiTensor import check_tensor, over_features
from .MinkowskiTensorField import TensorField

_DENSE = "the shape (N, C, X, Y, ...) of a dense tensor"


class MinkowskiLinear(torch.nn.Module):
    """``torch.nn.Linear``, which is ``linear``, over features."""

    __prepare_scriptable__ = refuse_scripting

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(in_features, out_features, bias)

    def forward(self, input: Any) -> Any:
        return over_features(input, self.linear)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.linear.extra_repr()})"


def _features(tensors: tuple[Any, ...]) -> tuple[Any, list[Tensor]]:
    """Return the first of several tensors at the same coordinates, and the features of all."""
    several = tensors[0] if len(tensors) == 1 else tensors
    if not isinstance(several, (tuple, list)) or len(several) < 2:
        raise ArgumentError("sparse_tensors", "two or more tensors", several)
    first = several[0]
    if not isinstance(first, (SparseTensor, TensorField)):
        got = type(first).__name__
        raise ArgumentTypeError("sparse_tensors", "SparseTensors or TensorFields", got)
    return first, [first.F, *(first._beside(other) for other in several[1:])]


def cat(*sparse_tensors: Any) -> Any:
    """Concatenate the channels of tensors at the same coordinates."""
    first, features = _features(sparse_tensors)
    return first.on(torch.cat(features, -1))


def _sum(*sparse_tensors: Any) -> Any:
    """The sum of tensors at the same coordinates."""
    first, features = _features(sparse_tensors)
    return first.on(torch.stack(features).sum(0))


def mean(*sparse_tensors: Any) -> Any:
    """The mean of tensors at the same coordinates."""
    first, features = _features(sparse_tensors)
    return first.on(torch.stack(features).mean(0))


def var(*sparse_tensors: Any) -> Any:
    """The variance, biased, of tensors at the same coordinates."""
    first, features = _features(sparse_tensors)
    return first.on(torch.stack(features).var(0, unbiased=False))


class _Stack(torch.nn.Sequential):
    def forward(self, x: Any) -> Any:
        return type(self)._join([module(x) for module in self])

    _join: ClassVar[Any]


class MinkowskiStackCat(_Stack):
    """Concatenate the results of all modules for one tensor, along channels."""

    _join = staticmethod(cat)


class MinkowskiStackSum(_Stack):
    """The sum of the results of all modules for one tensor."""

    _join = staticmethod(_sum)


class MinkowskiStackMean(_Stack):
    """The mean of the results of all modules for one tensor."""

    _join = staticmethod(mean)


class MinkowskiStackVar(_Stack):
    """The variance of the results of all modules for one tensor."""

    _join = staticmethod(var)


class MinkowskiUnion(MinkowskiModuleBase):
    """The sum of tensors over the union of their coordinates."""

    def forward(self, *inputs: SparseTensor) -> SparseTensor:
        if len(inputs) < 2:
            raise ArgumentError("inputs", "two or more sparse tensors", len(inputs))
        for one in inputs:
            check_input(one, name="inputs")
        total = inputs[0]
        for other in inputs[1:]:
            total = total + other
        return total

    def __repr__(self) -> str:
        return "MinkowskiUnion()"


class MinkowskiPruning(MinkowskiModuleBase):
    """The rows of a tensor where ``mask``, bool (rows,), is True."""

    def forward(self, input: SparseTensor, mask: Tensor) -> SparseTensor:
        check_input(input)
        if not isinstance(mask, Tensor):
            raise ArgumentTypeError("mask", "a torch tensor", type(mask).__name__)
        if mask.dtype != torch.bool or mask.shape != (len(input),):
            got = f"{mask.dtype} {tuple(mask.shape)}"
            raise ArgumentError("mask", f"bool ({len(input)},)", got)
        rows = mask.to(input.device).nonzero()[:, 0]
        cells = input.cells.at(input.cells.cells.index_select(0, rows))
        key = input.coordinate_manager.keep(cells, input.tensor_stride, "pruned")
        return input.at(input.F.index_select(0, rows), key)

    def __repr__(self) -> str:
        return "MinkowskiPruning()"


class MinkowskiInterpolation(MinkowskiModuleBase):
    """Features at floating coordinates, by linear interpolation.

    ``return_kernel_map`` adds the rows of the input and of the points, ``return_weights`` their
    weights.
    """

    def __init__(self, return_kernel_map: bool = False, return_weights: bool = False) -> None:
        super().__init__()
        self.return_kernel_map, self.return_weights = return_kernel_map, return_weights

    def forward(self, input: SparseTensor, tfield: Tensor) -> Any:
        if not isinstance(tfield, Tensor):
            raise ArgumentTypeError("tfield", "a torch tensor", type(tfield).__name__)
        found: list[Any] = [check_input(input).features_at_coordinates(tfield)]
        if self.return_kernel_map or self.return_weights:
            rows, weights = input.interpolation(tfield)
            corner, point = (rows >= 0).nonzero().T
            if self.return_kernel_map:
                found.append((rows[corner, point].int(), point.int()))
            if self.return_weights:
                found.append(torch.stack(weights)[corner, point].to(input.dtype))
        return tuple(found) if len(found) > 1 else found[0]

    def __repr__(self) -> str:
        return "MinkowskiInterpolation()"


def dense_coordinates(shape: Sequence[int]) -> Tensor:
    """Return all coordinates of a dense tensor (N, C, X, Y, ...), int32 (cells, 1 + D).

    Raises :class:`~layoutconv.errors.ArgumentError` for another shape, and for 2^31 cells or more.

    >>> dense_coordinates((1, 8, 2, 2)).tolist()
    [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]
    """
    images, *others = whole_numbers("shape", shape, 0, _DENSE) or [0]
    if len(others) < 2:
        raise ArgumentError("shape", _DENSE, shape)
    modes = images, *others[1:]
    if prod(modes) >= 1 << 31:
        raise ArgumentError("shape", f"{_DENSE} of fewer than 2^31 cells", shape)
    cells = torch.meshgrid(*[torch.arange(n, dtype=torch.int32) for n in modes], indexing="ij")
    return torch.stack(cells, -1).view(-1, len(modes))


def to_sparse(
    x: Tensor, format: str | None = None, coordinates: Any = None, device: Any = None
) -> SparseTensor:
    """Keep a dense tensor's coordinates with nonzero channels; it is (N, C, X, Y, ...) or in
    ``format``."""
    _check_dense("x", x)
    format = "BC" + "X" * (x.ndim - 2) if format is None else format
    if not isinstance(format, str):
        raise ArgumentTypeError("format", "a str of letters, such as 'BCXX'", shown(format))
    if len(format) != x.ndim or format[:1] != "B" or format.count("C") != 1:
        raise ArgumentError(
            "format", f"B first, one C and an X per spatial mode, {x.ndim} letters", format
        )
    grid = x.movedim(format.index("C"), -1)
    where = (grid != 0).any(-1).nonzero()
    return SparseTensor(grid[tuple(where.T)], where.int(), device=device)


def to_sparse_all(dense_tensor: Tensor, coordinates: Tensor | None = None) -> SparseTensor:
    """Return a dense tensor (N, C, X, Y, ...) as a sparse one, by default with all coordinates."""
    _check_dense("dense_tensor", dense_tensor)
    if coordinates is None:
        coordinates = dense_coordinates(dense_tensor.shape)
    check_tensors(coordinates=coordinates)
    features = dense_tensor.movedim(1, -1).reshape(-1, dense_tensor.shape[1])
    if coordinates.ndim != 2 or len(coordinates) != len(features):
        expected = f"({len(features)}, {dense_tensor.ndim - 1}), as many as `dense_tensor` has"
        raise ArgumentError("coordinates", expected, tuple(coordinates.shape))
    return SparseTensor(features, coordinates.to(dense_tensor.device))


def _check_dense(name: str, value: Any) -> None:
    if not isinstance(value, Tensor) or value.ndim < 3:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ArgumentTypeError(name, "a torch tensor (N, C, X, Y, ...)", got)


class MinkowskiToSparseTensor(MinkowskiModuleBase):
    """Converts a field to its voxels, or a dense tensor to the given coordinates, or to all."""

    def __init__(self, remove_zeros: bool = True, coordinates: Tensor | None = None) -> None:
        super().__init__()
        self.remove_zeros, self.coordinates = remove_zeros, coordinates

    def forward(self, input: Any) -> SparseTensor:
        if isinstance(input, TensorField):
            return input.sparse()
        if self.remove_zeros and self.coordinates is not None:  # as in MinkowskiEngine
            return to_sparse(input)
        return to_sparse_all(input, self.coordinates)


class MinkowskiToDenseTensor(MinkowskiModuleBase):
    """The grid (N, C, X, Y, ...)."""

    def __init__(self, shape: Sequence[int] | None = None) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, input: SparseTensor) -> Tensor:
        return check_input(input).dense(self.shape)[0]


class MinkowskiToFeature(MinkowskiModuleBase):
    """The features (rows, C)."""

    def forward(self, x: Any) -> Tensor:
        return check_tensor("x", x).F
