"""Write a convolution as three layouts, run it, then run it over scattered rows.

    python examples/hello_views.py [--output hello_views.svg]

A causal convolution of time series: step w of the output sees the steps w, w - 2 and w - 4 of the
input. The library has no function or flag for it; three layouts describe it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from support.command_line import program
from torch import Tensor

import layoutconv as lc
from layoutconv import ComposedLayout, CustomStride, E, GemmView, IndexedGather, Layout
from layoutconv.drawing import Figure, draw
from layoutconv.view.gemm_view import OperandLayout, locate

N, W, C, K, TAPS, DILATION = 2, 9, 8, 16, 3, 2  # series, steps, channels, filters


def main(arguments: Sequence[str] | None = None) -> None:
    """Describe, show, run, compare and draw."""
    parser = program(__file__, __doc__, "--output causal.html", picture=".svg")
    output = parser.parse_args(arguments).output
    memory = Layout((N, W, C), (W * C, C, 1))
    view = causal_view(memory)
    print("A causal convolution as D[m, n] = sum of A[m, k] * B[n, k] over k:")
    print(view)

    print("\nThe steps that the rows of A read, by tap; a dot is a zero before the start:")
    for w in range(W):
        cells = [locate(view.a, (w, 0), (0, tap)) for tap in range(TAPS)]
        print(f"  w = {w}:", *(offset // C if stored else "." for offset, stored in cells))

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, W, C, generator=generator)
    weight = torch.randn(K, TAPS, C, generator=generator)
    y = lc.execute(view, x, weight)
    compare("dense", y, by_hand(x, weight))

    # The same series, their steps stored in any order: row order[i] of a table has step i.
    order = torch.randperm(N * W, generator=generator)
    table = torch.empty(N * W, C)
    table[order] = x.view(N * W, C)
    scattered = causal_view(through_index(order.int()))
    print(f"\nThe steps stored in any order; only A has changed:\nA: {scattered.a}")
    compare("scattered", lc.execute(scattered, table, weight), y)
    picture().save(output)
    print(f"picture: {output}")


def picture() -> Figure:
    """The matrix A of one channel, and the three steps that one of its rows reads."""
    by_tap = Layout(((W, 1), (1, TAPS)), ((E(1), E(0)), (E(2), DILATION * E(1))))
    first = ComposedLayout(Layout((1, W, 1), (W, 1, 1)), (0, -DILATION * (TAPS - 1), 0), by_tap)
    return draw(
        GemmView(a=first, b=Layout((K, TAPS)), d=Layout((W, K))),
        row=6,
        title="A causal convolution: A, and what row 6 reads",
    )


def causal_view(activation: OperandLayout) -> GemmView:
    """The convolution of what ``activation`` stores at (n, w, c)."""
    rows, columns = (W, N), (C, TAPS)  # the first mode runs fastest
    start = -DILATION * (TAPS - 1)  # the first tap is that far in the past: padding is an offset
    im2col = Layout((rows, columns), ((E(1), E(0)), (E(2), DILATION * E(1))))
    filters = Layout((K, TAPS, C), (TAPS * C, C, 1))
    result = Layout((N, W, K), (W * K, K, 1))
    return GemmView(
        a=ComposedLayout(activation, (0, start, 0), im2col),
        b=ComposedLayout(filters, 0, Layout((K, columns), (E(0), (E(2), E(1))))),
        d=ComposedLayout(result, 0, Layout((rows, K), ((E(1), E(0)), E(2)))),
    )


def through_index(index: Tensor) -> ComposedLayout:
    """(n, w, c) to channel c of the row that ``index`` names for step w of series n."""
    fold = Layout((N, W, C), (W * E(0), E(0), E(1)))
    gather = Layout((N * W, C), (CustomStride(IndexedGather(index), E(0)), E(1)))
    return ComposedLayout(ComposedLayout(Layout((N * W, C), (C, 1)), 0, gather), 0, fold)


def by_hand(x: Tensor, weight: Tensor) -> Tensor:
    """The same convolution as a sum over taps of shifted copies."""
    past = torch.zeros(N, DILATION * (TAPS - 1), C)
    padded = torch.cat([past, x], dim=1)
    return sum(
        (padded[:, DILATION * t : DILATION * t + W] @ weight[:, t].T for t in range(TAPS)),
        start=torch.zeros(N, W, K),
    )


def compare(name: str, y: Tensor, expected: Tensor) -> None:
    """Print how far apart two results are; raise if that is more than rounding."""
    torch.testing.assert_close(y, expected)
    print(f"{name}: {tuple(y.shape)}, largest difference {float((y - expected).abs().max()):.1e}")


if __name__ == "__main__":
    main()
