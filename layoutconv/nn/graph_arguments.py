"""Arguments of a captured network: clouds of any size, in memory of a fixed size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..sparse import Coordinates, SparseTensor
from ..sparse.coords.no_tensor import NoTensor
from .nested import put_together, taken_apart

_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
NO_GROUP = -1


class Signature(NamedTuple):
    """The key that calls of one graph share, and the rows of each group of arguments."""

    key: Hashable
    rows: tuple[int, ...]


class CallArguments:
    """The arguments of a call, flattened.

    A *group* is a cloud: the sparse tensors that share their cells, and the plain tensors that have
    a row for each of them.

    Raises ``RuntimeError`` for an argument that no graph can be captured with.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.structure, self.leaves = taken_apart((args, kwargs))
        self.cells: list[Coordinates] = []  # of each group of sparse tensors
        self.kinds = tuple(map(self._kind, self.leaves))
        self.form = self.structure, self.kinds

    def _kind(self, leaf: Any) -> Hashable:
        """Return the key of an argument, which leaves out its rows."""
        if isinstance(leaf, Tensor):
            if leaf.layout is not torch.strided:
                raise RuntimeError(f"an argument is a tensor of layout {leaf.layout}")
            return leaf.dtype, leaf.device, leaf.dim(), leaf.shape[1:]
        if isinstance(leaf, NoTensor):
            cells = getattr(leaf, "coordinates", None)
            if not isinstance(cells, Coordinates):  # a tensor of other libraries' names
                library = type(leaf).__module__.split(".compat.")[-1].split(".")[0]
                raise RuntimeError(f"an argument is a tensor of {library}, which has no bounds")
            if cells.padded:
                raise RuntimeError("an argument is padded already")
            if cells.corner is not None:
                raise RuntimeError("an argument has no bounds: a spatial_shape gives it some")
            if getattr(leaf, "indice_dict", None):
                raise RuntimeError("an argument comes with kernel maps, in its indice_dict")
            if self.group_of(cells) == len(self.cells):
                self.cells.append(cells)
            features: Tensor = leaf.features
            grid = cells.spatial_shape, cells.batch_size, cells.repeated, self.group_of(cells)
            return type(leaf), features.dtype, features.device, features.shape[1], grid
        if isinstance(leaf, _CONSTANTS):
            return type(leaf), leaf
        raise RuntimeError(f"an argument is a {type(leaf).__name__}")

    def rebuilt(self) -> Any:
        """Return ``(args, kwargs)`` in new tuples, lists and dicts, which a call may write to."""
        return put_together(self.structure, iter(self.leaves))

    def group_of(self, cells: Coordinates) -> int:
        """Return the number of a group of sparse tensors; for a new group, its future number."""
        known = (n for n, other in enumerate(self.cells) if other.cells is cells.cells)
        return next(known, len(self.cells))

    @property
    def device(self) -> torch.device | None:
        """Return the device of the tensors, if there is exactly one."""
        found = {tensor.device for tensor in self.tensors()}
        return found.pop() if len(found) == 1 else None

    def places(self, rows: Sequence[int]) -> tuple[int, ...]:
        """Return the group of every leaf; ``rows`` tell the groups of plain tensors."""
        found = []
        for leaf in self.leaves:
            group = NO_GROUP
            if isinstance(leaf, NoTensor):
                group = self.group_of(leaf.coordinates)
            elif isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] in rows:
                group = list(rows).index(leaf.shape[0])
            found.append(group)
        return tuple(found)

    def signature(self, places: tuple[int, ...], mode: Hashable) -> Signature | None:
        """Return the signature of this call if its arguments fit these groups; None if not."""
        rows: dict[int, int] = {}
        others = []
        for leaf, group in zip(self.leaves, places, strict=True):
            if group != NO_GROUP:
                count = len(tensor_of(leaf))
                if rows.setdefault(group, count) != count:
                    return None
            elif isinstance(leaf, Tensor):
                others.append((leaf.shape[:1], _order_of(leaf)))
        sizes = tuple(rows[group] for group in range(len(rows)))
        return Signature((self.form, places, tuple(others), mode), sizes)

    def wants_gradient(self) -> bool:
        """Return whether one of the tensors wants a gradient."""
        return any(tensor.requires_grad for tensor in self.tensors())

    def tensors(self) -> list[Tensor]:
        """Return the plain tensors, and the features of sparse ones."""
        kinds = Tensor, NoTensor
        return [tensor_of(leaf) for leaf in self.leaves if isinstance(leaf, kinds)]


