"""Launches of kernels: streams, graphs, and what is compiled when."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv import execute
from layoutconv.conv import ConvProblem, fprop_view, gather_fprop_view
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import GemmView

from .on_device import captured

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


LAST = torch.channels_last


def problem(N: int = 2, size: int = 40) -> ConvProblem:
    return ConvProblem((N, size, size, 64), (128, 3, 3), padding=1)


def data(view: GemmView, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return (
        torch.randn(shape, device="cuda").half(), torch.randn(128, 3, 3, 64, device="cuda").half()
    )  # fmt: skip


def test_the_launch_goes_to_the_current_stream() -> None:
    view = fprop_view(problem())
    a, b = data(view, problem().activation)
    want = execute(view, a, b)
    side = torch.cuda.Stream()
    x, out = torch.full_like(a, torch.nan), torch.empty_like(want)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # what follows waits, unless it is on another stream
        x.copy_(a)
        execute(view, x, b, out)
    side.synchronize()
    assert torch.equal(out, want)


def test_two_streams_at_once() -> None:
    view = fprop_view(problem())
    pairs = [data(view, problem().activation) for _ in range(2)]
    want = [execute(view, *pair) for pair in pairs]
    streams = [torch.cuda.Stream() for _ in pairs]
    outs: list[list[Tensor]] = [[], []]
    torch.cuda.synchronize()
    for _ in range(10):
        for stream, pair, results in zip(streams, pairs, outs, strict=True):
            with torch.cuda.stream(stream):
                results.append(execute(view, *pair))
    torch.cuda.synchronize()
    for results, expected in zip(outs, want, strict=True):
        assert all(torch.equal(result, expected) for result in results)


def test_graphs_are_captured_and_replayed() -> None:
    shape = problem().activation
    index = torch.randperm(2 * 40 * 40, device="cuda").int()
    for view, a_shape in (
        (fprop_view(problem()), shape),
        (gather_fprop_view(problem(), index, index), (2 * 40 * 40, 64)),
    ):
        a, b = data(view, a_shape)
        out = torch.empty_like(execute(view, a, b))
        graph, _ = captured(partial(execute, view, a, b, out))
        for _ in range(3):
            a.copy_(torch.randn_like(a))
            out.fill_(torch.nan)
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out, execute(view, a, b))


def fresh(view: GemmView) -> GemmView:
    """The same view without what was kept with it: dense views are made once per problem."""
    return GemmView(view.a, view.b, view.d)


@pytest.fixture
def compiled(kernel_folder: Path, compilations: list[Any]) -> list[Any]:
    """A list that grows with every kernel that is compiled; none is kept so far."""
    return compilations


def test_sizes_do_not_compile_again(compiled: list[Any]) -> None:
    # All are small, so that the same tile is best for them.
    for N, size in ((1, 8), (1, 9), (2, 7), (1, 11)):
        view = fresh(fprop_view(problem(N, size)))
        a, b = data(view, problem(N, size).activation)
        want = torch.nn.functional.conv2d(
            a.permute(0, 3, 1, 2).double(), b.permute(0, 3, 1, 2).double(), padding=1
        ).permute(0, 2, 3, 1)
        torch.testing.assert_close(execute(view, a, b).double(), want, atol=0.1, rtol=0.01)
        execute(view, a, b)
    assert len(compiled) == 1
    for m in (10, 63, 64, 77):
        entries = torch.full((9, m), -1, dtype=torch.int32, device="cuda").T
        view = kernel_map_view(entries, 64, 128, kernel_size=(3, 3), in_rows=m + 5)
        a, b = data(view, (m + 5, 64))
        assert not execute(view, a, b).any()
    assert len(compiled) == 2


def test_another_view_of_the_same_kind_loads_and_does_not_compile(
    compiled: list[Any],
) -> None:
    from layoutconv.kernels.compile import store

    view = fprop_view(problem(1, 10))
    a, b = data(view, problem(1, 10).activation)
    want = execute(fresh(view), a, b)
    store.unload()
    index = torch.arange(100, dtype=torch.int32, device="cuda")
    assert torch.equal(execute(fresh(view), a, b), want)
    assert len(compiled) == 1
    gathered = gather_fprop_view(problem(1, 10), index)
    assert torch.equal(execute(gathered, a.view(100, 64), b), want)
    assert len(compiled) == 2


def test_what_the_plan_of_a_view_runs_is_what_its_data_are() -> None:
    view = fprop_view(problem(1, 10))
    half = data(view, problem(1, 10).activation)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float16):
        a, b = (t.to(dtype) for t in half)
        assert execute(view, a, b).dtype == dtype
        want = execute(view, a.cpu().double(), b.cpu().double())
        torch.testing.assert_close(execute(view, a, b).cpu().double(), want, atol=0.5, rtol=0.02)


def test_another_device_than_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    view = fprop_view(problem(1, 10))
    a, b = data(view, problem(1, 10).activation)
    want = execute(view, a, b)
    there = execute(view, a.to("cuda:1"), b.to("cuda:1"))
    assert there.device.index == 1
    assert torch.equal(there.cpu(), want.cpu())


def test_calls_that_were_made_before_run_in_threads_of_their_own() -> None:
    """A thread that never asked for a device; its stream; a graph that it captures."""
    x = torch.randn(2, 64, 12, 12, device="cuda").half().contiguous(memory_format=LAST)
    w = torch.randn(64, 64, 3, 3, device="cuda").half().contiguous(memory_format=LAST)
    want = [lc.conv2d(x, w, padding=1) for _ in range(3)][-1]
    torch.cuda.synchronize()
    found: list[Tensor] = []

    def run() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            y = lc.conv2d(x, w, padding=1)
            torch.cuda.current_stream().synchronize()
        found.append(y)

    threads = [Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads)
    assert all(torch.equal(y, want) for y in found)
    graph, y = captured(lambda: lc.conv2d(x, w, padding=1))
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, want)
