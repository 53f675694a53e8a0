"""Calibration: observe inputs and results of a network's convolutions on sample batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..sparse import SparseTensor
from .layer_kinds import LayerKind
from .quantized_tensor import LazyTensor
from .sequences import is_sequence


class Seen:
    """Observations of a layer during calibration.

    Attributes:
        input_amax, output_amax: the largest magnitudes of its inputs and results.
        calls: the number of its calls.
        numbers: how many numbers it read.
        read_wide: whether anything but a quantisable layer read its results.
        readers: names of the layers that read its results.
    """

    def __init__(self) -> None:
        self.input_amax = self.output_amax = 0.0
        self.calls, self.numbers, self.read_wide = 0, 0, False
        self.readers: set[str] = set()


class _Watched(LazyTensor):
    """The result of a layer in calibration, which records who reads its features."""

    values: Tensor
    seen: Seen

    def __init__(self, like: SparseTensor, seen: Seen) -> None:
        super().__init__(like, values=like.features, seen=seen)

    def _read(self) -> Tensor:
        self.seen.read_wide = True
        return self.values


def call_of(module: torch.nn.Module, batch: Any) -> Any:
    """Call a network on a batch, which is one argument or a tuple of them."""
    return module(*batch) if isinstance(batch, tuple) else module(batch)


class Calibration:
    """A network in calibration; ``layers`` are those that may be quantised, by name.

    ``ends`` are the names of the layers with weights that were called first and last; ``others``
    (linear layers, say) count too.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        layers: dict[str, tuple[Any, LayerKind]],
        others: dict[str, Any],
    ) -> None:
        self.module, self.layers, self.others = module, layers, others
        self.seen = {name: Seen() for name in layers}
        self._first: str | None = None
        self._last: str | None = None
        self._made: dict[int, tuple[str, Any]] = {}  # dense results of a batch, by id
        self._fed: dict[str, set[str | None]] = {name: set() for name in layers}
        self._passes: dict[int, int] = {}  # calls of each sequence, by id

    @property
    def ends(self) -> tuple[str | None, str | None]:
        """The names of the first and the last layer called."""
        return self._first, self._last

    @torch.no_grad()
    def run(self, batches: Iterable[Any]) -> Any:
        """Run the network on all batches; returns the first one from which a layer read numbers.

        Raises :class:`~layoutconv.errors.ArgumentError` if there is no batch, and if a layer reads
        or returns a value that is not finite.
        """
        first: Any = None
        count = empty = 0
        with self._watching():
            for batch in batches:
                first = batch if count == empty else first
                self._made.clear()
                result = call_of(self.module, batch)
                for found in result if isinstance(result, tuple | list) else (result,):
                    if isinstance(found, _Watched):
                        found.seen.read_wide = True
                count += 1
                empty += not any(found.numbers for found in self.seen.values())
        if not count:
            raise ArgumentError("batches", "at least one batch to calibrate with", "none")
        return first

    @contextmanager
    def _watching(self) -> Iterator[None]:
        handles = []
        for name, (layer, home) in self.layers.items():
            before = partial(self._before, name, home)
            handles.append(layer.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(layer.register_forward_hook(partial(self._after, name, home)))
        for name, layer in self.others.items():
            handles.append(layer.register_forward_pre_hook(partial(self._met, name)))
        for part in filter(is_sequence, self.module.modules()):
            handles.append(part.register_forward_pre_hook(self._passed))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _met(self, name: str, *_: Any) -> None:
        self._first, self._last = self._first or name, name

    def _passed(self, sequence: torch.nn.Module, *_: Any) -> None:
        self._passes[id(sequence)] = self._passes.get(id(sequence), 0) + 1

    def _before(self, name: str, home: LayerKind, layer: Any, args: Any, named: Any) -> Any:
        self._met(name)
        input, *more = (self._opened(name, value) for value in args)
        named = {key: self._opened(name, value) for key, value in named.items()}
        seen = self.seen[name]
        features = home.features(layer, input)
        seen.calls += 1
        seen.numbers += features.numel()
        self._fed[name].add(self._made.get(id(input), (None,))[0])
        amax = _amax(name, "reads", features)
        seen.input_amax = max(seen.input_amax, amax)
        return (input, *more), named

    def _opened(self, name: str, value: Any) -> Any:
        """Unwrap a watched value, and record its reader."""
        if not isinstance(value, _Watched):
            return value
        value.seen.readers.add(name)
        return value.like

    def _after(self, name: str, home: LayerKind, layer: Any, args: Any, result: Any) -> Any:
        seen = self.seen[name]
        amax = _amax(name, "makes", home.made(result))
        seen.output_amax = max(seen.output_amax, amax)
        if isinstance(result, SparseTensor):
            return _Watched(result, seen)
        self._made[id(result)] = name, result  # keeps the result alive while its id is in use
        return result

    def follows(self, before: str, after: str, sequence: torch.nn.Module) -> bool:
        """Return whether ``after`` read only the unchanged results of ``before``, and the sequence
        that holds both called them.

        A network that called them one by one could read the result in between.
        """
        called = self._passes.get(id(sequence), 0) == self.seen[before].calls
        return called and self._fed[after] == {before}


def _amax(name: str, verb: str, features: Tensor) -> float:
    if not features.numel():
        return 0.0
    if features.is_meta:
        raise ArgumentError("batches", "tensors with values", f"`{name}` {verb} one on meta")
    found = float(features.abs().amax())
    if not found < torch.inf:
        raise ArgumentError("batches", "batches with finite features", f"`{name}` {verb} {found}")
    return found


def sqnr(want: Tensor, got: Tensor) -> float:
    """Return the ratio of signal to quantisation noise (SQNR) in dB.

    >>> round(sqnr(torch.tensor([10.0, 0.0]), torch.tensor([10.0, 1.0])), 3)
    20.0
    """
    want, error = want.double(), want.double() - got.double()
    power, noise = float(want.square().sum()), float(error.square().sum())
    if noise == 0.0:
        return torch.inf
    return float(10 * torch.tensor(power / noise).clamp(min=1e-30).log10())
