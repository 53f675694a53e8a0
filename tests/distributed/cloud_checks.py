"""Checks, run by every rank, that a split cloud's convolution is that of the whole cloud."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist

import layoutconv as lc
from layoutconv.distributed import Cloud, partition, restore
from layoutconv.distributed.border import border_of
from layoutconv.errors import ArgumentError
from layoutconv.sparse import SparseTensor, submanifold_map

from .ranks import run_each, run_in_a_pair


def whole_cloud(rank=3, rows=150, channels=4, images=2, seed=0):
    """Features and distinct cells in no order, a third of the cells of a batch of grids."""
    generator = torch.Generator().manual_seed(seed)
    edge = round((3 * rows / images) ** (1 / rank)) + 1
    shape = tuple(edge + axis for axis in range(rank))
    every = torch.cartesian_prod(torch.arange(images), *map(torch.arange, shape)).int()
    cells = every[torch.randperm(len(every), generator=generator)[:rows]]
    features = torch.randn(rows, channels, dtype=torch.float64, generator=generator)
    return SparseTensor(features, cells, shape, images)


def share(rows, how, group=None):
    """Which rows of a cloud this rank gives."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if how == "all by one":
        return torch.arange(rows if rank == size - 1 else 0)
    return torch.arange(rows)[rank::size]


def part_of(x, mine):
    return SparseTensor(x.features[mine], x.coords[mine], x.spatial_shape, x.batch_size)


@dataclass(frozen=True)
class Case:
    """A submanifold convolution of a cloud, of which each rank gives some rows."""

    taps: tuple[int, ...]
    options: dict = field(default_factory=dict)
    rank: int = 3
    rows: int = 150
    C: int = 4
    K: int = 6
    bias: bool = True
    how: str = "by turns"
    dtype: torch.dtype = torch.float64

    def run(self, group=None):
        torch.manual_seed(0)
        x = whole_cloud(self.rank, self.rows, self.C)
        x = x.replace(x.features.to(self.dtype))
        w = torch.randn(self.K, *self.taps, self.C // self.options.get("groups", 1))
        tensors = [x.features, (w / 8).to(self.dtype)]
        tensors += [torch.randn(self.K).to(self.dtype)] if self.bias else []
        whole = [t.clone().requires_grad_() for t in tensors]
        y = lc.subm_conv(x.replace(whole[0]), *whole[1:], **self.options).features
        dy = torch.randn(y.shape).to(self.dtype)
        y.backward(dy)

        mine = share(len(x), self.how, group)
        parts = [tensors[0][mine].clone(), *(t.clone() for t in tensors[1:])]
        parts = [t.requires_grad_() for t in parts]
        z = partition(part_of(x, mine).replace(parts[0]), group)
        found = lc.distributed.subm_conv(z, *parts[1:], **self.options)
        assert found.coordinates is z.coordinates
        back = restore(found)
        back.backward(dy[mine])

        bound = {} if self.dtype == torch.float64 else {"atol": 3e-2, "rtol": 3e-2}
        torch.testing.assert_close(back.detach(), y.detach()[mine], **bound)
        torch.testing.assert_close(parts[0].grad, whole[0].grad[mine], **bound)
        for ours, theirs in zip(parts[1:], whole[1:], strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, **bound)


FAR = [(0, 0, 0), (4, -1, 0), (-5, 2, 3), (0, 0, 1)]
CASES = {
    "3x3x3": Case((3, 3, 3)),
    "all by one": Case((3, 3, 3), how="all by one"),
    "no bias": Case((3, 3, 3), bias=False),
    "large": Case((5, 5, 5), rows=60),
    "dilated": Case((3, 3, 3), {"dilation": (1, 2, 3)}),
    "even": Case((2, 4, 3), {"activation": "gelu"}),
    "any taps": Case((4,), {"offsets": FAR}),
    "a single tap": Case((1, 1, 1)),
    "groups": Case((3, 3, 3), {"groups": 2}),
    "depthwise": Case((3, 3, 3), {"groups": 4, "activation": "relu"}, K=8),
    "1d": Case((5,), rank=1),
    "2d": Case((3, 3), rank=2),
    "4d": Case((3, 3, 3, 3), rank=4, rows=60),
    "fewer voxels than ranks": Case((3, 3, 3), rows=2),
    "nothing": Case((3, 3, 3), rows=0),
    "half": Case((3, 3, 3), dtype=torch.float16),
    "bfloat16": Case((3, 3, 3), dtype=torch.bfloat16),
}


def all_cases():
    run_each(CASES)


def a_part_of_the_processes():
    cases = CASES["3x3x3"], CASES["any taps"]
    run_in_a_pair(cases, lambda pair: partition(whole_cloud(), pair))


def ranges_are_even_and_the_halo_is_what_is_read():
    """All of it, nothing twice, and nothing that no tap reads."""
    x = whole_cloud(rows=300)
    z = partition(part_of(x, share(len(x), "by turns")))
    cloud = z.coordinates
    assert len(z) == 100
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (cloud.part, cloud.parts) == (rank, size)
    owner = torch.searchsorted(
        torch.tensor(cloud.bounds[1:-1]), cloud.curve.keys(x.coords), right=True
    )
    at = {tuple(cell): row for row, cell in enumerate(x.coords.tolist())}
    assert {tuple(cell) for cell in z.coords.tolist()} == {
        cell for cell, row in at.items() if owner[row] == rank
    }
    for offsets in ([(0, 0, 0), (1, 0, 0)], FAR, [(0, 0, 0)]):
        index = submanifold_map(x.coordinates, offsets=offsets).index
        read = index[owner == rank].unique()
        read = read[read >= 0].long()
        halo = x.coords[read[owner[read] != rank]].tolist()
        border = border_of(cloud, offsets=offsets)
        assert sorted(border.halo.inputs.cells.tolist()) == sorted(halo)
        assert border_of(cloud, offsets=offsets) is border
        reach = (index[owner == rank] >= 0) & (owner[index[owner == rank].long()] != rank)
        assert len(border.rows) == int(reach.any(1).sum())


def layers():
    """Modules one after the other, others of torch between them; two backward passes."""
    torch.manual_seed(0)
    make = lc.distributed.SubmConv3d
    net = lc.nn.Sequential(
        make(4, 8, 3),
        torch.nn.ReLU(),
        make(8, 8, 3, activation="silu"),
        make(8, 2, (1, 5, 2), bias=False),
    ).double()
    plain = lc.nn.Sequential(
        lc.nn.SubmConv3d(4, 8, 3), torch.nn.ReLU(), lc.nn.SubmConv3d(8, 8, 3, activation="silu"),
        lc.nn.SubmConv3d(8, 2, (1, 5, 2), bias=False),
    ).double()  # fmt: skip
    plain.load_state_dict(net.state_dict())
    x = whole_cloud(rows=200)
    mine = share(len(x), "by turns")
    whole = x.features.clone().requires_grad_()
    own = x.features[mine].clone().requires_grad_()
    plain(x.replace(whole)).features.square().sum().backward()
    loss = net(partition(part_of(x, mine).replace(own))).features.square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(own.grad, 2 * whole.grad[mine])
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, 2 * theirs.grad)
    with torch.no_grad():
        want = plain(x).features[mine]
        z = net(partition(part_of(x, mine)))
        torch.testing.assert_close(restore(z), want)


