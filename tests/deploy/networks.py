"""Networks that tests pack: small, with each kind of layer that asks for a kernel of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import layoutconv as lc

HALF = torch.float16
ROWS = torch.export.Dim("rows", min=2, max=100_000)
IMAGES = torch.export.Dim("images", min=1, max=64)


class Dense(torch.nn.Module):
    """A packed stem, a depthwise layer, sums that are cut into slices, a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = lc.nn.Conv2d(3, 16, 7, stride=2, padding=3, activation="relu")
        self.depthwise = lc.nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.deep = lc.nn.Conv2d(16, 512, 3, stride=2, padding=1)
        self.deeper = lc.nn.Conv2d(512, 64, 3, padding=1, bias=False)
        self.up = lc.nn.ConvTranspose2d(64, 16, 2, stride=2)
        self.head = torch.nn.Linear(16, 5)

    def forward(self, image: Tensor) -> dict[str, Any]:
        fine = self.depthwise(self.stem(image))
        coarse = self.up(torch.relu(self.deeper(self.deep(fine))))
        return {"logits": self.head(coarse.mean((2, 3))), "maps": (fine, [coarse])}


class Sparse(torch.nn.Module):
    """Submanifold, strided and inverse layers, over maps that a call makes of its cells."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = lc.nn.SubmConv2d(4, 8, 3, activation="relu")
        self.down = lc.nn.SparseConv2d(8, 16, 3, stride=2, padding=1)
        self.back = lc.nn.SparseInverseConv2d(16, 8, 3)

    def forward(self, features: Tensor, cells: Tensor) -> Tensor:
        x = lc.SparseTensor(features, cells, (32, 32), batch_size=1)
        return self.back(self.down(self.stem(x))).features


def dense(seed: int = 0) -> tuple[Dense, Tensor]:
    """A network in half precision, and two images for it."""
    torch.manual_seed(seed)
    image = torch.randn(2, 3, 32, 32, dtype=HALF).to(memory_format=torch.channels_last)
    return Dense().eval().to(HALF), image


def sparse(seed: int = 0) -> Sparse:
    torch.manual_seed(seed)
    return Sparse().eval()


def cloud(count: int) -> tuple[Tensor, Tensor]:
    """Features and cells of a plane of 32 x 32."""
    places = torch.randperm(32 * 32)[:count]
    return torch.randn(count, 4), torch.stack([0 * places, places // 32, places % 32], 1).int()


def equal(a: Any, b: Any) -> bool:
    """Return whether results are the same in every bit, in the same tuples, lists and dicts."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if type(a) is not type(b) or len(a) != len(b):
        return False
    pairs = (
        zip(a.values(), b.values(), strict=True) if isinstance(a, dict) else zip(a, b, strict=True)
    )
    return all(equal(x, y) for x, y in pairs)


def on_cpu(results: Any) -> Any:
    """Results with their tensors on the CPU."""
    if isinstance(results, Tensor):
        return results.cpu()
    if isinstance(results, dict):
        return {name: on_cpu(each) for name, each in results.items()}
    return type(results)(map(on_cpu, results))
