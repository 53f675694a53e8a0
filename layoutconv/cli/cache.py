"""``layoutconv cache``: compiled kernels and measured choices on disk."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..base import cache_folder
from ..base.cache_folder import Kernel, cache_directory, cache_limit, printable
from .text_table import as_json, print_json, print_table

if TYPE_CHECKING:
    from ..planning.tile import TileConfig


class CacheContents(NamedTuple):
    """The cache folder's contents: kernels, choices, leftovers of interrupted processes."""

    kernels: list[Kernel]
    choices: list[Path]
    leftovers: list[Path]

    @property
    def size(self) -> int:
        """The bytes of the kernels."""
        return sum(kernel.size for kernel in self.kernels)


@click.group(
    short_help="List what is kept on disk, or delete it.",
    invoke_without_command=True,
    epilog="\b\nexamples:\n  layoutconv cache list\n  layoutconv cache clear --only tuned",
)
@click.pass_context
def cache(ctx: click.Context) -> None:
    """Look at the kernels and measured choices on disk, or delete them."""
    if ctx.invoked_subcommand is None:
        click.echo(f"{cache_directory()}: {_summary(kept_files())}\n")
        click.echo(ctx.get_help())


@cache.command(
    "list", epilog="\b\nexamples:\n  layoutconv cache list\n  layoutconv cache list --json"
)
@as_json
def list_(as_json: bool) -> None:
    """List what was measured, and which kernels are kept."""
    from ..gpu.measured_choices import kept
    from ..kernels.compile.store import note

    rows = [
        {
            "gpu": gpu,
            "problem": choice.problem,
            "tile": tile_text(choice.tile),
            "parts": choice.splits,
            "us": choice.microseconds,
            "model_us": choice.model_microseconds,
        }
        for gpu, choice in kept()
    ]
    found = kept_files()
    if as_json:
        kernels = [_facts(kernel, note(kernel.path)) for kernel in found.kernels]
        about = {"folder": str(cache_directory()), "limit": cache_limit(), "bytes": found.size}
        print_json({**about, "kernels": kernels, "choices": rows})
        return
    if rows:
        print_table(list(rows[0]), [[_cell(cell) for cell in row.values()] for row in rows])
    notes = [about for about in (note(kernel.path) for kernel in found.kernels) if about]
    lines = sorted((n["kernel"], n["arch"], _short(n["what"])) for n in notes)
    if lines:
        print_table(["kernel", "arch", "what"], [list(map(printable, line)) for line in lines])
    click.echo(f"{len(rows)} choices; {_summary(found)}")


@cache.command(
    epilog="\b\nexamples:\n  layoutconv cache clear\n  layoutconv cache clear --only tuned"
)
@click.option("--only", type=click.Choice(["kernels", "tuned"]), help="Clear this kind alone.")
def clear(only: str | None) -> None:
    """Delete kept kernels and measured choices; they are made again when needed.

    Other files in the folder stay.
    """
    found = kept_files()
    kernels = [] if only == "tuned" else [kernel.path for kernel in found.kernels]
    choices = [] if only == "kernels" else found.choices
    size = cache_folder.delete([*kernels, *choices, *found.leftovers])
    folders = [path for path in (cache_directory() / "tuned").glob("**/") if path.is_dir()]
    for folder in sorted(folders, reverse=True):  # the innermost first
        with suppress(OSError):  # not empty, or another process removed it
            folder.rmdir()
    click.echo(
        f"deleted {len(kernels)} kernels and {len(choices)} choices, {readable_size(size)}, "
        f"from {cache_directory()}"
    )


def kept_files() -> CacheContents:
    """Return the files of this package in the cache folder."""
    folder = cache_directory()
    choices = sorted(folder.glob("tuned/*/*/*.json"))
    return CacheContents(cache_folder.kernels(folder), choices, cache_folder.leftovers(folder))


def _summary(found: CacheContents) -> str:
    """Describe the kernels: their number, size, size limit, versions and dates."""
    from ..kernels.compile.toolchains import current_version

    count, ours = len(found.kernels), current_version()
    others = sum(not kernel.path.name.startswith(ours) for kernel in found.kernels)
    days = sorted(map(_day, found.kernels))
    words = [
        f"{count} kernels, {readable_size(found.size)} of at most {readable_size(cache_limit())}",
        f"{others} of other versions" if others else "",
        f"compiled {days[0]} to {days[-1]}" if days else "",
        f"not used: {why}" if (why := cache_folder.why_unused(cache_directory())) else "",
    ]
    return ", ".join(filter(None, words))


def _facts(kernel: Kernel, note: dict[str, str] | None) -> dict[str, Any]:
    return {
        "digest": kernel.path.stem,
        "bytes": kernel.size,
        "compiled": _day(kernel),
        **(note or {}),
    }


def _cell(cell: Any) -> Any:
    return printable(cell) if isinstance(cell, str) else cell


def readable_size(count: int) -> str:
    """Format a number of bytes for people.

    >>> readable_size(900), readable_size(41_234), readable_size(2_500_000)
    ('900 B', '41.2 kB', '2.5 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def tile_text(tile: TileConfig) -> str:
    """Return a tile in short: (m, n, k), warps, stages, and the CTAs of a cluster along k; or if
    its kernel is persistent, and ping-pong.

    >>> from layoutconv.planning.tile import TileConfig, persistent
    >>> tile_text(TileConfig((128, 64, 32))), tile_text(TileConfig((128, 64, 32), cluster_k=4))
    ('128x64x32 2x2 3', '128x64x32 2x2 3 /4')
    >>> tile_text(persistent((128, 64, 32), (4, 1), 6, pingpong=True))
    '128x64x32 4x1 6 persistent ping-pong'
    """
    more = f" /{tile.cluster_k}" if tile.cluster_k > 1 else ""
    if tile.persistent:
        more = " persistent" + (" ping-pong" if tile.pingpong else "")
    return f"{tile.m}x{tile.n}x{tile.k} {tile.warps[0]}x{tile.warps[1]} {tile.stages}{more}"


def _short(text: str, width: int = 120) -> str:
    """Shorten a text to the width of a table line."""
    return text if len(text) <= width else text[: width - 3] + "..."


def _day(kernel: Kernel) -> str:
    return datetime.fromtimestamp(kernel.made).date().isoformat()