class ArgumentMemory:
    """Arguments in memory of fixed shapes: rows past those of a call are padding.

    Args:
        call: the first call's arguments.
        places: the group of each of its leaves.
        capacities: rows of each group.
        fill: the values of padding. By default they mark a row of cells as no cell. Until a call
            has filled their rows, features are NaN, which exposes code that reads padding.
    """

    def __init__(
        self,
        call: CallArguments,
        places: tuple[int, ...],
        capacities: Sequence[int],
        fill: Callable[[int, Tensor], float] | None = None,
    ) -> None:
        self._call, self._places = call, places
        self._fill = fill or (lambda leaf, memory: filler(memory))
        self.capacities = tuple(capacities)
        self._filled = [0] * len(self.capacities)
        self.cells = [
            _padding(c.cells, rows) for c, rows in zip(call.cells, capacities, strict=False)
        ]
        self.tensors: list[Tensor | None] = []
        for leaf, group in zip(call.leaves, places, strict=True):
            made = None
            if isinstance(leaf, NoTensor):
                made = _padding(leaf.features, self.capacities[group])
                if made.is_floating_point():
                    made.fill_(torch.nan)
            elif isinstance(leaf, Tensor) and group != NO_GROUP:
                made = _padding(leaf, self.capacities[group])
            elif isinstance(leaf, Tensor):
                with torch.inference_mode(False):
                    made = torch.empty_like(leaf)
            self.tensors.append(made)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self.cells, *self.tensors) if t is not None)

    def load(self, call: CallArguments, rows: Sequence[int]) -> None:
        """Copy the arguments of a call there, without a sync."""
        for group, cells in enumerate(call.cells):
            self._copy(self.cells[group], cells.cells, group, rows, -1)
        for number, (memory, leaf) in enumerate(zip(self.tensors, call.leaves, strict=True)):
            if memory is not None:
                filling = self._fill(number, memory)
                self._copy(memory, tensor_of(leaf), self._places[number], rows, filling)
        self._filled = list(rows)

    def _copy(
        self, memory: Tensor, given: Tensor, group: int, rows: Sequence[int], filling: float
    ) -> None:
        if group == NO_GROUP:
            memory.copy_(given)
            return
        count, before = rows[group], self._filled[group]
        memory[:count].copy_(given)
        if before > count:
            memory[count:before].fill_(filling)

    def pad(self, poison: float | None = None) -> None:
        """Fill the rows past those of the last call; ``poison`` replaces zero, if given."""
        for number, (memory, group) in enumerate(zip(self.tensors, self._places, strict=True)):
            if memory is not None and group != NO_GROUP:
                filling = self._fill(number, memory)
                if poison is not None and memory.is_floating_point() and not filling:
                    filling = poison
                memory[self._filled[group] :].fill_(filling)

    def arguments(self, starts: Callable[[Coordinates], None]) -> tuple[Any, list[Coordinates]]:
        """Return ``(args, kwargs)`` in this memory, and the Coordinates of each group of sparse
        tensors, after a call of ``starts`` for each.
        """
        clouds = []
        for cells, like in zip(self.cells, self._call.cells, strict=True):
            grid = like.spatial_shape, like.batch_size
            clouds.append(Coordinates(cells, *grid, padded=True, valid=True))
            starts(clouds[-1])
        made = []
        for leaf, group, memory in zip(self._call.leaves, self._places, self.tensors, strict=True):
            if isinstance(leaf, NoTensor):
                assert memory is not None
                made.append(at_cells(leaf, memory, clouds[group]))
            else:
                made.append(leaf if memory is None else memory)
        return put_together(self._call.structure, iter(made)), clouds


def _order_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides that determine the memory order of a tensor."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride for extent, stride in pairs if extent > 1)


def versions(*tensors: Tensor) -> list[int]:
    """Return how often tensors were written to; -1 for those of inference mode."""
    return [-1 if tensor.is_inference() else tensor._version for tensor in tensors]


def tensor_of(leaf: Any) -> Tensor:
    """Return a tensor, or the features of a sparse one."""
    found: Tensor = leaf if isinstance(leaf, Tensor) else leaf.features
    return found


def at_cells(like: Any, features: Tensor, cells: Coordinates) -> Any:
    """Make a sparse tensor of the kind of another one."""
    on = getattr(type(like), "on", None)  # spconv's classes, which this layer cannot import
    return SparseTensor(features, cells) if on is None else on(like, features, cells, {})


def _padding(like: Tensor, rows: int) -> Tensor:
    with torch.inference_mode(False):
        made = torch.empty((rows, *like.shape[1:]), dtype=like.dtype, device=like.device)
        return made.fill_(filler(made))


def filler(memory: Tensor) -> int:
    """Return the value that marks a row of cells as no cell, for any dtype."""
    return -1 if memory.dtype.is_signed else 0
