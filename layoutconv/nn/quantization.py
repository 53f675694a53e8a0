"""Quantise a network to 8 bits: calibrate, swap its convolutions, and report the errors."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from ..errors import ArgumentError, ArgumentTypeError
from ..sparse import SparseTensor
from .calibration import Calibration, call_of, sqnr
from .eight_bits import check_narrow_dtype, of_codes, scale_of
from .fold import fold_batch_norms, used_once
from .layer_kinds import LayerKind, kind_of_layer
from .own_convolution import Redirected
from .quantization_aware import QuantizationAware
from .quantized_conv import QuantizedConv
from .residual import working
from .sequences import is_sequence

Module = TypeVar("Module", bound=torch.nn.Module)
Layers = dict[str, tuple[Any, LayerKind]]
FEW_REASONS = 4  # that a warning names


@dataclass(frozen=True)
class QuantizedLayer:
    """A layer that was quantised.

    Attributes:
        name: as in ``named_modules``.
        input_scale: of its features.
        results: the dtype of its results: an 8-bit one if only quantised layers read them.
        sqnr: dB of its results over their errors, for inputs without rounding errors; NaN for
            training.
    """

    name: str
    input_scale: float
    results: torch.dtype
    sqnr: float


@dataclass(frozen=True)
class QuantizationReport:
    """The result of :func:`quantize`: quantised layers, layers that were left, and errors.

    Attributes:
        layers: the quantised ones.
        left: names of the others with weights, each with the reason.
        sqnr: dB of the network's result over its error, on the first batch; None for training, and
            if the result is neither a tensor nor a sparse tensor.

    >>> one = QuantizedLayer("body.0", 0.02, torch.int8, 38.51)
    >>> print(QuantizationReport((one,), {"stem": "the first layer"}, 33.0))
    1 of 2 layers quantised, the network's SQNR 33.0 dB
      body.0  38.5 dB, input scale 0.02, results int8
    left `stem`: the first layer
    """

    layers: tuple[QuantizedLayer, ...]
    left: dict[str, str]
    sqnr: float | None = None

    def __str__(self) -> str:
        count = len(self.layers)
        head = f"{count} of {count + len(self.left)} layers quantised"
        head += "" if self.sqnr is None else f", the network's SQNR {self.sqnr:.1f} dB"
        width = max((len(layer.name) for layer in self.layers), default=0)
        lines = [
            f"  {layer.name:{width}s}  {_decibels(layer.sqnr)}input scale {layer.input_scale:.3g}, "
            f"results {str(layer.results).removeprefix('torch.')}"
            for layer in self.layers
        ]
        return "\n".join([head, *lines, *(f"left `{n}`: {why}" for n, why in self.left.items())])


def _decibels(sqnr: float) -> str:
    return "" if sqnr != sqnr else f"{sqnr:.1f} dB, "


@overload
def quantize(
    module: Module,
    batches: Iterable[Any] | None = None,
    *,
    dtype: torch.dtype = torch.int8,
    keep: Collection[str] | None = None,
    training: bool = False,
    state: Mapping[str, Any] | None = None,
    inplace: bool = False,
    return_report: Literal[False] = False,
) -> Module: ...


@overload
def quantize(
    module: Module,
    batches: Iterable[Any] | None = None,
    *,
    dtype: torch.dtype = torch.int8,
    keep: Collection[str] | None = None,
    training: bool = False,
    state: Mapping[str, Any] | None = None,
    inplace: bool = False,
    return_report: Literal[True],
) -> tuple[Module, QuantizationReport]: ...


def quantize(
    module: Any,
    batches: Iterable[Any] | None = None,
    *,
    dtype: torch.dtype = torch.int8,
    keep: Collection[str] | None = None,
    training: bool = False,
    state: Mapping[str, Any] | None = None,
    inplace: bool = False,
    return_report: bool = False,
) -> Any:
    """Quantise a network's sparse and dense convolutions to 8 bits; returns the network.

    :func:`fold_batch_norms` folds batch norms first. Then the network runs on the batches; the
    largest magnitudes that layers read give their scales: symmetric, one per tensor of features,
    one per output channel of weights. The convolutions of :mod:`layoutconv.nn` become
    :class:`~layoutconv.nn.quantized_conv.QuantizedConv`. Features stay in 8 bits between sparse
    convolutions, and between dense neighbours in a ``Sequential``, residuals too; everything else
    reads them in the dtype of the network.

    Args:
        module: a network in evaluation mode; its dtype, float16 say, is that of everything that is
            not quantised.
        batches: each is an input, or a tuple of arguments. Use a few dozen that resemble later
            inputs.
        dtype: int8, or float8_e4m3fn.
        keep: names of modules whose layers stay as they are. By default the first and the last
            layer with weights that a batch reaches.
        training: return a network to train: its weights and features are rounded as to 8 bits, and
            gradients pass straight through (:class:`~.quantization_aware.QuantizationAware`). After
            training, call ``quantize`` on it to quantise the same layers.
        state: instead of batches, the ``state_dict`` of a quantised network of this structure,
            which the result loads.
        inplace: change ``module`` itself, else a deep copy.
        return_report: return a pair of the network and a :class:`QuantizationReport`.

    A layer is left as it is, and the report says why, if it is depthwise, overrides its forward
    pass, is parametrized or hooked, pads with values other than zeros, or is torch's own,
    MinkowskiEngine's or TorchSparse's. A network of such layers alone gets a warning.

    Raises :class:`~layoutconv.errors.ArgumentError`, a ``ValueError``, that names the argument.

    >>> import layoutconv as lc
    >>> _ = torch.manual_seed(0)
    >>> conv = [lc.nn.Conv2d(C, K, 3, padding=1) for C, K in ((3, 16), (16, 16), (16, 16), (16, 4))]
    >>> net = torch.nn.Sequential(conv[0], torch.nn.ReLU(), *conv[1:]).eval()
    >>> small, report = quantize(net, [torch.randn(2, 3, 8, 8)], return_report=True)
    >>> [(layer.name, layer.results) for layer in report.layers]
    [('2', torch.int8), ('3', torch.float32)]
    >>> report.left
    {'0': 'the first layer', '4': 'the last layer'}
    >>> report.sqnr > 30
    True
    """
    if not isinstance(module, torch.nn.Module):
        raise ArgumentTypeError("module", "a torch.nn.Module", type(module).__name__)
    check_narrow_dtype(dtype)
    if (batches is None) is (state is None):
        given = "neither" if batches is None else "both"
        raise ArgumentError("batches", "either `batches` to calibrate with or `state`", given)
    one = isinstance(batches, torch.Tensor | SparseTensor)  # a tensor's rows are no batches
    iterable = any(hasattr(type(batches), name) for name in ("__iter__", "__getitem__"))
    iterable = iterable and getattr(batches, "ndim", 1) > 0  # a NumPy scalar is not
    if batches is not None and (one or not iterable):
        expected = "an iterable of batches, such as [x]"
        raise ArgumentTypeError("batches", expected, type(batches).__name__)
    if state is not None and not isinstance(state, Mapping):
        raise ArgumentTypeError("state", "a state_dict", type(state).__name__)
    other = next((key for key in state or () if not isinstance(key, str)), None)
    if other is not None:
        raise ArgumentTypeError("state", "a state_dict, whose keys are names", f"the key {other!r}")
    for name, value in (("training", training), ("return_report", return_report)):
        if state is not None and value:
            raise ArgumentError(name, "False beside `state`", value)
    module = module if inplace else deepcopy(module)
    module, trained = _without_training(module)
    fold_batch_norms(module)
    layers, left = _layers_of(module)
    if state is not None:
        return _with_state(module, layers, state)
    assert batches is not None
    if trained and keep is None:
        keep = [name for name in layers if name not in trained]
    others = {n: m for n, m in module.named_modules() if n in left}
    seen = Calibration(module, layers, others)
    first = seen.run(batches)
    left = {**_kept(seen, keep), **left}
    if training:
        made, report = _to_train(seen, left, dtype)
    else:
        made, report = _quantised(seen, left, dtype, first)
    _warn_if_none(report)
    return (made, report) if return_report else made


def _layers_of(module: torch.nn.Module) -> tuple[Layers, dict[str, str]]:
    """Return the layers of a network that may be quantised, and why others with weights may not."""
    layers: Layers = {}
    left: dict[str, str] = {}
    for name, layer in module.named_modules():
        home = kind_of_layer(layer)
        if home is not None:
            why = home.why_not(layer)
            if why is None:
                layers[name] = layer, home
            else:
                left[name] = why
        elif isinstance(layer, QuantizedConv):
            raise ArgumentError(
                "module", "a network that is not quantised yet", f"`{name}`, which is"
            )
        elif isinstance(layer, Redirected):
            left[name] = f"{type(layer).__name__} overrides forward"
        elif isinstance(layer, _ConvNd):
            left[name] = "torch's own; lc.nn.convert makes it one of layoutconv's"
        elif isinstance(layer, torch.nn.Linear):
            left[name] = "a linear layer"
        elif any(p is not None and not is_lazy(p) and p.dim() > 1 for p in _own_parameters(layer)):
            left[name] = f"{type(layer).__module__}.{type(layer).__name__} has no 8-bit version"
    return layers, left


def _own_parameters(layer: torch.nn.Module) -> Iterable[torch.nn.Parameter | None]:
    return layer._parameters.values()


def _warn_if_none(report: QuantizationReport) -> None:
    """Warn of a network that is as it was; the report of another says what was left."""
    if not report.layers:
        reasons = [f"`{name}`: {why}" for name, why in report.left.items()]
        more = f", and {len(reasons) - FEW_REASONS} more" if len(reasons) > FEW_REASONS else ""
        found = ", ".join(reasons[:FEW_REASONS]) + more if reasons else "it has none with weights"
        warnings.warn(f"quantize left every layer of the network: {found}", stacklevel=3)


def _to_train(seen: Calibration, left: dict[str, str], dtype: torch.dtype) -> Any:
    """Return the network with layers that train for 8 bits, and its report."""
    chosen = {name: of for name, of in seen.layers.items() if name not in left}
    swaps, found = {}, []
    for name, (layer, home) in chosen.items():
        amax = seen.seen[name].input_amax
        swaps[id(layer)] = home.swapped(QuantizationAware)(layer, dtype, amax)
        scale = float(scale_of(torch.tensor(amax), dtype))
        found.append(QuantizedLayer(name, scale, layer.weight.dtype, torch.nan))
    return _swapped(seen.module, swaps).train(), QuantizationReport(tuple(found), left)


def _quantised(seen: Calibration, left: dict[str, str], dtype: torch.dtype, batch: Any) -> Any:
    """Return the network with layers in 8 bits, and its report with the errors on a batch."""
    chosen = {name: of for name, of in seen.layers.items() if name not in left}
    linked = _linked(seen, chosen)
    quantised = {}
    for name, (layer, home) in chosen.items():
        amax = torch.tensor([seen.seen[name].input_amax, seen.seen[name].output_amax])
        scale, by = scale_of(amax, dtype).tolist()
        by = by if name in linked else 0.0
        quantised[name] = home.swapped(QuantizedConv)(layer, dtype, scale, by)
    errors, result = _compare(seen.module, chosen, quantised, batch)
    swaps = {id(layer): quantised[name] for name, (layer, _) in chosen.items()}
    made = _swapped(seen.module, swaps).eval().requires_grad_(False)
    found = tuple(
        QuantizedLayer(n, float(q.input_scale), dtype if n in linked else q.wide, errors[n])
        for n, q in quantised.items()
    )
    return made, QuantizationReport(found, left, _error(result, made, batch))


def _kept(seen: Calibration, keep: Collection[str] | None) -> dict[str, str]:
    """Return the layers that stay as they are, with reasons."""
    kept = {name: "no batch reached it" for name, found in seen.seen.items() if not found.numbers}
    if keep is None:
        for name, why in zip(seen.ends, ("the first layer", "the last layer"), strict=True):
            if name in seen.layers:
                kept.setdefault(name, why)
        return kept
    if isinstance(keep, str) or not isinstance(keep, Iterable):
        raise ArgumentTypeError("keep", "a sequence of names of modules", repr(keep))
    for name in keep:
        inside = [n for n in seen.layers if n == name or n.startswith(f"{name}.")]
        if not inside and name not in dict(seen.module.named_modules()):
            raise ArgumentError(
                "keep", "names of modules, as named_modules() yields them", repr(name)
            )
        kept.update(dict.fromkeys(inside, "kept by name"))
    return kept


def _linked(seen: Calibration, chosen: Layers) -> set[str]:
    """Return the layers whose results only quantised layers read, and so take in 8 bits."""
    linked = {
        name
        for name in chosen
        if (found := seen.seen[name]).readers
        and not found.read_wide
        and found.readers <= set(chosen)
    }
    names = {id(layer): name for name, (layer, _) in chosen.items()}
    once = used_once(seen.module)
    for part in seen.module.modules():
        if not is_sequence(part):
            continue
        for before, after in pairwise(working(part)):
            dense = id(before) in names and id(after) in names and before.weight.dim() > 2
            alone = id(before) in once and id(after) in once
            if dense and alone and seen.follows(names[id(before)], names[id(after)], part):
                linked.add(names[id(before)])
    return linked


def _swapped(module: Any, swaps: Mapping[int, Any]) -> Any:
    """Replace modules of a network, by id."""
    for part in list(module.modules()):
        for name, child in part._modules.items():
            if id(child) in swaps:
                part._modules[name] = swaps[id(child)]
    return swaps.get(id(module), module)


def _without_training(module: Any) -> tuple[Any, set[str]]:
    """Return the network with plain convolutions for layers trained for 8 bits, and their names."""
    aware = {n: m for n, m in module.named_modules() if isinstance(m, QuantizationAware)}
    return _swapped(module, {id(layer): layer.conv for layer in aware.values()}), set(aware)


@torch.no_grad()
def _compare(
    module: Any, layers: Layers, quantised: Mapping[str, QuantizedConv], batch: Any
) -> tuple[dict[str, float], Any]:
    """Return the SQNR of each layer, on its inputs in floats, and the network's result."""
    found: dict[str, float] = {}

    def after(name: str, home: LayerKind, layer: Any, args: Any, named: Any, result: Any) -> None:
        quantised_layer = quantised[name]
        got = home.made(quantised_layer(*args, **named))
        if got.dtype == quantised_layer.dtype:
            got = of_codes(got, float(quantised_layer.output_scale), torch.float32)
        error = sqnr(home.made(result), got)
        found[name] = min(error, found.get(name, torch.inf))  # the least of a layer's calls

    handles = [
        layer.register_forward_hook(partial(after, name, home), with_kwargs=True)
        for name, (layer, home) in layers.items()
    ]
    try:
        result = call_of(module, batch)
    finally:
        for handle in handles:
            handle.remove()
    return {name: found.get(name, torch.nan) for name in layers}, result


