"""Rows that go to a device and back, through pieces and not, are the rows."""

from __future__ import annotations

import multiprocessing
import os
import threading

import pytest
import torch

from layoutconv.sparse.stream import staging as module
from layoutconv.sparse.stream.staging import Pieces, Staging, finish, staging

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.uint8]


def numbers(*shape, dtype=torch.int64):
    return torch.arange(torch.Size(shape).numel()).remainder(251).view(shape).to(dtype)


ARRAYS = {
    "compact": lambda dtype: numbers(50, 3, dtype=dtype),
    "one mode": lambda dtype: numbers(50, dtype=dtype),
    "columns": lambda dtype: numbers(50, 9, dtype=dtype)[:, 2:5],
    "every other": lambda dtype: numbers(50, 6, dtype=dtype)[:, ::2],
    "transposed": lambda dtype: numbers(3, 50, dtype=dtype).T,
}
ROWS = {
    "a range": lambda: (slice(7, 41),),
    "a list": lambda: (torch.randperm(50)[:33],),
    "both": lambda: (slice(3, 20), torch.tensor([44, 2, 30])),
    "none": lambda: (slice(4, 4), torch.empty(0, dtype=torch.int64)),
}


@pytest.fixture(params=[False, True], ids=["at once", "through pieces"])
def move(request):
    move = Staging("cpu", 3, staged=request.param, piece_bytes=(16, 64))
    yield move
    move.threads.shutdown()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ARRAYS)
def test_rows_go_there_and_come_back(name, dtype, move):
    array = ARRAYS[name](dtype)
    for make in ROWS.values():
        parts = make()
        under_way = [move.bring(array, part) for part in parts]
        for part, arriving in zip(parts, under_way, strict=True):
            assert torch.equal(arriving.here(), array[part])
        for part in parts:
            back = ARRAYS[name](dtype).zero_()
            finish(move.to_host(array[part], back, part))
            want = torch.zeros_like(array)
            want[part] = array[part]
            assert torch.equal(back, want)


def test_pieces_are_no_more_and_no_larger_than_said():
    move = Staging("cpu", 3, staged=True, piece_bytes=(16, 64))
    array, order = numbers(3000, 3), torch.randperm(3000)
    for _ in range(3):
        tasks = move.to_host(array, torch.empty_like(array), order)
        move.bring(array, order).here()
        finish(tasks)
    assert 1 <= len(move.pieces.made) <= module.PIECES_OF_WORKER * 3
    assert {piece.memory.numel() for piece in move.pieces.made} <= {64}


def test_a_piece_that_is_lent_is_nobody_elses():
    pieces, got = Pieces(2, pinned=False), threading.Event()

    def third():
        with pieces.borrowed(5):
            got.set()

    thread = threading.Thread(target=third)
    with pieces.borrowed(5) as (one, room), pieces.borrowed(5) as (other, its):
        assert one is not other
        assert room.data_ptr() != its.data_ptr()
        thread.start()
        assert not got.wait(0.05)
    thread.join(60)
    assert got.is_set()
    assert len(pieces.made) == 2


def test_a_piece_comes_back_from_a_task_that_fails():
    move = Staging("cpu", 1, staged=True)
    array = numbers(8, 3)
    for _ in range(4):
        with pytest.raises(IndexError):
            finish(move.to_host(array, torch.empty(4, 3, dtype=torch.int64), torch.arange(8)))
    assert torch.equal(move.bring(array, slice(0, 8)).here(), array)


def test_what_is_one_piece_the_caller_moves(watched):
    def note(call):
        return threading.current_thread() is threading.main_thread(), len(call.args[2])

    seen = watched("_gather", module, note=note)
    move = Staging("cpu", 3, staged=True, piece_bytes=(60, 600))
    for rows, pieces in ((9, [9]), (10, [5, 5]), (100, [34, 34, 32]), (160, [50, 50, 50, 10])):
        array = numbers(rows, 3, dtype=torch.int32)
        seen.clear()
        assert torch.equal(move.bring(array, torch.arange(rows)).here(), array)
        assert sorted(seen, reverse=True) == [(len(pieces) == 1, length) for length in pieces]
        assert (move.to_host(array, torch.empty_like(array), slice(0, rows)) == []) is (rows == 9)


def test_threads_are_kept_and_are_no_more_than_torch_has():
    assert staging("cpu") is staging(torch.device("cpu"))
    assert staging("cpu").workers == min(module.WORKERS, torch.get_num_threads())
    assert staging("cpu", threads=1).workers == 1
    assert staging("cpu", threads=512).workers == module.WORKERS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_has_threads_of_its_own():
    array = numbers(50, 3)
    staging("cpu").bring(array, torch.arange(50)).here()
    child = multiprocessing.get_context("fork").Process(target=_moved, args=(array,))
    child.start()
    child.join(60)
    if child.is_alive():
        child.kill()
    assert child.exitcode == 0


def _moved(array):
    got = staging("cpu").bring(array, torch.arange(50)).here()
    assert torch.equal(got, array)
