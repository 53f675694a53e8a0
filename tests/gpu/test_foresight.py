"""Maps of eager networks on a GPU, made together once two clouds came to the same."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

import layoutconv as lc
from layoutconv.sparse import Coordinates, SparseTensor
from layoutconv.sparse.maps.foresight import AskedMaps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

SHAPE = (21, 64, 70)
NO_LEVEL = 99


def cloud(seed: int, rows: int = 3000) -> SparseTensor:
    random = torch.Generator().manual_seed(seed)
    cells = torch.cat([
        torch.randint(extent, (rows, 1), generator=random) for extent in (2, *SHAPE)
    ], 1).unique(dim=0).int()  # fmt: skip
    features = torch.randn(len(cells), 8, generator=random)
    return SparseTensor(features.half().cuda(), Coordinates(cells.cuda(), SHAPE, 2))


class Net(nn.Module):
    """Three levels; between them filters as large as their strides, or of detectors."""

    def __init__(self, size: int, padding: int) -> None:
        super().__init__()
        down = {"kernel_size": size, "stride": 2, "padding": padding}
        self.blocks = nn.ModuleList(lc.nn.SubmConv3d(8, 8, 3) for _ in range(3))
        self.downs = nn.ModuleList(lc.nn.SparseConv3d(8, 8, **down) for _ in range(2))

    def forward(self, x: SparseTensor) -> SparseTensor:
        for block, down in zip(self.blocks, self.downs, strict=False):
            x = down(block(x))
        return self.blocks[-1](x)  # type: ignore[no-any-return]


def levels_made(x: SparseTensor) -> int:
    """The number of levels whose maps there are."""
    known, count = x.coordinates._known, 1
    while known is not None:
        known = next((made for _, _, made in known.made.values() if made is not None), None)
        count += known is not None
    return count


@pytest.mark.parametrize(("size", "padding"), [(2, 0), (3, 1)])
@pytest.mark.parametrize("training", [False, True])
def test_the_third_cloud_has_its_maps_together(size: int, padding: int, training: bool) -> None:
    lc.clear_caches()  # and with them what clouds before came to
    torch.manual_seed(0)
    net = Net(size, padding).cuda().half().train(training)

    def call(x: SparseTensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        with torch.set_grad_enabled(training):
            found: torch.Tensor = net(x).features
        loss, wanted = (found.float() ** 2).sum(), list(net.parameters())
        return found.detach(), [*torch.autograd.grad(loss, wanted)] if training else []

    lc.precompile(call, cloud(99))
    for seed in range(6):
        rows = 3000 - 100 * seed
        x = cloud(seed, rows)
        with torch.set_grad_enabled(training):
            net.blocks[0](x)
        assert levels_made(x) == (3 if seed > 1 else 1)
        found, gradients = call(x)
        expected, of_apart = call(apart(cloud(seed, rows)))
        assert torch.equal(found, expected)
        assert all(map(torch.equal, gradients, of_apart))


def apart(x: SparseTensor) -> SparseTensor:
    """A cloud of which nothing is foreseen."""
    x.coordinates._known.run = AskedMaps(), NO_LEVEL
    return x


def test_kernels_are_compiled_meanwhile() -> None:
    net = Net(2, 0).cuda().half().eval()
    with torch.no_grad():
        for seed in range(3):
            net(cloud(seed))
        for seed in range(600):
            x = cloud(seed)
            net.blocks[0](x)
            if levels_made(x) == 3:
                return
            net(x)
            time.sleep(0.1)
    pytest.fail("nothing was foreseen within a minute")
