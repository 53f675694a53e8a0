"""Border cells: what a filter reads across the border of a rank's range, and who holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..base.outlive import to_be_kept
from ..conv.problem import Ints
from ..sparse import Coordinates, KernelMap, submanifold_map
from ..sparse.maps.taps import Taps
from .route import Route, all_to_all, counts_from

if TYPE_CHECKING:
    from .cloud import Cloud


class Border(NamedTuple):
    """A submanifold convolution of a part of a cloud, as two: of what it holds, and of the halo.

    A sum over taps is one over those whose cells are here and one over those whose cells are not.
    The first is that of the part by itself, for all rows. The second adds to few.
    """

    inside: KernelMap  # of the part by itself
    halo: KernelMap  # from cells of other ranks to those cells of this one that read them
    rows: Tensor  # int64: which rows the latter are
    route: Route  # on which features of the halo come


def border_of(
    cloud: Cloud,
    kernel_size: Ints = 3,
    dilation: Ints = 1,
    offsets: Sequence[Sequence[int]] | None = None,
) -> Border:
    """The border of a filter, as of :func:`layoutconv.sparse.submanifold_map`; kept with the cloud.

    Each rank derives from the taps which cells of others its own read, by keys, and asks those that
    hold these ranges; they say which of them are there, and keep in mind what to send. A collective
    where it is made.
    """
    taps = Taps.centred(cloud.rank, kernel_size, dilation, offsets)
    found = cloud.borders.get(taps)
    if found is None:
        with to_be_kept():
            inside = submanifold_map(cloud.local, kernel_size, dilation, offsets)
            found = cloud.borders[taps] = _made(cloud, taps, inside)
    return found


def _made(cloud: Cloud, taps: Taps, inside: KernelMap) -> Border:
    keys, bounds = cloud.keys_in_order, cloud.bounds
    first, last = bounds[cloud.part], bounds[cloud.part + 1] - 1
    wanted = cloud.curve.beyond(cloud.cells, taps.offsets, first, last)
    ends = torch.searchsorted(wanted, keys.new_tensor(bounds[:-1])).tolist()
    asking = [stop - start for start, stop in zip(ends, [*ends[1:], len(wanted)], strict=True)]
    asked = counts_from(asking, keys.device, cloud.group)
    keys_asked = all_to_all(wanted, asking, asked, cloud.group)[0]
    if len(keys):
        place = torch.searchsorted(keys, keys_asked).clamp_(max=len(keys) - 1)
        here = keys[place] == keys_asked
    else:
        place, here = torch.zeros_like(keys_asked), torch.zeros_like(keys_asked, dtype=torch.bool)
    there = all_to_all(here, asked, asking, cloud.group)[0]
    # To and from every rank, in the order of ranks; cells that come are in the order of their keys.
    send, receive = (
        [int(part.sum()) for part in flags.split(sizes)]
        for flags, sizes in ((here, asked), (there, asking))
    )
    route = Route(place[here], send, receive, cloud.group)
    grid = cloud.spatial_shape, cloud.batch_size
    others = Coordinates(cloud.curve.cells(wanted[there]), *grid, valid=True)
    # Who reads them, seen from them: the few rows at the border, without a look at all.
    back = [tuple(-step for step in offset) for offset in taps.offsets]
    readers = cloud.local.table.search(others.cells, taps.stride, back)
    rows = torch.unique(readers[readers >= 0]).long()
    edge = Coordinates(cloud.cells.index_select(0, rows), *grid, valid=True)
    return Border(inside, KernelMap.of_search(others, edge, taps), rows, route)
