"""Functions of users on a CPU: of any view and tile, where results are, and what is refused."""

from __future__ import annotations

import pytest
import torch

import layoutconv as lc
from layoutconv import pointwise as pw
from layoutconv.conv import ConvProblem, fprop_view, gather_fprop_view
from layoutconv.conv.depthwise_views import depthwise_fprop_view
from layoutconv.errors import ArgumentError, ArgumentTypeError

from .blocking import blocked


@pytest.fixture(params=[32768, 3], ids=["one tile", "many tiles"])
def rows(request, monkeypatch):
    blocked(monkeypatch, rows=request.param)


def placed(x, row, column, weight, shift, skip, by):
    return pw.where((row + column) % 3 == 0, weight * x + shift, by * skip)


def test_coordinates_are_those_of_the_view(rows):
    """m of all images and pixels, and n of all groups."""
    problem = ConvProblem((2, 5, 4, 6), (9, 3, 3), padding=1, groups=3)
    view = fprop_view(problem)
    x, w = torch.randn(2, 5, 4, 6).double(), torch.randn(9, 3, 3, 2).double()
    sums = lc.execute(view, x, w)
    weight, shift, skip = torch.randn(40).double(), torch.randn(9).double(), torch.randn_like(sums)
    step = lc.Pointwise(placed, {"shift": shift}, {"weight": weight}, {"skip": skip}, {"by": 0.5})
    got = lc.execute(view, x, w, epilogue=step).view(40, 9)
    row, column = torch.arange(40)[:, None], torch.arange(9)
    other = weight[:, None] * sums.view(40, 9) + shift
    want = torch.where((row + column) % 3 == 0, other, 0.5 * skip.view(40, 9))
    torch.testing.assert_close(got, want)


def test_rows_that_an_index_scatters(rows):
    """A row's number is that in the view, wherever it is stored."""
    problem = ConvProblem((1, 7, 11, 4), (5, 2, 3), padding=((0, 1), 1))
    cells = torch.randperm(77, generator=torch.Generator().manual_seed(0)).int()
    view = gather_fprop_view(problem, None, cells)
    x, w = torch.randn(1, 7, 11, 4).double(), torch.randn(5, 2, 3, 4).double()
    numbers = torch.arange(77.0).double()
    by_number = lc.Pointwise(lambda x, row: 0.0 * x + row)
    by_tensor = lc.Pointwise(lambda x, r: 0.0 * x + r, rows={"r": numbers})
    out = torch.empty(77, 5).double()
    out[cells.long()] = numbers[:, None]
    for step in (by_number, by_tensor):
        assert torch.equal(lc.execute(view, x, w, epilogue=step).view(77, 5), out)


def test_a_depthwise_view_has_columns(rows):
    problem = ConvProblem((2, 6, 4, 5), (5, 3, 3), padding=1, groups=5)
    view = depthwise_fprop_view(problem)
    x, w = torch.randn(2, 6, 4, 5).double(), torch.randn(5, 3, 3, 1).double()
    bias = torch.randn(5).double()
    step = lc.Pointwise(lambda x, bias, column: x * column + bias, {"bias": bias})
    want = lc.execute(view, x, w) * torch.arange(5) + bias
    torch.testing.assert_close(lc.execute(view, x, w, epilogue=step), want)


def test_steps_are_in_fp32_and_round_once():
    view = fprop_view(ConvProblem((1, 5, 8), (4, 3)))
    x, w = torch.randn(1, 5, 8).half(), torch.randn(4, 3, 8).half()
    got = lc.execute(view, x, w, epilogue=lc.Pointwise(lambda x: x + 1e-3))
    want = lc.execute(view, x, w, out_dtype=torch.float32) + 1e-3
    assert torch.equal(got, want.half())


def test_statistics_are_of_what_is_stored():
    view = fprop_view(ConvProblem((2, 5, 4), (6, 3)))
    x, w = torch.randn(2, 5, 4), torch.randn(6, 3, 4)
    step = lc.Pointwise(lambda x: pw.maximum(x, 0.5))
    out, statistics = lc.execute(view, x, w, epilogue=lc.Epilogue((step,), statistics=True))
    flat = out.view(-1, 6)
    torch.testing.assert_close(statistics, torch.stack([flat.sum(0), (flat * flat).sum(0)]))


def test_tensors_of_another_shape():
    view = fprop_view(ConvProblem((1, 5, 8), (4, 3)))
    x, w = torch.randn(1, 5, 8), torch.randn(4, 3, 8)
    cases = [
        (lc.Pointwise(lambda x, c: x * c, {"c": torch.ones(3)}), "4 contiguous numbers, one per c"),
        (lc.Pointwise(lambda x, r: x * r, rows={"r": torch.ones(4)}), "3 contiguous .* per row"),
        (lc.Pointwise(lambda x, s: x * s, sources={"s": torch.ones(3, 4)}), r"shape \(1, 3, 4\)"),
    ]
    for step, message in cases:
        with pytest.raises(ArgumentError, match=f"`epilogue`: expected .*{message}"):
            lc.execute(view, x, w, epilogue=step)
    wrong = lc.Pointwise(lambda x, c: x * c, {"c": torch.ones(4, dtype=torch.int64)})
    with pytest.raises(ArgumentTypeError, match=r"`epilogue`: expected tensors of .*int64"):
        lc.execute(view, x, w, epilogue=wrong)


def test_messages_name_the_one_of_several_tensors():
    view = lc.GemmView(lc.Layout((6, 4), (4, 1)), lc.Layout((5, 4), (4, 1)), lc.Layout((6, 5)))
    right = {"c": torch.ones(5), "r": torch.ones(6), "s": torch.ones(5, 6).T}
    wrong = {
        "c": (torch.ones(4), "5 contiguous numbers, one per column, for `c`, got shape"),
        "r": (torch.ones(5), "6 contiguous numbers, one per row, for `r`, got shape"),
        "s": (torch.ones(5, 5).T, "of .*, for `s`, got shape"),
    }
    for name, (short, message) in wrong.items():
        for tensor, said in ((short, message), (right[name].int(), f"for `{name}`, got .*int32")):
            given = {**right, name: tensor}
            places = ({place: given[place]} for place in "crs")
            step = lc.Pointwise(lambda x, c, r, s: x * c + r * s, *places)
            for steps in (step, (lc.Scale(torch.ones(5)), step)):
                with pytest.raises(ArgumentError, match=f"`epilogue`: expected .*{said}"):
                    lc.execute(view, torch.ones(6, 4), torch.ones(5, 4), epilogue=steps)
    with pytest.raises(ArgumentError, match="one per column, for Bias, got shape"):
        lc.execute(view, torch.ones(6, 4), torch.ones(5, 4), epilogue=lc.Bias(torch.ones(4)))
