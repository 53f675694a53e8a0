"""Random problems through the template, in the machine."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from layoutconv.conv import ConvProblem, fprop_view, gather_fprop_view
from layoutconv.planning.tile import TileConfig
from layoutconv.sparse import kernel_map_view

from .draws import draws
from .launcher import DTYPES, check_view_runs, half_line

# An example costs a compilation and a few CTAs, seconds of vectors of one element: a failure is
# not made smaller. LAYOUTCONV_CAMPAIGN=100 draws more.
few = settings(
    max_examples=draws(3),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=set(Phase) - {Phase.shrink, Phase.explain},
)


@st.composite
def problems(draw: st.DrawFn, vector: int) -> ConvProblem:
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    taps, stride, dilation = each(1, 4), each(1, 3), each(1, 3)
    near, far, extents = each(0, 5), each(0, 5), each(1, {1: 40, 2: 7, 3: 4}[rank])
    spans = [d * (t - 1) + 1 for d, t in zip(dilation, taps, strict=True)]
    fit = [max(e, s - n - f) for e, s, n, f in zip(extents, spans, near, far, strict=True)]
    N, C, K = draw(st.integers(1, 2)), vector * draw(st.integers(1, 9)), vector * draw(
        st.integers(1, 5)
    )  # fmt: skip
    padding = list(zip(near, far, strict=True))
    return ConvProblem((N, *fit, C), (K, *taps), stride, padding, dilation)


@st.composite
def tiles(draw: st.DrawFn, dtype: torch.dtype, least: int = 16, vector: int = 2) -> TileConfig:
    """``least`` rows: 32 where A may run along them; threads for a row of vectors to be stored."""
    warps = [(2, 2), (4, 1)]
    if dtype != torch.float64 and vector > 1:  # few threads copy elements one by one for seconds
        warps += [(1, 1), (2, 1), (1, 2)]
    warps_m, warps_n = draw(st.sampled_from(warps))
    widths = [n for n in (32, 64) if n <= 32 * warps_m * warps_n * vector]
    m, n = 16 * warps_m * draw(st.integers(1, 2)), draw(st.sampled_from(widths))
    m = max(m, least)
    k = half_line(dtype) * draw(st.integers(1, 2))
    return TileConfig((m, n, k), (warps_m, warps_n), draw(st.integers(2, 4)))


@st.composite
def index(draw: st.DrawFn, entries: int) -> tuple[torch.Tensor, int]:
    """Distinct rows in random order, a part of them absent; and how many rows there are."""
    rows = entries + draw(st.integers(-entries // 2, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    permutation = torch.randperm(entries + 5, generator=generator)[:entries].int()
    absent = torch.rand(entries, generator=generator) < draw(st.sampled_from([0.0, 0.5]))
    return permutation.masked_fill(absent, -1), rows


@few
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_dense(data: st.DataObject, dtype: torch.dtype) -> None:
    problem = data.draw(problems(16 // dtype.itemsize))
    check_view_runs(fprop_view(problem), dtype, data.draw(tiles(dtype)))


@few
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_grid(data: st.DataObject, dtype: torch.dtype) -> None:
    problem = data.draw(problems(16 // dtype.itemsize))
    cells, outputs = (
        torch.Size(extents[:-1]).numel() for extents in (problem.activation, problem.output)
    )
    (gather, in_rows), (scatter, out_rows) = data.draw(index(cells)), data.draw(index(outputs))
    view = gather_fprop_view(problem, gather, scatter, in_rows=in_rows, out_rows=out_rows)
    check_view_runs(view, dtype, data.draw(tiles(dtype)))


@few
@given(data=st.data(), dtype=st.sampled_from(DTYPES), tap_major=st.booleans())
def test_kernel_map(data: st.DataObject, dtype: torch.dtype, tap_major: bool) -> None:
    vector = 16 // dtype.itemsize
    m, in_rows = data.draw(st.integers(1, 80)), data.draw(st.integers(0, 80))
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    taps = torch.Size(sizes).numel()
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    entries = torch.randint(-20, 90, (m, taps), generator=generator, dtype=torch.int32)
    entries = entries.T.contiguous().T if tap_major else entries
    C, K = (vector * data.draw(st.integers(1, top)) for top in (9, 5))
    view = kernel_map_view(entries, C, K, kernel_size=sizes, in_rows=in_rows)
    check_view_runs(view, dtype, data.draw(tiles(dtype)))
