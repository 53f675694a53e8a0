"""Transposed convolutions: the views of a gradient, against a loop that scatters."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.conv import ConvProblem, dgrad_views
from layoutconv.errors import ArgumentError
from layoutconv.ops.execute import execute

from .loops import ranges


@st.composite
def arguments(draw: st.DrawFn) -> dict:
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    stride, dilation, extra = each(1, 3), each(1, 3), each(0, 2)
    # Whole strides of an output padding beyond the dilation are taken from the far padding.
    taken = [e - e % s if e >= d else 0 for e, s, d in zip(extra, stride, dilation, strict=True)]
    return {
        "activation": (draw(st.integers(0, 2)), *each(1, {1: 6, 2: 4, 3: 2}[rank]), 2),
        "filter": (3, *each(1, 3)),
        "stride": stride,
        "padding": [(draw(st.integers(0, 2)), draw(st.integers(least, 3))) for least in taken],
        "output_padding": extra,
        "dilation": dilation,
    }


@settings(max_examples=50, deadline=None)
@given(arguments=arguments(), seed=st.integers(0, 99))
def test_every_element_is_scattered_through_the_filter(arguments, seed):
    torch.manual_seed(seed)
    (N, *extents, K), (C, *taps) = arguments["activation"], arguments["filter"]
    x, w = torch.randint(-2, 3, (N, *extents, K)), torch.randint(-2, 3, (K, *taps, C))
    modes = list(zip(extents, taps, *(arguments[n] for n in ("stride", "dilation")), strict=True))
    whole = [(e - 1) * s + d * (t - 1) + 1 for e, t, s, d in modes]
    sizes = [f + e for f, e in zip(whole, arguments["output_padding"], strict=True)]
    y = torch.zeros(N, *sizes, C)
    for at in ranges(*extents):
        for tap in ranges(*taps):
            cell = [i * s + t * d for i, t, (_, _, s, d) in zip(at, tap, modes, strict=True)]
            y[(slice(None), *cell)] += (x[(slice(None), *at)] @ w[(slice(None), *tap)]).float()
    kept = [
        slice(near, size - far)
        for (near, far), size in zip(arguments["padding"], sizes, strict=True)
    ]
    y = y[(slice(None), *kept)]
    if not all(y.shape[1:]) or any(s.stop <= s.start for s in kept):
        with pytest.raises(ArgumentError, match="`padding`: expected an output of 1 cell or more"):
            ConvProblem.transposed(**arguments)
        return

    problem = ConvProblem.transposed(**arguments)
    assert problem.output == arguments["activation"]
    result = torch.full(problem.activation, 77.0)
    for view in dgrad_views(problem):
        execute(view, x.float(), w.float(), result)
    assert torch.equal(result, y)


def test_output_padding_beyond_the_stride_and_the_far_padding():
    with pytest.raises(ArgumentError, match=r"`output_padding`: .* below the stride, 2, .* got 2"):
        ConvProblem.transposed((1, 4, 2), (3, 3), 2, ((2, 1),), output_padding=2)
    with pytest.raises(ArgumentError, match="`output_padding`: expected every entry >= 0, got -1"):
        ConvProblem.transposed((1, 4, 2), (3, 3), 2, output_padding=-1)
    with pytest.raises(ArgumentError, match=r"`filter`: expected .* with 1 taps"):
        ConvProblem.transposed((1, 4, 2), (3, 3, 3))
