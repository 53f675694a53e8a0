"""Data-parallel training, run by two ranks: the parameters are those that one process finds."""

from __future__ import annotations

import copy
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import layoutconv as lc
import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.distributed import SyncBatchNorm, mean_over_ranks


def clouds(sizes, seed=0):
    """Clouds of so many points each, features (points, 4) of which the first three are places."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(size, 4, generator=generator, dtype=torch.float64) for size in sizes]


class Sparse(torch.nn.Module):
    """Down, up again, and a number for every voxel."""

    def __init__(self):
        super().__init__()
        self.stem = lc.nn.Sequential(
            lc.nn.SubmConv3d(4, 8, 3, bias=False), torch.nn.LayerNorm(8), torch.nn.ReLU()
        )
        self.down = lc.nn.Sequential(
            lc.nn.SparseConv3d(8, 8, 2, stride=2, padding=((0, 1),) * 3), torch.nn.ReLU()
        )
        self.up = lc.nn.SparseInverseConv3d(8, 8, 2)
        self.head = torch.nn.Linear(16, 1)

    def forward(self, x):
        fine = self.stem(x)
        y = lc.sparse.cat([self.up(self.down(fine)), fine])
        return y.replace(self.head(y.features))


class Dense(torch.nn.Sequential):
    def __init__(self):
        super().__init__(
            lc.nn.Conv2d(2, 8, 3, padding=1, bias=False),
            torch.nn.GroupNorm(2, 8),
            torch.nn.ReLU(),
            lc.nn.Conv2d(8, 8, 3, stride=2, groups=2, activation="relu"),
            lc.nn.ConvTranspose2d(8, 1, 2, stride=2),
        )


def voxels(batch):
    return lc.voxelize(batch, 0.2)


def sparse_losses(net, batch):
    x = voxels(batch)
    return (net(x).features[:, 0] - x.features[:, 3].sin()).square()


def dense_losses(net, batch):
    y = net(torch.stack(batch))
    return (y - y.detach().cos()).square()


def trained(net, batches, step):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        step(net, batch).backward()
        optimizer.step()
    return net


def same(ours, theirs):
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def uneven(make, losses, items):
    """Batches of 3 and 2 items, of as many values as the items have: a mean over all of them."""
    torch.manual_seed(0)
    net = make().double()
    alone = copy.deepcopy(net)
    rank = dist.get_rank()
    mine = slice(0, 3) if rank == 0 else slice(3, 5)
    batches = [items(seed) for seed in range(3)]
    trained(alone, batches, lambda net, batch: losses(net, batch).mean())
    before = [p.clone() for p in net.parameters()]
    ddp = DistributedDataParallel(net)
    trained(ddp, [b[mine] for b in batches], lambda net, b: mean_over_ranks(losses(net, b)))
    same(net, alone)
    assert not any(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def sparse_clouds_of_any_number():
    uneven(Sparse, sparse_losses, lambda seed: clouds([40, 90, 20, 150, 70], seed))


def dense_images_of_any_number():
    def images(seed):
        generator = torch.Generator().manual_seed(seed)
        return [*torch.randn(5, 2, 9, 9, generator=generator, dtype=torch.float64)]

    uneven(Dense, dense_losses, images)


class Rows(Sparse):
    """The same, with a result that torch looks for tensors in."""

    def forward(self, x):
        y = super().forward(x)
        return y.features, y.coordinates


def options_that_look_into_results():
    """A tuple of features and coordinates, by the options of wrappers that look for tensors in it;
    gradients of a second step, too, where a graph that is static was found by the first."""
    torch.manual_seed(0)
    alone, batches = Rows().double(), [clouds([60]), clouds([80], 1)]
    mine = batches[dist.get_rank()]

    def loss(net, batch):
        x = voxels(batch)
        y = lc.SparseTensor(*net(x))
        return (y.features[:, 0] - x.features[:, 3].sin()).square().mean()

    wrappers = [
        partial(DistributedDataParallel, **{option: True})
        for option in ("static_graph", "find_unused_parameters", "gradient_as_bucket_view")
    ]
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for wrap in *wrappers, partial(fully_shard, mesh=mesh):
        net, other = copy.deepcopy(alone), copy.deepcopy(alone)
        trained(other, [batches] * 2, lambda net, many: sum(loss(net, b) for b in many) / 2)
        wrapped = trained(wrap(net), [mine] * 2, loss)
        for ours, theirs in zip(wrapped.parameters(), other.parameters(), strict=True):
            whole = ours.full_tensor() if isinstance(ours, DTensor) else ours
            torch.testing.assert_close(whole, theirs)


def a_rank_without_points():
    """An empty cloud takes part: its gradients are zeros, and the mean is of the others' points."""
    torch.manual_seed(0)
    net = Sparse().double()
    alone = copy.deepcopy(net)
    (cloud,) = clouds([60])
    mine = cloud if dist.get_rank() == 0 else cloud[:0]
    trained(alone, [[cloud]], lambda net, batch: sparse_losses(net, batch).mean())
    ddp = DistributedDataParallel(net)
    trained(ddp, [[mine]], lambda net, b: mean_over_ranks(sparse_losses(net, b)))
    same(net, alone)


