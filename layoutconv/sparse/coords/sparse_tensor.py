"""A tensor that stores only non-zero cells: their coordinates and features."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ...errors import ArgumentError, ArgumentTypeError
from . import arithmetic, row_plan
from .coordinates import Coordinates
from .no_tensor import NoTensor
from .rows import spread

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self


def _combining(function: Callable[[Any, Any], Any]) -> Callable[[SparseTensor, Any], SparseTensor]:
    """Return a method of a sparse tensor: ``function`` of its features and another operand."""

    def combined(self: SparseTensor, other: Any) -> SparseTensor:
        return self._combined(function, other)

    return combined


class SparseTensor(NoTensor):
    """Features at integer coordinates of a batch of grids. It is immutable.

    Args:
        features: (rows, C), any dtype.
        coords: int32 (rows, 1 + rank), columns ``(batch, z, y, x)`` for rank 3, on the device of
            ``features``, no cell twice (:func:`merge_repeated` takes those); or
            :class:`Coordinates`, which are then shared, with their maps and checks. These may have
            a cell more than once, if they were made with ``repeated=True``.
        spatial_shape: extents ``(D, H, W)`` of the grid, one to four of them; not with
            ``Coordinates``, which have them. Without it coordinates have no bounds and may be
            negative, as for :meth:`Coordinates.unbounded` (waits for the device).
        batch_size: number N of grids, which may be empty; not with ``Coordinates``.

    The constructor with bounds checks dtypes and shapes only, so it never waits for a GPU;
    :meth:`check` checks the values.

    ``x + y``, ``x - y`` and ``x * y`` take tensors on one grid, or without bounds. If they share
    their coordinates, so does the result. Otherwise it has the union of their cells, in
    lexicographic order, and absent features count as zero. ``x / y`` takes tensors with the same
    cells. ``-x``, ``x ** 2``, and ``x + 1``, ``x - 1``, ``x * 2``, ``x / 2``, from either side, act
    on the stored features; in place of a number, on the right, there may be a torch tensor that
    broadcasts against them. All are differentiable.

    ``len(x)`` is the number of rows. ``x[2]`` is a batch of one image, ``x[1:3]`` of several: their
    rows in the given order, images numbered from 0. Iterating yields the images.

    Pickling and ``torch.save`` keep features and cells, not kernel maps; ``copy.deepcopy`` copies
    the features, and shares the coordinates. Tensors that are saved together and share coordinates
    share them after loading. ``torch.load`` reads them with ``weights_only=True``, its default,
    once ``layoutconv.sparse`` is imported; the contents of a file are checked like arguments.

    Raises ``ArgumentError``.

    >>> import torch
    >>> coords = torch.tensor([[0, 0, 1, 2], [1, 3, 0, 0]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[5.0], [7.0]]), coords, (4, 2, 3), batch_size=2)
    >>> x
    SparseTensor(2 rows, 1 channels, torch.float32, spatial_shape=(4, 2, 3), batch_size=2)
    >>> x.dense()[0, 0, 1, 2], x.dense().sum()
    (tensor([5.]), tensor(12.))
    >>> (x[1] - x[0]).features.T, x[1].coords.tolist()
    (tensor([[-5.,  7.]]), [[0, 3, 0, 0]])
    """

    features: Tensor
    coordinates: Coordinates

    _container, _applied = "lc.nn.Sequential", "x.replace(function(x.features))"
    _own_modules = ", your own of features in lc.nn.Features"
    _beside: ClassVar[tuple[str, ...]] = ()  # fields of a subclass that do not depend on features

    __array_ufunc__ = None  # numpy.float32(2) * x then calls __rmul__, and makes no array of it

    def __init__(
        self,
        features: Tensor,
        coords: Tensor | Coordinates,
        spatial_shape: Sequence[int] | None = None,
        batch_size: int | None = None,
    ) -> None:
        if isinstance(coords, Coordinates):
            for name, given in (("spatial_shape", spatial_shape), ("batch_size", batch_size)):
                if given is not None:
                    raise ArgumentError(
                        name, "None, as `coords` are Coordinates, which have it", given
                    )
        else:
            if spatial_shape is None:
                coords = Coordinates.unbounded(coords, batch_size)
            elif batch_size is None:
                raise ArgumentError("batch_size", "the number of images in the batch", None)
            else:
                coords = Coordinates(coords, spatial_shape, batch_size)
        if not isinstance(features, torch.Tensor):
            raise ArgumentTypeError("features", "a torch tensor", type(features).__name__)
        shape = features.shape
        if len(shape) != 2 or shape[0] != coords.cells.shape[0]:
            raise ArgumentError(
                "features", f"({len(coords)}, C), a row per row of coords", tuple(features.shape)
            )
        if features.device != coords.cells.device:
            raise ArgumentError(
                "features", f"a tensor on the device of coords, {coords.device}", features.device
            )
        # each by name, so that torch.compile can follow
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "coordinates", coords)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"a {type(self).__name__} cannot be changed: replace(features) makes another"
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        SparseTensor.__init__(self, self.features, self.coordinates)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot be changed")

    @property
    def coords(self) -> Tensor:
        """int32 (rows, 1 + rank), columns ``(batch, z, y, x)``."""
        return self.coordinates.coords

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """Extents ``(D, H, W)`` of the grid."""
        return self.coordinates.spatial_shape

    @property
    def batch_size(self) -> int:
        """The number N of grids."""
        return self.coordinates.batch_size

    @property
    def device(self) -> torch.device:
        """The device of features and coordinates."""
        return self.features.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the features."""
        return self.features.dtype

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.coordinates)

    def __repr__(self) -> str:
        rows, channels = self.features.shape
        about = f"spatial_shape={self.spatial_shape}, batch_size={self.batch_size}"
        if self.coordinates.padded:
            about += ", padded"
        if self.device.type != "cpu":
            about += f", device='{self.device}'"
        return f"{type(self).__name__}({rows} rows, {channels} channels, {self.dtype}, {about})"

    def check(self) -> Self:
        """Return this tensor; raise if a cell is outside or repeated (waits for the device)."""
        self.coordinates.check()
        return self

    def replace(self, features: Tensor) -> Self:
        """Return the same cells with other features, (rows, any C); coordinates are shared."""
        return self._with(features, self.coordinates)

    def _with(self, features: Tensor, coordinates: Coordinates) -> Self:
        made = object.__new__(type(self))
        for name in self._beside:  # torch 2.11 does not compile operations on __dict__
            object.__setattr__(made, name, getattr(self, name))
        SparseTensor.__init__(made, features, coordinates)
        return made

    def to(self, *args: Any, **options: Any) -> Self:
        """Return the tensor on a device, or with a dtype of features, or both: as
        ``torch.Tensor.to``.

        A dtype alone leaves the coordinates shared. On another device each call makes new ones: to
        share them, move a tensor before others are made from it.
        """
        features = self.features.to(*args, **options)
        if features is self.features:
            return self
        return self._with(features, self.coordinates.to(features.device))

    def cpu(self) -> Self:
        """Return the tensor on the CPU."""
        return self.to("cpu")

    def cuda(self, device: int | torch.device | None = None) -> Self:
        """Return the tensor on a GPU, the current one by default."""
        return self.to("cuda" if device is None else device)

    def float(self) -> Self:
        """Return the tensor with float32 features."""
        return self.to(torch.float32)

    def half(self) -> Self:
        """Return the tensor with float16 features."""
        return self.to(torch.float16)

    def bfloat16(self) -> Self:
        """Return the tensor with bfloat16 features."""
        return self.to(torch.bfloat16)

    def double(self) -> Self:
        """Return the tensor with float64 features."""
        return self.to(torch.float64)

    def detach(self) -> Self:
        """Return the tensor with features detached from the autograd graph."""
        return self.replace(self.features.detach())

    def _combined(self, function: Any, other: Any) -> SparseTensor:
        if isinstance(other, SparseTensor):
            ours = self.features, self.coordinates
            features, cells = arithmetic.of_both(
                function, ours, (other.features, other.coordinates)
            )
            if cells is not self.coordinates:
                return SparseTensor(features, cells)
        else:
            found = arithmetic.with_features(function, self.features, other)
            if found is None:
                return NotImplemented
            features = found
        return self.replace(features)

    __add__ = __radd__ = _combining(operator.add)
    __mul__ = __rmul__ = _combining(operator.mul)
    __sub__ = _combining(operator.sub)
    __rsub__ = _combining(lambda x, number: number - x)
    __truediv__ = _combining(operator.truediv)
    __rtruediv__ = _combining(lambda x, number: number / x)

    def __neg__(self) -> Self:
        return self.replace(-self.features)

    def __pow__(self, number: Any) -> SparseTensor:
        if isinstance(number, SparseTensor):
            return NotImplemented
        return self._combined(operator.pow, number)

    def __getitem__(self, images: int | slice) -> SparseTensor:
        if isinstance(images, slice):
            chosen = range(self.batch_size)[images]
        else:
            chosen = self._image(images)
        self.coordinates.refuse_overflow()
        cells = self.check().coordinates.cells
        number = cells.new_full((self.batch_size + 1,), -1)  # the last is for image -1
        wanted = torch.tensor(list(chosen), dtype=torch.int64, device=cells.device)
        number[wanted] = torch.arange(len(chosen), dtype=cells.dtype, device=cells.device)
        numbers = number[cells[:, 0].long()]
        rows = (numbers >= 0).nonzero()[:, 0]
        made = torch.cat([numbers[rows, None], cells[rows, 1:]], dim=1)
        coordinates = self.coordinates.at(made, len(chosen), padded=False)
        return SparseTensor(self.features[rows], coordinates)

    def _image(self, image: int) -> range:
        try:
            number = index(image)
        except TypeError:
            raise ArgumentTypeError("images", "an int or a slice", repr(image)) from None
        if not -self.batch_size <= number < self.batch_size:
            raise IndexError(f"image {number} of a batch of {self.batch_size}")
        return range(self.batch_size)[number:][:1]

    def __iter__(self) -> Iterator[SparseTensor]:
        return (self[image] for image in range(self.batch_size))

    @property
    def overflowed(self) -> bool:
        """Return whether cells are missing, since a capacity was too small for them (waits for the
        device)."""
        return self.coordinates.overflowed

    def padded(self, capacity: int) -> SparseTensor:
        """Return the tensor with ``capacity`` rows, so that clouds of any size have one shape.

        The added rows belong to image -1 and have zero features: no row reads them, and they read
        nothing. The coordinates are new.

        >>> import torch
        >>> coords = torch.tensor([[0, 1], [0, 3]], dtype=torch.int32)
        >>> x = SparseTensor(torch.ones(2, 1), coords, (5,), batch_size=1).padded(3)
        >>> x.coords.tolist(), x.features.T
        ([[0, 1], [0, 3], [-1, 0]], tensor([[1., 1., 0.]]))
        """
        try:
            capacity = index(capacity)
        except TypeError:
            expected = "a number of rows, an integer"
            raise ArgumentTypeError("capacity", expected, repr(capacity)) from None
        more = capacity - len(self)
        if more < 0:
            raise ArgumentError("capacity", f"{len(self)} rows or more", capacity)
        cells = self.coordinates.cells
        filling = cells.new_zeros(more, cells.shape[1])
        filling[:, 0] = -1
        coordinates = self.coordinates.at(torch.cat([cells, filling]), padded=True)
        nothing = self.features.new_zeros(more, self.features.shape[1])
        return SparseTensor(torch.cat([self.features, nothing]), coordinates)

    def unpadded(self) -> SparseTensor:
        """Return the rows that have a cell, in their order (waits for the device).

        Raises ``ArgumentError`` if cells are missing, since a capacity was too small for them.
        """
        if not self.coordinates.padded:
            return self
        return SparseTensor(*arithmetic.unpadded(self.features, self.coordinates))

    def dense(self) -> Tensor:
        """Return the stored grid, (N, D, H, W, C), zero where there is no row; differentiable.

        If repeated cells are allowed, it has the last row of each.

        Raises ``ArgumentError`` for a coordinate outside the grid, and for a repeated cell.
        """
        if self.coordinates.padded and row_plan.fixed() is not None:
            return self._dense_of_fixed_rows()
        x = self.check().unpadded()
        modes = x.batch_size, *x.spatial_shape
        features, keys, repeats = x.features, x.coordinates.keys(), x.check().coordinates.repeats
        if repeats is not None:
            last = repeats.last.unique()
            features, keys = features.index_select(0, last), keys.index_select(0, last)
        grid = spread(features, keys, math.prod(modes))
        return grid.view(*modes, x.features.shape[1])

    def _dense_of_fixed_rows(self) -> Tensor:
        """Return the stored grid; a place past its end takes rows without a cell."""
        modes = self.batch_size, *self.spatial_shape
        count = math.prod(modes)
        keys = self.coordinates.keys().where(self.coordinates.cells[:, 0] >= 0, count)
        return spread(self.features, keys, count + 1)[:count].view(*modes, self.features.shape[1])

    @classmethod
    def from_dense(cls, grid: Tensor) -> SparseTensor:
        """Return the cells of ``grid`` (N, D, H, W, C) that have a non-zero channel, in
        lexicographic order; differentiable.

        >>> import torch
        >>> grid = torch.zeros(1, 2, 2, 2, 3); grid[0, 1, 0, 1, 2] = 4.0
        >>> SparseTensor.from_dense(grid).coords
        tensor([[0, 1, 0, 1]], dtype=torch.int32)
        """
        if not isinstance(grid, torch.Tensor):
            raise ArgumentTypeError("grid", "a torch tensor", type(grid).__name__)
        if not 3 <= grid.ndim <= 6:
            raise ArgumentError("grid", "(N, D, H, W, C), 1 to 4 spatial modes", tuple(grid.shape))
        where = (grid != 0).any(-1).nonzero()
        coordinates = Coordinates(where.int(), grid.shape[1:-1], grid.shape[0], valid=True)
        return SparseTensor(grid[tuple(where.T)], coordinates)
