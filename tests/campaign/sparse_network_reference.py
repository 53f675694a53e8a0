"""Sparse networks by plain torch: taps over sorted keys, in whatever type the numbers have.

Parameters and norms are those of a copy of the network; what its sparse layers compute is summed
here tap by tap, by differentiable operations of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .sparse_network_source import path_of
from .sparse_networks import SparseNetwork
from .sparse_program import options_of
from .sparse_reference import Window, inverse, offsets_of

_FUNCTIONS = {"relu": functional.relu, "silu": functional.silu, "gelu": functional.gelu,
              "leaky_relu": functional.leaky_relu}  # fmt: skip
Maps = dict[tuple[int, int], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Rows:
    """Features at the cells of a level; of a head, rows of images, without cells."""

    features: Tensor
    cells: Tensor
    extents: tuple[int, ...]
    way_down: Tensor | None = None  # the map that made the level


class Reference:
    """A network on cells int64 (rows, 1 + rank) and features; its parameters are ``net``'s.

    ``maps`` keeps the maps of the clouds, one call after the other, for other runs on the same.
    """

    def __init__(self, net: Any, p: SparseNetwork, maps: Maps | None = None) -> None:
        self.net, self.p, self._levels = net, p, p.laid()[1]
        self._maps, self._calls = {} if maps is None else maps, 0

    def __call__(self, features: Tensor, cells: Tensor) -> Rows:
        self._calls += 1
        p = self.p
        values = [Rows(features, cells, p.extents)]
        level_rows = {0: values[0]}
        laid, _ = p.laid()
        for number, one in enumerate(p.program):
            made = self._step(number, [values[v] for v in one[1]], level_rows,
                              laid[one[1][0]].level)  # fmt: skip
            level = laid[number + 1].level
            level_rows.setdefault(level, made)
            values.append(made)
        return values[-1]

    def _module(self, number: int) -> Any:
        return self.net.get_submodule(path_of(self.p.program, number, self.p.packed))

    def _step(self, number: int, of: list[Rows], levels: dict[int, Rows], level: int) -> Rows:
        one = self.p.program[number]
        if one[0] == "shared":
            number, one = options_of(one)["at"], self.p.program[options_of(one)["at"]]
        op, o, x = one[0], options_of(one), of[0]
        if op == "act":
            return _with(x, _FUNCTIONS[o["kind"]](x.features))
        if op == "add":
            return _with(x, x.features + of[1].features)
        if op == "cat":
            return _with(x, torch.cat([x.features, of[1].features], 1))
        if op == "head":
            return _with(x, _pooled(x, self.p.images, o["kind"]))
        if op in ("norm", "linear"):
            return _with(x, _normed(self._module(number), x.features))
        if op == "subm":
            sizes = o["taps"], o["dilation"]
            return _with(x, self._subm(number, x, self._module(number), sizes, o["groups"]))
        if op == "residual":
            return _with(x, self._residual(number, x, self._module(number), o))
        if op == "inverse":
            fine = levels[self._levels[level].parent]
            way = levels[level].way_down
            assert way is not None
            (index,) = self._kept(number, lambda: (inverse(way, len(fine.cells)),))
            return _with(fine, _conv(index, x.features, self._module(number), 1))
        return self._other_cells(number, x)

    def _other_cells(self, number: int, x: Rows) -> Rows:
        """A strided layer, a transposed one, or a pool."""
        one = self.p.program[number]
        op, o = one[0], options_of(one)
        extents = next(level.extents for level in self._levels if level.made_by == number)
        dilation = o.get("dilation") or (1,) * self.p.rank
        window = Window(o["stride"], offsets_of(o["taps"], dilation, o["padding"]), op == "up")

        def found() -> tuple[Tensor, ...]:
            outputs = window.reached(x.cells, extents)
            return outputs, window.index(x.cells, x.extents, outputs)

        outputs, index = self._kept(number, found)
        if op == "pool":
            features = _windows(index, x.features, o["kind"])
        else:
            features = _conv(index, x.features, self._module(number), 1)
        return Rows(features, outputs, extents, index)

    def _residual(self, number: int, x: Rows, block: Any, o: dict[str, Any]) -> Tensor:
        if self.p.names == "lc":
            conv1, norm1, _, conv2, norm2 = block.body
            past = list(block.past) if o["K"] != x.features.shape[1] else []
        else:
            conv1, norm1, conv2, norm2 = block.conv1, block.norm1, block.conv2, block.norm2
            past = [block.past, block.norm3] if block.past is not None else []
        short = x.features
        for module in past:
            short = _normed(module, short)
        sizes = o["taps"], (1,) * self.p.rank
        y = functional.relu(_normed(norm1, self._subm(number, x, conv1, sizes, 1)))
        y = _normed(norm2, self._subm(number, _with(x, y), conv2, sizes, 1)) + short
        return functional.relu(y) if o["last"] else y

    def _subm(self, number: int, x: Rows, module: Any, sizes: Any, groups: int) -> Tensor:
        taps, dilation = sizes
        near = tuple(t // 2 * d for t, d in zip(taps, dilation, strict=True))
        window = Window((1,) * len(taps), offsets_of(taps, dilation, near))
        (index,) = self._kept(number, lambda: (window.index(x.cells, x.extents, x.cells),))
        matrix = self.p.names == "spconv" and index.shape[1] == 1
        return _conv(index, x.features, module, groups, matrix=matrix)

    def _kept(self, number: int, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return what a step needs of cells, from another run on the same cells, or made."""
        key = self._calls, number
        if key not in self._maps:
            self._maps[key] = make()
        return self._maps[key]


def _with(x: Rows, features: Tensor) -> Rows:
    return Rows(features, x.cells, x.extents, x.way_down)


def _normed(module: Any, features: Tensor) -> Tensor:
    """Return what torch's own batch norm or linear layer makes of rows."""
    result: Tensor = module(features)
    return result


def _conv(index: Tensor, x: Tensor, module: Any, groups: int, *, matrix: bool = False) -> Tensor:
    """The sum over taps of rows times filters (K, taps, C / groups).

    Of ``matrix``, a submanifold filter of one tap in spconv, the numbers are those of (C, K).
    """
    K, C = module.weight.shape[0], module.weight.shape[-1]
    w = module.weight
    w = w.reshape(C, K).T if matrix else w
    w = w.reshape(groups, K // groups, index.shape[1], C)
    rows = torch.cat([x, x.new_zeros(1, x.shape[1])])[index]  # -1 is the last one, of zeros
    read = rows.reshape(len(index), index.shape[1], groups, C)
    y = torch.einsum("rtgc,gktc->rgk", read, w).reshape(len(index), K)
    return y if module.bias is None else y + module.bias


def _windows(index: Tensor, x: Tensor, kind: str) -> Tensor:
    """The maximum or the mean of the rows that are there."""
    there = (index >= 0)[..., None]
    rows = torch.cat([x, x.new_zeros(1, x.shape[1])])[index]
    if kind == "max":
        return rows.masked_fill(~there, -torch.inf).amax(1) if len(rows) else rows.sum(1)
    return (rows * there).sum(1) / there.sum(1).clamp(min=1)


def _pooled(x: Rows, images: int, kind: str) -> Tensor:
    """A row to an image: of one without cells, zeros."""
    found = []
    for image in range(images):
        rows = x.features[x.cells[:, 0] == image]
        none = x.features.new_zeros(x.features.shape[1]) + x.features.sum() * 0
        found.append(none if not len(rows) else rows.amax(0) if kind == "max" else rows.mean(0))
    return torch.stack(found)
