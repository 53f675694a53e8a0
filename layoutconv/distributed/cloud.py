"""``Cloud``: the cells of one cloud, split over ranks by ranges of a Morton curve."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ArgumentError, ArgumentTypeError
from ..sparse import Coordinates, KernelMap, SparseTensor
from ..sparse.coords.keys import MAX_KEY
from ..sparse.coords.morton import Curve
from .agreement import Agreement, tensor_term
from .group import place_in
from .route import Route, all_to_all, carry, counts_from

_SAMPLES = 4096  # keys per rank to choose ranges from: within 0.1% of even for 4
_SAME = "as many channels, the same dtype and the same grid on every rank"


def partition(input: SparseTensor, group: dist.ProcessGroup | None = None) -> SparseTensor:
    """Split one cloud over all ranks: each gets the voxels of a range of a Morton curve.

    Args:
        input: this rank's voxels of the cloud, in any order, without duplicate cells on one rank or
            across ranks. A rank may have all voxels, or none. Features are (rows, C), any dtype; C,
            the dtype and the grid are the same on every rank.
        group: a process group of ``torch.distributed``, by default all processes.

    Returns this rank's range in the order of the curve; ranges have equal numbers of voxels within
    a thousandth. Its coordinates are a :class:`Cloud`. :func:`restore` sends results back to the
    ranks that gave the voxels. Autograd does so for gradients of features.

    It is a collective: every rank of the group calls it.

    Raises :class:`~layoutconv.errors.ArgumentError`, on every rank, if one has invalid cells or
    ranks disagree; :class:`~layoutconv.errors.RankError` as :func:`conv3d`.

    >>> cells = torch.tensor([[0, 3], [0, 1], [0, 2]], dtype=torch.int32)
    >>> x = partition(SparseTensor(torch.tensor([[3.0], [1.0], [2.0]]), cells, (4,), 1))
    >>> x.coords.tolist(), x.features.T, x.coordinates
    ([[0, 1], [0, 2], [0, 3]], tensor([[1., 2., 3.]]), Cloud(3 rows, spatial_shape=(4,), \
batch_size=1, part 0 of 1))
    >>> restore(x).T
    tensor([[3., 1., 2.]])
    """
    size = place_in(group)[1]
    with Agreement("partition", group, {"input": _SAME}) as same:
        cells, shape, images = _checked(input)
        C, kind = input.features.shape[1], tensor_term(input.features, split=0)
        same.terms["input"] = f"{C} channels, {kind}, on a grid {shape} with batch_size={images}"
    curve = Curve(shape, images)
    keys, order = torch.sort(curve.keys(cells))
    bounds = _bounds(keys, size, group)
    # Send each range to its rank, and sort the received cells along the curve.
    ends = torch.searchsorted(keys, bounds).tolist()
    send = [stop - start for start, stop in zip(ends, [*ends[1:], len(keys)], strict=True)]
    receive = counts_from(send, keys.device, group)
    got = all_to_all(keys, send, receive, group)[0]
    got, place = torch.sort(got)
    twice = (got[1:] == got[:-1]).any().long()
    if _most(twice, group, size).item():
        raise ArgumentError("input", "distinct cells across all ranks", "a cell that is repeated")
    limits = [*bounds.tolist(), MAX_KEY + 1]
    given = order, Route(order, send, receive, group), place
    cloud = Cloud(curve, got, group, limits, given, same.label)
    features = carry(input.features, cloud.given, same.label).index_select(0, place)
    return SparseTensor(features, cloud)


def restore(input: SparseTensor) -> Tensor:
    """Send features of a split cloud back to the ranks that gave its voxels.

    Args:
        input: a tensor on coordinates that :func:`partition` made, of any C.

    Returns (rows, C), in the row order of the tensor that this rank gave to :func:`partition`.
    Differentiable. Like :func:`partition` it is a collective, with the same errors.

    >>> cells = torch.tensor([[0, 3], [0, 1]], dtype=torch.int32)
    >>> x = partition(SparseTensor(torch.tensor([[3.0], [1.0]]), cells, (4,), 1))
    >>> restore(x.replace(10 * x.features)).T
    tensor([[30., 10.]])
    """
    with Agreement.of("restore", getattr(input, "coordinates", None), Cloud) as same:
        cloud = cloud_of(input)
        same.terms |= {"input": tensor_term(input.features, split=0), "cloud": cloud.label}
    _, send, receive, group = cloud.given
    back = carry(input.features, Route(cloud.to_given, receive, send, group), same.label)
    return back.index_select(0, cloud.of_given)


def cloud_of(input: SparseTensor) -> Cloud:
    """Return the part of a split cloud that a tensor is on; else raise ``ArgumentError``."""
    if not isinstance(input, SparseTensor):
        raise ArgumentTypeError("input", "a SparseTensor", type(input).__name__)
    if not isinstance(input.coordinates, Cloud):
        expected = "a tensor that lc.distributed.partition split"
        raise ArgumentError("input", expected, input.coordinates)
    return input.coordinates


class Border(NamedTuple):
    """The two kernel maps of a submanifold convolution of a part: over its own cells, and the halo.

    A sum over taps has two parts: over neighbours on this rank, which is the convolution of the
    part alone, for all rows; and over neighbours on other ranks, which adds to few rows.
    """

    inside: KernelMap  # of the part by itself
    halo: KernelMap  # from cells of other ranks to the cells here that read them
    rows: Tensor  # int64: the rows of these cells here
    route: Route  # that brings the halo's features


class Cloud(Coordinates):
    """This rank's cells of a cloud that is split over a process group.

    :func:`partition` makes it, as the ``coordinates`` of its result. Pointwise layers and those of
    :mod:`layoutconv.distributed` take such tensors. Other layers, which would take the part for the
    whole cloud, refuse them.

    Attributes:
        part, parts: this process's rank in the group, and the number of ranks.
        group: the process group.
        bounds: the key at which each rank's range begins, and the end.
        keys_in_order: int64 (rows,), the keys of the cells.
        label: names the call of :func:`partition` that made it; the same on every rank.
    """

    def __init__(
        self, curve: Curve, keys: Tensor, group: Any, bounds: list[int], given: Any, label: str
    ) -> None:
        cells = curve.cells(keys)
        super().__init__(cells, curve.shape, curve.batch_size, valid=True)
        self.curve, self.keys_in_order, self.group = curve, keys, group
        self.bounds, self.label = tuple(bounds), label
        self.part, self.parts = place_in(group)
        # The same cells as a whole cloud, whose maps have no halo.
        self.local = Coordinates(cells, curve.shape, curve.batch_size, valid=True)
        order, self.given, place = given  # the way that the cells came
        self.to_given, self.of_given = torch.argsort(place), torch.argsort(order)
        self.borders: dict[Any, Border] = {}  # by the taps of a filter

    def check(self) -> Cloud:
        """Refuse: the caller is about to make a map of this part alone."""
        expected = (
            "a whole cloud; lc.distributed.subm_conv takes a part, and restore() makes it whole"
        )
        raise ArgumentError("coords", expected, self)

    def to(self, device: Any) -> Coordinates:
        """Return itself for its own device; refuse others: ranks exchange tensors on one."""
        if torch.empty(0, device=device).device != self.device:
            raise ArgumentError("device", f"{self.device}, where the cloud was split", device)
        return self

    def __reduce__(self) -> Any:
        raise ArgumentError(
            "coords",
            "a whole cloud, as a part belongs to its process group; call restore() first",
            self,
        )

    def __repr__(self) -> str:
        grid = f"spatial_shape={self.spatial_shape}, batch_size={self.batch_size}"
        return f"Cloud({len(self)} rows, {grid}, part {self.part} of {self.parts})"


def _checked(input: SparseTensor) -> tuple[Tensor, tuple[int, ...], int]:
    """Return the cells, the grid's shape and the batch size of a valid input; else raise."""
    if not isinstance(input, SparseTensor):
        raise ArgumentTypeError("input", "a SparseTensor", type(input).__name__)
    if input.coordinates.padded:
        raise ArgumentError("input", "a tensor without padding; call unpadded() first", input)
    cells, shape, images = input.coords, input.spatial_shape, input.batch_size
    limits = cells.new_tensor((images, *shape))
    outside = ((cells < 0) | (cells >= limits)).any(1)
    if outside.any():
        row = int(outside.nonzero()[0])
        expected = f"cells of {images} grids of {shape}, on every rank"
        raise ArgumentError("input", expected, f"{cells[row].tolist()} in row {row}")
    return cells, shape, images


