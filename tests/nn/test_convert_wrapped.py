"""Networks that are converted before or after torch's wrappers for several processes."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import layoutconv as lc

if not dist.is_available():
    pytest.skip("torch without distributed", allow_module_level=True)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(4, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)
    return torch.nn.Sequential(*layers).double()


def gradients(net: torch.nn.Module) -> list[Any]:
    x = torch.randn(2, 4, 7, 6, generator=torch.Generator().manual_seed(1)).double()
    for _ in range(2):  # the wrapper rebuilds its buckets after the first
        net.zero_grad()
        net(x).square().sum().backward()
    return [parameter.grad for parameter in net.parameters()]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("views", [False, True])
def test_gradients_of_a_wrapped_network_are_right_or_its_conversion_is_refused(views: bool) -> None:
    expected = gradients(network())

    def wrapped(net: torch.nn.Module) -> torch.nn.Module:
        return torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=views)

    before, after = wrapped(lc.nn.convert(network())), wrapped(network())
    for change, net in ((lc.nn.convert, after), (lc.nn.revert, before)):
        torch.testing.assert_close(gradients(deepcopy(net)), expected)
        if not views:
            with pytest.raises(ValueError, match=r"`module`: .* before DistributedDataParallel"):
                change(torch.nn.Sequential(net))
        else:
            change(net)
        torch.testing.assert_close(gradients(net), expected)
    lc.nn.convert(wrapped(lc.nn.convert(network())))  # there is nothing left to move
    lc.nn.fuse_batch_norms(after)


@pytest.mark.usefixtures("group")
def test_a_sharded_network_is_converted_before_it_is_sharded() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    options: Any = {"device_id": torch.device("cpu"), "use_orig_params": True}
    whole = FullyShardedDataParallel(network(), **options)
    with pytest.raises(ValueError, match=r"`module`: .* before FullyShardedDataParallel"):
        lc.nn.convert(whole)
    x = torch.randn(2, 4, 7, 6).double()
    ours = FullyShardedDataParallel(lc.nn.convert(network()), **options)
    torch.testing.assert_close(ours(x), network()(x))
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    contiguous = lc.nn.convert(network()).to(memory_format=torch.contiguous_format)
    sharded = fully_shard(contiguous, mesh=mesh)
    found = [gradient.full_tensor() for gradient in gradients(sharded)]
    torch.testing.assert_close(found, gradients(network()))


def test_weights_that_no_wrapper_knows_are_moved() -> None:
    net = lc.nn.convert(torch.nn.DataParallel(network()))
    torch.testing.assert_close(gradients(net), gradients(network()))
