"""``layoutconv draw``: text, a picture in the format of a file's suffix, or a page in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..algebra import copy_names, mfma_names, mma_names
from ..drawing.command import LIMIT, STEPS_LIMIT, DrawOptions, run, serve
from ..drawing.static_gallery import write_gallery
from .options import TileParam


def _atoms(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    names = (*mma_names(), *mfma_names(), *copy_names())
    return [name for name in names if name.startswith(incomplete)]


@click.command(
    short_help="Draw a layout, a swizzle, an atom or a convolution.",
    epilog="""\b
examples:
  layoutconv draw "((2,2),(4,2)):((1,8),(2,16))" -o layout.svg
  layoutconv draw "S<3,2,3> o 0 o (8,32):(32,1)" -o swizzle.html
  layoutconv draw "(128,8):(8,1)" --limit 16
  layoutconv draw --atom m16n8k16.f16 -o mma.svg
  layoutconv draw --atom SM80_16x8x16_F32F16F16F32_TN -o mma.tex
  layoutconv draw "((4,8),(2,2)):((32,1),(16,8))" --tv 16,8
  layoutconv draw "(32,2):(1,32)" --tv "S<3,0,3> @ (8,8):(8,1)" --element-bits 32
  layoutconv draw --view fprop:5x5,3x3,stride=2,padding=1 --row 4 -o im2col.svg
  layoutconv draw "zipped_divide((4,8):(8,1), (2,4))" --steps -o tiles.html
  layoutconv draw --gallery steps
""",
)
@click.argument("layout", required=False)
@click.option(
    "--atom", metavar="NAME", shell_complete=_atoms,
    help="m16n8k16.f16, ldmatrix.x4, m64n128k16 (wgmma), tcgen05.m128n64k16, tcgen05.ld.32x32b.x8, "
    "mfma.32x32x8.f16, or CuTe's name; completion has them all.",
)  # fmt: skip
@click.option(
    "--view", metavar="SPEC", help="fprop:INPUT,FILTER[,stride=,padding=,dilation=,channels=]"
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
    help=".svg, .html, .tex or .txt",
)  # fmt: skip
@click.option(
    "--format", type=click.Choice(["svg", "html", "tikz", "text"]),
    help="Format of a file whose suffix names none.",
)  # fmt: skip
@click.option(
    "--tv", type=TileParam(), metavar="M,N",
    help="(thread, value) layout of an M x N tile; or the tile's layout in shared memory.",
)  # fmt: skip
@click.option("--row", type=int, metavar="M", help="Mark the cells that this row of a view reads.")
@click.option(
    "--element-bits", type=int, metavar="BITS",
    help="Colour by bank of shared memory; with --tv, name the bank of each access.",
)  # fmt: skip
@click.option(
    "--limit",
    type=int,
    metavar="N",
    help=f"Rows and columns that are shown ({LIMIT}; {STEPS_LIMIT} with --steps and --serve).",
)
@click.option("--title", help="Title; by default the notation.")
@click.option("--ascii", is_flag=True, help="No box-drawing characters on the terminal.")
@click.option("--colour", "--color", is_flag=True, help="Colours on the terminal.")
@click.option("--steps", is_flag=True, help="Show each operation of LAYOUT, as text or HTML.")
@click.option(
    "--gallery", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
    help="Write pages of operations, step by step, that need no server.",
)  # fmt: skip
@click.option(
    "--serve", "served", is_flag=True, help="Serve a page to type LAYOUT on, for a browser here."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Port of --serve; by default a free one.",
)
def draw(served: bool, port: int | None, gallery: Path | None, **options: Any) -> None:
    """Draw a layout, a swizzle, an atom of tensor cores, or what a convolution reads.

    LAYOUT is written shape:stride, as in the examples, or is an expression: A @ B for a
    composition, and the operations of the algebra by their names. Give one of LAYOUT, --atom and
    --view; it is drawn as text, or into the file of --output. With --serve you type LAYOUT on a
    page in a browser.
    """
    if served:
        _serve(options, port)
        return
    if gallery is not None:
        _alone("--gallery", options)
        write_gallery(gallery)
        click.echo(gallery / "index.html")
        return
    if port is not None:
        raise click.UsageError("--port needs --serve.")
    if sum(options[name] is not None for name in ("layout", "atom", "view")) != 1:
        raise click.UsageError("Expected one of LAYOUT, --atom and --view.")
    if options["steps"]:
        _alone("--steps", options, "layout", "steps", "output", "format", "limit")
    run(DrawOptions(**options))


def _serve(options: dict[str, Any], port: int | None) -> None:
    _alone("--serve", options, "layout", "limit")
    try:
        serve(options["layout"], port or 0, options["limit"])
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        sentence = (
            f"cannot listen on port {port or 0}: {why}; choose another with --port, or leave it out"
        )
        raise click.ClickException(sentence) from error


def _alone(option: str, options: dict[str, Any], *beside: str) -> None:
    """Refuse other options that an option has no use for."""
    for name, value in options.items():
        if value not in (None, False) and name not in beside:
            given = "LAYOUT" if name == "layout" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} cannot be combined with {given}.")
