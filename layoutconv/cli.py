"""The command line: ``python -m layoutconv COMMAND``, or ``layoutconv COMMAND`` once installed."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from . import __version__
from .algebra import LayoutError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status: 0, or 1 if a check failed, or 2 for what makes no sense."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return options.command(options)
    except BrokenPipeError:  # `| head` has read enough; what is still buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, LayoutError, OSError) as error:
        print(f"layoutconv: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    from .draw import command

    parser = argparse.ArgumentParser(
        prog="layoutconv",
        description="Dense and sparse convolutions from layouts, by one kernel template.",
    )
    parser.add_argument("--version", action="version", version=f"layoutconv {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    demo = commands.add_parser(
        "demo",
        help="convolve a point cloud, check the result and draw it",
        description="Voxelize a cloud, convolve it through the sparse view and the fullest part of "
        "it through the dense view, check both, and write a picture.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.set_defaults(command=_demo)
    demo.add_argument(
        "points",
        nargs="?",
        type=Path,
        help=".bin, .npy, .ply, .pcd, .las or .laz; a synthetic street without one",
    )
    add = demo.add_argument
    add("--voxel-size", type=float, default=0.2, metavar="M", help="0.05 suits a room")
    add("--columns", type=int, metavar="N", help="columns of the file, 4 for .bin if not given")
    add("--channels", type=int, default=32, metavar="C", help="input and output channels")
    add("--dtype", choices=("float32", "float16", "bfloat16"), default="float32", help="of data")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where it runs")
    add("--seed", type=int, default=0, metavar="N", help="of the synthetic street")
    add("--output", type=Path, default=Path("layoutconv-demo.png"), metavar="PNG", help="picture")

    drawing = commands.add_parser(
        "draw",
        help="draw a layout, a swizzle, an atom of tensor cores or a convolution",
        description=command.DESCRIPTION,
        epilog=command.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(drawing)
    drawing.set_defaults(command=command.run)

    info = commands.add_parser("info", help="say what is installed and where kernels would run")
    info.set_defaults(command=_info)
    return parser


def _demo(options: argparse.Namespace) -> int:
    from .demo import DemoOptions, run

    asked = {name: value for name, value in vars(options).items() if name != "command"}
    return 0 if run(DemoOptions(**asked)) else 1


def _info(options: argparse.Namespace) -> int:
    from .demo import choose_device

    print(f"layoutconv      {__version__}")
    print(f"python          {platform.python_version()} on {platform.platform(terse=True)}")
    for package in ("torch", "nvidia-cutlass-dsl", "apache-tvm-ffi", "numpy"):
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            version = "not installed"
        print(f"{package:<15} {version}")
    print(f"executor        {choose_device('auto')[1]}")
    return 0
