"""The group of all commands; an error becomes a message and an exit status."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import click

from .. import __version__
from ..algebra import LayoutError
from ..algebra.notation import visible_lines
from ..errors import DeviceError
from .bench import bench
from .cache import cache
from .compile_command import compile_command
from .demo_command import demo
from .draw import draw
from .info import info
from .profile_command import profile
from .tune import tune

INTERRUPTED = 130
_LONGEST = 4000  # characters of a message; it may repeat user input
_NO_MEMORY = "out of memory|allocate memory|not enough memory"  # torch's, on GPU and CPU


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()  # here, as nobody catches errors at interpreter exit
        except BrokenPipeError:  # `| head` has read enough; drop the buffered rest
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
examples:
  layoutconv demo
  layoutconv draw "((2,2),(4,2)):((1,8),(2,16))" -o layout.svg
  layoutconv info --json
  layoutconv COMMAND --help

Tab completion: eval "$(_LAYOUTCONV_COMPLETE=bash_source layoutconv)", or zsh_source, fish_source.
""",
)
@click.version_option(__version__, prog_name="layoutconv", message="%(prog)s %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Dense and sparse convolutions from layouts, by one kernel template."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for command in (demo, draw, compile_command, profile, bench, tune, info, cache):
    commands.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status: 0, 1 if a check failed, 2 for invalid input."""
    for name in ("stdout", "stderr"):  # None if the caller closed them, as a service may
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    try:
        status = commands.main(arguments, prog_name="layoutconv", standalone_mode=False)
        return status or 0
    except click.exceptions.Abort:
        click.echo(
            "layoutconv: interrupted; finished work is kept, run it again to continue", err=True
        )
        return INTERRUPTED
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "layoutconv"
        return _fail(f"{error.format_message()} (see {where} --help)")
    except click.ClickException as error:
        return _fail(error.format_message())
    except OSError as error:
        return _fail(of_system(error))
    except (ValueError, LayoutError, DeviceError) as error:
        return _fail(str(error))
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return _fail("this needs torch, which is not installed: pip install torch")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not re.search(_NO_MEMORY, str(error)):
            raise
        return _fail("not enough memory; try something smaller")


def of_system(error: OSError) -> str:
    """Return an OS error as a message: the file, the reason, and what to do if that is known.

    >>> import errno
    >>> of_system(OSError(errno.EROFS, "Read-only file system", "a.png"))
    'a.png: Read-only file system; choose another place'
    """
    if error.strerror is None:
        return str(error)
    told = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    if error.errno == errno.ENOSPC:
        return f"{told}; make room, or choose another place"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{told}; choose another place"
    return told


def _fail(sentence: str) -> int:
    """Print a message, without control characters and of bounded length; return status 2."""
    lines = visible_lines(sentence)
    told = lines if len(lines) <= _LONGEST else f"{lines[:_LONGEST]}..."
    click.echo(f"layoutconv: error: {told}", err=True)
    return 2
