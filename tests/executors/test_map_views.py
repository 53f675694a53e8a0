"""Views that share what clouds have in common: layouts, checks and plans of those that do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from layoutconv.gpu import map_views, select
from layoutconv.gpu import plan as gpu_plan
from layoutconv.gpu.launch import BoundLaunch, MapPassLaunch, RecordedMapPass, launch_over_map
from layoutconv.gpu.map_passes import (
    MapConv,
    MapTables,
    conv_over,
    conv_pass,
    index_tables,
    pair_tables,
    pairs_over,
    pairs_pass,
)
from layoutconv.gpu.map_views import MapPass, MapView, map_view, representative
from layoutconv.gpu.measured_choices import size_class
from layoutconv.ops import sparse_operators as executor
from layoutconv.ops.epilogue_args import EpilogueArgs
from layoutconv.planning.kernel_key import index_buffer, signature
from layoutconv.sparse import Coordinates, KernelMap, strided_map, submanifold_map
from layoutconv.sparse.maps.tap_pairs import Pairs
from layoutconv.tensors import expected_tensors
from layoutconv.view.gemm_view import GemmView

from ..stand_ins import Gpu

C, K = 16, 24


@pytest.fixture(autouse=True)
def no_gpu(gpu: Gpu) -> Iterator[None]:
    """Kernels are what they were made for; rows are sorted, as for a GPU."""
    map_views.forget()
    gpu.runs_kernels()
    gpu.like("sm_90a")
    gpu.loads(lambda view, spec: (signature(view, spec.along), spec))
    yield
    map_views.forget()


def cloud(rows: int, seed: int) -> Coordinates:
    generator = torch.Generator().manual_seed(seed)
    return Coordinates.of_keys(torch.randperm(16**3, generator=generator)[:rows], (16,) * 3, 1)


MAPS: dict[str, Any] = {
    "submanifold": lambda x: submanifold_map(x),
    "strided": lambda x: strided_map(x, 2, 2),
    "inverse": lambda x: strided_map(x, 2, 2).inverse,
}
CPU = torch.device("cpu")
CLOUDS = (500, 0), (600, 1), (610, 2)  # the last two are of about one size


def launch_of(activation: str | None, dtype: torch.dtype = torch.float16) -> BoundLaunch:
    """A launch for tensors of one type, with an activation or without."""
    ending = EpilogueArgs(None, None, None, activation, 0.01, None).epilogue()
    return BoundLaunch(tuple, torch.empty(0, C, dtype=dtype), dtype, ending)


def views(found: KernelMap, *, in_order: bool) -> list[GemmView]:
    """The views of the forward pass and both gradients."""
    maps = executor.tables(found, (C, K), gradients=True)
    if in_order:
        maps = maps._replace(forward=found.sorted[0], order=found.sorted[1])
    rows, own = len(found.inputs), len(found.outputs)
    shape = K, *found.taps, C
    return [
        executor.conv_view(maps, rows, own, MapConv(shape)),
        executor.conv_view(maps, own, rows, MapConv(shape, 1, True, found.mirrored)),
        executor.pair_products_view(maps, own, rows, K, C)[0],
    ]


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("name", MAPS)
def test_a_view_is_what_its_layouts_say(name: str, in_order: bool) -> None:
    for rows, seed in CLOUDS:
        for view in views(MAPS[name](cloud(rows, seed)), in_order=in_order):
            assert isinstance(view, MapView)
            assert "a" not in view.__dict__
            plain = GemmView(view.a, view.b, view.d)
            assert (view.m, view.n, view.k, view.l) == (plain.m, plain.n, plain.k, plain.l)
            got, want = expected_tensors.expected(view), expected_tensors.expected(plain)
            assert (got.a, got.b, got.d, got.device) == (want.a, want.b, want.d, want.device)
            texts = [(one.a.text, one.b.text, one.d.text) for one in (got, want)]
            assert texts[0] == texts[1]
            assert got.writes_all is want.writes_all
            for one, other in zip(got.indices, want.indices, strict=True):
                assert (one.name, one.rows, one.written) == (other.name, other.rows, other.written)
                assert torch.equal(one.buffer, other.buffer)


@pytest.mark.parametrize("name", MAPS)
def test_a_plan_is_one_that_was_made_for_the_view(name: str) -> None:
    made = 0
    for rows, seed in CLOUDS:
        for view in views(MAPS[name](cloud(rows, seed)), in_order=True):
            assert isinstance(view, MapView)
            key = torch.float16, 0, torch.float16, None, False, "relu", select.ALIGNED
            before = len(view.kind.plans)
            got = gpu_plan.plan_of(view, *key)
            made += len(view.kind.plans) - before
            assert gpu_plan.plan_of(view, *key) is got
            sizes = view.kind.sizes(view)
            plain = GemmView(view.a, view.b, view.d, empty_sums=view.empty_sums)
            want = gpu_plan.Plan(plain, torch.float16, 0, structure="relu", sizes=sizes)
            names = set(vars(want)) - {"problem", "_given", "_alone", "_owner"}
            assert {n: vars(got)[n] for n in names} == {n: vars(want)[n] for n in names}
            for taken, wanted in zip(
                (got._given, got._alone), (want._given, want._alone), strict=True
            ):
                assert taken[:3] == wanted[:3]
                assert tuple(taken[3]) == tuple(wanted[3])
                assert taken[4:] == wanted[4:]
            for kept in view.kind.plans.values():
                # A plan that is kept holds no cloud's memory.
                assert kept._given[:3] == kept._alone[:3] == (None,) * 3
                assert kept._owner is None
            owner = got._owner  # and others keep what has the memory that they give
            held = owner.buffers if isinstance(owner, MapPass) else map(index_buffer, owner)
            assert [None if b is None else b.data_ptr() for b in held] == list(got._given[:3])
    assert made < 3 * len(CLOUDS)


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("name", MAPS)
def test_a_launch_over_a_new_map_is_bound_as_it_is_made(
    name: str, activation: str | None, gpu: Gpu
) -> None:
    """A map of about the size of one before takes no call to bind it; its kernel is given what a
    call would give it.
    """
    gpu.says(current_device=-1)
    of, at_once = launch_of(activation), []
    for rows, seed in (500, 0), (600, 1), (600, 1):
        found = MAPS[name](cloud(rows, seed))
        over = conv_over(*found.sorted, len(found.inputs), MapConv((K, *found.taps, C)))
        made = MapPassLaunch(of, over, (len(found.outputs), K), (K, 1), CPU)
        bound = (
            made._bound_any and made._bound_any[0] if activation is None else made._bound_epilogue
        )
        at_once.append(bound is not None)
        (launcher,) = made._bind((*of._kept_for[:3], None, False, of.structure, select.ALIGNED))
        if bound is not None:
            assert bound == launcher.bound  # type: ignore[attr-defined]
            assert bound[1][0] == found.sorted[0].data_ptr()
    assert at_once == [False, False, True]
    whole = launch_of(activation, torch.float32)  # depends on how it is multiplied
    assert MapPassLaunch(whole, over, (len(found.outputs), K), (K, 1), CPU)._bound == {}


def tables_of(found: KernelMap, name: str) -> tuple[MapTables, tuple[int, int]]:
    """The tables of a pass, and the rows and columns of its result."""
    rows = len(found.inputs), len(found.outputs)
    if name == "back":
        return index_tables(found.inverse.sorted, *rows), (rows[0], C)
    return index_tables(found.sorted, *rows), (rows[1], K)


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("way", ["forward", "back"])
@pytest.mark.parametrize("name", MAPS)
def test_a_launch_of_a_known_plan_is_given_what_another_is(
    name: str, way: str, activation: str | None, gpu: Gpu
) -> None:
    """Tables of a map are all that is new in it, and what memory that is not aligned asks for is
    described when it comes.
    """
    gpu.says(current_device=-1)
    of, known = launch_of(activation), []
    for rows, seed in (500, 0), (600, 1), (600, 1), (600, 1):
        found = MAPS[name](cloud(rows, seed))
        describe = partial(conv_pass, MapConv((K, *found.taps, C), 1, way == "back"))
        tables, shape = tables_of(found, way)
        made = launch_over_map(of, describe, tables, shape, (shape[1], 1))
        known.append(isinstance(made, RecordedMapPass))
        usual = MapPassLaunch(of, describe(tables), shape, (shape[1], 1), CPU)
        key = (*of._kept_for[:3], None, False, of.structure, (2, 16, 16))
        if isinstance(made, RecordedMapPass):
            bound = usual._bound_any[0] if activation is None else usual._bound_epilogue
            assert (made.kernel, made.given) == bound
            assert made._usual is None
            made = made.usual
        assert made.allocate().shape == usual.allocate().shape == shape
        (one,), (other,) = made._bind(key), usual._bind(key)
        assert one.bound == other.bound  # type: ignore[attr-defined]
        usual._bind((*of._kept_for[:3], None, False, of.structure, select.ALIGNED))
    assert known == [False, False, False, True]


def test_known_plans_are_those_of_maps_alike() -> None:
    """Rows in order and rows as they are, few rows and those of no usual map, share no plan."""
    found = submanifold_map(cloud(600, 1))
    index, order = found.sorted
    none = index.new_empty(0)
    kinds = [index_tables((index, one), 600, 600).kind for one in (order, none)]
    assert kinds[0] != kinds[1]
    assert index_tables((index, order), 600, 600).addresses is not None
    for other in (index.contiguous(), index[:1]):
        assert index_tables((other, none), 600, 600).addresses is None
    assert index_tables((index, order[1:]), 600, 600).addresses is None
    assert index_tables((index, order), 1, 600).addresses is None


def test_a_launch_over_pairs_of_a_known_plan(gpu: Gpu) -> None:
    gpu.says(current_device=-1)
    of, known = BoundLaunch(tuple, torch.empty(0, C).half(), torch.float32, None), []
    describe = partial(pairs_pass, K=K, C=C, groups=1)
    for _ in range(3):
        found = submanifold_map(cloud(600, 1))
        pairs = found.pairs(64)
        tables = pair_tables(pairs, 600, 600)
        shape, stride = (pairs.outputs.shape[0], K, C), (K * C, C, 1)
        made = launch_over_map(of, describe, tables, shape, stride)
        usual = MapPassLaunch(of, describe(tables), shape, stride, torch.device("cpu"))
        known.append(isinstance(made, RecordedMapPass))
        if isinstance(made, RecordedMapPass):
            assert [(made.kernel, made.given)] == list(usual._bound_any)
        usual._bind((*of._kept_for[:3], None, False, "", select.ALIGNED))
    assert known == [False, False, True]
    few = Pairs(pairs.outputs[:1], pairs.inputs[:1], pairs.lengths, 64)
    assert pair_tables(few, 600, 600).addresses is None


def test_pairs_of_one_channel_each_are_gathered_by_the_template() -> None:
    """Their products are dots, as those of a depthwise convolution, whose kernels take no index."""
    found = MAPS["strided"](cloud(300, 4))
    view, _ = executor.pair_products_view(
        executor.tables(found, (1, 1), gradients=True), len(found.outputs), 300, 1, 1
    )
    assert view.m == view.n == 1
    assert len(view.a.shape) == 3
    key = torch.float16, 0, torch.float32, None, False, "", select.ALIGNED
    assert isinstance(gpu_plan.plan_of(view, *key), gpu_plan.Plan)


def test_only_what_differs_between_clouds_has_a_class() -> None:
    """A filter's gradient has as many rows as the filter: for 67 in place of 64, the tile of 128
    rows that was chosen, half of it empty, took 132 us where 84 do (C = K = 64, H200)."""
    forward, _, wgrad = views(submanifold_map(cloud(600, 1)), in_order=True)
    assert isinstance(forward, MapView)
    assert isinstance(wgrad, MapView)
    assert forward.kind.sizes(forward) == (representative(600), 1)
    assert wgrad.kind.sizes(wgrad) == (K, representative(wgrad.l))
    assert representative(64) == 67


def test_what_is_no_usual_map_is_a_view_of_its_own() -> None:
    found = submanifold_map(cloud(300, 3))
    none = found.index.new_empty(0)

    def view(index: Tensor, order: Tensor = none) -> GemmView:
        maps = executor.MapTensors(index, order, *[none] * 5)
        return executor.conv_view(maps, 300, 300, MapConv((K, 3, 3, 3, C)))

    assert isinstance(view(found.index), MapView)
    assert not isinstance(view(found.index.contiguous()), MapView)  # row after row
    assert not isinstance(view(found.index[:1]), MapView)
    wrong = torch.arange(299, dtype=torch.int32)
    with pytest.raises(ValueError, match="scatter_index"):
        view(found.index, wrong)
    with pytest.raises(ValueError, match="int32"):
        view(found.index, wrong.new_zeros(300, dtype=torch.int64))
    whole = dataclasses.replace(view(found.index))
    assert whole.m == 300
    assert "kind" not in vars(whole)


def test_gradients_of_maps_without_tables_for_them() -> None:
    found = strided_map(cloud(300, 4), 3, 2, padding=1)
    few = executor.tables(found, (C, K), gradients=False)
    in_order = few._replace(forward=found.sorted[0], order=found.sorted[1])
    grad, w = torch.randn(len(found.outputs), K), torch.randn(K, 3, 3, 3, C)
    every = executor.tables(found, (C, K), gradients=True)
    want = executor.conv(grad, w, *every, 300, 1, True)
    for maps in (few, in_order):
        got = executor.conv(grad, w, *maps, 300, 1, True)
        torch.testing.assert_close(got, want)


def test_sizes_of_one_class_are_of_one_power_of_two() -> None:
    """The tile of a class is chosen once, and so is the entry of what was measured."""
    sizes = range(2, 5000)
    classes = {representative(size) for size in sizes}
    assert len(classes) < 95
    for size in sizes:
        middle = representative(size)
        assert abs(middle / size - 1) < 0.05 + 0.5 / size
        if middle > 8:  # of smaller ones the middle is rounded far
            assert size_class(middle) == size_class(size)


def test_sums_that_may_be_empty_are_so_in_views_of_a_kind() -> None:
    rows, lengths = torch.zeros(4, 64, dtype=torch.int32), torch.ones(4, dtype=torch.int64)
    over = pairs_over(Pairs(rows, rows, lengths, 64), 9, 9, 16, 16)
    for _ in range(2):  # the second is made of the first one's kind
        assert map_view(over).empty_sums
