"""More than one GPU: a volume split over two, and training in parallel, by NCCL."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import layoutconv as lc
from layoutconv.distributed import Slab, mean_over_ranks
from tests.distributed.graphed_checks import average
from tests.gpu.test_graphed_step import check_near, signed, small
from tests.nn.test_graphed import cloud

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

RANKS = 2
GRID = (0.0, 0.0, 0.0, 3.2, 3.2, 3.2)  # one for all batches, so that strides fall alike
BOUND = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}


@pytest.mark.parametrize(
    "check", ["float16", "bfloat16", "float32", "batch_norm", "sync_norm", "dense", "graphs"]
)
def test_two_gpus(check, tmp_path):
    """A volume split in two, of a type; or a network that two train together, also as graphs."""
    mp.spawn(_rank, (check, str(tmp_path)), nprocs=RANKS)
    assert len(list(Path(tmp_path).glob("*.done"))) == RANKS


def _rank(rank: int, check: str, folder: str) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    torch.backends.cudnn.allow_tf32 = False
    where = f"file://{folder}/store"
    dist.init_process_group(
        "nccl", init_method=where, rank=rank, world_size=RANKS, device_id=device
    )
    networks = {"batch_norm": batch_norm, "sync_norm": sync_norm, "dense": dense, "graphs": graphs}
    networks[check]() if check in networks else split(getattr(torch, check))
    torch.cuda.synchronize()
    dist.barrier()  # Gloo may still let go of tensors, for which it wants what its end holds
    dist.destroy_process_group()
    (Path(folder) / f"{rank}.done").touch()


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    off = (got.double() - want.double()).norm() / want.double().norm()
    assert off <= BOUND[want.dtype], off


def split(dtype: torch.dtype) -> None:
    cases = [
        ((33, 20, 24), {"padding": 1}, 0, None, 1),
        ((33, 20, 24), {"padding": 1}, 0, None, 2),
        ((21, 20, 24), {"stride": 2, "padding": 1}, 1, (0, 3, 20), 1),
        ((21, 20, 24), {"dilation": 2, "padding": ((2, 2), (1, 3), (0, 0))}, 2, None, 1),
        ((16, 8, 8), {"padding": 1, "groups": 32}, 0, (0, 1, 16), 1),
    ]
    for spatial, options, mode, bounds, N in cases:
        torch.manual_seed(0)
        x = torch.randn(N, 32, *spatial, device="cuda").to(dtype)
        x = x.contiguous(memory_format=torch.channels_last_3d)
        w = torch.randn(32, 32 // options.get("groups", 1), 3, 3, 3, device="cuda").to(dtype)
        w, b = w / 30, torch.randn(32, device="cuda").to(dtype)
        whole = [t.clone().requires_grad_() for t in (x, w, b)]
        y = lc.conv3d(*whole, **options)
        dy = torch.randn(y.shape, device="cuda").to(dtype)
        y.backward(dy)
        slab = Slab(spatial[mode], mode, bounds=bounds)
        part = [t.clone().requires_grad_() for t in (slab.shard(x), w, b)]
        z = lc.distributed.conv3d(*part, **options, slab=slab)
        problem = lc.conv.ConvProblem(
            (N, *spatial, 32), (32, 3, 3, 3), options.get("stride", 1), options["padding"],
            options.get("dilation", 1), options.get("groups", 1),
        )  # fmt: skip
        after = slab.of_output(problem)
        z.backward(after.shard(dy))
        close(z.detach(), after.shard(y.detach()))
        for ours, theirs in zip(part, whole, strict=True):
            assert theirs.grad is not None
            close(ours.grad, slab.shard(theirs.grad) if ours is part[0] else theirs.grad)


def sparse_net() -> torch.nn.Module:
    return lc.nn.Sequential(
        lc.nn.SubmConv3d(4, 16, 3, bias=False),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        lc.nn.SparseConv3d(16, 16, 2, stride=2, bias=False),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Linear(16, 1),
    ).cuda()


def dense_net() -> torch.nn.Module:
    return torch.nn.Sequential(
        lc.nn.Conv2d(4, 16, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        lc.nn.Conv2d(16, 1, 3, stride=2),
    ).cuda()


def trains_alike(net, losses, mine, everything) -> None:
    """Three steps of two ranks, and of one process, from the same parameters."""
    alone, initial = copy.deepcopy(net), copy.deepcopy(net)
    for batch in (mine, everything):  # kernels one after another would take minutes
        lc.precompile(lambda batch=batch: losses(copy.deepcopy(net), batch).mean().backward())
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    steps = [(DistributedDataParallel(net), mine, mean_over_ranks)]
    steps.append((alone, everything, torch.mean))
    for model, batch, mean in steps:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        for _ in range(3):
            loss = mean(losses(model, batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    one, two, before = (
        torch.cat([p.detach().flatten() for p in n.parameters()]) for n in (alone, net, initial)
    )
    assert (two - one).norm() < 1e-2 * (one - before).norm()
    for ours, theirs in zip(net.buffers(), alone.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)  # running statistics


def batch_norm() -> None:
    """SyncBatchNorm counts voxels: clouds of different sizes, three on a rank and two on one."""
    generator = torch.Generator().manual_seed(0)
    clouds = [3 * torch.rand(n, 4, generator=generator) for n in (900, 200, 1500, 60, 700)]
    clouds = [cloud.cuda() for cloud in clouds]

    def losses(net, batch):
        x = lc.voxelize(batch, 0.2, GRID)
        y = net(x).features
        return (y - 1).square()

    torch.manual_seed(0)
    mine = clouds[:3] if dist.get_rank() == 0 else clouds[3:]
    trains_alike(sparse_net(), losses, mine, clouds)


@dataclass
class Rows:
    """Rows of all ranks, numbers that fp16 and tf32 have, and what a batch norm makes of them."""

    x: torch.Tensor
    grad: torch.Tensor
    of_ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        leaf = self.x.double().requires_grad_()
        norm = torch.nn.BatchNorm1d(leaf.shape[1], dtype=torch.double, device="cuda")
        self.y = norm(leaf).relu()
        self.y.backward(self.grad.double())
        self.dx, self.norm = leaf.grad, norm

    def mine(self, t: torch.Tensor) -> torch.Tensor:
        return t.split(self.of_ranks)[dist.get_rank()]


def sync_norm() -> None:
    """Norms over ranks, by kernels on both, and on one beside torch's own operations on the other:
    they tell each other the same. A rank may have one row, or none.
    """
    C, rank = 20, dist.get_rank()
    for kind, dtype, of_ranks, apart in product(
        (torch.nn.SyncBatchNorm, lc.distributed.SyncBatchNorm), (torch.float32, torch.float16),
        ((700, 400), (600, 1), (0, 300)), (False, True),
    ):  # fmt: skip
        generator = torch.Generator("cuda").manual_seed(0)
        numbers = torch.randint(
            -64, 64, (2, sum(of_ranks), C), device="cuda", generator=generator
        )  # fmt: skip
        rows = Rows(*(numbers / 16 + 3), of_ranks)
        conv = lc.nn.SubmConv3d(C, C, 1, bias=False).cuda().to(dtype)
        with torch.no_grad():
            conv.weight.copy_(torch.eye(C).view(conv.weight.shape))
        net = lc.nn.Sequential(conv, kind(C).cuda(), torch.nn.ReLU())
        x = rows.mine(rows.x).to(dtype).requires_grad_()
        cells = torch.zeros(len(x), 4, dtype=torch.int32, device="cuda")
        cells[:, 1] = torch.arange(len(x))
        with lc.nn.unfused() if apart and rank == 0 and len(x) else nullcontext():
            y = net(lc.SparseTensor(x, cells, (800, 1, 1), 1)).features
        y.backward(rows.mine(rows.grad).to(dtype))
        case = f"{kind.__module__}, {dtype}, {of_ranks}, {apart}"
        limit = 4e-3 if dtype is torch.float16 else 2e-5
        for found, whole in ((y, rows.y), (x.grad, rows.dx)):
            torch.testing.assert_close(
                found.double(), rows.mine(whole), rtol=0, atol=limit, msg=case
            )
        for name, found in net[1].named_parameters():
            dist.all_reduce(found.grad)
            want = getattr(rows.norm, name).grad
            assert (found.grad.double() - want).norm() < 1e-3 * want.norm() + 1e-3, (case, name)
        for name, found in net[1].named_buffers():
            want = getattr(rows.norm, name)
            torch.testing.assert_close(found.to(want.dtype), want, rtol=1e-5, atol=1e-6, msg=case)


def dense() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(5, 4, 17, 19, generator=generator).cuda()
    torch.manual_seed(0)
    mine = images[:3] if dist.get_rank() == 0 else images[3:]
    trains_alike(dense_net(), lambda net, batch: (net(batch) - 1).square(), mine, images)


def graphs() -> None:
    """Steps as graphs, gradients reduced after two of them, are steps of the wrapper; where ranks
    wait for each other in a loss, steps are eager, and a wrapped graph evaluates.

    Clouds differ in size, so that one rank replays where the other warms up.
    """
    rows = ((300, 310, 250, 1900, 305, 1700), (300, 1900, 280, 1800, 1750, 310))[dist.get_rank()]
    mine = [cloud(count, seed).cuda() for seed, count in enumerate(rows)]
    net = small()
    wrapped = DistributedDataParallel(copy.deepcopy(net))
    step = lc.nn.graphed_step(net, signed)
    for number, x in enumerate(mine):
        value = step(x)
        with wrapped.no_sync() if number % 2 == 0 else nullcontext():
            y = signed(wrapped(x))
            y.backward()
        assert torch.equal(value, y.detach())
        if number % 2:
            average(net)
            check_near(net, wrapped.module)
            for module in net, wrapped:
                module.zero_grad()
    assert step.report().hits >= 2, step.report()

    waiting = lc.nn.graphed_step(net, lambda y: mean_over_ranks(y.features.square()))
    for x in mine[:3]:
        waiting(x)
    assert "ranks wait for each other in c10d." in str(waiting.report())
    assert waiting.report().hits == 0

    graph = lc.nn.graphed(net)
    inside = DistributedDataParallel(graph).eval()
    with torch.no_grad():
        for x in mine:
            close(inside(x).features, wrapped.module.eval()(x).features)
    assert graph.report().hits >= 2, graph.report()
