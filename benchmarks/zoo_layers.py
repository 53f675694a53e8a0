"""Layers of real networks, from a file that lists them: families, halves, samples, and rows.

The file is JSON with ``models`` and ``layers``. A layer has an ``id``, its numbers as torch has
them (``kind``, ``C``, ``K``, ``in``, ``taps``, ``stride``, ``padding``, ``dilation``, ``groups``,
``output_padding``, ``bias``), ``N`` at the training batch and at batch 1, and ``uses``: the models
that have it, how often a forward pass calls it, and with what share of the model's flop.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from random import Random
from typing import Any

from dense_workloads import PASSES

from layoutconv.conv import ConvProblem

BATCHES = ("training", "1")
FEW = 5  # input channels
HEADS = 4  # output channels
FEW_ROWS = 8192  # voxels of all images: some waves of tiles at most
SAME = 0.03  # how far extents may be from those of a network's input, which some layers pad


@dataclass(frozen=True)
class Layer:
    """A convolution of some networks.

    Attributes:
        batches: N at the training batch and at batch 1.
        calls: calls in a forward pass of each model that has it; the model with the largest share
            of flop comes first.
        first: it reads the input of the networks, and no gradient of that is asked for.
    """

    id: int
    transposed: bool
    batches: tuple[int, int]
    C: int
    K: int
    extents: tuple[int, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    output_padding: tuple[int, ...]
    bias: bool
    out: tuple[int, ...]
    core: bool
    calls: tuple[tuple[str, int], ...]
    first: bool

    def problem(self, N: int) -> ConvProblem:
        """The convolution; of a transposed one, that whose gradient it is."""
        sides = self.stride, self.padding
        if self.transposed:
            return ConvProblem.transposed(
                (N, *self.extents, self.C), (self.K // self.groups, *self.taps),
                *sides, self.output_padding, self.dilation, self.groups,
            )  # fmt: skip
        x, w = (N, *self.extents, self.C), (self.K, *self.taps)
        return ConvProblem(x, w, *sides, self.dilation, self.groups)

    @property
    def passes(self) -> tuple[str, ...]:
        """Passes that training runs."""
        return tuple(name for name in PASSES if not (self.first and name == "dgrad"))

    @property
    def family(self) -> str:
        """The first of ``FAMILIES`` that it is of."""
        return next(name for name, belongs in FAMILIES.items() if belongs(self))

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.calls)

    @property
    def fitted(self) -> bool:
        """True if a model of it is of the half that the cost model is fitted on."""
        return any(is_fitted(model) for model in self.models)

    def __str__(self) -> str:
        """As in ``64x56x56x64 -> 256 1x1``, and what is not the default."""
        size = "x".join(map(str, (self.batches[0], *self.extents, self.C)))
        words = [f"{size} -> {self.K}", "x".join(map(str, self.taps))]
        for letter, numbers in (("s", self.stride), ("d", self.dilation)):
            if set(numbers) != {1}:
                words.append(letter + "x".join(map(str, sorted(set(numbers)))))
        words += [f"g{self.groups}"] if self.groups > 1 else []
        return " ".join(words + ["transposed"] * self.transposed)


def is_fitted(model: str) -> bool:
    """Return whether a model is of the half that is fitted on; the other half judges.

    It depends on the model's name alone, so that a new model moves no other.
    """
    return hashlib.sha256(model.encode()).digest()[0] % 2 == 0


def _unequal(numbers: Sequence[int]) -> bool:
    return len(set(numbers)) > 1


FAMILIES: dict[str, Callable[[Layer], bool]] = {
    "transposed": lambda x: x.transposed,
    "depthwise": lambda x: x.groups == x.C > 1,
    "grouped": lambda x: x.groups > 1,
    "few outputs": lambda x: x.K <= HEADS,
    "few inputs": lambda x: x.C <= FEW,
    "1-D": lambda x: len(x.extents) == 1,
    "odd channels": lambda x: x.C % 8 > 0 or x.K % 8 > 0,
    "1x1, few pixels": lambda x: prod(x.taps) == 1 and x.batches[0] * prod(x.out) <= FEW_ROWS,
    "1x1": lambda x: prod(x.taps) == 1,
    "asymmetric": lambda x: _unequal(x.taps),
    "dilated": lambda x: max(x.dilation) > 1,
    "strided": lambda x: max(x.stride) > 1,
    "channels not of 64": lambda x: x.C % 64 > 0 or x.K % 64 > 0,
    "2-D, few pixels": lambda x: len(x.out) == 2 and x.batches[0] * prod(x.out) <= FEW_ROWS,
    "2-D": lambda x: len(x.out) == 2,
    "3-D": lambda x: True,
}


def read(file: Path) -> list[Layer]:
    """Return the layers of a file, in its order; ``ValueError`` for one that is none."""
    try:
        content = json.loads(file.read_text("utf-8"))
        inputs = {name: model["input"] for name, model in content["models"].items()}
        return [_layer(raw, inputs) for raw in content["layers"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        wrong = f"{type(error).__name__}: {error}"
        raise ValueError(f"{file}: expected JSON with models and layers, got {wrong}") from error


def _layer(raw: dict[str, Any], inputs: dict[str, Sequence[int]]) -> Layer:
    calls = tuple((use[0], use[3]) for use in raw["uses"])
    numbers = {n: tuple(raw[n]) for n in ("taps", "stride", "padding", "dilation", "out")}
    transposed = raw["kind"] == "transposed"
    reads = all(reads_input(raw["C"], raw["in"], inputs[model]) for model, _ in calls)
    extra = tuple(raw.get("output_padding") or [0] * len(raw["in"]))
    return Layer(
        raw["id"], transposed, (raw["N"][0], raw["N"][1]), raw["C"], raw["K"],
        tuple(raw["in"]), groups=raw["groups"], output_padding=extra, bias=raw["bias"],
        core=raw["core"], calls=calls, first=reads and not transposed, **numbers,
    )  # fmt: skip


def reads_input(channels: int, extents: Sequence[int], sample: Sequence[int]) -> bool:
    """Return whether a layer reads a network's input of one ``sample``, channels first.

    It has the channels of the input, images or colours that need no gradient, and its last two
    extents, or almost: some networks pad by themselves, and others fold frames into the batch or
    take them in chunks. Maps of features, which another network made, are no input: 64 channels
    and more.

    >>> video = (3, 17, 480, 832)
    >>> reads_input(3, (6, 482, 834), video), reads_input(64, (248, 216), (64, 248, 216))
    (True, False)
    """
    if len(sample) <= len(extents):  # of one channel that is not said
        sample = (1, *sample)
    most, tail = 16, tuple(sample[1:])[-2:]
    pairs = zip(reversed(tuple(extents)), reversed(tail), strict=False)
    near = all(abs(extent - there) <= SAME * there for extent, there in pairs)
    return near and channels == sample[0] and channels < most


@dataclass(frozen=True)
class ZooJob:
    """A row: a pass of a layer at a batch, "training" or "1", in a type."""

    layer: Layer
    kind: str
    dtype: str
    batch: str = "training"

    @property
    def N(self) -> int:
        return self.layer.batches[BATCHES.index(self.batch)]

    @property
    def name(self) -> str:
        """The key of a line of results, by which a run that goes on finds it."""
        return f"{self.layer.id} {self.kind} {self.dtype} {self.batch}"

    @property
    def flop(self) -> float:
        """Two per product, padding counted."""
        problem = self.layer.problem(self.N)
        return 2.0 * prod(problem.output) * prod(problem.taps) * problem.C / problem.groups

    @property
    def elements(self) -> int:
        """Elements of the input, the filter and the output: the least that has to move."""
        problem = self.layer.problem(self.N)
        return sum(map(prod, (problem.activation, problem.stored_filter, problem.output)))


def sample(layers: Sequence[Layer], count: int, seed: int = 0) -> list[Layer]:
    """Return about ``count`` layers, as many of each family as its share, one of each at least.

    They come family by family in turns, so that what a run has measured when its time is up is of
    all of them. All layers, in such an order, are what ``count`` 0 gives.

    >>> sample([], 60)
    []
    """
    families: dict[str, list[Layer]] = defaultdict(list)
    for layer in layers:
        families[layer.family].append(layer)
    random, some = Random(seed), []
    for name in FAMILIES:
        members = families.get(name, [])
        random.shuffle(members)
        most = max(1, round(count * len(members) / len(layers))) if count and layers else None
        some.append(members[:most])
    # A family's layers are spread over the run evenly, whatever their number.
    places = [
        ((at + 0.5) / len(part), i, x) for i, part in enumerate(some) for at, x in enumerate(part)
    ]
    return [layer for _, _, layer in sorted(places, key=lambda place: place[:2])]


def zoo_jobs(
    layers: Iterable[Layer], passes: Sequence[str], dtype: str, batches: Sequence[str]
) -> list[ZooJob]:
    """The rows of a part of a run: one type; a layer whose two batches are equal is one row."""
    rows = []
    for layer in layers:
        for at, batch in enumerate(batches):
            if at and layer.batches[0] == layer.batches[1]:
                continue
            rows += [ZooJob(layer, p, dtype, batch) for p in layer.passes if p in passes]
    return rows
