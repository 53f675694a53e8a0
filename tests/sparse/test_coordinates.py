"""Maps and facts that coordinates keep, for how long, and what copies of them have."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from contextlib import contextmanager

import pytest
import torch

from layoutconv.errors import ArgumentError
from layoutconv.sparse import (
    KernelMap,
    SparseTensor,
    strided_map,
    submanifold_map,
    transposed_map,
)

from .clouds import of_cells

ROWS = [(0, 3, 1), (0, 0, 0), (1, 2, 2), (0, 3, 2)]


def cloud():
    return of_cells(ROWS, (5, 4), 2)


@contextmanager
def no_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_the_same_call_returns_the_same_map():
    x, z = cloud(), cloud()
    for make, arguments in (
        (submanifold_map, {}),
        (submanifold_map, {"offsets": [(0, 1), (2, 0)]}),
        (strided_map, {"stride": 2, "padding": 1}),
        (strided_map, {"stride": 2, "padding": 1, "capacity": 16}),
        (strided_map, {"outputs": z}),
        (transposed_map, {}),
        (transposed_map, {"outputs": z}),
    ):
        found = make(x, **arguments)
        assert make(x, **arguments) is found
        assert make(z, **arguments) is not found
        assert found.inverse is found.inverse
        assert found.sorted is found.sorted
    assert submanifold_map(x, [3, 3]) is submanifold_map(x, (3, 3)) is submanifold_map(x, 3)
    assert strided_map(x, capacity=30) is not strided_map(x)


def test_a_map_that_no_one_holds_is_not_made_again():
    x = cloud()
    index = submanifold_map(x).index
    down = strided_map(x, 2, 2)
    cells, deeper = down.outputs.cells, submanifold_map(down.outputs).index
    down.views["a plan"] = plan = object()
    del down
    assert submanifold_map(x).index is index
    again = strided_map(x, 2, 2)
    assert again.outputs.cells is cells
    assert submanifold_map(again.outputs).index is deeper
    assert again.views["a plan"] is plan
    assert again.outputs.origin is again


def test_cells_know_the_map_they_come_from_and_keep_its_inputs():
    x = cloud()
    y = strided_map(x, 3, 2, 1).outputs
    z = transposed_map(y, 2, 2).outputs
    assert x.origin is None
    assert y.origin is strided_map(x, 3, 2, 1)
    rows = x.cells
    with no_collector():
        del x
        back = y.origin.inverse
        assert back.outputs.cells is rows
        assert back.inputs is y
        assert z.origin.inputs is y
    assert back.outputs.origin is None


def test_all_is_freed_with_the_last_of_its_cells():
    """Index buffers of a pass may be all the memory of a GPU: no circle may hold them."""
    with no_collector():
        x, given = cloud(), cloud()
        y = strided_map(x, 3, 2, 1).outputs
        maps = [
            submanifold_map(x),
            submanifold_map(y),
            y.origin,
            strided_map(x, outputs=given),
            strided_map(given, outputs=x),
            transposed_map(y, 3, 2, 1, outputs=x),
            transposed_map(y, 2, 2),
        ]
        held = [m.index for m in maps] + [m.inverse.index for m in maps]
        held += [m.sorted[0] for m in maps] + [m.pairs(4).inputs for m in maps]
        held += [m.outputs.cells for m in maps]
        alive = [weakref.ref(tensor) for tensor in held]
        alive += [weakref.ref(cells) for cells in (x, y, given)]
        del x, given, maps, held
        assert alive[0]() is not None
        del y
        assert [ref() for ref in alive] == [None] * len(alive)


def test_a_map_to_given_cells_goes_with_them():
    """Another object may get the id of one that is gone."""
    x = cloud()
    with no_collector():
        for column in range(4):
            y = of_cells([(0, 3, column)], (5, 4), 2)
            assert strided_map(x, 1, outputs=y).index.tolist() == [[{1: 0, 2: 3}.get(column, -1)]]
            index = weakref.ref(strided_map(x, 1, outputs=y).index)
            del y
            assert index() is None


@pytest.mark.parametrize("copied", [copy.copy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_have_the_cells_and_what_is_known_of_them(copied):
    x = cloud().check()
    y = strided_map(x, 3, 2, 1).outputs
    again = copied(y)
    assert again is not y
    assert torch.equal(again.cells, y.cells)
    assert (again.spatial_shape, again.batch_size, again.padded) == (y.spatial_shape, 2, False)
    assert again.origin is None
    assert torch.equal(submanifold_map(again).index, submanifold_map(y).index)
    assert copy.deepcopy(y) is y


def test_pickled_map():
    x = cloud()
    found = submanifold_map(x)
    found.views["a plan"] = lambda: None
    again = pickle.loads(pickle.dumps(found))
    assert again.inputs is again.outputs
    assert torch.equal(again.index, found.index)
    assert again.index.T.is_contiguous()
    assert (again.taps, again.mirrored, again.views) == ((3, 3), True, {})
    assert torch.equal(again.inverse.index, found.inverse.index)
    down = strided_map(x, 3, 2, 1)
    again = pickle.loads(pickle.dumps(down))
    assert torch.equal(again.inputs.cells, x.cells)
    assert torch.equal(again.outputs.cells, down.outputs.cells)
    assert torch.equal(again.index, down.index)


def test_map_of_the_users_own():
    x = cloud()
    index = torch.tensor([[0, 1], [-1, 0], [2, 3], [3, 2]], dtype=torch.int32)
    found = KernelMap(x, x, (2,), index)
    assert found.inverse.index.tolist() == [[0, 1], [-1, 0], [2, 3], [3, 2]]
    for bad, name in ((index.long(), "torch.int64"), (index[:3], r"\(3, 2\)")):
        with pytest.raises(ArgumentError, match=f"`index`: expected .*, got {name}"):
            KernelMap(x, x, (2,), bad)
    with pytest.raises(ArgumentError, match=r"`index`: .*on the outputs' cpu, got meta"):
        KernelMap(x, x, (2,), index.to("meta"))


def test_cells_are_checked_once():
    x = cloud()
    assert x.check() is x
    x.table.status.fill_(1)
    assert x.check() is x
    y = cloud()
    y.table.status[0] = 4
    with pytest.raises(ArgumentError, match="distinct cells, got"):
        submanifold_map(y)


def test_a_capacity_that_was_too_small_says_so():
    """As on a GPU, where it is known only to who waits: cells that came of such ones, too."""
    x = of_cells([(0, 1), (0, 4), (0, 8)], (10,), 1)
    y = strided_map(x, 2, 2, capacity=3).outputs
    z = strided_map(y, 1, 1, capacity=5).outputs
    assert [it.overflowed for it in (x, y, z)] == [False] * 3
    tensor = SparseTensor(torch.ones(5, 1), z)
    assert len(tensor.unpadded()) == 3
    y.total.fill_(7)  # as if there had been more
    assert y.overflowed
    assert z.overflowed
    assert tensor.overflowed
    assert not x.overflowed
    for wait in (tensor.unpadded, tensor.dense, lambda: tensor[0]):
        with pytest.raises(ArgumentError, match=r"`capacity`: expected 7 rows or more.* got 3"):
            wait()
