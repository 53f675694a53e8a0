"""``layoutconv cache``: compiled kernels and measured choices that are kept on disk."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from .text_table import as_json, print_json, print_table

if TYPE_CHECKING:
    from ..planning.tile import TileConfig

UNFINISHED = 3600  # seconds after which a file that a process was writing is left over


class Kept(NamedTuple):
    """What is in the cache folder: kernels, choices, and what broken-off processes left there."""

    kernels: list[Path]
    choices: list[Path]
    leftovers: list[Path]


@click.group(
    short_help="Look at what is kept on disk, or delete it.",
    invoke_without_command=True,
    epilog="\b\nexamples:\n  layoutconv cache list\n  layoutconv cache clear --only tuned",
)
@click.pass_context
def cache(ctx: click.Context) -> None:
    """Look at the kernels and measured choices on disk, or delete them."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@cache.command(
    "list", epilog="\b\nexamples:\n  layoutconv cache list\n  layoutconv cache list --json"
)
@as_json
def list_(as_json: bool) -> None:
    """List what was measured, and which kernels are kept."""
    from ..gpu.measured_choices import kept
    from ..kernels.compile.store import cache_directory, note

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
    kernels = kept_files().kernels
    size = sum(path.stat().st_size for path in kernels)
    if as_json:
        kept_kernels = [
            {
                "digest": path.stem,
                "bytes": path.stat().st_size,
                "compiled": _day(path),
                **(note(path) or {}),
            }
            for path in kernels
        ]
        folder = str(cache_directory())
        print_json({"folder": folder, "kernels": kept_kernels, "choices": rows})
        return
    if rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    notes = sorted((n["kernel"], n["arch"], _short(n["what"])) for n in map(note, kernels) if n)
    if notes:
        print_table(["kernel", "arch", "what"], notes)
    days = sorted(map(_day, kernels))
    compiled = f", compiled {days[0]} to {days[-1]}" if days else ""
    click.echo(f"{len(rows)} choices; {len(kernels)} kernels, {size_of(size)}{compiled}")


@cache.command(
    epilog="\b\nexamples:\n  layoutconv cache clear\n  layoutconv cache clear --only tuned"
)
@click.option(
    "--only", type=click.Choice(["kernels", "tuned"]), help="Leave the other kind where it is."
)
def clear(only: str | None) -> None:
    """Delete kept kernels and measured choices; they are made again at need.

    What else is in the folder stays.
    """
    from ..kernels.compile.store import cache_directory

    found = kept_files()
    kernels = [] if only == "tuned" else found.kernels
    choices = [] if only == "kernels" else found.choices
    doomed = [*kernels, *choices, *found.leftovers]
    size = sum(_delete(path) for path in doomed)
    folders = [path for path in (cache_directory() / "tuned").glob("**/") if path.is_dir()]
    for folder in sorted(folders, reverse=True):  # the innermost first
        if not any(folder.iterdir()):
            folder.rmdir()
    click.echo(
        f"deleted {len(kernels)} kernels and {len(choices)} choices, {size_of(size)}, "
        f"from {cache_directory()}"
    )


def kept_files() -> Kept:
    """The files in the cache folder that are ours."""
    from ..kernels.compile.store import cache_directory

    folder = cache_directory()
    old = time.time() - UNFINISHED
    unfinished = [*folder.glob("tmp*.o"), *folder.glob("tuned/*/*/tmp*.tmp")]
    return Kept(
        sorted(path for path in folder.glob("*.o") if re.fullmatch("[0-9a-f]{64}", path.stem)),
        sorted(folder.glob("tuned/*/*/*.json")),
        [path for path in unfinished if path.stat().st_mtime < old],
    )


def size_of(count: int) -> str:
    """Bytes, for people.

    >>> size_of(900), size_of(41_234), size_of(2_500_000)
    ('900 B', '41.2 kB', '2.5 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def tile_text(tile: TileConfig) -> str:
    """Return a tile in short: (m, n, k), warps, stages, and the CTAs of a cluster along k; or that
    its kernel is persistent, with ping-pong consumers.

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
    """The beginning of a text that a line of a table takes."""
    return text if len(text) <= width else text[: width - 3] + "..."


def _day(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime).date().isoformat()


def _delete(path: Path) -> int:
    """Delete a file; its size, 0 if another process was faster."""
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size
