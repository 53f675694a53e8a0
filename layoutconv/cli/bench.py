"""``layoutconv bench``: run the scripts of ``benchmarks/``, wherever the package is installed.

A checkout runs them as ``python benchmarks/bench_dense.py``; a wheel has them in
``layoutconv/benchmarks/``. This module finds the scripts, imports them and calls their ``main``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from .options import NewFile, Pattern
from .text_table import as_json

_MAPS = "^map .*(?:{})"  # the rows of bench_sparse that are kernel maps


@click.group(
    short_help="Measure against peers and the limits of the machine.",
    invoke_without_command=True,
    epilog="""\b
examples:
  layoutconv bench algebra --quick
  layoutconv bench dense --rows "unet.* fprop fp16" --plot dense.png
  layoutconv bench network --json > network.json
""",
)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure against other installed libraries and the limits of the machine.

    All but "algebra" measure a GPU. The exit status is 1 if a row failed or is wrong.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _rows(inside: str = "{}") -> Callable[..., Any]:
    return click.option(
        "--rows", type=Pattern(inside), metavar="PATTERN",
        help="Measure only the rows that match this regular expression.",
    )  # fmt: skip


_plot = click.option(
    "--plot", type=NewFile(".png", ".svg", ".pdf"), metavar="FILE",
    help="Write bars of the ratios, and the rows under the roofs of the GPU: .png, .svg or .pdf.",
)  # fmt: skip
_repeats = click.option(
    "--repeats", type=click.IntRange(1), metavar="N", help="Number of batches; the median is shown."
)
_compile = click.option(
    "--compile",
    type=click.IntRange(0, 256),
    metavar="N",
    help="Compile kernels first, in N processes.",
)
_quick = click.option("--quick", is_flag=True, help="Measure fewer rows.")
_workloads = click.option(
    "--workloads", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
    help="Where voxel_workloads.py is; without it, a synthetic street.",
)  # fmt: skip


def _options(*options: Callable[..., Any], inside: str = "{}") -> Callable[..., Any]:
    """Return a decorator that adds a command's options, in the order of ``--help``.

    A pattern of ``--rows`` is inserted into ``inside``.
    """

    def add(function: Any) -> Any:
        for option in reversed((_rows(inside), *options, _plot, as_json)):
            function = option(function)
        return function

    return add


def _examples(*lines: str) -> str:
    return "\n".join(["\b", "examples:", *(f"  layoutconv bench {line}" for line in lines)])


@bench.command(epilog=_examples("dense --quick", 'dense --rows "vae fprop" --compile 8'))
@_options(_quick, _compile, _repeats)
def dense(**options: Any) -> int:
    """Dense convolutions, every pass and type, beside cuDNN."""
    return run("bench_dense", **options)


@bench.command(
    short_help="Layers and kernel maps of clouds.",
    epilog=_examples("sparse --rows forward", "sparse --workloads ../shared/bench"),
)
@_options(_workloads, _repeats)
def sparse(**options: Any) -> int:
    """Submanifold convolutions and kernel maps of clouds, beside spconv's."""
    return run("bench_sparse", **options)


@bench.command(epilog=_examples("maps", "maps --rows lidar"))
@_options(_workloads, _repeats, inside=_MAPS)
def maps(rows: str | None, **options: Any) -> int:
    """Kernel maps of clouds, beside spconv's."""
    return run("bench_sparse", rows=rows or _MAPS.format(""), **options)


@bench.command(
    short_help="A sparse network, end to end.",
    epilog=_examples("network --compile 8", "network --plot network.svg"),
)
@_options(
    _workloads, _compile, _repeats,
    click.option(
        "--peer-limit", type=click.IntRange(1), metavar="SECONDS", help="Limit of each peer; 300."
    ),
)  # fmt: skip
def network(**options: Any) -> int:
    """A sparse residual U-Net, end to end with its kernel maps, beside spconv's."""
    return run("bench_network", **options)


@bench.command(
    short_help="Operations on layouts; needs no GPU.",
    epilog=_examples("algebra --quick", 'algebra --rows "compos|divide" --json'),
)
@_options(_quick)
def algebra(**options: Any) -> int:
    """Operations on layouts, beside pycute, tensor-layouts and the CuTe DSL; needs no GPU."""
    return run("bench_algebra", needs_gpu=False, **options)


def run(
    name: str, *, needs_gpu: bool = True, as_json: bool, plot: Path | None, **options: Any
) -> int:
    """Call the ``main`` of a script with these options; return its exit status.

    With ``as_json``, standard output gets only JSON, and the table goes to standard error.
    """
    if needs_gpu:
        import torch

        if not torch.cuda.is_available():
            from ..base.devices import why_no_gpu

            raise click.ClickException(f"{name} needs a GPU, and torch sees none: {why_no_gpu()}")
    main: Callable[[Sequence[str]], int] = load(name).main
    arguments = [] if plot is None else ["--plot", str(plot)]
    for option, value in options.items():
        if value is True:
            arguments.append(f"--{option}")
        elif value:
            arguments += [f"--{option}", str(value)]
    if not as_json:
        return main(arguments)
    with TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        with redirect_stdout(sys.stderr):
            status = main([*arguments, "--json", str(rows)])
        if rows.exists():
            click.echo(rows.read_text().rstrip())
        return status


def load(name: str) -> Any:
    """Import a script, or a module that scripts share, from the folder of benchmarks.

    Raises ``click.ClickException`` if the package was built without that folder.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "benchmarks", package.parent / "benchmarks"):
        if (folder / f"{name}.py").is_file():
            if str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
            return import_module(name)
    raise click.ClickException(f"{name} is not in this installation of layoutconv.")
