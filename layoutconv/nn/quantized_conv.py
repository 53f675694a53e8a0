"""8-bit convolution: weights per output channel, activations per tensor, scales fused."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .. import pointwise as pw
from ..errors import ArgumentError, ArgumentTypeError
from ..ops.autocast import LOWERED
from ..ops.epilogue_args import EpilogueArgs
from ..ops.guard import wants_gradient
from ..sparse import SparseTensor
from ..view.epilogue import Pointwise
from .eight_bits import scale_of, to_codes
from .layer_kinds import LayerKind, kind_of_layer
from .quantized_tensor import QuantizedTensor
from .scripting import refuse_scripting

# Cached values are made from these.
_READ = "weight_scale", "bias", "input_scale", "output_scale"
_FEW = 16  # epilogues of a layer, by scales of its inputs and residuals
_GELU, _GELU_TANH = 0.7071067811865476, (0.7978845608028654, 0.044715)
_STEADY = (None, "relu", "leaky_relu")  # f(a * x) = a * f(x) for a > 0


class QuantizedConv(torch.nn.Module):
    """A convolution module in 8 bits, which :func:`~layoutconv.nn.quantize` makes.

    ``y = f(input_scale * weight_scale[k] * sum + bias + residual) / output_scale`` is rounded once,
    to 8 bits. Sums are exact in int32, or in fp32 for fp8; all else is fp32, in the epilogue of the
    convolution. If ``output_scale`` is 0, the result has the dtype that the weights had.

    Args:
        conv: a convolution of :mod:`layoutconv.nn`, whose weights are quantised.
        dtype: int8 or float8_e4m3fn.
        input_scale: divides features; a tensor that comes in 8 bits brings its own.
        output_scale: of a result in 8 bits, or 0.

    State: ``weight`` of 8 bits, ``weight_scale`` (K,), ``bias`` (K,), ``input_scale`` and
    ``output_scale``, fp32. ``half()`` and the like change only the dtype of results. Writes to the
    state take effect in the next call. A CUDA graph keeps the scales and the bias that it was
    captured with; a compiled network keeps ``input_scale`` and ``output_scale``.
    """

    weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None
    input_scale: Tensor
    output_scale: Tensor
    geometry: Any  # the original module, without its tensors
    _last: tuple[str | None, float]  # its activation and slope
    _numbers: tuple[float, float] | None
    _endings: dict[Any, Any]
    __prepare_scriptable__ = refuse_scripting
    _seen: tuple[Any, ...]  # of `_READ`: names, tensors, versions (None in inference mode)

    def __init__(
        self, conv: Any, dtype: torch.dtype, input_scale: float = 1.0, output_scale: float = 0.0
    ) -> None:
        super().__init__()
        home = kind_of_layer(conv)
        assert home is not None
        self.home: LayerKind = home
        self.dtype, self.wide = dtype, conv.weight.dtype
        weight = conv.weight.detach()
        scale = scale_of(home.by_output(conv, weight).abs().amax(1), dtype)
        codes = to_codes(weight, home.like_weight(conv, scale), dtype)
        self.register_buffer("weight", codes)
        self.register_buffer("weight_scale", scale)
        self.register_buffer("bias", None if conv.bias is None else conv.bias.detach().float())
        for name, value in (("input_scale", input_scale), ("output_scale", output_scale)):
            self.register_buffer(name, torch.tensor(value, device=codes.device))
        self._text = f"{conv.extra_repr()}, {str(dtype).removeprefix('torch.')}"
        self._last = conv.activation, conv.slope
        bare = copy(conv)
        bare.__dict__["_parameters"] = {"weight": None, "bias": None}
        self.__dict__["geometry"] = bare
        self._forget()

    def forward(self, input: Any, *arguments: Any, **named: Any) -> Any:
        """Convolve; arguments are those of the original module."""
        if not is_compiling():  # a trace sees no writes
            self._look()
        call = self.home.call(input, arguments, named)
        codes, scale = self._codes(input)
        with torch.no_grad():  # of residuals
            ending = self._ending(scale, call.residual)
            y = self.home.convolve(self.geometry, codes, self.weight, ending, call)
        if isinstance(y, SparseTensor) and ending.out_dtype == self.dtype:
            return QuantizedTensor(y, y.features, self._scales()[1], self.wide)
        return y

    def _codes(self, input: Any) -> tuple[Tensor, float]:
        """Return the codes of an input, and their scale."""
        own = self._scales()[0]
        if isinstance(input, QuantizedTensor) and input.codes.dtype == self.dtype:
            return input.codes, input.scale
        features = self.home.features(self.geometry, input)
        if features.dtype == self.dtype:
            return features, own
        if features.dtype not in LOWERED:
            kinds = f"float16, bfloat16, float32, or codes of {self.dtype}"
            raise ArgumentTypeError("input", kinds, str(features.dtype))
        if wants_gradient(features):
            expected = "a tensor without gradients; lc.nn.quantize(..., training=True) trains"
            raise ArgumentError("input", expected, "one that requires a gradient")
        return to_codes(features, own, self.dtype), own

    def _scales(self) -> tuple[float, float]:
        """Return the scales of input and output as numbers; one device-to-host sync."""
        if self._numbers is None:
            own, by = float(self.input_scale), float(self.output_scale)
            if not 0 < own < torch.inf:
                expected = "a finite scale > 0 from a calibration or a state_dict"
                raise ArgumentError("input_scale", expected, own)
            if not 0 <= by < torch.inf:
                expected = "a finite scale > 0 for results in 8 bits, or 0 for other results"
                raise ArgumentError("output_scale", expected, by)
            self._numbers = own, by
        return self._numbers

    def _ending(self, scale: float, residual: Any) -> EpilogueArgs:
        """Return the epilogue for inputs of a scale."""
        by = self._scales()[1] or 1.0
        past, alpha = residual, 1.0 / by
        if isinstance(residual, QuantizedTensor):
            past, alpha = residual.codes, residual.scale / by
        elif isinstance(residual, SparseTensor):
            past = residual.features
        key = scale, None if past is None else alpha, None if past is None else past.dtype
        kept = self._endings.get(key)
        if kept is None:
            if len(self._endings) >= _FEW:
                self._endings.clear()
            kept = self._endings[key] = self._made(scale, by, past, alpha)
        inside, factor, bias, last = kept
        if is_compiling():  # which would treat them as constants
            factor, bias = self._columns(scale, inside)
        out = self.dtype if self._scales()[1] else self.wide
        if not isinstance(last, Pointwise):
            return EpilogueArgs(bias, factor, past, last, self._last[1], out)
        if past is not None:
            last = last.with_tensors((), (), (past.contiguous(),))
        return EpilogueArgs(bias, factor, None, last, 0.01, out)

    def _made(self, scale: float, by: float, past: Tensor | None, alpha: float) -> Any:
        """Return a divisor, scale and bias divided by it, and an activation's name or function."""
        kind, slope = self._last
        steady = kind in _STEADY and (kind != "leaky_relu" or slope >= 0)
        inside = by if steady else 1.0  # divides sums before the activation
        columns = inside, *self._columns(scale, inside)
        alpha *= by / inside
        if (steady or by == 1.0) and (past is None or alpha == 1.0):
            return *columns, kind
        function = _ACTIVATIONS[kind]
        values = {"by": inside / by}
        if past is None:
            return *columns, Pointwise(lambda y, by: function(y, slope) * by, values=values)
        return *columns, Pointwise(
            lambda y, past, alpha, by: function(y + alpha * past, slope) * by,
            sources={"past": past.new_empty(0)}, values={"alpha": alpha, **values},
        )  # fmt: skip

    def _columns(self, scale: float, inside: float) -> tuple[Tensor, Tensor | None]:
        """Return scale and bias of sums for inputs of a scale, both divided by ``inside``."""
        bias = None if self.bias is None else self.bias / inside
        return self.weight_scale * (scale / inside), bias

    def _look(self) -> None:
        """Drop cached values if their tensors were replaced or written to."""
        held = self.__dict__["_buffers"]
        for name, tensor, version in self._seen:
            if held[name] is not tensor or (version is not None and tensor._version != version):
                break
        else:
            if self._seen:
                return
        self._forget()
        tensors = {name: held[name] for name in _READ}
        uncounted = {n for n, t in tensors.items() if t is None or t.is_inference()}
        self._seen = tuple(
            (n, t, None if n in uncounted else t._version) for n, t in tensors.items()
        )

    def _forget(self) -> None:
        self._numbers = None
        self._endings, self._seen = {}, ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move tensors; codes and scales keep their dtypes, only the results' dtype changes."""

        def moved(tensor: Tensor) -> Tensor:
            made = fn(tensor)
            return made if made.dtype == tensor.dtype else tensor.to(made.device)

        self.wide = fn(self.weight_scale.new_empty(0, dtype=self.wide)).dtype
        self._forget()
        return super()._apply(moved, recurse)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_numbers": None, "_endings": {}, "_seen": ()}

    def extra_repr(self) -> str:
        return f"{self._text}, 8-bit results" if float(self.output_scale) else self._text


def _gelu_tanh(x: Any, _: float) -> Any:
    scale, cube = _GELU_TANH
    return 0.5 * x * (1.0 + pw.tanh(scale * (x + cube * x * x * x)))


_ACTIVATIONS: dict[str | None, Callable[[Any, float], Any]] = {
    None: lambda x, _: x,
    "relu": lambda x, _: pw.where(x < 0.0, 0.0, x),
    "relu6": lambda x, _: pw.minimum(pw.maximum(x, 0.0), 6.0),
    "leaky_relu": lambda x, slope: pw.where(x < 0.0, x * slope, x),
    "gelu": lambda x, _: 0.5 * x * (1.0 + pw.erf(x * _GELU)),
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x, _: x * pw.sigmoid(x),
    "sigmoid": lambda x, _: pw.sigmoid(x),
    "tanh": lambda x, _: pw.tanh(x),
    "hardswish": lambda x, _: x * pw.minimum(pw.maximum(x + 3.0, 0.0), 6.0) * (1.0 / 6.0),
}
