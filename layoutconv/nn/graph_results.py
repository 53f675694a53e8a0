"""Results of a captured network, copied from its memory and cut to an eager call's rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..sparse import Coordinates, SparseTensor
from ..sparse.coords.no_tensor import NoTensor
from .graph_arguments import CallArguments, at_cells

# Tolerances for results with other bits: other numbers of rows have other tiles.
_CLOSE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}

Rows = Sequence[int]


class Returned:
    """Results of one call: leaves in memory that the next call overwrites.

    Args:
        leaves: of the result.
        clouds: the Coordinates of the arguments.

    Make it while rows are fixed: a tensor of spconv's names makes its Coordinates on first access.
    """

    def __init__(self, leaves: Sequence[Any], clouds: Sequence[Coordinates]) -> None:
        self.leaves, self.clouds = leaves, clouds
        self.coordinates: list[Coordinates | None] = [
            leaf.coordinates if isinstance(leaf, NoTensor) else None for leaf in leaves
        ]


Cut = Callable[[Rows, CallArguments, dict[int, Coordinates]], Any]
Copy = Callable[[Returned, dict[int, Tensor]], Cut]  # the dict: copies of cells that results share


class Results:
    """A plan to copy each leaf of a result out, and to cut it to its rows.

    Args:
        call: the arguments.
        eager: leaves of the network's result.
        found: those of the same call with fixed rows.
        rows: rows of every group and level in the eager call.
        capacities: the same with fixed rows, all different.

    Raises ``RuntimeError`` if there is no such plan.
    """

    def __init__(
        self,
        call: CallArguments,
        eager: Sequence[Any],
        found: Returned,
        rows: Rows,
        capacities: Sequence[int],
    ) -> None:
        self._rows, self._capacities, self._found = rows, capacities, found
        self._given = [id(leaf) for leaf in call.leaves]
        self._clouds = [id(cells.cells) for cells in found.clouds]
        pairs = enumerate(zip(eager, found.leaves, strict=True))
        self._copies = [self._copy_of(number, *pair) for number, pair in pairs]
        del self._found, self._given  # frees their tensors

    def copied(self, found: Returned) -> Callable[[Rows, CallArguments], list[Any]]:
        """Copy results out of their memory, without a sync; return what cuts them to their rows."""
        cells: dict[int, Tensor] = {}
        copies = [copy(found, cells) for copy in self._copies]

        def cut(rows: Rows, call: CallArguments) -> list[Any]:
            shared: dict[int, Coordinates] = {}
            return [copy(rows, call, shared) for copy in copies]

        return cut

    def _copy_of(self, number: int, eager: Any, leaf: Any) -> Copy:
        if isinstance(eager, Tensor | NoTensor) and id(eager) in self._given:
            place = self._given.index(id(eager))
            return lambda found, cells: lambda rows, call, shared: call.leaves[place]
        if type(eager) is not type(leaf) and not isinstance(eager, SparseTensor):
            raise RuntimeError(f"result {number} is of another type with fixed rows")
        if isinstance(leaf, Tensor):
            return self._tensor(number, eager, leaf)
        if isinstance(leaf, NoTensor):
            return self._sparse(number, eager, leaf)
        if eager is not leaf and eager != leaf:
            raise RuntimeError(f"result {number} depends on rows: {eager}, or {leaf}")
        return lambda found, cells: lambda rows, call, shared: leaf

    def _tensor(self, number: int, eager: Tensor, leaf: Tensor) -> Copy:
        if eager.dim() != leaf.dim() or eager.dtype != leaf.dtype:
            raise RuntimeError(f"result {number} is of another shape or dtype with fixed rows")
        cuts: list[tuple[int, int]] = []
        for axis, (count, most) in enumerate(zip(eager.shape, leaf.shape, strict=True)):
            if count != most:
                cuts.append((axis, self._level(number, count, most)))

        def copy(found: Returned, _: Any) -> Cut:
            made = found.leaves[number].clone()

            def cut(rows: Rows, call: CallArguments, shared: Any) -> Tensor:
                result: Tensor = made
                for axis, level in cuts:
                    result = result.narrow(axis, 0, rows[level])
                return result

            return cut

        return copy

    def _sparse(self, number: int, eager: Any, leaf: Any) -> Copy:
        cells, like = self._found.coordinates[number], eager.coordinates
        assert cells is not None
        if like.padded or not cells.padded:
            raise RuntimeError(f"result {number} has a capacity already, or none with fixed rows")
        if like.spatial_shape != cells.spatial_shape or like.batch_size != cells.batch_size:
            raise RuntimeError(f"result {number} is of another grid with fixed rows")
        group = self._clouds.index(id(cells.cells)) if id(cells.cells) in self._clouds else None
        level = self._level(number, len(like), len(cells))
        kind, repeated = type(eager), like.repeated

        def copy(found: Returned, copies: dict[int, Tensor]) -> Cut:
            result = found.leaves[number]
            features = result.features.clone()
            own_cells = found.coordinates[number]
            assert own_cells is not None
            key = id(own_cells.cells)
            if group is None and key not in copies:
                copies[key] = own_cells.cells.clone()

            def cut(rows: Rows, call: CallArguments, shared: dict[int, Coordinates]) -> Any:
                own = features.narrow(0, 0, rows[level])
                if group is not None:
                    return _on_arguments(kind, own, call, group)
                if key not in shared:
                    grid = own_cells.spatial_shape, own_cells.batch_size
                    there = copies[key].narrow(0, 0, rows[level])
                    shared[key] = Coordinates(there, *grid, valid=True, repeated=repeated)
                return at_cells(result, own, shared[key])

            return cut

        return copy

    def _level(self, number: int, count: int, most: int) -> int:
        """Return the group or level that has so many rows."""
        if most in self._capacities:
            level = self._capacities.index(most)
            if self._rows[level] == count:
                return level
        raise RuntimeError(f"result {number} has {count} rows, which match no single level")


def _on_arguments(kind: Any, features: Tensor, call: CallArguments, group: int) -> Any:
    """Return a result at the cells of an argument, of the eager call's kind."""
    cells = call.cells[group]
    for leaf in call.leaves:
        if type(leaf) is kind and leaf.coordinates.cells is cells.cells:
            if isinstance(leaf, SparseTensor):
                return leaf.replace(features)
            return at_cells(leaf, features, cells)
    return SparseTensor(features, cells)


