"""Calls that are refused, and the messages that say so."""

from __future__ import annotations

import pytest
import torch

import layoutconv as lc
from layoutconv.algebra import ComposedLayout, E, Layout
from layoutconv.algebra.int_tuple import compact_stride, flatten
from layoutconv.conv import (
    ConvProblem,
    depthwise_fprop_view,
    dgrad_views,
    fprop_view,
    gather_fprop_view,
    wgrad_view,
)
from layoutconv.conv.stored_layouts import interleaved
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.ops.execute import execute
from layoutconv.sparse import kernel_map_view
from layoutconv.tensors.expected_tensors import expected
from layoutconv.view.gemm_view import GemmView, locate
from layoutconv.view.operands import indexed_rows

PROBLEM = ConvProblem((2, 5, 4), (6, 3), padding=1)
X, W = torch.randn(2, 5, 4), torch.randn(6, 3, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"a": X[0]}, ArgumentError, "argument `a`: expected shape (2, 5, 4) of (N,W,C):(W*C,C,1)"),
        (
            {"a": X[:, :, :3]},
            ArgumentError,
            "`a`: expected shape (2, 5, 4) of (N,W,C):(W*C,C,1)",
        ),
        ({"b": W.mT.contiguous()}, ArgumentError, "`b`: expected shape (6, 3, 4) of (K,S,C):(S*C,"),
        ({"b": W.mT.contiguous().mT}, ArgumentError, "`b`: expected strides (12, 4, 1) of (K,S,C)"),
        ({"out": torch.empty(2, 5, 7)}, ArgumentError, "argument `out`: expected shape (2, 5, 6)"),
        ({"out": torch.empty(2, 6, 5).mT}, ArgumentError, "`out`: expected strides (30, 6, 1) of"),
        (
            {"out": X.new_empty(2, 5, 6).double()},
            ArgumentTypeError,
            "`out`: expected torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, "
            "torch.float8_e5m2 or torch.int8 for `a` in torch.float32, got torch.float64",
        ),
        (
            {"out": X.new_empty(2, 5, 6), "out_dtype": torch.float16},
            ArgumentTypeError,
            "`out`: expected torch.float16, as `out_dtype` says, got torch.float32",
        ),
        ({"out_dtype": torch.int32}, ArgumentTypeError, "`out_dtype`: expected torch.bfloat16, "),
        ({"precision": "fp16"}, ArgumentError, "`precision`: expected None, 'tf32' or 'fp32', got"),
        (
            {"a": torch.empty(2, 5, 4, dtype=torch.int4)},
            ArgumentTypeError,
            "got torch.int4: layoutconv.pack_int4 packs numbers of 4 bits into int8, two in each",
        ),
        (
            {"a": X.to(torch.complex64)},
            ArgumentTypeError,
            "got torch.complex64: the convolutions layoutconv.conv1d to conv_transpose3d take it",
        ),
        (
            {"b": W.double()},
            ArgumentTypeError,
            "`b`: expected torch.float32, the dtype of `a`",
        ),
        (
            {"a": X.long()},
            ArgumentTypeError,
            "argument `a`: expected float16, bfloat16, float32",
        ),
        ({"view": None}, ArgumentTypeError, "argument `view`: expected a GemmView, got NoneType"),
        ({"a": X.numpy()}, ArgumentTypeError, "argument `a`: expected a torch tensor, got ndarray"),
        ({"b": None}, ArgumentTypeError, "argument `b`: expected a torch tensor, got NoneType"),
        ({"b": W.to("meta")}, ArgumentError, "argument `b`: expected device cpu, that of `a`, got"),
    ],
)
def test_errors_name_the_argument(arguments, error, message):
    with pytest.raises(error) as caught:
        execute(**{"view": fprop_view(PROBLEM), "a": X, "b": W, **arguments})
    assert message in str(caught.value)


def test_a_result_has_memory_of_its_own():
    """A tile would read what another tile wrote: in depthwise views, even a CPU did."""
    problem = ConvProblem((2, 16, 8), (8, 3), padding=1, groups=8)
    memory = torch.randn(2 * 16 * 8 + 64)
    x, w = memory[:256].view(2, 16, 8), torch.randn(8, 3, 1)
    for out in (x, memory[64:].view(2, 16, 8)):
        with pytest.raises(
            ArgumentError,
            match="`out`: expected memory that does not overlap `a`, got memory of `a`",
        ):
            execute(depthwise_fprop_view(problem), x, w, out)
    square = torch.randn(4, 1, 4)
    with pytest.raises(
        ArgumentError, match="`out`: expected memory that does not overlap `b`, got memory of `b`"
    ):
        execute(fprop_view(ConvProblem((4, 1, 4), (4, 1))), torch.randn(4, 1, 4), square, square)


