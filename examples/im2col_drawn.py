"""The im2col matrix of a convolution as a layout: printed, compared with torch's, drawn.

    python examples/im2col_drawn.py [--size 5 5] [--taps 3 3] [--padding 1] [--stride 2] [--row 4]

Row m of A is an output cell, column k a tap; an entry is a coordinate of the image, or padding.
torch stores this matrix (`unfold`); the view is a function with the same entries. The picture
marks the cells that one row reads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
from support.command_line import positive_int, program, whole_int
from torch import Tensor

import layoutconv as lc
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.drawing import Figure, draw
from layoutconv.view.gemm_view import GemmView, locate


def problem_of(options: argparse.Namespace) -> ConvProblem:
    """One image of one channel; ``ArgumentError`` for sizes that make no convolution."""
    return ConvProblem(
        (1, *options.size, 1),
        (1, *options.taps),
        padding=options.padding,
        stride=options.stride,
        dilation=options.dilation,
    )


def through_the_view(view: GemmView, image: Tensor) -> Tensor:
    """A (m, k), entry by entry: what the view says is stored there, zero where nothing is."""
    m, k = torch.arange(view.m)[:, None], torch.arange(view.k)[None]
    offset, stored = locate(view.a, m, k)
    return torch.where(stored, image.flatten()[offset * stored], 0.0)


def by_torch(problem: ConvProblem, image: Tensor) -> Tensor:
    """The same matrix as torch stores it, transposed: rows with q, columns with s fastest."""
    near = tuple(pair[0] for pair in problem.padding)
    columns = torch.nn.functional.unfold(
        image.movedim(-1, 1), problem.taps, problem.dilation, near, problem.stride
    )
    return columns[0].T


def picture(problem: ConvProblem | None = None, row: int | None = 4) -> Figure:
    """The matrix beside the image, with the cells that ``row`` reads."""
    problem = problem or ConvProblem((1, 5, 5, 1), (1, 3, 3), padding=1, stride=2)
    return draw(fprop_view(problem), row=row)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print, compare, draw; 0, 1 where the matrices differ, 2 for what is no convolution."""
    options = _options(arguments)
    try:
        problem = problem_of(options)
        view = fprop_view(problem)
        figure = picture(problem, options.row)
    except ValueError as error:
        print(f"im2col_drawn: error: {error}", file=sys.stderr)
        return 2
    print(view.describe())
    image = torch.randn(problem.activation, generator=torch.Generator().manual_seed(0))
    matrix = through_the_view(view, image)
    same = torch.equal(matrix, by_torch(problem, image))
    zeros = int((matrix == 0).sum())
    times = matrix.numel() / image.numel()
    print(f"\nA is {view.m} x {view.k}, if it were stored {times:.2f} times the image")
    print(f"{zeros} of its entries are padding; as torch's unfold has them: {_verdict(same)}")
    weight = torch.randn(1, *problem.taps, 1, generator=torch.Generator().manual_seed(1))
    y = lc.execute(view, image, weight)
    product = matrix @ weight.flatten()
    close = torch.allclose(y.flatten(), product, atol=1e-5)
    print(f"Its product with the filter is the convolution: {_verdict(close)}")
    figure.save(options.output)
    print(f"picture {options.output}")
    return 0 if same and close else 1


def _verdict(passed: bool) -> str:
    return "ok" if passed else "FAILED"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(__file__, __doc__, "--size 6 6 --dilation 2 --padding 2", picture=".svg")
    add = parser.add_argument
    pair: dict[str, Any] = {"type": positive_int, "nargs": 2, "metavar": "E"}
    add("--size", **pair, default=[5, 5], help="of the image, H and W")
    add("--taps", **pair, default=[3, 3], help="of the filter, R and S")
    add("--padding", type=whole_int, default=1, metavar="CELLS", help="zeros on all sides")
    add("--stride", type=positive_int, default=2)
    add("--dilation", type=positive_int, default=1)
    add("--row", type=whole_int, default=4, metavar="M", help="the row of A that is marked")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
