"""A view of a K-major filter computes what the view of the filter does, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from layoutconv.algebra import Layout
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view
from layoutconv.conv.k_major_filter import k_major_filter, k_major_view
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.ops.execute import execute
from layoutconv.planning.kernel_spec import vectors_of
from layoutconv.sparse.views import kernel_map_dgrad_view
from layoutconv.view.gemm_view import GemmView, stages

from ..exact import integers


def of_filter(problem: ConvProblem) -> torch.Tensor:
    return integers(problem.K, *problem.taps, problem.C // problem.groups)


PROBLEMS: dict[str, tuple[ConvProblem, dict[str, Any]]] = {
    "1d": (ConvProblem((2, 9, 6), (8, 3), padding=1), {}),
    "2d": (ConvProblem((2, 5, 7, 6), (8, 3, 2)), {}),
    "3d": (ConvProblem((1, 4, 3, 5, 4), (8, 2, 3, 1), padding=1), {}),
    "strided": (ConvProblem((2, 6, 7, 4), (12, 3, 3), stride=2, padding=1), {}),
    "strided, 3d": (ConvProblem((1, 5, 4, 6, 3), (4, 3, 2, 3), (2, 1, 3), 1), {}),
    "dilated": (ConvProblem((2, 9, 8, 4), (8, 3, 3), padding=2, dilation=(2, 3)), {}),
    "strided and dilated": (ConvProblem((2, 9, 4), (8, 3), 2, 1, 3), {}),
    "grouped": (ConvProblem((2, 5, 7, 6), (12, 3, 3), 2, 1, groups=3), {}),
    "side by side": (ConvProblem((2, 6, 8, 4), (8, 3, 3), 2, 1), {"side_by_side": (0, 1)}),
    "images first": (ConvProblem((3, 4, 4, 4), (8, 3, 3)), {"images_first": True}),
    "one tap": (ConvProblem((2, 5, 6, 4), (8, 1, 1), stride=2), {}),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_gradient_is_that_of_the_filter_as_it_lies(name: str) -> None:
    problem, options = PROBLEMS[name]
    y, w = integers(*problem.output), of_filter(problem)
    plain, other = (torch.full(problem.activation, torch.nan) for _ in range(2))
    copy = k_major_filter(w)
    for view in dgrad_views(problem, **options):
        execute(view, y, w, plain)
        execute(k_major_view(view), y, copy, other)
    assert plain.isfinite().all()
    assert torch.equal(plain, other)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_gradient_over_a_kernel_map(mirrored: bool, groups: int) -> None:
    index = torch.randint(-1, 7, (27, 9), generator=torch.Generator().manual_seed(1)).int().T
    y, w = integers(7, 8), integers(8, 3, 3, 3, 6 // groups)
    numbers: dict[str, Any] = {"mirrored": mirrored, "out_rows": 7, "groups": groups}
    view = kernel_map_dgrad_view(index, 6, 8, **numbers)
    assert torch.equal(execute(view, y, w), execute(k_major_view(view), y, k_major_filter(w)))


def test_only_where_b_is_stored_differs() -> None:
    [view] = dgrad_views(ConvProblem((2, 8, 8, 16), (32, 3, 3), groups=2))
    other = k_major_view(view)
    assert k_major_view(view) is other  # kept: plans are kept with it
    assert other.a is view.a
    assert other.d is view.d
    one, two = stages(view.b), stages(other.b)
    assert one[:-1] == two[:-1]
    assert one[-1].layout.shape == two[-1].layout.shape
    assert k_major_filter(integers(32, 3, 3, 8)).stride() == tuple(map(int, two[-1].layout.stride))
    # both operands run along the sum then, in vectors of 16 bytes
    assert vectors_of(view, "tfloat32", "float32") == ((4, 4, 4), (1, 0))
    assert vectors_of(other, "tfloat32", "float32") == ((4, 4, 4), (1, 1))


def test_a_filter_in_the_order_of_torch() -> None:
    """A kernel takes the memory of a filter, even that of a ``channels_last`` tensor."""
    w = integers(8, 3, 2, 6)
    copy = k_major_filter(w.movedim(-1, 1), w.shape)
    assert torch.equal(copy, w)
    assert copy.stride() == k_major_filter(w).stride() == (1, 16, 8, 48)
    assert copy.permute(3, 1, 2, 0).is_contiguous()


def test_what_is_refused() -> None:
    plain = Layout((4, 8), (8, 1))
    with pytest.raises(ArgumentError, match="`view`: expected maps from"):
        k_major_view(GemmView(plain, plain, Layout((4, 4), (4, 1))))
    with pytest.raises(ArgumentError, match="`w`: expected two modes or more"):
        k_major_filter(torch.ones(3))
    with pytest.raises(ArgumentTypeError, match="`w`: expected a torch tensor, got list"):
        k_major_filter([[1.0]])  # type: ignore[arg-type]
    fprop = fprop_view(ConvProblem((1, 8, 4), (4, 3)))
    with pytest.raises(ArgumentError, match="`b`: expected strides"):
        execute(k_major_view(fprop), integers(1, 8, 4), integers(4, 3, 4))
