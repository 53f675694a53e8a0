"""Checks, run by every rank, that a split convolution is that of the whole volume."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

import layoutconv as lc
from layoutconv.distributed import Slab
from layoutconv.errors import ArgumentError, ArgumentTypeError

from .ranks import run_each, run_in_a_pair

CONV = {1: lc.conv1d, 2: lc.conv2d, 3: lc.conv3d}


@dataclass(frozen=True)
class Case:
    """A convolution of (N, C, *spatial), cut along a spatial mode."""

    spatial: tuple[int, ...]
    taps: tuple[int, ...]
    options: dict
    mode: int = 0
    bounds: tuple[int, ...] | None = None
    N: int = 1
    C: int = 4
    K: int = 6
    dtype: torch.dtype = torch.float64

    def run(self, group=None):
        torch.manual_seed(0)
        groups = self.options.get("groups", 1)
        x = torch.randn(self.N, self.C, *self.spatial).to(self.dtype)
        w = torch.randn(self.K, self.C // groups, *self.taps).to(self.dtype)
        b = torch.randn(self.K).to(self.dtype)
        whole = [t.clone().requires_grad_() for t in (x, w, b)]
        y = CONV[len(self.spatial)](*whole, **self.options)
        dy = torch.randn(y.shape).to(y.dtype)
        y.backward(dy)

        slab = Slab(self.spatial[self.mode], self.mode, group, self.bounds)
        parts = [slab.shard(x).clone(), w.clone(), b.clone()]
        parts = [t.requires_grad_() for t in parts]
        function = getattr(lc.distributed, f"conv{len(self.spatial)}d")
        z = function(*parts, **self.options, slab=slab)
        pad, apart, step = (
            self._of(k, d) for k, d in (("padding", 0), ("dilation", 1), ("stride", 1))
        )
        after = slab.after(self.taps[self.mode], step, pad, apart)
        z.backward(after.shard(dy))

        close = torch.testing.assert_close
        exact = self.dtype == torch.float64
        bound = {} if exact else {"atol": 2e-2, "rtol": 2e-2}
        close(z.detach(), after.shard(y.detach()), **bound)
        close(after.gather(z), y.detach(), **bound)
        close(parts[0].grad, slab.shard(whole[0].grad), **bound)
        for part, of_whole in zip(parts[1:], whole[1:], strict=True):
            close(part.grad, of_whole.grad, **bound)

    def _of(self, name, default):
        value = self.options.get(name, default)
        if value == "same":
            return (self._of("dilation", 1) * (self.taps[self.mode] - 1)) // 2
        return value[self.mode] if isinstance(value, tuple) else value


CASES = {
    "3d": Case((9, 5, 6), (3, 3, 3), {"padding": 1}),
    "two volumes": Case((9, 5, 6), (3, 3, 3), {"padding": 1}, N=2),
    "along H": Case((3, 10, 4), (3, 3, 1), {"padding": (1, 1, 0)}, mode=1),
    "along W": Case((3, 2, 11), (1, 1, 3), {"padding": (0, 0, 1)}, mode=2, N=2),
    "strided": Case((13, 8), (3, 3), {"stride": 2, "padding": 1}),
    "stride 3 of 1": Case((14, 3), (1, 1), {"stride": 3}),
    "dilated": Case((17, 6), (3, 3), {"dilation": 2, "padding": 2}),
    "strided and dilated": Case((22,), (3,), {"stride": 2, "dilation": 3, "padding": 2}),
    "no padding": Case((12, 6), (3, 3), {}),
    "padding on one side": Case((12,), (3,), {"padding": ((2, 0),)}),
    "more padding than filter": Case((6,), (3,), {"padding": ((5, 4),)}),
    "same": Case((10, 4), (5, 3), {"padding": "same"}),
    "groups": Case((9, 4), (3, 3), {"padding": 1, "groups": 2}),
    "depthwise": Case((9, 4), (3, 3), {"padding": 1, "groups": 4}, K=8),
    "uneven": Case((10, 4), (3, 3), {"padding": 1}, bounds=(0, 1, 8, 10)),
    "thinner than the halo": Case((9, 4), (7, 3), {"padding": (3, 1)}, bounds=(0, 4, 5, 9)),
    "reaches over a rank": Case((5,), (5,), {"padding": 2}, bounds=(0, 2, 3, 5)),
    "an empty slab": Case((8, 4), (3, 3), {"padding": 1}, bounds=(0, 4, 4, 8)),
    "nothing first": Case((8, 4), (5, 3), {"padding": (2, 1), "stride": 2}, bounds=(0, 0, 2, 8)),
    "fewer rows than ranks": Case((2, 4), (3, 3), {"padding": 1}),
    "no halo": Case((12, 4), (2, 2), {"stride": 2}),
    "half": Case((9, 5, 6), (3, 3, 3), {"padding": 1}, dtype=torch.float16),
    "bfloat16": Case((9, 5, 6), (3, 3, 3), {"padding": 1}, dtype=torch.bfloat16),
    "one number of halo": Case((6,), (3,), {"padding": 1}, C=1),
    "one number of each volume": Case((6,), (3,), {"padding": 1}, C=1, N=2),
    "no volumes": Case((9, 4), (3, 3), {"padding": 1}, N=0),
}


def all_cases():
    run_each(CASES)


def a_part_of_the_processes():
    """A group has its own ranks and its own collectives."""
    cases = CASES["3d"], CASES["strided"], CASES["groups"]
    run_in_a_pair(cases, lambda pair: Slab(8, group=pair))


def layers():
    """Modules one after the other, of which each says how the next one's input is split."""
    torch.manual_seed(0)
    rows = 15
    slab = Slab(rows)
    first = lc.distributed.Conv2d(3, 8, 3, padding=1, slab=slab)
    second = lc.distributed.Conv2d(8, 8, 3, stride=2, padding=1, slab=first.output_slab)
    third = lc.distributed.Conv2d(8, 4, 3, dilation=2, slab=second.output_slab)
    net = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.GELU(), third).double()
    plain = torch.nn.Sequential(
        lc.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        lc.nn.Conv2d(8, 8, 3, stride=2, padding=1),
        torch.nn.GELU(),
        lc.nn.Conv2d(8, 4, 3, dilation=2),
    ).double()
    plain.load_state_dict(net.state_dict())
    x = torch.randn(2, 3, rows, 9, dtype=torch.float64)
    whole, part = x.clone().requires_grad_(), slab.shard(x).clone().requires_grad_()
    y = plain(whole)
    y.square().sum().backward()
    z = net(part)
    z.square().sum().backward()  # the whole loss is the sum of the ranks' ones
    torch.testing.assert_close(third.output_slab.gather(z), y.detach())
    torch.testing.assert_close(slab.gather(part.grad), whole.grad)
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def a_halo_by_itself():
    """Rows as they are in the whole volume, for a window that moves along the split mode."""
    x = torch.arange(2 * 3 * 12.0).view(1, 2, 3, 12)
    slab = Slab(12, mode=1)
    near, far = lc.distributed.exchange_halo(slab.shard(x), 5, padding=2, slab=slab)
    first, last = slab.rows.start, slab.rows.stop
    assert torch.equal(near, x[..., max(0, first - 2) : first])
    assert torch.equal(far, x[..., last : last + 2])