def difference(eager: Any, found: Any) -> float:
    """Return the largest difference of two leaves, relative to the largest number; 0: equal bits.

    Raises ``RuntimeError`` if they are not close.
    """
    if isinstance(eager, NoTensor):
        if not torch.equal(eager.coordinates.cells, found.coordinates.cells):
            raise RuntimeError("a result has other cells with fixed rows")
        eager, found = eager.features, found.features
    if not isinstance(eager, Tensor):
        return 0.0
    gap, largest = _apart(eager, found).abs().max(), _finite(eager).abs().max()
    relative = float(gap) / max(float(largest), _TINY) if gap else 0.0
    if not relative <= _limit(eager):
        raise RuntimeError(f"a result is another one with fixed rows: {_WHY}")
    return relative


def close(eager: Sequence[Tensor], found: Sequence[Tensor], what: str) -> float:
    """Compare gradients or buffers by norm, as single fp16 numbers may be off by a tenth; return
    the largest relative difference.

    Some are nothing but rounding errors, like the gradient of a bias before a batch norm: each
    counts as at least a tenth of the largest.

    >>> close([torch.ones(1), torch.tensor([0.0])], [torch.ones(1), torch.tensor([2.0**-20])], "it")
    9.5367431640625e-06
    """
    norms = [float(_finite(tensor).norm()) for tensor in eager]
    least, farthest = max([_TINY, *norms]) / 10, 0.0
    for one, other, own in zip(eager, found, norms, strict=True):
        relative = float(_apart(one, other).norm()) / max(own, least)
        if not relative <= 10 * _limit(one):
            raise RuntimeError(f"{what} is another one with fixed rows: {_WHY}")
        farthest = max(farthest, relative)
    return farthest


def overflown(eager: Tensor, found: Tensor) -> Tensor:
    """Set a gradient to infinity where both autocast's dtype and ``found`` overflow.

    Sums of an eager filter's gradient are not rounded to 16 bits; those with fixed rows are.

    >>> with torch.autocast("cpu", torch.float16):
    ...     overflown(torch.tensor([7e4, 7e4]), torch.tensor([torch.inf, 7e4]))
    tensor([   inf, 70000.])
    """
    kind = eager.device.type
    if eager.shape != found.shape or not torch.is_autocast_enabled(kind):
        return eager
    lowered = eager.to(torch.get_autocast_dtype(kind)).to(eager.dtype)
    return torch.where(found.isinf() & (lowered == found), found, eager)


_WHY = "something reads rows without a cell, or counts them, or is random"
_TINY = 1e-300


def _apart(eager: Tensor, found: Tensor) -> Tensor:
    """Return the difference in float64; infinity if none is allowed, zero for equal bits."""
    if eager.shape != found.shape:
        return torch.tensor(torch.inf)
    if torch.equal(eager, found):
        return torch.zeros(1)
    if eager.dtype not in _CLOSE:
        return torch.tensor(torch.inf)
    exact, other = eager.double(), found.double()
    return (exact - other).masked_fill((exact == other) | (exact.isnan() & other.isnan()), 0)


def _finite(tensor: Tensor) -> Tensor:
    """Return values in float64 to measure their size; zeros for NaN and infinity."""
    if tensor.dtype not in _CLOSE or not tensor.numel():
        return torch.zeros(1, dtype=torch.float64)
    return tensor.double().nan_to_num(0, 0, 0)


def _limit(tensor: Tensor) -> float:
    """Return the tolerance of a dtype, or of the one that autocast lowers it to."""
    own, kind = _CLOSE.get(tensor.dtype, 0.0), tensor.device.type
    if not torch.is_autocast_enabled(kind):
        return own
    return max(own, _CLOSE.get(torch.get_autocast_dtype(kind), 0.0))
