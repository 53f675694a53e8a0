"""Convolutions with few channels of the input or of the output, for hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from layoutconv.conv import ConvProblem


@st.composite
def few_channels(
    draw: st.DrawFn, *, taps: int, more: Sequence[int], room: int, even: bool
) -> ConvProblem:
    """Draw up to ``taps`` taps along a mode, and ``more`` channels on the other side.

    ``room`` is the cells past a filter's span at most. Padding that is ``even`` is the same on both
    sides, as torch's is.
    """
    rank = draw(st.integers(1, 3))
    C, K = draw(st.permutations([draw(st.integers(1, 9)), draw(st.sampled_from(more))]))
    sizes = tuple(draw(st.integers(1, taps)) for _ in range(rank))
    stride = draw(st.sampled_from([(1,) * rank, sizes, (2,) * rank]))
    dilation = tuple(draw(st.sampled_from([1, 1, 2])) for _ in range(rank))
    spans = [d * (t - 1) + 1 for t, d in zip(sizes, dilation, strict=True)]
    padding = [(draw(st.integers(0, s - 1)), draw(st.integers(0, s - 1))) for s in spans]
    if even:
        padding = [(near, near) for near, _ in padding]
    elif draw(st.booleans()):
        padding = [(0, 0)] * rank
    cells = [s + draw(st.integers(0, room)) for s in spans]
    N = draw(st.integers(1, 2))
    return ConvProblem((N, *cells, C), (K, *sizes), stride, padding, dilation)
