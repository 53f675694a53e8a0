"""Time each convolution of a model, as torch computes it and as this package does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd
from torch.utils.benchmark import Timer

from ..errors import ArgumentError, ArgumentTypeError
from .convert import convert


@dataclass(frozen=True)
class LayerTime:
    """A convolution of a model on inputs of one shape.

    Attributes:
        name: as in ``named_modules``.
        layer: its class and numbers.
        shape: of the input, ``(N, C, *spatial)``.
        dtype: of the input.
        calls: in one pass of the model.
        torch_us, own_us: median microseconds of a call; ``own_us`` is None if the layer is left to
            torch.
        left: the reason why it is left, or "".
    """

    name: str
    layer: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    calls: int
    torch_us: float
    own_us: float | None
    left: str

    @property
    def gain(self) -> float:
        """The speed-up, torch's time over this package's: above 1 is faster."""
        return 1.0 if self.own_us is None else self.torch_us / self.own_us


@dataclass(frozen=True)
class Profile:
    """The result of :func:`profile`: layers, and ``us`` of a pass of the whole model in each."""

    layers: tuple[LayerTime, ...]
    torch_us: float
    own_us: float


def profile(
    model: torch.nn.Module,
    inputs: Sequence[Any],
    *,
    backward: bool = False,
    seconds: float = 0.2,
) -> Profile:
    """Time the convolutions of a model in torch and in this package, and the whole model in both.

    The model is copied; its convolutions get their inputs from one pass. ``torch.utils.benchmark``
    measures: it synchronises with the GPU, warms up and takes medians.

    Args:
        model: a torch model, before ``convert``, on any device.
        inputs: of a call ``model(*inputs)``.
        backward: also compute the gradients of inputs that are not images, and of all parameters.
        seconds: how long each layer is measured.

    Raises :class:`~layoutconv.errors.ArgumentTypeError` if ``model`` is no module or ``inputs`` is
    a tensor, :class:`~layoutconv.errors.ArgumentError` if the model calls no convolution.

    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 1))
    >>> found = profile(model, [torch.randn(1, 3, 16, 16)], seconds=0.01)
    >>> [(layer.name, layer.shape, layer.calls) for layer in found.layers]
    [('0', (1, 3, 16, 16), 1), ('1', (1, 8, 14, 14), 1)]
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentTypeError("model", "a torch.nn.Module", type(model).__name__)
    if isinstance(inputs, torch.Tensor):  # its images would become arguments
        got = f"Tensor of shape {tuple(inputs.shape)}"
        raise ArgumentTypeError("inputs", "a sequence of the inputs of a call, such as [x]", got)
    model = deepcopy(model)
    calls = _calls(model, inputs)
    if not calls:
        raise ArgumentError(
            "model", "a model that calls a convolution of torch.nn", "one that calls none"
        )
    layers = []
    for (name, _, _), (layer, images, count) in calls.items():
        own, report = convert(layer, inplace=False, return_report=True)
        time = partial(_microseconds, inputs=[images], backward=backward, seconds=seconds)
        layers.append(
            LayerTime(
                name, _described(layer), tuple(images.shape), images.dtype, count,
                torch_us=time(layer), own_us=None if report.left else time(own),
                left="".join(report.left.values()),
            )
        )  # fmt: skip
    time = partial(_microseconds, inputs=inputs, backward=backward, seconds=seconds)
    return Profile(tuple(layers), time(model), time(convert(model)))


def _calls(model: torch.nn.Module, inputs: Sequence[Any]) -> dict[Any, tuple[_ConvNd, Tensor, int]]:
    """Record the convolutions that a pass calls: by name and input, layer, input and count."""
    found: dict[Any, tuple[_ConvNd, Tensor]] = {}
    counts: Counter[Any] = Counter()

    def note(name: str, layer: Any, given: tuple[Any, ...]) -> None:
        key = name, given[0].shape, given[0].dtype
        counts[key] += 1
        found.setdefault(key, (layer, given[0].detach()))

    hooks = [
        layer.register_forward_pre_hook(partial(note, name))
        for name, layer in model.named_modules()
        if isinstance(layer, _ConvNd)
    ]
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return {key: (*pair, counts[key]) for key, pair in found.items()}


def _microseconds(
    model: torch.nn.Module, inputs: Sequence[Any], backward: bool, seconds: float
) -> float:
    run = _step(model, inputs) if backward else partial(model, *inputs)
    with torch.set_grad_enabled(backward):
        timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
        run()  # compiles and selects kernels
        return 1e6 * timer.blocked_autorange(min_run_time=seconds).median


def _step(model: torch.nn.Module, inputs: Sequence[Any]) -> Callable[[], Any]:
    """Make a forward and backward pass, with gradients of parameters and floating-point inputs."""
    given = [
        t.detach().requires_grad_() if isinstance(t, torch.Tensor) and t.is_floating_point() else t
        for t in inputs
    ]
    wanted: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    wanted += [t for t in given if isinstance(t, torch.Tensor) and t.requires_grad]

    def step() -> Any:
        return torch.autograd.grad(_total(model(*given)), wanted, allow_unused=True)

    return step


def _total(result: Any) -> Tensor:
    """Return the sum of all tensors of a result."""
    if isinstance(result, torch.Tensor):
        return result.float().sum()
    parts = result.values() if isinstance(result, dict) else result
    return torch.stack([_total(part) for part in parts]).sum()


def _described(layer: Any) -> str:
    taps = "x".join(map(str, layer.kernel_size))
    words = [f"{type(layer).__name__} {layer.in_channels} -> {layer.out_channels}, {taps}"]
    if any(s != 1 for s in layer.stride):
        words.append(f"stride {'x'.join(map(str, layer.stride))}")
    if any(d != 1 for d in layer.dilation):
        words.append(f"dilation {'x'.join(map(str, layer.dilation))}")
    if layer.groups > 1:
        words.append(f"{layer.groups} groups")
    return ", ".join(words)