def a_lower_precision_by_autocast():
    x = partition(part_of(whole_cloud(), share(150, "by turns")))
    x = x.replace(x.features.float().requires_grad_())
    weight = torch.randn(6, 3, 3, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        y = lc.distributed.subm_conv(x, weight).features
    assert y.dtype == torch.bfloat16
    exact = lc.distributed.subm_conv(x, weight).features
    torch.testing.assert_close(y.float(), exact, atol=0.2, rtol=5e-2)
    y.sum().backward()
    assert x.features.grad.dtype == torch.float32


def what_is_wrong_on_one_rank_is_said_on_all():
    rank = dist.get_rank()
    x = whole_cloud()
    mine = share(len(x), "by turns")
    twice = mine if rank else torch.cat([mine, torch.tensor([1])])  # row 1 is rank 1's, too
    with pytest.raises(ArgumentError, match="distinct cells"):
        partition(part_of(x, twice))
    outside = part_of(x, mine)
    if rank == 1:
        outside.coords[0, 2] = 99
    with pytest.raises(ArgumentError, match="argument `input`: expected cells of 2 grids"):
        partition(outside)
    narrow = part_of(x, mine)
    with pytest.raises(ArgumentError, match="same dtype and the same grid"):
        partition(narrow.replace(narrow.features[:, : 4 - rank]))
    with pytest.raises(ArgumentError, match="same dtype and the same grid"):
        partition(narrow.replace(narrow.features.to((torch.float64, torch.float32)[rank == 1])))
    grid = (*x.spatial_shape[:2], x.spatial_shape[2] + rank)
    with pytest.raises(ArgumentError, match="same dtype and the same grid"):
        partition(SparseTensor(narrow.features, narrow.coords, grid, 2))


def a_part_is_not_taken_for_the_whole():
    x = partition(part_of(whole_cloud(), share(150, "by turns")))
    weight = torch.randn(6, 3, 3, 3, 4, dtype=torch.float64)
    for call in (
        lambda: lc.subm_conv(x, weight),
        lambda: lc.sparse_conv(x, weight, stride=2),
        lambda: lc.nn.sparse_max_pool(x, 2),
        lambda: x.dense(),
        lambda: x[0],
    ):
        with pytest.raises(ArgumentError, match="a whole cloud"):
            call()
    with pytest.raises(ArgumentError):
        pickle.dumps(x)
    with pytest.raises(ArgumentError, match="argument `input`"):
        lc.distributed.subm_conv(whole_cloud(), weight)
    with pytest.raises(ArgumentError, match="argument `weight`"):
        lc.distributed.subm_conv(x, weight[0])
    with pytest.raises(ArgumentError, match="argument `input`"):
        restore(whole_cloud())
    y = lc.distributed.subm_conv(x.replace(x.features.requires_grad_()), weight)
    with pytest.raises(ArgumentError, match="create_graph"):
        torch.autograd.grad(y.features.sum(), x.features, create_graph=True)
    assert isinstance(y.coordinates, Cloud)


CHECKS = {
    f"cloud: {check.__name__}": check
    for check in (
        all_cases,
        a_part_of_the_processes,
        ranges_are_even_and_the_halo_is_what_is_read,
        layers,
        a_lower_precision_by_autocast,
        what_is_wrong_on_one_rank_is_said_on_all,
        a_part_is_not_taken_for_the_whole,
    )
}