def a_rank_without_points_in_spconvs_names():
    """Its norms meet the others', and each of its parameters has a gradient to add."""
    torch.manual_seed(0)
    net = spconv.SparseSequential(
        torch.nn.Linear(4, 8), spconv.SubMConv3d(8, 6, 3), torch.nn.BatchNorm1d(6),
        torch.nn.ReLU(), torch.nn.Linear(6, 1),
    ).double()  # fmt: skip
    alone, net = copy.deepcopy(net), SyncBatchNorm.convert(net)

    def losses(net, batch):
        x = voxels(batch)
        y = net(spconv.SparseConvTensor(x.features, x.coords, x.spatial_shape, x.batch_size))
        return (y.features[:, 0] - x.features[:, 3].sin()).square()

    (cloud,) = clouds([60])
    mine = cloud if dist.get_rank() == 0 else cloud[:0]
    trained(alone, [[cloud]] * 2, lambda net, batch: losses(net, batch).mean())
    ddp = DistributedDataParallel(net, broadcast_buffers=False)
    trained(ddp, [[mine]] * 2, lambda net, b: mean_over_ranks(losses(net, b)))
    same(net, alone)


def more_batches_on_one_rank():
    """torch's Join: rank 0 has three batches, rank 1 one; who has none left adds zeros."""
    torch.manual_seed(0)
    net = Sparse().double()
    alone = copy.deepcopy(net)
    of_rank = [[clouds([50, 30], seed) for seed in seeds] for seeds in ((1, 2, 3), (4,))]
    steps = [[b[step] for b in of_rank if step < len(b)] for step in range(3)]
    trained(
        alone, steps, lambda net, batches: sum(sparse_losses(net, b).sum() for b in batches) / 200
    )
    ddp = DistributedDataParallel(net)
    with Join([ddp]):
        mine = of_rank[dist.get_rank()]
        trained(ddp, mine, lambda net, b: sparse_losses(net, b).sum() * 2 / 200)
    same(net, alone)


def batch_norms_are_found():
    """``SyncBatchNorm`` trains on GPUs alone: here it is put in, finds features, and evaluates."""
    torch.manual_seed(0)
    net = lc.nn.Sequential(
        lc.nn.SubmConv3d(4, 8, 3), torch.nn.BatchNorm1d(8), torch.nn.ReLU()
    ).double()
    x = voxels(clouds([50]))
    net(x)  # statistics of its own
    want = net.eval()(x).features
    synced = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    assert type(synced[1]) is torch.nn.SyncBatchNorm
    torch.testing.assert_close(synced(x).features, want)


def normed():
    torch.manual_seed(0)
    return lc.nn.Sequential(
        lc.nn.SubmConv3d(4, 6, 3, bias=False),
        torch.nn.BatchNorm1d(6),
        torch.nn.ReLU(),
        lc.nn.SparseConv3d(6, 8, 2, stride=2, padding=((0, 1),) * 3),
        torch.nn.BatchNorm1d(8, momentum=None),
        torch.nn.Sequential(torch.nn.BatchNorm1d(8, affine=False)),
    ).double()


def normed_by_ours():
    torch.manual_seed(0)
    return lc.nn.Sequential(
        lc.nn.SubmConv3d(4, 6, 3, bias=False),
        lc.nn.BatchNorm1d(6, activation="silu"),
        lc.nn.SparseConv3d(6, 8, 2, stride=2, padding=((0, 1),) * 3),
        lc.nn.BatchNorm1d(8, momentum=None),
    ).double()


