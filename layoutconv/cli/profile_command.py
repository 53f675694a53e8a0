"""``layoutconv profile``: time each convolution of a model beside torch's."""

from __future__ import annotations

from typing import Any

import click

from .options import Finite, NewFile
from .targets import called, load_target
from .text_table import as_json, print_json, print_table


@click.command(
    short_help="Time the convolutions of a model against torch's.",
    epilog="""\b
examples:
  layoutconv profile my_model.py:make
  layoutconv profile my_package.models:resnet --device cuda --dtype float16 --backward

MODEL is FILE.py:NAME or MODULE:NAME, a function that returns a model of torch and its inputs.
""",
)
@click.argument("model")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto",
              show_default=True)  # fmt: skip
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), default="float32",
              show_default=True)  # fmt: skip
@click.option("--backward", is_flag=True, help="Time forward and backward, not just forward.")
@click.option("--seconds", type=Finite(0.001), default=0.2, show_default=True,
              help="How long each layer is measured.")  # fmt: skip
@click.option("--plot", type=NewFile(".png"), metavar="FILE", help="Write a bar chart.")
@as_json
def profile(
    model: str, device: str, dtype: str, backward: bool, seconds: float, plot: Any, as_json: bool
) -> None:
    """Time every convolution of MODEL as torch computes it and as layoutconv does, and both models.

    A gain above 1 is faster than torch. A layer that torch still computes has a reason beside it.
    """
    import torch

    from ..base.devices import choose_device
    from ..nn import profiling

    target = load_target(model)
    model_itself = isinstance(target, torch.nn.Module)
    made = called(model, target) if callable(target) and not model_itself else target
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module)):
        raise click.UsageError(
            f"Expected {model} to be a function that returns a model and its inputs."
        )
    net, inputs = made
    inputs = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    where, _ = choose_device(device)
    kind = getattr(torch, dtype)
    net = net.to(where, kind)
    inputs = [_on(value, where, kind) for value in inputs]
    with torch.no_grad():
        called(f"the model of {model}", net, *inputs)
    found = profiling.profile(net, inputs, backward=backward, seconds=seconds)
    if plot:
        _plot(found, plot)
    if as_json:
        layers = [{**vars(layer), "dtype": dtype, "gain": layer.gain} for layer in found.layers]
        print_json({"layers": layers, "torch_us": found.torch_us, "own_us": found.own_us})
        return
    rows: list[tuple[Any, ...]] = [
        (
            layer.name, layer.layer, "x".join(map(str, layer.shape)), layer.calls, layer.torch_us,
            "" if layer.own_us is None else f"{layer.own_us:.1f}", f"{layer.gain:.2f}", layer.left,
        )
        for layer in found.layers
    ]  # fmt: skip
    gain = found.torch_us / found.own_us
    rows.append(("model", "", "", 1, found.torch_us, f"{found.own_us:.1f}", f"{gain:.2f}", ""))
    print_table(["name", "layer", "input", "calls", "torch_us", "us", "gain", "left"], rows)


def _on(value: Any, device: Any, dtype: Any) -> Any:
    """Move a tensor to a device, and a floating-point one to a dtype; leave other values alone."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device, dtype if value.is_floating_point() else None)


def _plot(found: Any, file: Any) -> None:
    """Plot a bar per layer: torch's time / ours."""
    try:
        import matplotlib
    except ImportError as error:
        sentence = "--plot wants matplotlib: pip install matplotlib"
        raise click.UsageError(sentence) from error

    matplotlib.use("Agg")
    from matplotlib import pyplot

    layers = found.layers
    figure, axes = pyplot.subplots(figsize=(7, 1 + 0.28 * len(layers)), layout="constrained")
    names = [f"{layer.name}: {layer.layer}" for layer in layers]
    axes.barh(range(len(layers)), [layer.gain for layer in layers], color="#3465a4")
    axes.set_yticks(range(len(layers)), names, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1.0, color="#555753", linewidth=1)
    axes.set_xlabel("torch's time / layoutconv's (1: as fast)")
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
