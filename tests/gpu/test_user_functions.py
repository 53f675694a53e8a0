"""Functions of users on a GPU, by whatever kernel is chosen, against the CPU executor."""

from __future__ import annotations

import pytest
import torch

import layoutconv as lc
from layoutconv import pointwise as pw
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view
from layoutconv.conv.depthwise_views import depthwise_fprop_view

from .test_execute import operands

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

VIEWS = {
    "wide": fprop_view(ConvProblem((2, 32, 32, 64), (64, 3, 3), padding=1)),
    "narrow": fprop_view(ConvProblem((2, 17, 19, 5), (7, 3, 3), padding=1)),
    "deep": fprop_view(ConvProblem((1, 9, 9, 256), (128, 1, 1))),
    "groups": fprop_view(ConvProblem((2, 9, 9, 64), (96, 3, 3), padding=1, groups=4)),
    "a residue": dgrad_views(ConvProblem((2, 9, 6, 16), (24, 3, 3), stride=2, padding=1))[1],
    "depthwise": depthwise_fprop_view(ConvProblem((2, 9, 9, 48), (48, 3, 3), groups=48)),
}
STEPS = {
    "columns": (lambda x, low, by: pw.where(x < low, low + by * (x - low), x), "c"),
    "coordinates": (lambda x, column, by: x * by + column % 7, ""),
    "rows": (lambda x, weight, row, by: pw.tanh(weight * x * by) + (row // 3) % 5, "r"),
    "sources": (lambda x, skip, by: pw.maximum(x, skip) * by, "s"),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("of", VIEWS)
def test_a_function(of: str, name: str, dtype: torch.dtype) -> None:
    view, (function, kind) = VIEWS[of], STEPS[name]
    a, b = operands(view, dtype)
    like = lc.execute(view, a, b)
    columns = like.shape[-1]
    given = {
        "columns": {"low": torch.randn(columns, device="cuda")} if kind == "c" else {},
        "rows": {"weight": torch.randn(view.m, device="cuda")} if kind == "r" else {},
        "sources": {"skip": torch.randn_like(like)} if kind == "s" else {},
    }
    step = lc.Pointwise(function, **given, values={"by": 0.5})
    there = {place: {n: t.cpu() for n, t in named.items()} for place, named in given.items()}
    want = lc.execute(
        view, a.cpu(), b.cpu(), epilogue=lc.Pointwise(function, **there, values={"by": 0.5}),
        out_dtype=torch.float32,
    )  # fmt: skip
    out = torch.full_like(like, torch.nan)
    got = lc.execute(view, a, b, out, epilogue=step, precision="fp32")
    written = torch.isfinite(got).cpu() if of == "a residue" else torch.ones_like(want) > 0
    scale = want[written].abs().max()
    limit = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 2e-3}[dtype]
    assert ((got.cpu().float() - want)[written].abs() <= limit * scale).all()
