"""Border cells: cells of other ranks that a filter reads across a rank's border."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..base.outlive import to_be_kept
from ..conv.problem import Ints
from ..sparse import Coordinates, KernelMap, submanifold_map
from ..sparse.maps.taps import Taps
from .cloud import Border, Cloud
from .route import Route, all_to_all, counts_from


def border_of(
    cloud: Cloud,
    kernel_size: Ints = 3,
    dilation: Ints = 1,
    offsets: Sequence[Sequence[int]] | None = None,
) -> Border:
    """Return the border of a filter, as for :func:`layoutconv.sparse.submanifold_map`.

    The cloud keeps it. Each rank derives from the taps the keys of the cells that it reads on other
    ranks, and asks the ranks that hold these key ranges; they answer which cells exist, and note
    what to send. It is a collective, unless the cloud has the border already.
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
    # To and from every rank, in the order of ranks; received cells are in the order of their keys.
    send, receive = (
        [int(part.sum()) for part in flags.split(sizes)]
        for flags, sizes in ((here, asked), (there, asking))
    )
    route = Route(place[here], send, receive, cloud.group)
    grid = cloud.spatial_shape, cloud.batch_size
    others = Coordinates(cloud.curve.cells(wanted[there]), *grid, valid=True)
    # Search for readers from the halo's cells, instead of in all rows: they are few.
    back = [tuple(-step for step in offset) for offset in taps.offsets]
    readers = cloud.local.table.search(others.cells, taps.stride, back)
    rows = torch.unique(readers[readers >= 0]).long()
    edge = Coordinates(cloud.cells.index_select(0, rows), *grid, valid=True)
    return Border(inside, KernelMap.of_search(others, edge, taps), rows, route)