def _most(numbers: Tensor, group: Any, size: int) -> Tensor:
    """Return the maximum over all ranks' numbers."""
    if size > 1:
        dist.all_reduce(numbers, dist.ReduceOp.MAX, group)
    return numbers


def _bounds(keys: Tensor, size: int, group: Any) -> Tensor:
    """Return int64 (size,): the first key of every rank's range, for nearly even ranges.

    They come from an evenly spaced sample of each rank's sorted keys, and are exact if no rank has
    more than ``_SAMPLES`` keys.
    """
    if size == 1:
        return keys.new_zeros(1)
    count = min(len(keys), _SAMPLES)
    places = torch.arange(count, device=keys.device) * len(keys) // max(1, count)
    weights = torch.diff(places, append=places.new_tensor([len(keys)]))
    mine = keys.new_full((2, _SAMPLES), MAX_KEY)
    mine[0, :count], mine[1] = keys[places], 0
    mine[1, :count] = weights
    every = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(every, mine, group=group)
    sampled, weights = torch.cat(every, 1)
    sampled, order = torch.sort(sampled)
    before = torch.cumsum(weights[order], 0) - weights[order]  # keys before each, roughly
    total = weights.sum()
    wanted = torch.arange(1, size, device=keys.device) * total // size
    place = torch.searchsorted(before, wanted).clamp_(max=len(sampled) - 1)
    return torch.cat([keys.new_zeros(1), sampled[place]])
