"""A sparse residual U-Net by the names of three libraries: ours, spconv's, and torch's alone.

The network is like the MinkUNet-34 of Choy, Gwak and Savarese (2019). It is written once, over
*names* that say what a layer is: ``Ours`` as a user who wants speed writes it, ``Theirs`` the same
with spconv, ``Exact`` in nothing but gathers and matrix products of torch, on kernel maps that a
CPU made, to compare both with. The weights of one fit the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from bench_sparse import Cloud
from roofs import Roof
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.sparse import Coordinates, SparseTensor, strided_map, submanifold_map

CHANNELS = 4  # of a point: x, y, z and intensity
CLASSES = 20
WIDTHS = (32, 64, 128, 256, 256)  # of the stem, and of each level down
WIDTHS_UP = (256, 128, 96, 96)
BLOCKS, BLOCKS_UP = (2, 3, 4, 6), (2, 2, 2, 2)  # residual blocks of each level


class Ours:
    """Layers and tensors by the names of ``lc.nn``."""

    Sequential = lc.nn.Sequential

    def layer(self, kind: str, C: int, K: int, level: int, relu: bool) -> list[nn.Module]:
        conv = {
            "subm": lambda: lc.nn.SubmConv3d(C, K, 3, bias=False),
            "down": lambda: lc.nn.SparseConv3d(C, K, 2, stride=2, bias=False),
            "up": lambda: lc.nn.SparseInverseConv3d(C, K, 2, bias=False),
        }[kind]()
        return [conv, nn.BatchNorm1d(K), *([nn.ReLU()] if relu else [])]

    def residual(self, body: nn.Module, past: nn.Module | None) -> nn.Module:
        return lc.nn.Residual(body, past)

    def down(self, layers: Any, x: SparseTensor, capacity: int | None) -> Any:
        if capacity is None:
            return layers(x)
        conv, *rest = layers
        return lc.nn.Sequential(*rest)(conv(x, capacity=capacity))

    def tensor(self, cloud: Cloud, features: Tensor) -> SparseTensor:
        return SparseTensor(features, cloud.coordinates())

    def replace(self, x: Any, features: Tensor) -> Any:
        return x.replace(features)


class Theirs:
    """The same by the names of spconv.

    ``folded``: batch norms are in the weights, and ReLUs are those of spconv's kernels.
    """

    def __init__(self, spconv: Any, folded: bool = False) -> None:
        self.spconv, self.folded = spconv, folded

    def Sequential(self, *layers: nn.Module) -> nn.Module:
        numbered = OrderedDict((str(i), layer) for i, layer in enumerate(layers))
        if self.folded:  # the numbers stay
            numbered = OrderedDict(
                (i, m) for i, m in numbered.items() if type(m) is not nn.Identity
            )
        return self.spconv.SparseSequential(numbered)

    def layer(self, kind: str, C: int, K: int, level: int, relu: bool) -> list[nn.Module]:
        key = f"subm{level}" if kind == "subm" else f"down{level}"
        options = {"bias": self.folded, "indice_key": key}
        if kind == "subm":
            conv = self.spconv.SubMConv3d(C, K, 3, **options)
        elif kind == "down":
            conv = self.spconv.SparseConv3d(C, K, 2, stride=2, **options)
        else:
            conv = self.spconv.SparseInverseConv3d(C, K, 2, **options)
        if not self.folded:
            return [conv, nn.BatchNorm1d(K), *([nn.ReLU()] if relu else [])]
        if relu:
            conv.act_type = type(conv.act_type).ReLU
        return [conv, nn.Identity(), *([nn.Identity()] if relu else [])]

    def residual(self, body: nn.Module, past: nn.Module | None) -> nn.Module:
        return _Sum(self, body, past)

    def down(self, layers: Any, x: Any, capacity: int | None) -> Any:
        assert capacity is None
        return layers(x)

    def tensor(self, cloud: Cloud, features: Tensor) -> Any:
        return self.spconv.SparseConvTensor(features, cloud.cells, list(cloud.shape), cloud.images)

    def replace(self, x: Any, features: Tensor) -> Any:
        return x.replace_feature(features)


class Exact:
    """The same in gathers and products of torch; differentiable, and counts what it comes to."""

    def __init__(self, cloud: Cloud) -> None:
        """Make the maps of all levels, on the CPU."""
        device, self.work = cloud.cells.device, Work()
        cells = Coordinates(cloud.cells.cpu(), cloud.shape, cloud.images)
        self.maps: dict[tuple[str, int], Tensor] = {}
        for level in range(len(BLOCKS) + 1):
            self.maps["subm", level] = submanifold_map(cells, 3).index.to(device)
            if level == len(BLOCKS):
                break
            down = strided_map(cells, 2, 2)
            self.maps["down", level] = down.index.to(device)
            self.maps["up", level] = down.inverse.index.to(device)
            cells = down.outputs
            self.work.rows.append(len(cells))

    def Sequential(self, *layers: nn.Module) -> nn.Module:
        return nn.Sequential(*layers)

    def layer(self, kind: str, C: int, K: int, level: int, relu: bool) -> list[nn.Module]:
        conv = _Products(self.maps[kind, level], C, K, 3 if kind == "subm" else 2, self.work)
        return [conv, nn.BatchNorm1d(K), *([nn.ReLU()] if relu else [])]

    def residual(self, body: nn.Module, past: nn.Module | None) -> nn.Module:
        return _Sum(self, body, past)

    def down(self, layers: Any, x: Any, capacity: int | None) -> Any:
        return layers(x)

    def tensor(self, cloud: Cloud, features: Tensor) -> Any:
        return _Features(features)

    def replace(self, x: Any, features: Tensor) -> Any:
        return _Features(features)


class _Features(Tensor):
    """A tensor that is its own features."""

    @staticmethod
    def __new__(cls, data: Tensor) -> Any:
        return data.as_subclass(cls)

    @property
    def features(self) -> Tensor:
        return self.as_subclass(Tensor)


class _Products(nn.Module):
    """A sparse convolution: for every tap, a gather, a product and a sum."""

    def __init__(self, index: Tensor, C: int, K: int, size: int, work: Work) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(K, size, size, size, C))
        self.index, self.work = index, work

    def forward(self, x: Tensor) -> Any:
        x, K = x.as_subclass(Tensor), len(self.weight)
        flat = self.weight.flatten(1, 3)
        y = x.new_zeros(len(self.index), K)
        for tap in range(flat.shape[1]):
            rows = (self.index[:, tap] >= 0).nonzero()[:, 0]
            sources = self.index[:, tap].index_select(0, rows).long()
            y.index_add_(0, rows, x.index_select(0, sources) @ flat[:, tap].T)
        pairs = int((self.index >= 0).sum())
        self.work.add(pairs, x.numel() + y.numel() + self.weight.numel(), flat[:, 0].numel())
        return _Features(y)


class _Sum(nn.Module):
    """A residual block of other libraries; ``lc.nn.Residual`` is ours."""

    def __init__(self, names: Any, body: nn.Module, past: nn.Module | None) -> None:
        super().__init__()
        self.names, self.body = names, body
        self.past = nn.Identity() if past is None else past

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        return self.names.replace(y, torch.relu_(y.features + self.past(x.features)))


class MinkUNet(nn.Module):
    """(rows, 4) to (rows, 20) at the same cells; ``width`` scales all channels, for tests."""

    def __init__(self, names: Any, width: float = 1.0) -> None:
        super().__init__()
        self.names = names
        widths = [max(1, int(C * width)) for C in WIDTHS]
        widths_up = [max(1, int(C * width)) for C in WIDTHS_UP]
        stem = (
            *names.layer("subm", CHANNELS, widths[0], 0, True),
            *names.layer("subm", widths[0], widths[0], 0, True),
        )
        self.stem = names.Sequential(*stem)
        self.down, self.encode = nn.ModuleList(), nn.ModuleList()
        for level, ((C, K), blocks) in enumerate(zip(pairwise(widths), BLOCKS, strict=True)):
            self.down.append(names.Sequential(*names.layer("down", C, C, level, True)))
            self.encode.append(_blocks(names, C, K, blocks, level + 1))
        self.up, self.decode = nn.ModuleList(), nn.ModuleList()
        C = widths[-1]
        for level, K, blocks in zip((3, 2, 1, 0), widths_up, BLOCKS_UP, strict=True):
            self.up.append(names.Sequential(*names.layer("up", C, K, level, True)))
            self.decode.append(_blocks(names, K + widths[level], K, blocks, level))
            C = K
        self.head = nn.Linear(C, CLASSES)

    def features(self, x: Any, capacities: Sequence[int] | None = None) -> Any:
        """The tensor before the last layer. ``capacities``: rows of the coarser levels, of ours."""
        x = self.stem(x)
        skips = []
        for level, (down, encode) in enumerate(zip(self.down, self.encode, strict=True)):
            skips.append(x)
            x = encode(self.names.down(down, x, capacities[level] if capacities else None))
        for up, decode in zip(self.up, self.decode, strict=True):
            y = up(x)
            joined = torch.cat([y.features, skips.pop().features], dim=1)
            x = decode(self.names.replace(y, joined))
        return x

    def forward(self, x: Any, capacities: Sequence[int] | None = None) -> Tensor:
        """Scores (rows, 20)."""
        return self.head(self.features(x, capacities).features)


def _blocks(names: Any, C: int, K: int, blocks: int, level: int) -> nn.Module:
    # Torch's own: spconv's gives features to modules that are not its.
    return nn.Sequential(*(_block(names, K if i else C, K, level) for i in range(blocks)))


def _block(names: Any, C: int, K: int, level: int) -> nn.Module:
    first = names.layer("subm", C, K, level, True)
    body = names.Sequential(*first, *names.layer("subm", K, K, level, False))
    if C == K:
        return names.residual(body, None)
    folded = getattr(names, "folded", False)
    norm = [] if folded else [nn.BatchNorm1d(K)]
    return names.residual(body, nn.Sequential(nn.Linear(C, K, bias=folded), *norm))


@dataclass
class Work:
    """Work of each convolution that ran: flop, elements moved beside the index, pairs of the
    index; and the rows of the coarser levels."""

    flop: list[float] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    pairs: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def add(self, pairs: int, numbers: int, products: int) -> None:
        self.flop.append(2.0 * pairs * products)
        self.numbers.append(numbers)
        self.pairs.append(pairs)

    def moved(self, size: int) -> list[float]:
        """Bytes, of elements of so many."""
        return [size * n + 4.0 * p for n, p in zip(self.numbers, self.pairs, strict=True)]

    def floor(self, roof: Roof | None, dtype: str, size: int) -> float | None:
        """Microseconds at least, one convolution after the other."""
        if roof is None:
            return None
        pairs = zip(self.flop, self.moved(size), strict=True)
        return sum(roof.floor(dtype, flop, moved) or 0.0 for flop, moved in pairs)


def network(names: Ours, width: float = 1.0, seed: int = 0) -> MinkUNet:
    """For inference, with weights that keep the size of what goes through, float32."""
    torch.manual_seed(seed)
    net = MinkUNet(names, width)
    # Of the taps of a filter, about so many are there.
    present = {lc.nn.SubmConv3d: 6, lc.nn.SparseConv3d: 2, lc.nn.SparseInverseConv3d: 1}
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, 0.0, 0.1)
        elif type(module) in present:
            assert isinstance(module.weight, Tensor)
            terms = present[type(module)] * module.weight.shape[-1]
            nn.init.normal_(module.weight, 0.0, (2 / terms) ** 0.5)
    # What blocks add is small: sums of 24 of them would be more than fp16 holds.
    for module in net.modules():
        if isinstance(module, lc.nn.Residual):
            *_, norm = module.body.children()
            nn.init.uniform_(norm.weight, 0.1, 0.3)  # type: ignore[arg-type]
    return net.eval().requires_grad_(False)
