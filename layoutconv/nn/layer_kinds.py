"""Convolution modules as quantisation sees them: their inputs, weights and results, by kind."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from ..errors import ArgumentError, ArgumentTypeError
from ..ops.autocast import LOWERED
from ..ops.epilogue_args import EpilogueArgs
from ..sparse import SparseTensor
from .fused_modules import MAPS
from .given_maps import check_cells_of_map, check_map
from .modules import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .padded_norm import is_hooked
from .sparse import convolved, placed
from .sparse_modules import InverseOf, SparseConvolution


class ModuleCall:
    """The arguments of a call of a module: its input, a residual, and the others."""

    def __init__(self, input: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.input, self.arguments, self.named = input, arguments, dict(named)
        self.residual = self.named.pop("residual", None)


class LayerKind:
    """The convolution modules of one kind; stateless."""

    def takes(self, module: Any) -> bool:
        """Return whether a module is of this kind."""
        raise NotImplementedError

    def why_not(self, module: Any) -> str | None:
        """Return why a module of this kind cannot be quantised; None if it can."""
        if is_hooked(module):
            return "it has hooks"
        if is_parametrized(module):
            return "it is parametrized"
        if module.weight.dtype not in LOWERED:
            return f"its weight is {module.weight.dtype}"
        if module.groups == module.in_channels > 1:
            return "depthwise layers are of no 8 bits"
        return None

    def swapped(self, base: type) -> Any:
        """Return the class that replaces a module: ``base`` or a subclass of it."""
        return base

    def folds(self, module: Any) -> bool:
        """Return whether a module can absorb a batch norm that follows it."""
        return True

    def call(self, input: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> ModuleCall:
        """Return the call of a module with these arguments."""
        return ModuleCall(input, arguments, named)

    def by_output(self, module: Any, weight: Tensor) -> Tensor:
        """Return a weight as (K, numbers of one output channel)."""
        return weight.flatten(1)

    def like_weight(self, module: Any, numbers: Tensor) -> Tensor:
        """Return (K,) numbers in a shape that is broadcast to the weight."""
        return numbers.view(-1, *[1] * (len(module.kernel_size) + 1))

    def features(self, module: Any, input: Any) -> Tensor:
        """Return the features of an input, which a module convolves.

        Raises :class:`~layoutconv.errors.ArgumentError` that names ``input``.
        """
        raise NotImplementedError

    def made(self, result: Any) -> Tensor:
        """Return the features of a module's result."""
        return result.features  # type: ignore[no-any-return]

    def with_features(self, input: Any, features: Tensor) -> Any:
        """Return an input with other features."""
        raise NotImplementedError

    def convolve(
        self, module: Any, x: Tensor, weight: Tensor, ending: EpilogueArgs, call: ModuleCall
    ) -> Any:
        """Compute a call with other features, another weight and this epilogue."""
        raise NotImplementedError


class SparseLayers(LayerKind):
    """Modules of :mod:`~layoutconv.nn.sparse_modules`."""

    def takes(self, module: Any) -> bool:
        return isinstance(module, SparseConvolution)

    def why_not(self, module: Any) -> str | None:
        if type(module).forward not in MAPS:
            return f"{type(module).__name__} overrides forward"
        return super().why_not(module)

    def features(self, module: Any, input: Any) -> Tensor:
        if not isinstance(input, SparseTensor):
            raise ArgumentTypeError("input", "a SparseTensor", type(input).__name__)
        return input.features

    def with_features(self, input: Any, features: Tensor) -> Any:
        return input.replace(features)

    def convolve(
        self, module: Any, x: Tensor, weight: Tensor, ending: EpilogueArgs, call: ModuleCall
    ) -> Any:
        input, named = call.input, call.named
        found = self._map(module, input, named.get("kernel_map"), named, call.arguments)
        outputs, past = found.outputs, call.residual
        if isinstance(past, SparseTensor) and past.coordinates.cells is not outputs.cells:
            expected = "features, or a tensor on the coordinates of the result"
            raise ArgumentError("residual", expected, past.coordinates)
        return placed(input, outputs, convolved(x, weight, found, module.groups, ending))

    @staticmethod
    def _map(module: Any, input: Any, given: Any, named: Any, more: Any) -> Any:
        if given is not None:
            found = check_map(given)
            found = found.inverse if isinstance(module, InverseOf) else found
            check_cells_of_map("input", input, found.inputs, "inputs")
            return found
        cells = {name: value for name, value in named.items() if name != "kernel_map"}
        found_or_none = MAPS[type(module).forward](module, input, *more, **cells)
        if found_or_none is None:
            expected = (
                "a tensor whose coordinates a strided convolution made, to invert its kernel map"
            )
            raise ArgumentError("input", expected, repr(input))
        return found_or_none