def one_norm_over_the_clouds_of_all_ranks(sizes=((90, 40), (150,)), make=normed):
    """Results, gradients of features and weights, and running statistics."""
    alone = make()
    net = SyncBatchNorm.convert(make())
    there = [isinstance(module, SyncBatchNorm) for module in net.modules()]
    assert sum(there) == (3 if make is normed else 2)
    every = [clouds(own, seed) for seed, own in enumerate(sizes)]

    def gradients(net, points):
        x = voxels(points)
        x = x.replace((10 * x.features + 100).requires_grad_())  # means far above deviations
        y = net(x).features
        (y * y.detach().cos()).sum().backward()
        return y.detach(), x.features.grad

    for _ in range(2):
        want = gradients(alone, [cloud for own in every for cloud in own])
        got = gradients(net, every[dist.get_rank()] or [torch.zeros(0, 4, dtype=torch.float64)])
        for whole, own in zip(want, got, strict=True):
            counts = [torch.tensor(0) for _ in sizes]
            dist.all_gather(counts, torch.tensor(len(own)))
            first = sum(counts[: dist.get_rank()])
            torch.testing.assert_close(own, whole[first : first + len(own)], rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(net.parameters(), alone.parameters(), strict=True):
        dist.all_reduce(ours.grad)
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-8)
    for ours, theirs in zip(net.buffers(), alone.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert list(net.state_dict()) == list(alone.state_dict())


def a_norm_where_a_rank_has_no_rows():
    one_norm_over_the_clouds_of_all_ranks(((90, 40), ()))


def norms_of_ours_with_their_activations():
    one_norm_over_the_clouds_of_all_ranks(make=normed_by_ours)
    one_norm_over_the_clouds_of_all_ranks(((90, 40), ()), normed_by_ours)


def one_message_a_norm_and_padding_that_does_not_count():
    sent = []

    def counted(name):
        def call(*tensors, **options):
            sent.append((name, tensors[-1].dtype, tensors[-1].numel()))
            return given[name](*tensors, **options)

        return call

    gather = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    given = {name: getattr(dist, name) for name in (gather, "all_reduce")}
    for name in given:
        setattr(dist, name, counted(name))
    try:
        x = voxels(clouds([40 + 20 * dist.get_rank()]))
        norm = SyncBatchNorm(4).double()
        features = x.features.clone().requires_grad_()
        want = norm(x.replace(features)).features
        want.square().sum().backward()
        assert sent == [
            (gather, torch.float64, 9),
            ("all_reduce", torch.float64, 8),
        ]
        rows = len(x.features)
        padded = x.padded(rows + 30)
        for apply in (norm, lc.nn.Sequential(norm)):
            got = apply(
                padded.replace(padded.features.where(padded.coords[:, :1] >= 0, 7))
            ).features
            torch.testing.assert_close(got[:rows], want)
            assert not got[rows:].any()
    finally:
        for name, call in given.items():
            setattr(dist, name, call)


def digits_where_means_are_far_above_deviations():
    """Beside float64, rows as they are; a rank may have none. torch's loses more in one process."""
    generator = torch.Generator().manual_seed(0)
    rank = dist.get_rank()
    for dtype, ratio, digits in (
        (torch.float64, 1e7, 1e-7), (torch.float64, 1e3, 1e-11),
        (torch.float32, 1e7, 1e-5), (torch.float32, 1e3, 1e-5),
    ):  # fmt: skip
        whole = torch.randn(3000, 3, generator=generator, dtype=torch.float64) + ratio
        whole, grad = whole.to(dtype), torch.randn(3000, 3, generator=generator, dtype=dtype)
        for first in (1000, 3000):  # rows of rank 0
            mine = slice(0, first) if rank == 0 else slice(first, 3000)
            x = whole.double().clone().requires_grad_()
            mean = x.mean(0)
            variance = (x - mean).square().mean(0)
            want = (x - mean) / (variance + 1e-5).sqrt()
            want.backward(grad.double())
            norm = SyncBatchNorm(3, momentum=1.0, dtype=dtype)
            own = whole[mine].detach().clone().requires_grad_()
            got = norm(own)
            got.backward(grad[mine])
            close = {"rtol": digits, "atol": 10 * digits}
            torch.testing.assert_close(got.double(), want[mine], **close)
            torch.testing.assert_close(own.grad.double(), x.grad[mine], **close)
            found = norm.running_var.double() * 2999 / 3000
            torch.testing.assert_close(found, variance, rtol=digits, atol=0)


def a_norm_of_images_and_of_half():
    torch.manual_seed(dist.get_rank())
    x = torch.randn(2, 3, 4, 5)
    every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(every, x)
    whole = torch.nn.BatchNorm2d(3)(torch.cat(every)).split(2)[dist.get_rank()]
    torch.testing.assert_close(SyncBatchNorm(3)(x), whole)
    half = SyncBatchNorm(3)(x.half())
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), whole, rtol=1e-2, atol=1e-2)


CHECKS = {
    check.__name__: check
    for check in (
        sparse_clouds_of_any_number,
        dense_images_of_any_number,
        a_rank_without_points,
        a_rank_without_points_in_spconvs_names,
        more_batches_on_one_rank,
        options_that_look_into_results,
        batch_norms_are_found,
        one_norm_over_the_clouds_of_all_ranks,
        a_norm_where_a_rank_has_no_rows,
        norms_of_ours_with_their_activations,
        one_message_a_norm_and_padding_that_does_not_count,
        digits_where_means_are_far_above_deviations,
        a_norm_of_images_and_of_half,
    )
}
