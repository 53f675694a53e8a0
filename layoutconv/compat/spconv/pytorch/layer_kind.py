"""8-bit convolutions under spconv's names, and folding of their batch norms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....nn.layer_kinds import LAYER_KINDS, LayerKind, ModuleCall
from ....nn.quantization_aware import QuantizationAware
from ....nn.quantized_conv import QuantizedConv
from ....nn.sequences import SEQUENCES
from ....nn.sparse import convolved
from .conv import SparseConvolution
from .core import SparseConvTensor
from .modules import SparseModule, SparseSequential

if TYPE_CHECKING:
    from torch import Tensor

    from ....ops.epilogue_args import EpilogueArgs


class QuantizedSparseConv(QuantizedConv, SparseModule):
    """:class:`~layoutconv.nn.quantized_conv.QuantizedConv` to which containers pass sparse tensors.

    Its results are numbers: features of spconv's tensors are read by anybody.
    """


class QuantizationAwareSparseConv(QuantizationAware, SparseModule):
    """:class:`~layoutconv.nn.quantization_aware.QuantizationAware`, likewise."""


_SWAPPED = {QuantizedConv: QuantizedSparseConv, QuantizationAware: QuantizationAwareSparseConv}


class SpconvLayers(LayerKind):
    """Every sparse convolution under spconv's names, except those that are matrix products."""

    def takes(self, module: Any) -> bool:
        return isinstance(module, SparseConvolution)

    def why_not(self, module: Any) -> str | None:
        if type(module).forward is not SparseConvolution.forward:
            return f"{type(module).__name__} overrides forward"
        return "a product of matrices" if module.is_matrix else super().why_not(module)

    def folds(self, module: Any) -> bool:
        return not module.is_matrix

    def swapped(self, base: type) -> Any:
        return _SWAPPED[base]

    def call(self, input: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> ModuleCall:
        found = ModuleCall(input, (), named)
        past = arguments[0] if arguments else found.named.pop("add_input", None)
        found.residual = past.features if isinstance(past, SparseConvTensor) else past
        return found

    def features(self, module: Any, input: Any) -> Tensor:
        return module._features_of(input)  # type: ignore[no-any-return]

    def with_features(self, input: Any, features: Tensor) -> Any:
        return input.replace_feature(features)

    def convolve(
        self, module: Any, x: Tensor, weight: Tensor, ending: EpilogueArgs, call: ModuleCall
    ) -> Any:
        found, known, version = module._map_of(call.input)
        y = convolved(x, weight, found, module.groups, ending)
        return call.input.on(y, found.outputs, known, version)


LAYER_KINDS.append(SpconvLayers())
SEQUENCES.add(SparseSequential.forward)
