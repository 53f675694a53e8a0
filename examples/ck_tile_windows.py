"""A convolution as windows of an image, as in Composable Kernel's CK Tile, run in three ways.

    python examples/ck_tile_windows.py [--device cuda] [--output ck_tile_windows.svg]

CK Tile's documentation explains convolution on a 6x6 image with 3x3 windows. The windows are a
view of the same memory with four modes, (4,4,3,3):(6,1,6,1). Merged to a matrix of 16 x 9, they
turn the convolution into a matrix-vector product. That matrix has four times as many entries as
the image:

    naive      loops over windows and taps;
    explicit   the matrix is stored (im2col) and multiplied;
    implicit   the matrix is a layout, and the multiplication reads through it.

All three compute the same result. The script counts their reads from and writes to memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from support.command_line import parsed, program
from torch import Tensor

import layoutconv as lc
from layoutconv import ComposedLayout, GemmView, Layout
from layoutconv.conv.windows import merge, windows
from layoutconv.drawing import Figure, draw
from layoutconv.drawing.one_scale import on_one_scale
from layoutconv.view.gemm_view import locate
from layoutconv.view.operands import row_major

EXTENT, TAPS = 6, 3  # of the image and of the window, in both modes
OUT = EXTENT - TAPS + 1
BOUND = {"cpu": 1e-6, "cuda": 1e-3}  # on relative errors; a GPU multiplies fp32 as tf32


@dataclass(frozen=True)
class Operands:
    """Operands given to every variant: all memory, and the part in use."""

    image: Memory
    filter: Memory
    output: Memory
    matrix: Memory | None = None


class Memory:
    """A tensor that counts what is read from it and written to it, element by element."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.reads, self.writes, self.touched = tensor.reshape(-1), 0, 0, set[int]()

    def __getitem__(self, offset: int) -> float:
        self.reads += 1
        self.touched.add(offset)
        return float(self.tensor[offset])

    def __setitem__(self, offset: int, value: float) -> None:
        self.writes += 1
        self.touched.add(offset)
        self.tensor[offset] = value

    def __str__(self) -> str:
        used = len(self.touched)
        return f"{self.reads:4d} reads {self.writes:4d} writes of {used:3d} elements"


def main(arguments: Sequence[str] | None = None) -> int:
    """Show the views, convolve in three ways, compare and count; 1 if a result differs."""
    parser = program(__file__, __doc__, "--device cuda", device="cpu", picture=".svg")
    options = parsed(parser, arguments)
    device = options.device
    memory = Layout((EXTENT, EXTENT), (EXTENT, 1))
    view = windows(memory, (TAPS, TAPS))
    matrix = merge(view, ((0, 1), (2, 3)))
    gemm = implicit_view(1, 1, 1)
    print(f"image    {memory}")
    print(f"windows  {view}")
    print(f"merged   {matrix}, {matrix[0].size()} x {matrix[1].size()}")
    print(f"implicit {gemm.a}")

    x, w = random(0, 1, EXTENT, EXTENT, 1), random(1, 1, TAPS, TAPS, 1)
    expected = reference(x, w)
    print()
    passed = True
    for name, way in {
        "naive": lambda: naive(view, x, w),
        "explicit": lambda: explicit(matrix, x, w),
        "implicit": lambda: implicit(gemm, x, w),
    }.items():
        used = way()
        passed &= compare(name, used.output.tensor, expected)
        print(f"  image  {used.image}\n  filter {used.filter}\n  output {used.output}")
        if used.matrix:
            print(f"  matrix {used.matrix}")

    print(f"\nThe implicit way at full speed, by the executor, on {device}:")
    for images, channels, filters in ((1, 1, 1), (2, 16, 32)):
        x, w = random(2, images, EXTENT, EXTENT, channels), random(3, filters, TAPS, TAPS, channels)
        y = lc.execute(implicit_view(images, channels, filters), x.to(device), w.to(device))
        name = f"{images} x {EXTENT} x {EXTENT} x {channels} -> {filters}"
        passed &= compare(name, y, reference(x, w))
    picture().save(options.output)
    print(f"\npicture {options.output}")
    return 0 if passed else 1


