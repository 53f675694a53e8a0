"""One convolution over tensors in different memory formats: only the layouts differ.

    python examples/memory_layouts.py [--device cuda] [--output memory_layouts.svg]

CUTLASS's interleaved formats NC/32HW32 and NC/64HW64 store 32 or 64 channels of a cell
contiguously. A tensor may be channels first, or a slice of the channels of a larger tensor, as
input and as output; a batch may be images of a larger tensor, selected by an index. Each format is
a layout, which is printed, run, and compared with torch's convolution in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from support.command_line import parsed, program
from torch import Tensor

import layoutconv as lc
from layoutconv import GemmView, Layout
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.conv.stored_layouts import interleaved
from layoutconv.drawing import Figure, draw
from layoutconv.drawing.one_scale import on_one_scale
from layoutconv.view.gemm_view import OperandLayout, gathers, stages
from layoutconv.view.operands import row_major

N, H, W, C, K = 2, 10, 12, 128, 64
BOUND = {"cpu": 1e-6, "cuda": 1e-3}  # on relative errors; a GPU multiplies fp32 as tf32
PROBLEM = ConvProblem((N, H, W, C), (K, 3, 3), stride=(2, 1), padding=1)


@dataclass(frozen=True)
class Run:
    """A view and its tensors.

    ``logical`` reads a tensor like ``out`` as (N, P, Q, K); ``beside``, in the same memory, is left
    as it is; ``images`` of the data are the batch, -1 one of zeros.
    """

    name: str
    view: GemmView
    x: Tensor
    out: Tensor
    logical: Callable[[Tensor], Tensor] = lambda out: out
    beside: Tensor | None = None
    images: Sequence[int] = range(N)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, compare; 1 if a result is wrong, else 0."""
    parser = program(__file__, __doc__, "--device cuda", device="cpu", picture=".svg")
    options = parsed(parser, arguments)
    device = options.device
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, H, W, C, generator=generator).to(device)
    weight = torch.randn(K, 3, 3, C, generator=generator).to(device)
    passed = True
    for run in runs(x):
        print(f"\n{run.name}\n  A: {memory(run.view.a)}\n  D: {memory(run.view.d)}")
        passed &= check(run, x, weight)
    picture().save(options.output)
    print(f"\npicture {options.output}")
    return 0 if passed else 1


def picture() -> Figure:
    """Six cells of eight channels in three memories: row (h, w), column c, the offset there."""
    cells, channels = (1, 2, 3), 8
    first = Layout((*cells, channels), (48, 3, 1, 6))
    shown = {
        "NHWC": row_major((*cells, channels)),
        "NCHW": first,
        "NC/4HW4": interleaved((*cells, channels), 4),
    }
    grids = []
    for name, layout in shown.items():
        matrix = lc.make_layout(lc.make_layout(layout[2], layout[1]), layout[3])
        ((grid, *_), *_) = draw(matrix).grids
        assert grid is not None
        grids.append(replace(grid, title=name))
    rows = tuple(grids[:2]), tuple(grids[2:])
    figure = Figure("Offset of cell (h, w), down, and channel c, across", rows)
    return on_one_scale(figure, "offset in memory")


def runs(x: Tensor) -> Iterator[Run]:
    """The data of ``x`` (N, H, W, C) in every kind of memory."""

    def empty(*shape: int) -> Tensor:
        return torch.full(shape, torch.nan, device=x.device)

    _, P, Q, _ = PROBLEM.output
    yield Run("NHWC", fprop_view(PROBLEM), x, empty(N, P, Q, K))

    first = x.permute(0, 3, 1, 2).contiguous()  # NCHW in memory
    y = empty(N, K, P, Q)
    view = fprop_view(
        PROBLEM,
        activation_layout=Layout((N, H, W, C), first.permute(0, 2, 3, 1).stride()),
        output_layout=Layout((N, P, Q, K), y.permute(0, 2, 3, 1).stride()),
    )
    yield Run("NCHW", view, first.permute(0, 2, 3, 1), y.permute(0, 2, 3, 1))

    for width in (32, 64):
        pieces = x.view(N, H, W, C // width, width).permute(0, 3, 1, 2, 4).contiguous()
        y = empty(N, K // width, P, Q, width)
        view = fprop_view(
            PROBLEM,
            activation_layout=interleaved((N, H, W, C), width),
            output_layout=interleaved((N, P, Q, K), width),
        )
        name = f"NC/{width}HW{width}"
        # The executor's tensors have a mode per digit of the channel: (N, H, W, width, pieces).
        yield Run(name, view, pieces.movedim(1, -1), y.movedim(1, -1), from_digits)

    larger, joined = empty(N, H, W, 3 * C), empty(N, P, Q, 2 * K)
    part, target = larger[..., C : 2 * C].copy_(x), joined[..., K:]
    view = fprop_view(
        PROBLEM,
        activation_layout=Layout((N, H, W, C), part.stride()),
        output_layout=Layout((N, P, Q, K), target.stride()),
    )
    yield Run("channels of larger tensors", view, part, target, beside=joined[..., :K])

    every_second = empty(N, H, W, 2 * C)[..., ::2].copy_(x)
    layout = Layout((N, H, W, C), every_second.stride())
    view = fprop_view(PROBLEM, activation_layout=layout)
    yield Run("every second channel", view, every_second, empty(N, P, Q, K))

    order = [4, 1]  # where the images are; the others are never read
    stored = empty(6, H, W, C)
    stored[order] = x
    index = torch.tensor([order[1], -1], dtype=torch.int32, device=x.device)
    view = fprop_view(PROBLEM, batch_index=index, images=len(stored))
    yield Run("images named by an index", view, stored, empty(N, P, Q, K), images=(1, -1))


def memory(layout: OperandLayout) -> str:
    """The map from coordinates to memory in numbers, and what is between them and the tensor."""
    *maps, last = stages(layout)
    numbers = Layout(tuple(map(int, last.layout.shape)), tuple(map(int, last.layout.stride)))
    return " o ".join([str(numbers), *(str(s.layout) for s in maps if gathers(s))])


def from_digits(out: Tensor) -> Tensor:
    """(..., width, K / width) as (..., K)."""
    return out.transpose(-1, -2).flatten(-2)


def check(run: Run, x: Tensor, weight: Tensor) -> bool:
    """Run a view, and compare with torch's convolution of the logical tensor in float64."""
    zeros = torch.zeros_like(x[0])
    images = torch.stack([zeros if image < 0 else x[image] for image in run.images]).double()
    expected = torch.nn.functional.conv2d(
        images.movedim(-1, 1), weight.double().movedim(-1, 1), stride=PROBLEM.stride, padding=1
    ).movedim(1, -1)
    lc.execute(run.view, run.x, weight, run.out)
    error = float((run.logical(run.out).double() - expected).norm() / expected.norm())
    passed = error <= BOUND[x.device.type]  # false of a result that is not a number
    passed &= run.beside is None or bool(run.beside.isnan().all())
    print(f"  error {error:.1e} of float64's result, {'ok' if passed else 'FAILED'}")
    return passed


if __name__ == "__main__":
    raise SystemExit(main())