def some_gradients_only():
    """A weight that is frozen, an input that is data: no rank waits for what is not asked for."""
    torch.manual_seed(0)
    slab = Slab(9)
    x, w = torch.randn(1, 2, 9, dtype=torch.float64), torch.randn(3, 2, 3, dtype=torch.float64)
    for wanted in ((True, False), (False, True)):
        whole = [t.clone().requires_grad_(want) for t, want in zip((x, w), wanted, strict=True)]
        part = [
            t.clone().requires_grad_(want)
            for t, want in zip((slab.shard(x), w), wanted, strict=True)
        ]
        lc.conv1d(*whole, padding=1).square().sum().backward()
        lc.distributed.conv1d(*part, padding=1, slab=slab).square().sum().backward()
        for theirs, ours, of in zip(whole, part, (slab.shard, lambda t: t), strict=True):
            assert (ours.grad is None) == (theirs.grad is None)
            if ours.grad is not None:
                torch.testing.assert_close(ours.grad, of(theirs.grad))
    with torch.no_grad():
        assert not lc.distributed.conv1d(*part, padding=1, slab=slab).requires_grad


def autocast():
    """Lowered as convolutions are, and gradients are of the dtype of what they belong to."""
    torch.manual_seed(0)
    slab = Slab(9)
    x, w = torch.randn(1, 2, 9), torch.randn(3, 2, 3)
    part, weight = slab.shard(x).clone().requires_grad_(), w.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = lc.distributed.conv1d(part, weight, padding=1, slab=slab)
        want = lc.conv1d(x, w, padding=1)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(slab.gather(y), want)
    y.float().sum().backward()
    assert (part.grad.dtype, weight.grad.dtype) == (torch.float32, torch.float32)


def no_second_derivative():
    slab = Slab(9)
    x = slab.shard(torch.randn(1, 2, 9)).clone().requires_grad_()
    y = lc.distributed.conv1d(x, torch.randn(3, 2, 3), padding=1, slab=slab)
    with pytest.raises(ArgumentError, match=r"`create_graph`.* differentiable only once"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def errors():
    rank = dist.get_rank()
    slab = Slab(10)
    assert slab.bounds == (0, 4, 7, 10)
    x, w = torch.zeros(1, 2, 10, 4), torch.zeros(3, 2, 3, 3)
    conv2d = lc.distributed.conv2d
    with pytest.raises(ArgumentError, match=rf"`input`.* mode 2, rows .*, on rank {rank}, got"):
        conv2d(x, w, slab=slab)
    with pytest.raises(ArgumentError, match="argument `weight`"):
        conv2d(slab.shard(x), w[:, :1], slab=slab)
    with pytest.raises(ArgumentError, match=r"argument `weight`.* padded input"):
        conv2d(slab.shard(x), torch.zeros(3, 2, 11, 3), slab=slab)
    with pytest.raises(ArgumentError, match="argument `slab`"):
        conv2d(slab.shard(x), w, slab=Slab(10, mode=2))
    with pytest.raises(ArgumentTypeError, match="argument `slab`"):
        conv2d(slab.shard(x), w, slab=10)
    with pytest.raises(ArgumentTypeError, match="real numbers"):
        conv2d(slab.shard(x).cfloat(), w.cfloat(), slab=slab)
    with pytest.raises(ArgumentError, match="argument `input`"):
        conv2d(slab.shard(x)[0], w, slab=slab)
    for bounds in ((0, 10), (0, 5, 4, 10), (1, 2, 3, 10), (0, 2, 4, 9)):
        with pytest.raises(ArgumentError, match="argument `bounds`"):
            Slab(10, bounds=bounds)
    with pytest.raises(ArgumentError, match="argument `tensor`"):
        slab.shard(torch.zeros(1, 1, 9))
    with pytest.raises(ArgumentError, match="argument `mode`"):
        Slab(4, mode=-1)
    with pytest.raises(ArgumentTypeError, match="argument `extent`"):
        Slab(4.5)


CHECKS = {
    check.__name__: check
    for check in (
        all_cases,
        a_part_of_the_processes,
        layers,
        a_halo_by_itself,
        some_gradients_only,
        autocast,
        no_second_derivative,
        errors,
    )
}