@torch.no_grad()
def _error(want: Any, made: Any, batch: Any) -> float | None:
    """Return the SQNR of a network's result."""
    wanted, got = _tensor(want), _tensor(call_of(made, batch))
    return None if wanted is None or got is None else sqnr(wanted, got)


def _tensor(result: Any) -> Tensor | None:
    found = result if isinstance(result, torch.Tensor) else getattr(result, "features", None)
    return found if isinstance(found, torch.Tensor) else None


def _with_state(module: Any, layers: Layers, state: Mapping[str, Any]) -> Any:
    """Return the network with the layers quantised that a state has, and load the state."""
    mark = "weight_scale"
    names = [key.removesuffix(mark).rstrip(".") for key in state if str(key).endswith(mark)]
    swaps = {}
    for name in names:
        if name not in layers:
            expected = "the state of a network with this structure"
            raise ArgumentError("state", expected, f"`{name}`, which is not an 8-bit layer here")
        layer, home = layers[name]
        weight = f"{name}.weight" if name else "weight"
        codes = state.get(weight)
        if not isinstance(codes, torch.Tensor):
            raise ArgumentError("state", f"a tensor under `{weight}`", type(codes).__name__)
        check_narrow_dtype(codes.dtype)
        swaps[id(layer)] = home.swapped(QuantizedConv)(layer, codes.dtype)
    made = _swapped(module, swaps).eval().requires_grad_(False)
    made.load_state_dict(state)
    return made
