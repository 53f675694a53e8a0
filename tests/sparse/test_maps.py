"""Kernel maps against a Python dictionary, and against what torch's dense convolutions reach."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from layoutconv.errors import ArgumentError
from layoutconv.sparse import (
    Coordinates,
    KernelMap,
    SparseTensor,
    strided_map,
    submanifold_map,
    tap_offsets,
    transposed_map,
)
from layoutconv.sparse.maps.taps import Taps

from .clouds import (
    clouds,
    expected_index,
    grid_cells,
    of_cells,
    offset_sets,
    reads,
    rows_of,
    transposed,
)

ranks = st.integers(1, 4)
examples = settings(max_examples=80, deadline=None)


@st.composite
def filters(draw, rank):
    """Arguments of a convolution, lists and pairs among them."""
    high = 4 if rank < 4 else 2

    def per_axis(least, most):
        return [draw(st.integers(least, most)) for _ in range(rank)]

    padding = [(draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(rank)]
    return {
        "kernel_size": per_axis(1, high),
        "stride": per_axis(1, 5),
        "padding": padding,
        "dilation": per_axis(1, 3),
    }


def box_offsets(kernel_size, padding, dilation, **_):
    modes = zip(kernel_size, padding, dilation, strict=True)
    return list(product(*([t * d - near for t in range(k)] for k, (near, _), d in modes)))


def strided_extents(shape, kernel_size, stride, padding, dilation):
    modes = zip(shape, kernel_size, stride, padding, dilation, strict=True)
    return [(e + sum(p) - d * (k - 1) - 1) // s + 1 for e, k, s, p, d in modes]


def check_outputs(found, offsets, stride, shape, *, is_transposed, capacity=None):
    """Its outputs are the cells of a grid that some input reaches, in lexicographic order."""
    x, y = found.inputs, found.outputs
    assert y.spatial_shape == tuple(shape)
    row_of = rows_of(x)
    if is_transposed:
        cells = {reads(cell, stride, offset) for cell in row_of for offset in offsets}
        expected = sorted(cells & set(grid_cells(shape, x.batch_size)))
    else:
        expected = [
            cell
            for cell in grid_cells(shape, x.batch_size)
            if any(reads(cell, stride, offset) in row_of for offset in offsets)
        ]
    if capacity is not None:
        assert y.padded
        assert not y.overflowed
        assert int(y.total) == len(expected)
        assert (y.cells[len(expected) :] == torch.tensor([-1] + [0] * x.rank)).all()
        assert len(y) == capacity
    assert list(map(tuple, y.cells[: len(expected)].tolist())) == expected
    assert len(y) == len(expected) or capacity is not None


def check_map(found, arguments, shape, *, is_transposed, capacity):
    """Outputs and index of a map of a filter, whose ``arguments`` are those of a convolution."""
    offsets, stride = box_offsets(**arguments), arguments["stride"]
    check_outputs(found, offsets, stride, shape, is_transposed=is_transposed, capacity=capacity)
    check_index(found, offsets, stride, is_transposed=is_transposed)


def check_index(found, offsets, stride, *, is_transposed):
    x, y, index = found.inputs, found.outputs, found.index
    if is_transposed:
        feeds = expected_index(y, x, stride, offsets)
        assert index.tolist() == transposed(feeds, len(y), len(offsets))
    else:
        assert index.tolist() == expected_index(x, y, stride, offsets)
    assert index.dtype == torch.int32
    assert index.T.is_contiguous()


@examples
@given(st.data(), ranks)
def test_submanifold_map_of_any_set_of_offsets(data, rank):
    x = data.draw(clouds(rank))
    offsets = data.draw(offset_sets(rank))
    found = submanifold_map(x, offsets=offsets)
    check_index(found, offsets, (1,) * rank, is_transposed=False)
    assert found.taps == (len(offsets),)
    opposite = [tuple(-c for c in offset) for offset in reversed(offsets)]
    assert found.mirrored == (offsets == opposite)


@examples
@given(st.data(), ranks)
def test_half_a_search_finds_what_a_whole_one_does(data, rank):
    x = data.draw(clouds(rank))
    kernel_size = [data.draw(st.sampled_from([1, 3, 5][: 4 - rank or 1])) for _ in range(rank)]
    dilation = [data.draw(st.integers(1, 4)) for _ in range(rank)]
    offsets = tap_offsets(kernel_size, dilation, rank)
    assert Taps.centred(rank, kernel_size, dilation).mirrored
    whole = x.table.search(x.cells, (1,) * rank, offsets)
    assert torch.equal(x.table.search_own(offsets), whole)


@examples
@given(st.data(), ranks, st.booleans())
def test_strided_map(data, rank, bounded):
    x = data.draw(clouds(rank))
    arguments = data.draw(filters(rank))
    shape = strided_extents(x.spatial_shape, **arguments)
    if min(shape) < 1:
        with pytest.raises(ArgumentError, match="`kernel_size`: expected a filter that fits"):
            strided_map(x, **arguments)
        return
    rows = len(strided_map(x, **arguments).outputs)
    capacity = data.draw(st.integers(rows, rows + 9)) if bounded else None
    if bounded and rows:
        with pytest.raises(ArgumentError, match=f"`capacity`: expected {rows} rows or more"):
            strided_map(x, **arguments, capacity=rows - 1)
    found = strided_map(x, **arguments, capacity=capacity)
    check_map(found, arguments, shape, is_transposed=False, capacity=capacity)
    assert found.taps == tuple(arguments["kernel_size"])


@examples
@given(st.data(), ranks, st.booleans())
def test_transposed_map(data, rank, bounded):
    x = data.draw(clouds(rank))
    arguments = data.draw(filters(rank))
    more = [data.draw(st.integers(0, 2)) for _ in range(rank)]
    shape = [
        (e - 1) * s - sum(p) + d * (k - 1) + o + 1
        for e, o, (k, s, p, d) in zip(
            x.spatial_shape, more, zip(*arguments.values(), strict=True), strict=True
        )
    ]
    assume(torch.Size(shape).numel() < 20_000)
    if min(shape) < 1:
        with pytest.raises(ArgumentError, match="`padding`: expected less than"):
            transposed_map(x, **arguments, output_padding=more)
        return
    rows = len(transposed_map(x, **arguments, output_padding=more).outputs)
    capacity = data.draw(st.integers(rows, rows + 9)) if bounded else None
    found = transposed_map(x, **arguments, output_padding=more, capacity=capacity)
    check_map(found, arguments, shape, is_transposed=True, capacity=capacity)


@examples
@given(st.data(), ranks, st.booleans())
def test_outputs_of_any_set_of_offsets(data, rank, is_transposed):
    x = data.draw(clouds(rank))
    offsets = data.draw(offset_sets(rank))
    stride = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    make = transposed_map if is_transposed else strided_map
    found = make(x, stride=stride, offsets=offsets)
    shape = [
        e * s if is_transposed else -(-e // s) for e, s in zip(x.spatial_shape, stride, strict=True)
    ]
    check_outputs(found, offsets, stride, shape, is_transposed=is_transposed)
    check_index(found, offsets, stride, is_transposed=is_transposed)
    shape = [data.draw(st.integers(0, 8 if rank < 4 else 4)) for _ in range(rank)]
    found = make(x, stride=stride, offsets=offsets, spatial_shape=shape)
    check_outputs(found, offsets, stride, shape, is_transposed=is_transposed)
    check_index(found, offsets, stride, is_transposed=is_transposed)


@examples
@given(st.data(), ranks, st.booleans())
def test_outputs_that_are_given(data, rank, is_transposed):
    x, y = data.draw(clouds(rank)), data.draw(clouds(rank))
    y = Coordinates(y.cells, y.spatial_shape, 3, padded=y.padded)
    x = Coordinates(x.cells, x.spatial_shape, 3, padded=x.padded)
    arguments = data.draw(filters(rank))
    make = transposed_map if is_transposed else strided_map
    found = make(x, **arguments, outputs=y)
    assert found.outputs is y
    assert found.inputs is x
    assert y.origin is None
    check_index(found, box_offsets(**arguments), arguments["stride"], is_transposed=is_transposed)


@examples
@given(st.data(), ranks, st.sampled_from([submanifold_map, strided_map, transposed_map]))
def test_inverse_exchanges_inputs_and_outputs(data, rank, make):
    x = data.draw(clouds(rank))
    arguments = {} if make is submanifold_map else {"stride": 2, "dilation": 2}
    if arguments:
        arguments["padding"] = 2 if make is strided_map else 1
    found = make(x, 3 if rank < 4 else 2, **arguments)
    back = found.inverse
    assert back.inverse is found
    assert (back.inputs, back.outputs) == (found.outputs, found.inputs)
    assert (back.taps, back.mirrored) == (found.taps, found.mirrored)
    assert back.index.tolist() == transposed(found.index.tolist(), len(x), found.index.shape[1])
    made_by_hand = KernelMap(back.inputs, back.outputs, back.taps, back.index)
    assert torch.equal(made_by_hand.inverse.index, found.index)
    if found.mirrored:
        assert torch.equal(back.index, found.index.flip(1))


@examples
@given(st.data(), st.integers(1, 3), st.booleans())
def test_outputs_are_what_a_dense_convolution_reaches(data, rank, is_transposed):
    x = data.draw(clouds(rank))
    kernel_size = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    stride, dilation = [data.draw(st.integers(1, 3)) for _ in "ab"]
    padding = data.draw(st.integers(0, 2))
    more = data.draw(st.integers(0, max(stride, dilation) - 1)) if is_transposed else 0
    occupied = torch.zeros(x.batch_size, 1, *x.spatial_shape)
    for batch, *cell in rows_of(x):
        occupied[(batch, 0, *cell)] = 1
    weight = torch.ones(1, 1, *kernel_size)
    make = transposed_map if is_transposed else strided_map
    arguments = {"stride": stride, "padding": padding, "dilation": dilation}
    if is_transposed:
        arguments["output_padding"] = more
    try:
        found = make(x, kernel_size, **arguments)
    except ArgumentError:
        assume(False)
    name = f"conv_transpose{rank}d" if is_transposed else f"conv{rank}d"
    around = getattr(torch.nn.functional, name)(occupied, weight, **arguments)[:, 0]
    assert found.outputs.spatial_shape == around.shape[1:]
    assert torch.equal((around > 0.5).nonzero().int(), found.outputs.cells)
    counts = (found.index >= 0).sum(1)
    assert torch.equal(around[tuple(found.outputs.cells.long().T)].round().long(), counts)


@examples
@given(st.data(), ranks, st.randoms(use_true_random=False))
def test_permuting_the_rows_permutes_a_submanifold_map(data, rank, random):
    x = data.draw(clouds(rank))
    order = list(range(len(x)))
    random.shuffle(order)
    permuted = Coordinates(x.cells[order], x.spatial_shape, x.batch_size, padded=x.padded)
    offsets = data.draw(offset_sets(rank))
    index, other = (submanifold_map(c, offsets=offsets).index for c in (x, permuted))
    now_at = torch.empty(len(x) + 1, dtype=torch.int32)  # the last is for -1
    now_at[order] = torch.arange(len(x), dtype=torch.int32)
    now_at[-1] = -1
    assert torch.equal(other, now_at[index[order].long()])


FAR = 2**31 - 1


@pytest.mark.parametrize("images", [1, 2])
def test_cells_at_the_ends_of_int32_and_of_the_keys(images):
    # Two images are 2^63 - 2^33 + 2 cells: with a halo they would not fit into 63 bits.
    rows = [(0, 0, 0), (0, 0, FAR - 1), (0, 1, 0), (0, FAR - 1, FAR - 1), (0, FAR - 1, 0)]
    x = of_cells([(images - 1, *at) for _, *at in rows], (FAR, FAR), images)
    for offsets in (
        [(0, -1), (0, 1)],
        [(-1, 1), (1, 0), (FAR, FAR), (-FAR, 2 - FAR), (0, 1 - FAR)],
    ):
        found = submanifold_map(x, offsets=offsets)
        check_index(found, offsets, (1, 1), is_transposed=False)
    found = strided_map(x, 3, 2, 1)
    check_index(found, tap_offsets(3, 1, 2), (2, 2), is_transposed=False)
    half = (FAR - 1) // 2
    ends = [[0, 0], [0, half], [1, 0], [half, 0], [half, half]]
    assert found.outputs.cells.tolist() == [[images - 1, *at] for at in ends]


def test_axes_that_shrink_and_grow_never_pass_through_a_grid_that_is_too_great():
    x = of_cells([(0, 2**10, 2**30, 7)], (2**11, FAR, 2**20), 1)
    found = strided_map(
        x, offsets=[(0, 0, 0)], stride=(1, 2**20, 1), spatial_shape=(FAR, 2**11, 2**20)
    )
    assert found.outputs.cells.tolist() == [[0, 2**10, 2**10, 7]]


def test_a_centre_far_outside_reads_nothing():
    """2^30 * 4 is 0 in 32 bits, and the end of a row is not the start of the next."""
    x = of_cells([(0, 0, 0), (0, 1, 0), (0, 0, 5)], (2, 6), 1)
    y = of_cells([(0, 2**30, 0), (0, 0, 0), (0, 0, 2**30), (0, 0, 1)], (FAR, FAR), 1)
    found = strided_map(x, offsets=[(0, 0), (0, 2), (0, 1)], stride=4, outputs=y)
    assert found.index.tolist() == [[-1] * 3, [0, -1, -1], [-1] * 3, [-1, -1, 2]]
    back = transposed_map(y, offsets=[(0, 0), (0, 2), (0, 1)], stride=4, outputs=x)
    assert back.index.tolist() == [[1, -1, -1], [-1] * 3, [-1, -1, 3]]


@pytest.mark.parametrize("shape", [(0,), (5, 0), (0, 0, 2), (1,), (1, 1, 1, 1)])
@pytest.mark.parametrize("batch_size", [0, 1, 2])
def test_clouds_without_cells(shape, batch_size):
    x = of_cells([], shape, batch_size)
    for found in (
        submanifold_map(x),
        submanifold_map(x, offsets=[(1,) * len(shape)]),
        strided_map(x, 1, 2),
        strided_map(x, 3, 2, 1, capacity=4),
        transposed_map(x, 2, 2),
        transposed_map(x, 2, 2, capacity=0),
    ):
        assert (found.index == -1).all()
        assert (found.inverse.index == -1).all()
        assert found.index.shape == (len(found.outputs), torch.Size(found.taps).numel())
        assert found.pairs(8).outputs.shape == (0, 8)
        assert len(found.sorted[1]) == len(found.outputs)


def test_a_single_cell_and_an_image_without_any():
    x = of_cells([(1, 2)], (3,), 3)
    assert submanifold_map(x).index.tolist() == [[-1, 0, -1]]
    down = strided_map(x, 3, 2, 1)
    assert (down.outputs.cells.tolist(), down.index.tolist()) == ([[1, 1]], [[-1, 0, -1]])
    up = transposed_map(down.outputs, 2, 2)
    assert up.outputs.cells.tolist() == [[1, 2], [1, 3]]


CELLS = [(0, 1, 2), (0, 0, 0)]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("capacity", {"capacity": -1}),
        ("capacity", {"capacity": 2.5}),
        ("capacity", {"capacity": 2**31}),
        ("capacity", {"capacity": 8, "outputs": of_cells(CELLS, (4, 4), 1)}),
        ("spatial_shape", {"spatial_shape": (4,)}),
        ("spatial_shape", {"spatial_shape": (4, -1)}),
        ("spatial_shape", {"spatial_shape": (2, 2), "outputs": of_cells(CELLS, (4, 4), 1)}),
        ("outputs", {"outputs": of_cells(CELLS, (4, 4), 2)}),
        ("outputs", {"outputs": of_cells([(0, 1)], (4,), 1)}),
        ("outputs", {"outputs": torch.zeros(1, 3, dtype=torch.int32)}),
        ("coords", {"outputs": of_cells([(0, 1, 4)], (4, 4), 1)}),
        ("coords", {"outputs": of_cells(CELLS[:1] * 2, (4, 4), 1)}),
        ("stride", {"stride": 0}),
        ("stride", {"stride": 2**31}),
        ("stride", {"stride": (1, 2, 3)}),
        ("padding", {"padding": -1}),
        ("dilation", {"kernel_size": 3, "dilation": (1, 2**31 - 1)}),
        ("kernel_size", {"kernel_size": 2.5}),
        ("kernel_size", {"kernel_size": "33"}),
        ("kernel_size", {"kernel_size": 65}),
        ("offsets", {"offsets": []}),
        ("offsets", {"offsets": [(1, 2, 3)]}),
        ("offsets", {"offsets": [(0, 0.5)]}),
        ("offsets", {"offsets": [3, 4]}),
        ("offsets", {"offsets": [(0, 1), (0, 1)]}),
        ("offsets", {"offsets": [(0, 2**31)]}),
        ("padding", {"offsets": [(0, 1)], "padding": 1}),
        ("dilation", {"offsets": [(0, 1)], "dilation": (1, 2)}),
    ],
)
@pytest.mark.parametrize("make", [strided_map, transposed_map])
def test_errors_name_the_argument(make, name, arguments):
    with pytest.raises(ArgumentError) as caught:
        make(of_cells(CELLS, (4, 4), 1), **arguments)
    assert caught.value.name == name


@pytest.mark.parametrize("make", [submanifold_map, strided_map, transposed_map])
def test_a_map_is_of_coordinates(make):
    with pytest.raises(
        ArgumentError, match=r"`coordinates`: expected Coordinates, such as .* got T"
    ):
        make(of_cells(CELLS, (4, 4), 1).cells)


def test_padding_that_is_not_expected_is_refused():
    rows = [(0, 1), (-1, 0)]
    with pytest.raises(ArgumentError, match=r"column 0 in \[0, 1\), got \[-1, 0\] in row 1"):
        submanifold_map(of_cells(rows, (4,), 1))
    assert submanifold_map(of_cells(rows, (4,), 1, padded=True)).index.tolist() == [
        [-1, 0, -1],
        [-1, -1, -1],
    ]


def test_a_sparse_tensor_is_no_size():
    x = SparseTensor(torch.ones(1, 2), torch.zeros(1, 3, dtype=torch.int32), (4, 4), 1)
    for wrong in (x, [x, x, x]):  # whose image is one such again
        with pytest.raises(ArgumentError, match="`kernel_size`: expected an integer >= 1, or 3"):
            tap_offsets(wrong)


def test_taps_are_keys_in_code_that_torch_compiles() -> None:
    """Torch 2.14 traces their hash, but no lock of a cached property (Python 3.10 and 3.11)."""

    def count(x: torch.Tensor) -> torch.Tensor:
        return x + len({Taps.centred(2, 3): 0, Taps.strided(2, 3, 1, 1): 1})

    compiled = torch.compile(count, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(1)) == 1
