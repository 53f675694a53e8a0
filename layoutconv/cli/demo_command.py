"""``layoutconv demo``: convolve a cloud and draw the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import Finite, NewFile


@click.command(
    epilog="""\b
examples:
  layoutconv demo
  layoutconv demo sweep.bin --columns 5 --voxel-size 0.1
  layoutconv demo room.ply --voxel-size 0.05 --dtype float16 --output room.png
"""
)
@click.argument("points", required=False, type=click.Path(path_type=Path))
@click.option(
    "--voxel-size", type=Finite(0, min_open=True), default=0.2, metavar="M",
    show_default=True,
    help="Edge of a voxel; 0.05 suits a room.",
)  # fmt: skip
@click.option(
    "--columns", type=click.IntRange(3, 1024), metavar="N",
    help="Columns of the file; by default 4 for .bin.",
)  # fmt: skip
@click.option(
    "--channels", type=click.IntRange(1, 4096), default=32, metavar="C", show_default=True,
    help="Input and output channels.",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), default="float32",
    show_default=True, help="Data type.",
)  # fmt: skip
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
    help="Device to run on.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0), default=0, metavar="N", show_default=True,
    help="Seed of the synthetic street.",
)  # fmt: skip
@click.option(
    "--output", type=NewFile(), default=Path("layoutconv-demo.png"),
    metavar="PNG", show_default=True, help="Where to write the picture.",
)  # fmt: skip
def demo(**options: Any) -> int:
    """Convolve a point cloud, check the result and draw it.

    POINTS is a file, .bin, .npy, .ply, .pcd, .las or .laz; without one it is a synthetic street.
    The cloud is voxelized and goes through the sparse view, the fullest part of it through the
    dense view; both are checked against a reference in float64. The exit status is 1 if a check
    fails.
    """
    from ..demo import DemoOptions, run

    return 0 if run(DemoOptions(**options)) else 1
