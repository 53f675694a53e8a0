"""Ranks that disagree in a call, run by every rank: one error on all of them, and on they go."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

import layoutconv as lc
from layoutconv.distributed import Slab, mean_over_ranks, partition, restore
from layoutconv.errors import ArgumentError, ArgumentTypeError, RankError

from .cloud_checks import part_of, share, whole_cloud

conv2d = lc.distributed.conv2d


@contextmanager
def one_error(kind, text):
    """The same error on every rank; then ranks are where they were."""
    with pytest.raises(kind) as error:
        yield
    assert str(error.value) == text
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, str(error.value))
    assert set(every) == {text}
    agreed_again()


def agreed_again():
    slab = Slab(8)
    x = torch.arange(8.0 * 4).view(1, 1, 8, 4)
    y = conv2d(slab.shard(x), torch.ones(1, 1, 3, 3), padding=1, slab=slab)
    torch.testing.assert_close(slab.gather(y), lc.conv2d(x, torch.ones(1, 1, 3, 3), padding=1))


def call(rows=8, width=4, C=2, K=3, dtype=torch.float32, bias=True, extent=None, **options):
    x = torch.zeros(1, C, len(Slab(rows).rows), width, dtype=dtype)
    slab = Slab(rows if extent is None else extent)
    options = {"padding": 1, "slab": slab, **options}
    return conv2d(
        x,
        torch.zeros(K, C, 3, 3, dtype=dtype),
        torch.zeros(K, dtype=dtype) if bias else None,
        **options,
    )


def odd(value, other, rank=1):
    return other if dist.get_rank() == rank else value


def differs(argument, values):
    """An error about an argument that differs."""
    text = f"argument `{argument}`: expected the same on every rank, got {values}"
    return one_error(ArgumentError, text)


def other_slabs():
    first = "Slab(8, mode=0, bounds=(0, 3, 6, 8))"
    second = "Slab(10, mode=0, bounds=(0, 4, 7, 10))"
    with differs("slab", f"{first} on ranks 0 and 2, {second} on rank 1"):
        call(rows=odd(8, 10))
    second = "Slab(8, mode=0, bounds=(0, 3, 5, 8))"
    slab = Slab(8, bounds=odd((0, 3, 6, 8), (0, 3, 5, 8), rank=2))
    with differs("slab", f"{first} on ranks 0 and 1, {second} on rank 2"):
        slab.gather(slab.shard(torch.zeros(1, 1, 8)))


def other_arguments():
    kind = "float32 on cpu"
    there = "on ranks 0 and 2"
    for argument, values, options in [
        ("input", f"(1, 2, *, 4) {kind} {there}, (1, 2, *, 6) {kind}", {"width": odd(4, 6)}),
        ("weight", f"(3, 2, 3, 3) {kind} {there}, (4, 2, 3, 3) {kind}", {"K": odd(3, 4)}),
        ("bias", f"(3) {kind} {there}, None", {"bias": odd(True, False)}),
        ("stride", f"(1, 1) {there}, (2, 2)", {"stride": odd(1, 2)}),
        ("padding", f"((1, 1), (1, 1)) {there}, ((2, 2), (1, 1))", {"padding": odd(1, (2, 1))}),
        ("dilation", f"(1, 1) {there}, (1, 2)", {"dilation": odd(1, (1, 2))}),
    ]:
        with differs(argument, f"{values} on rank 1"):
            call(**options)
    with pytest.raises(ArgumentError, match=r"float64 on cpu on rank 1"):
        call(dtype=odd(torch.float32, torch.float64))
    slab = Slab(8)
    x = torch.zeros(1, 2, len(slab.rows), 4, requires_grad=odd(False, True))
    with pytest.raises(ArgumentError, match=r"`input`.* with a gradient on rank 1"):
        conv2d(x, torch.zeros(3, 2, 3, 3), slab=slab)


def what_one_rank_finds_wrong():
    """It raises what it found, and others what that was and where."""
    rank = dist.get_rank()
    for kind, options in [
        (ArgumentTypeError, {"slab": 8}),
        (ArgumentError, {"stride": -1}),
        (ArgumentError, {"groups": 5}),
        (ArgumentError, {"K": 0}),
        (ArgumentError, {"extent": 20}),
    ]:
        with pytest.raises(kind) as error:
            call(**(options if rank == 1 else {}))
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, str(error.value))
        assert every[0] == every[2] == every[1] + " on rank 1"
        agreed_again()
    with pytest.raises(AttributeError if rank == 1 else RankError) as error:
        mean_over_ranks(Broken(torch.ones(2)) if rank == 1 else torch.ones(2))
    if rank != 1:
        assert str(error.value) == "mean_over_ranks: rank 1 raised AttributeError: broken"
    agreed_again()


class Broken(torch.Tensor):
    """A tensor that does not say its dtype."""

    @property
    def dtype(self):
        raise AttributeError("broken")


def calls_that_were_warm():
    """Arguments that all ranks know already, but not those of one another."""
    for _ in range(3):
        call(width=4)
        call(width=6)
    text = "(1, 2, *, 4) float32 on cpu on ranks 0 and 2, (1, 2, *, 6) float32 on cpu on rank 1"
    with differs("input", text):
        call(width=odd(4, 6))
    for width in (odd(4, 5), odd(4, 6), odd(4, 5)):  # new to one of them, too
        with pytest.raises(ArgumentError, match="argument `input`"):
            call(width=width)


def other_calls():
    slab = Slab(8)
    x = slab.shard(torch.zeros(1, 2, 8, 4)).clone()
    text = "ranks of a group are in different calls: conv2d on ranks 0 and 2, Slab.gather on rank 1"
    with one_error(RankError, text):
        call() if dist.get_rank() != 1 else slab.gather(x)
    y = conv2d(x.requires_grad_(), torch.zeros(3, 2, 3, 3), slab=slab)
    with pytest.raises(
        RankError,
        match=r"backward of conv2d, call \d+ of the group on ranks 0 and 2, conv2d on rank 1",
    ):
        y.sum().backward() if dist.get_rank() != 1 else call()
    agreed_again()


def clouds():
    rank = dist.get_rank()
    x = whole_cloud()
    mine = part_of(x, share(len(x), "by turns"))
    first, second = partition(mine), partition(mine)
    weight = torch.ones(4, 3, 3, 3, 4, dtype=torch.float64)
    with pytest.raises(
        ArgumentError,
        match=r"argument `cloud`: expected the same on every rank, got partition, call \d+",
    ):
        lc.distributed.subm_conv(odd(first, second), weight)
    with pytest.raises(ArgumentError, match=r"argument `weight`.* on rank 1"):
        lc.distributed.subm_conv(first, odd(weight, weight[:2]))
    with pytest.raises(ArgumentError, match="argument `taps`"):
        lc.distributed.subm_conv(first, weight, dilation=odd(1, 2))
    with pytest.raises(ArgumentError, match=r"argument `input`: .* lc\.distributed\.partition"):
        restore(odd(first, mine))
    with pytest.raises(
        ArgumentError, match=r"as many channels.*4 channels, .* on ranks 0 and 2, 3 channels"
    ):
        partition(mine.replace(mine.features[:, : odd(4, 3)]))
    want = lc.distributed.subm_conv(first, weight).features
    if rank == 1:  # as after an error that one rank had while it looked for its neighbours
        first.coordinates.borders.clear()
    torch.testing.assert_close(lc.distributed.subm_conv(first, weight).features, want)


def a_warm_call_meets_once():
    """With 32 bytes for each rank, beside the halo: texts travel for errors alone."""
    call()
    sent, whole = [], dist.all_to_all_single

    def counting(received, given, *arguments, **options):
        sent.append((given.dtype, given.numel()))
        return whole(received, given, *arguments, **options)

    dist.all_to_all_single = counting
    try:
        call()
    finally:
        dist.all_to_all_single = whole
    met = [item for item in sent if item[0] == torch.int64]
    assert met == [(torch.int64, 4 * dist.get_world_size())]
    assert len(sent) == 2


def a_group_beside_that_of_all():
    """With it, nobody knows whom a call without a slab is for: it raises alone, and at once."""
    pair = dist.new_group([2, 0])
    if dist.get_rank() != 1:
        with pytest.raises(ArgumentTypeError, match="argument `slab`"):
            call(slab=None)
        slab = Slab(odd(8, 10, rank=2), group=pair)
        whole = torch.zeros(1, 1, slab.extent)
        with pytest.raises(ArgumentError, match=r"`slab`.* on rank 0, Slab\(10, .* on rank 1$"):
            slab.gather(slab.shard(whole))
    with pytest.raises(ArgumentTypeError, match="argument `slab`"):
        call(slab=None)
    agreed_again()


def a_rank_ends():
    """The last check: rank 1 leaves, in the middle of a program."""
    import os

    if dist.get_rank() == 1:
        os._exit(0)
    with pytest.raises(RankError, match="conv2d: another rank of the group has ended, or did not"):
        call()


CHECKS = {
    f"mismatch: {check.__name__}": check
    for check in (
        other_slabs,
        other_arguments,
        what_one_rank_finds_wrong,
        calls_that_were_warm,
        other_calls,
        clouds,
        a_warm_call_meets_once,
        a_group_beside_that_of_all,
        a_rank_ends,
    )
}