def test_a_result_may_lie_between_the_rows_of_an_operand():
    """Halves of the channels of one tensor share no element."""
    both = torch.randn(1, 9, 8)
    problem = ConvProblem((1, 9, 4), (4, 3), padding=1)
    half = Layout((1, 9, 4), (72, 8, 1))
    view = fprop_view(problem, activation_layout=half, output_layout=half)
    expected = execute(fprop_view(problem), both[..., :4].contiguous(), W[:4])
    execute(view, both[..., :4], W[:4], both[..., 4:])
    assert torch.equal(both[..., 4:], expected)


def test_a_refused_call_does_not_spoil_the_next():
    view = fprop_view(PROBLEM)
    with pytest.raises(ArgumentError):
        execute(view, X[0], W)
    assert torch.equal(execute(view, X, W), execute(view, X.clone(), W.clone()))


def test_strides_of_modes_of_extent_1_do_not_matter():
    x = torch.randn(1, 5, 4)
    strange = x.as_strided((1, 5, 4), (7, 4, 1))
    view = fprop_view(ConvProblem((1, 5, 4), (6, 3)))
    assert torch.equal(execute(view, strange, W), execute(view, x, W))


def test_a_device_that_has_no_executor():
    view = fprop_view(PROBLEM)
    with pytest.raises(ArgumentError, match="`a`: expected a tensor on the CPU or on a CUDA"):
        execute(view, X.to("meta"), W.to("meta"))


@pytest.mark.parametrize("bad", [-2, 3, 2**31 - 1, -(2**31)])
def test_index_entries_out_of_range(bad):
    index = torch.tensor([0, -1, 2, 1], dtype=torch.int32)
    index[1] = bad
    x, w = torch.randn(3, 4), torch.randn(6, 3, 4)
    problem = ConvProblem((1, 4, 4), (6, 3), padding=1)
    view = gather_fprop_view(problem, index, in_rows=3)
    with pytest.raises(ArgumentError, match=r"`view.a`: expected entries in \[-1, 3\), got") as e:
        execute(view, x, w)
    assert str(bad) in str(e.value)
    view = gather_fprop_view(problem, None, index, out_rows=3)
    with pytest.raises(ArgumentError, match=r"`view.d`: expected entries in \[-1, 3\), got"):
        execute(view, torch.randn(1, 4, 4), w)


def test_a_row_that_is_written_twice():
    index = torch.tensor([0, 2, -1, 2], dtype=torch.int32)
    view = gather_fprop_view(ConvProblem((1, 4, 4), (6, 3), padding=1), None, index)
    with pytest.raises(ArgumentError, match=r"distinct rows, .*got row 2 in 2 entries"):
        execute(view, torch.randn(1, 4, 4), torch.randn(6, 3, 4))


def test_memory_between_the_rows_of_a_kernel_map_is_not_looked_at():
    capacity = torch.full((3, 8), 12345, dtype=torch.int32)
    capacity[:, :5] = torch.arange(5, dtype=torch.int32)
    view = kernel_map_view(capacity[:, :5].T, 4, 6, kernel_size=(3,))
    x, w = torch.randn(5, 4), torch.randn(6, 3, 4)
    torch.testing.assert_close(execute(view, x, w), x @ w.sum(1).T)


@pytest.mark.parametrize(
    ("step", "tap", "offset"), [(2, 1, 0), (1, -1, 1), (1, 1, -1), (3, 3, 2), (1, 0, 0)], ids=str
)
def test_windows_over_an_index(step, tap, offset):
    """Windows of two taps whose positions go down, start before the index or end behind it."""
    places = offset + step * torch.arange(5)[:, None] + tap * torch.arange(2)
    inside = (places >= 0) & (places < 7)
    index = torch.full((7,), 99, dtype=torch.int32)  # no row, where no window reads
    index[places[inside]] = (places[inside] - 1).int()
    windows = Layout((5, (4, 2)), (step * E(0), (E(1), tap * E(0))))
    view = GemmView(
        ComposedLayout(indexed_rows(index, 7, 9, 4), (offset, 0), windows),
        Layout((6, (4, 2)), (8, (1, 4))),
        Layout((5, 6), (6, 1)),
    )
    x, w = torch.randn(9, 4), torch.randn(6, 2, 4)
    memory = w.permute(0, 2, 1).as_strided((6, 4, 2), (8, 1, 4))
    rows = index[places.clamp(0, 6)].masked_fill(~inside, -1).long()
    read = torch.cat([x, torch.zeros(1, 4)])[rows]
    got = execute(view, x, memory)
    torch.testing.assert_close(got, read.flatten(1) @ w.flatten(1).T)
    index[places[inside][0]] = 9
    with pytest.raises(ArgumentError, match=r"`view.a`: expected entries in \[-1, 9\), got 9"):
        execute(view, x, memory)


