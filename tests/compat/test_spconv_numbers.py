"""Layers and networks against numbers that spconv's CPU wheel computed, where it is not installed.

``python -m tests.compat.test_spconv_numbers`` writes them anew, with spconv installed. Everything
that goes in comes from sines, and from no generator of random numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv.compat.spconv.pytorch as compat

from .networks import detector, unet
from .reference import Run, agreement, needs_spconv, one_run, reference

STORED = Path(__file__).with_suffix(".json")
CLOSE = 1e-10  # of float64, and sums in another order, through several batch norms
SHAPE, CHANNELS = [7, 8, 8], 3


def layer(kind: str, K: int, *args: Any, **of: Any) -> Callable[[Any], nn.Module]:
    return lambda spconv: getattr(spconv, kind)(CHANNELS, K, *args, **of)


def there_and_back(spconv: Any, taps: int) -> nn.Module:
    return spconv.SparseSequential(
        spconv.SparseConv3d(CHANNELS, 4, taps, stride=2, indice_key="down"),
        spconv.SparseInverseConv3d(4, 2, taps, indice_key="down"),
    )


CASES: dict[str, Callable[[Any], nn.Module]] = {
    "submanifold": layer("SubMConv3d", 4, 3),
    "submanifold, dilated": layer("SubMConv3d", 2, 3, dilation=2),
    "submanifold, one tap": layer("SubMConv3d", 4, 1),
    "submanifold, one tap, C == K": layer("SubMConv3d", CHANNELS, 1),
    "one tap": layer("SparseConv3d", 4, 1),
    "one tap, C == K": layer("SparseConv3d", CHANNELS, 1),
    "one tap, strided": layer("SparseConv3d", 4, 1, stride=2),
    "one tap, strided, C == K": layer("SparseConv3d", CHANNELS, 1, stride=2),
    "strided": layer("SparseConv3d", 4, 3, stride=2, padding=1),
    "transposed": layer("SparseConvTranspose3d", 2, 2, stride=2),
    "there and back": partial(there_and_back, taps=3),
    "there and back, one tap": partial(there_and_back, taps=1),
    "unet": unet,
    "detector": detector,
}
cases = pytest.mark.parametrize("name", CASES)
repeated = pytest.mark.parametrize("again", [0, 9])


def computed(spconv: Any, name: str, again: int) -> tuple[Run, dict[str, Any]]:
    """Return the run of a side on a cloud, and those of its numbers that are stored."""
    numbers = torch.arange(24, dtype=torch.int64)
    keys = torch.cat([numbers, numbers[:again] * 2]) * 19 % (2 * prod(SHAPE))
    columns = []
    for extent in (*SHAPE[::-1], 2):
        columns.append(keys % extent)
        keys = keys // extent
    indices = torch.stack(columns[::-1], dim=1).int()
    net = CASES[name](spconv).double()
    with torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.copy_(waves(parameter.shape, number) / 2)
    found = one_run(spconv, net, waves((len(indices), CHANNELS), 7), indices, SHAPE)
    tensors = {"outputs": found.outputs, "inputs": found.inputs, "weights": found.weights.values()}
    return found, {kind: [*map(by_row, of)] for kind, of in tensors.items()}


def by_row(tensor: Tensor) -> list[float]:
    """A number for each row, of all of it; 14 digits."""
    rows = tensor.flatten(1) if tensor.dim() > 1 else tensor[:, None]
    return [float(f"{number:.14g}") for number in (rows * waves(rows.shape[1:], 1)).sum(1).tolist()]


def waves(shape: Any, phase: int) -> Tensor:
    numbers = torch.arange(prod(shape), dtype=torch.float64)
    return torch.sin(numbers * 1.7 + phase).view(*shape)


def assert_stored(name: str, again: int, found: dict[str, Any]) -> None:
    wanted = json.loads(STORED.read_text())[f"{name}, {again} again"]
    assert list(found) == list(wanted)
    for kind, tensors in wanted.items():
        for ours, theirs in zip(found[kind], tensors, strict=True):
            close = {"rtol": CLOSE, "atol": CLOSE, "msg": lambda text, kind=kind: f"{kind}: {text}"}
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), **close)


@cases
@repeated
def test_ours_are_those_of_spconv(name: str, again: int) -> None:
    """Cells, values, and gradients of features and weights."""
    assert_stored(name, again, computed(compat, name, again)[1])


@cases
@repeated
@needs_spconv
def test_stored_numbers_are_those_of_spconv(name: str, again: int) -> None:
    theirs, numbers = computed(reference(), name, again)
    assert_stored(name, again, numbers)
    assert max(agreement(computed(compat, name, again)[0], theirs)) < CLOSE


if __name__ == "__main__":
    numbers = {
        f"{name}, {again} again": computed(reference(), name, again)[1]
        for name in CASES
        for again in (0, 9)
    }
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(of)}" for key, of in numbers.items())
    STORED.write_text(f"{{\n{lines}\n}}\n")