def picture() -> Figure:
    """The image, and the matrix of its windows, which repeats it."""
    memory = Layout((EXTENT, EXTENT), (EXTENT, 1))
    matrix = merge(windows(memory, (TAPS, TAPS)), ((0, 1), (2, 3)))
    grids = tuple(draw(layout).grids[0][0] for layout in (memory, matrix))
    figure = Figure(f"An image, and the matrix of its windows: {matrix}", (grids,))
    return on_one_scale(figure, "offset in the image")


def naive(view: Layout, x: Tensor, w: Tensor) -> Operands:
    """A loop over windows, and one over the taps of each; ``view`` is (P, Q, R, S)."""
    image, filter, output = Memory(x), Memory(w), Memory(torch.full((OUT, OUT), torch.nan))
    P, Q, R, S = view.shape
    for p, q in product(range(P), range(Q)):
        taps = product(range(R), range(S))
        output[p * Q + q] = sum(image[view(p, q, r, s)] * filter[r * S + s] for r, s in taps)
    return Operands(image, filter, output)


def explicit(layout: Layout, x: Tensor, w: Tensor) -> Operands:
    """The matrix is stored, and then multiplied with the filter."""
    image, filter, output = Memory(x), Memory(w), Memory(torch.full((OUT, OUT), torch.nan))
    rows, columns = layout[0].size(), layout[1].size()
    matrix = Memory(torch.full((rows, columns), torch.nan))
    for i, j in product(range(rows), range(columns)):
        matrix[i * columns + j] = image[layout(i, j)]
    for i in range(rows):
        output[i] = sum(matrix[i * columns + j] * filter[j] for j in range(columns))
    return Operands(image, filter, output, matrix)


def implicit(view: GemmView, x: Tensor, w: Tensor) -> Operands:
    """The product of two matrices that are layouts: what an executor does, an element at a time."""
    image, filter, output = Memory(x), Memory(w), Memory(torch.full((OUT, OUT), torch.nan))
    for m, n in product(range(view.m), range(view.n)):
        total = 0.0
        for k in range(view.k):
            (at, stored), (tap, _) = locate(view.a, m, k), locate(view.b, n, k)
            total += image[at] * filter[tap] if stored else 0.0
        output[locate(view.d, m, n)[0]] = total
    return Operands(image, filter, output)


def implicit_view(N: int, C: int, K: int) -> GemmView:
    """The same windows and the same merge, of coordinates instead of offsets in memory.

    Of (N, H, W, C), windows extend along H and W alone. Modes 4 to 7 are their taps.
    """
    coordinates = lc.make_identity_layout((N, EXTENT, EXTENT, C))
    a = merge(windows(coordinates, (1, TAPS, TAPS, 1)), ((0, 1, 2), (5, 6, 3)))
    b = merge(lc.make_identity_layout((K, TAPS, TAPS, C)), ((0,), (1, 2, 3)))
    d = merge(lc.make_identity_layout((N, OUT, OUT, K)), ((0, 1, 2), (3,)))
    return GemmView(
        a=ComposedLayout(row_major((N, EXTENT, EXTENT, C)), 0, a),
        b=ComposedLayout(row_major((K, TAPS, TAPS, C)), 0, b),
        d=ComposedLayout(row_major((N, OUT, OUT, K)), 0, d),
    )


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def reference(x: Tensor, w: Tensor) -> Tensor:
    """torch's convolution, in float64, of (N, H, W, C) with (K, R, S, C)."""
    y = torch.nn.functional.conv2d(x.double().movedim(-1, 1), w.double().movedim(-1, 1))
    return y.movedim(1, -1)


def compare(name: str, y: Tensor, expected: Tensor) -> bool:
    """Print how far a result is from the reference, and whether that is within the bound."""
    difference = y.cpu().double().reshape(-1) - expected.reshape(-1)
    error = float(difference.norm() / expected.norm())
    passed = error <= BOUND[y.device.type]  # false of a result that is not a number
    print(f"{name}: error {error:.1e} of float64's result, {'ok' if passed else 'FAILED'}")
    return passed


if __name__ == "__main__":
    raise SystemExit(main())