def test_an_index_that_another_device_holds():
    index = torch.zeros(27, 5, dtype=torch.int32, device="meta")
    view = kernel_map_view(index.T, 4, 6)
    with pytest.raises(ArgumentError, match=r"`view.a`: expected an index on cpu, where `a` is"):
        execute(view, torch.randn(5, 4), torch.randn(6, 3, 3, 3, 4))


def test_empty_problems_have_empty_results():
    view = fprop_view(ConvProblem((0, 5, 4), (6, 3), padding=1))
    assert execute(view, X[:0], W).shape == (0, 5, 6)
    view = kernel_map_view(torch.zeros(27, 0, dtype=torch.int32).T, 4, 6)
    assert execute(view, torch.empty(0, 4), torch.randn(6, 3, 3, 3, 4)).shape == (0, 6)


def test_a_new_result_is_zero_where_nothing_is_written():
    index = torch.tensor([2, -1, 0], dtype=torch.int32)
    view = gather_fprop_view(ConvProblem((1, 3, 4), (6, 1)), None, index)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        y = execute(view, torch.ones(1, 3, 4), torch.ones(6, 1, 4))
    finally:
        torch.use_deterministic_algorithms(False)
    assert y.tolist() == [[4.0] * 6, [0.0] * 6, [4.0] * 6]


@pytest.mark.parametrize(
    "rows",
    [
        Layout(6, E(0)),
        Layout((2, 3), (3 * E(0), E(0))),
        Layout(6, 2 * E(0)),  # as many as there are, every other one outside
        Layout(6, -1 * E(0)),
        Layout((2, 3), (E(0), E(0))),
        Layout((3, 2), (E(0), 4 * E(0))),
    ],
    ids=str,
)
def test_memory_is_written_whole_or_is_zero(rows):
    """Also where a result has as many elements as its memory, and some of them lie outside."""
    d = ComposedLayout(Layout((6, 2), (2, 1)), 0, Layout((rows.shape, 2), (rows.stride, E(1))))
    places = [locate(d, m, 0) for m in range(6)]
    there = [int(offset) // 2 for offset, valid in places if valid]
    a = Layout((rows.shape, 4), (compact_stride(rows.shape, 4), 1))
    view = GemmView(a, Layout((2, 4), (4, 1)), d)
    assert expected(view).writes_all is (sorted(there) == list(range(6)))
    if len(there) != len(set(there)):
        return
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        x = torch.ones(6, 4).as_strided(flatten(a.shape), flatten(a.stride))
        y = execute(view, x, torch.ones(2, 4))
    finally:
        torch.use_deterministic_algorithms(False)
    assert y[:, 0].tolist() == [4.0 if row in there else 0.0 for row in range(6)]


def test_views_of_convolutions_write_all():
    problem = ConvProblem((2, 9, 8, 32), (64, 3, 3), stride=2, padding=1)
    split = interleaved((2, 5, 4, 64), 32)
    found = [
        fprop_view(problem), wgrad_view(problem), fprop_view(problem, output_layout=split),
        *dgrad_views(ConvProblem((2, 9, 8, 32), (64, 3, 3), padding=1, groups=2)),
        kernel_map_view(torch.zeros(27, 5, dtype=torch.int32).T, 4, 6),
    ]  # fmt: skip
    assert all(expected(view).writes_all for view in found)
    assert not any(expected(view).writes_all for view in dgrad_views(problem))


def test_the_call_is_at_the_top():
    assert lc.execute is execute
    assert lc.conv.fprop_view is fprop_view
    assert lc.sparse.kernel_map_view is kernel_map_view


def test_a_mode_that_moves_two_modes_of_the_coordinate_is_refused() -> None:
    diagonal = Layout((6, 3), (E(0), E(0) + E(1)))
    a = ComposedLayout(Layout((8, 8), (8, 1)), 0, diagonal)
    view = GemmView(a, Layout((2, 3), (3, 1)), Layout((6, 2), (2, 1)))
    with pytest.raises(ArgumentError, match=r"argument `view`.*\(6,3\):\(1@0,1@0\+1@1\)"):
        execute(view, torch.ones(8, 8), torch.ones(2, 3))