class DenseLayers(LayerKind):
    """Modules of :mod:`~layoutconv.nn.modules`, except transposed ones."""

    kinds: ClassVar[tuple[Any, ...]] = (Conv1d, Conv2d, Conv3d)

    def takes(self, module: Any) -> bool:
        return isinstance(module, self.kinds)

    def why_not(self, module: Any) -> str | None:
        if type(module).forward is not self.kinds[0].forward:
            return f"{type(module).__name__} overrides forward"
        if module.padding_mode != "zeros":
            return f"its padding_mode is {module.padding_mode!r}"
        return super().why_not(module)

    def features(self, module: Any, input: Any) -> Tensor:
        if not isinstance(input, torch.Tensor):
            raise ArgumentTypeError("input", "a torch tensor", type(input).__name__)
        return input

    def made(self, result: Any) -> Tensor:
        return result  # type: ignore[no-any-return]

    def with_features(self, input: Any, features: Tensor) -> Any:
        return features

    def convolve(
        self, module: Any, x: Tensor, weight: Tensor, ending: EpilogueArgs, call: ModuleCall
    ) -> Any:
        if call.arguments or call.named:
            raise TypeError(f"{type(module).__name__} takes only its input")
        bias, scale, _, activation, slope, out_dtype = ending
        return module._function(
            x, weight, bias, module.stride, module.padding, module.dilation, module.groups,
            scale=scale, activation=activation, slope=slope, out_dtype=out_dtype,
        )  # fmt: skip


class TransposedLayers(DenseLayers):
    """Transposed modules of :mod:`~layoutconv.nn.modules`, whose weight is (C, K / groups, ...)."""

    kinds = (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)

    def by_output(self, module: Any, weight: Tensor) -> Tensor:
        split = weight.unflatten(0, (module.groups, -1)).transpose(1, 2)  # (g, K / g, C / g, ...)
        return split.flatten(0, 1).flatten(1)

    def like_weight(self, module: Any, numbers: Tensor) -> Tensor:
        inputs, taps = module.in_channels // module.groups, [1] * len(module.kernel_size)
        by_group = numbers.view(module.groups, 1, -1, *taps)
        return by_group.expand(-1, inputs, *[-1] * (len(taps) + 1)).flatten(0, 1)

    def convolve(
        self, module: Any, x: Tensor, weight: Tensor, ending: EpilogueArgs, call: ModuleCall
    ) -> Any:
        bias, scale, _, activation, slope, out_dtype = ending
        sizes = module.stride, module.padding, module.kernel_size
        extra = module._output_padding(
            x, *(call.arguments or (call.named.get("output_size"),)), *sizes,
            len(module.kernel_size), module.dilation,
        )  # fmt: skip
        return module._function(
            x, weight, bias, module.stride, module.padding, tuple(extra), module.groups,
            module.dilation, scale=scale, activation=activation, slope=slope, out_dtype=out_dtype,
        )  # fmt: skip


# The first kind that takes a module owns it. A package above adds its own kinds.
LAYER_KINDS: list[LayerKind] = [SparseLayers(), DenseLayers(), TransposedLayers()]


def kind_of_layer(module: Any) -> LayerKind | None:
    """Return the kind of a module; None if it is no convolution of this package.

    >>> kind_of_layer(torch.nn.ReLU()) is None, type(kind_of_layer(Conv1d(2, 2, 3))).__name__
    (True, 'DenseLayers')
    """
    return next((home for home in LAYER_KINDS if home.takes(module)), None)
